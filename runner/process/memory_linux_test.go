package process

import (
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// A process whose memory does not answer is waited for once, and another one of its account not
// at all until it does.
func TestMemoryThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memoryReaders{hung: map[uint32]int{}}
		answer := make(chan struct{})
		began := time.Now()
		if _, ok := m.read(os.Getpid(), func() string { <-answer; return "late" }); ok || time.Since(began) != answerWithin {
			t.Errorf("one that does not answer: %t after %v", ok, time.Since(began))
		}
		if _, ok := m.read(os.Getpid(), func() string { t.Error("another one is read meanwhile"); return "" }); ok || time.Since(began) != answerWithin {
			t.Errorf("another one: %t after %v", ok, time.Since(began))
		}
		close(answer)
		synctest.Wait()
		for range 2 {
			if text, ok := m.read(os.Getpid(), func() string { return "here" }); !ok || text != "here" {
				t.Errorf("afterwards: %q, %t", text, ok)
			}
		}
		if len(m.idle) != 1 || len(m.hung) != 0 || m.any.Load() {
			t.Errorf("left: %d readers, %v", len(m.idle), m.hung)
		}
		close(m.idle[0].ask)
	})
}

// The peak of memory is the command's own, not that of the process that started it.
func TestPeakIsTheCommandsOwn(t *testing.T) {
	own := make([]byte, 64<<20)
	for i := range own {
		own[i] = 1
	}
	for line, most := range map[string]int64{"true": 0, "head -c 160000000 /dev/zero | tail -c 160000000 | wc -c": 1 << 30} {
		c := command(t, "/bin/sh", "-c", line)
		w := NewWorker(nil)
		r := w.Run(c)
		w.Close()
		if r.ExitCode != 0 || r.PeakRSS > most || most > 0 && r.PeakRSS < 150<<20 {
			t.Errorf("%s: %+v", line, r)
		}
	}
	runtime.KeepAlive(own)
}
