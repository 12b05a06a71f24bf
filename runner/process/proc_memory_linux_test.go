package process

import (
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A read of a process's memory that hangs is given up after memoryReadTimeout. While it hangs, no
// process of the same account is read.
func TestHungMemoryReadIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memoryReaders{hung: map[uint32]int{}}
		answer := make(chan struct{})
		began := time.Now()
		if _, ok := m.read(os.Getpid(), func() string { <-answer; return "late" }); ok ||
			time.Since(began) != memoryReadTimeout {
			t.Errorf("one that does not answer: %t after %v", ok, time.Since(began))
		}
		if _, ok := m.read(os.Getpid(), func() string { t.Error("another one is read meanwhile"); return "" }); ok ||
			time.Since(began) != memoryReadTimeout {
			t.Errorf("another one: %t after %v", ok, time.Since(began))
		}
		close(answer)
		synctest.Wait()
		for range 2 {
			if text, ok := m.read(os.Getpid(), func() string { return "here" }); !ok || text != "here" {
				t.Errorf("afterwards: %q, %t", text, ok)
			}
		}
		if len(m.idle) != 1 || len(m.hung) != 0 || m.anyHung.Load() {
			t.Errorf("left: %d readers, %v", len(m.idle), m.hung)
		}
		close(m.idle[0].requests)
	})
}

// The peak memory is that of the command, not that of the process that started it.
func TestPeakMemoryBelongsToCommand(t *testing.T) {
	var own unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &own); err != nil {
		t.Fatal(err)
	}
	more := own.Maxrss<<10 + 100<<20
	for line, least := range map[string]int64{"true": 0,
		fmt.Sprintf("head -c %d /dev/zero | tail -c %[1]d | wc -c", more): more} {
		c := command(t, "/bin/sh", "-c", line)
		w := NewWorker(nil)
		r := w.Run(c)
		w.Close()
		if r.ExitCode != 0 || r.PeakRSS < least || least == 0 && r.PeakRSS != 0 {
			t.Errorf("%s: %+v", line, r)
		}
	}
}
