package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// GOMAXPROCS is high while requests overlap. It falls to 1 when no requests have overlapped for
// idleTimeBeforeSingleProc.
func TestGOMAXPROCSFollowsConcurrentRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set []string
		begun := time.Now()
		note := func(n int) { set = append(set, fmt.Sprintf("%v: %d", time.Since(begun), n)) }
		p := &gomaxprocsTuner{maxProcs: 4, setProcs: note}
		for range 25 {
			p.raiseProcs()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		p.raiseProcs()
		time.Sleep(10 * time.Second)
		p.mu.Lock() // every write to the variable set happens under this lock
		defer p.mu.Unlock()
		if got, want := fmt.Sprint(set), "[0s: 4 4s: 1 12.5s: 4 14.5s: 1]"; got != want {
			t.Errorf("GOMAXPROCS was set %s, want %s", got, want)
		}
	})
}

// The memory limit follows the size of the live heap: it is always above that size, but not much.
func TestGCMemoryLimitFollowsLiveHeap(t *testing.T) {
	percent, limit := debug.SetGCPercent(-1), debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(limit)
	defer debug.SetGCPercent(percent)
	tuneGC()
	checkLimit := func(low, high int64) {
		t.Helper()
		var now int64
		for range 1000 {
			runtime.GC()
			if now = debug.SetMemoryLimit(-1); low <= now && now <= high {
				return
			}
			runtime.Gosched() // let the goroutine that calls finalizers run
		}
		t.Errorf("the limit is %d MiB, want %d to %d", now>>20, low>>20, high>>20)
	}
	liveHeap := make([]byte, 4*minGCMemoryLimitBytes)
	checkLimit(int64(len(liveHeap))+gcHeadroomBytes, int64(len(liveHeap))+2*minGCMemoryLimitBytes)
	runtime.KeepAlive(liveHeap)
	checkLimit(minGCMemoryLimitBytes, minGCMemoryLimitBytes)
}
