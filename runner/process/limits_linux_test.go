package process

import (
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A limit of address space that leaves no room for threads is refused with what to do.
func TestTooLittleAddressSpaceIsRefused(t *testing.T) {
	const size = 1 << 30
	for limit, good := range map[uint64]bool{0: false, size: false, size + spareSpace - 1: false, size + spareSpace: true, math.MaxUint64: true} {
		if err := checkSpace(limit, size); (err == nil) != good {
			t.Errorf("a limit of %d for %d bytes: %v", limit, size, err)
		}
	}
	if err := CheckLimits(); err != nil {
		t.Errorf("without a limit: %v", err)
	}
	restrict(t, unix.RLIMIT_AS, 1<<40)
	if err := CheckLimits(); err != nil {
		t.Errorf("with a large limit: %v", err)
	}
	if err := checkSpace(1000<<20, 900<<20); err == nil || !strings.Contains(err.Error(), "is 1000 MiB and a runner needs 1157 MiB") || !strings.Contains(err.Error(), "raise the limit") {
		t.Errorf("got %v", err)
	}
}
