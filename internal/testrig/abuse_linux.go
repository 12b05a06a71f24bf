package testrig

import (
	"fmt"
	"os"
	"strings"
)

// ResidentMemory returns the resident memory of a process in bytes, 0 if the process does not exist.
func ResidentMemory(pid int) (bytes int64) {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(raw)) {
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &bytes); n == 1 {
			return bytes << 10
		}
	}
	return 0
}
