package process

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// The result contains the peak memory of the command, not that of the process that started it.
func TestPeakMemoryExcludesParentProcess(t *testing.T) {
	var own unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &own); err != nil {
		t.Fatal(err)
	}
	more := own.Maxrss<<10 + 100<<20
	for line, least := range map[string]int64{"true": 0,
		fmt.Sprintf("head -c %d /dev/zero | tail -c %[1]d | wc -c", more): more} {
		c := newTestCommand(t, "/bin/sh", "-c", line)
		w := NewWorker(nil)
		r := w.Run(c)
		w.Close()
		if r.ExitCode != 0 || r.PeakRSSBytes < least || least == 0 && r.PeakRSSBytes != 0 {
			t.Errorf("%s: the result is %+v, want exit code 0 and a peak of at least %d bytes", line, r, least)
		}
	}
}
