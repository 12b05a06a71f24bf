//go:build linux || windows

package testrig

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
)

// LogLines returns the lines of the service's log that have the given message.
func (q *Queue) LogLines(message string) (lines []Fields) {
	files, _ := filepath.Glob(q.Path("stderr-*"))
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			q.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			var m Fields
			if json.Unmarshal([]byte(line), &m) == nil && m["msg"] == message {
				lines = append(lines, m)
			}
		}
	}
	return lines
}
