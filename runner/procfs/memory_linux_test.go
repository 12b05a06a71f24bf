package procfs

import (
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// If a read of a process's memory hangs, the caller waits no longer than memoryReadTimeout. While the read
// hangs, no other process of the same account is read.
func TestHungMemoryReadIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := hungMemoryReads{hungCountByUID: map[uint32]int{}}
		answer := make(chan struct{})
		began := time.Now()
		if _, ok := m.readWithTimeout(os.Getpid(), func() string { <-answer; return "late" }); ok ||
			time.Since(began) != memoryReadTimeout {
			t.Errorf("a read that hangs: %t after %v", ok, time.Since(began))
		}
		if _, ok := m.readWithTimeout(os.Getpid(),
			func() string { t.Error("it reads although a read hangs"); return "" }); ok ||
			time.Since(began) != memoryReadTimeout {
			t.Errorf("another read: %t after %v", ok, time.Since(began))
		}
		close(answer)
		synctest.Wait()
		for range 2 {
			if text, ok := m.readWithTimeout(os.Getpid(), func() string { return "here" }); !ok || text != "here" {
				t.Errorf("after the hung read returned, the next read returned %q, %t", text, ok)
			}
		}
		if len(m.hungCountByUID) != 0 {
			t.Errorf("the hung reads are %v, want none", m.hungCountByUID)
		}
	})
}
