package process

import (
	"math"
	"runtime/debug"
	"testing"
	"time"
)

// Workers collect garbage between commands while no fork is in progress. While a fork takes long, no collection starts,
// because it would stop all goroutines until the fork has returned.
func TestNoGarbageCollectionStartsDuringLongFork(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	garbageCollector.enabled = true
	defer func() { garbageCollector.enabled = false }()
	collections := func() int64 {
		debug.SetMemoryLimit(math.MaxInt64) // prevents collections by the runtime, which this test does not cover
		for n := 0; n < minCollectedHeapBytes+1<<20; n += 1 << 20 {
			allocationSink = make([]byte, 1<<20)
		}
		var s debug.GCStats
		debug.ReadGCStats(&s)
		before := s.NumGC
		for range commandsPerHeapCheck {
			collectGarbageIfDue()
		}
		debug.ReadGCStats(&s)
		return s.NumGC - before
	}
	if n := collections(); n != 1 {
		t.Errorf("without a fork: %d collections, want 1", n)
	}
	fork := globalOrphanTable.beginFork()
	globalOrphanTable.mu.Lock()
	globalOrphanTable.activeForkStartTimes = map[int]time.Time{fork: time.Now().Add(-2 * maxForkWait)}
	globalOrphanTable.mu.Unlock()
	if n := collections(); n != 0 {
		t.Errorf("while a fork takes long: %d collections", n)
	}
	if globalOrphanTable.forksPaused {
		t.Error("other forks wait during a long fork")
	}
	globalOrphanTable.mu.Lock()
	globalOrphanTable.activeForkStartTimes = map[int]time.Time{fork: time.Now()}
	globalOrphanTable.mu.Unlock()
	if n := collections(); n != 0 {
		t.Errorf("while a fork is running that has just started: %d collections", n)
	}
	globalOrphanTable.endFork(fork, 0)
	if n := collections(); n != 1 {
		t.Errorf("after the fork: %d collections, want 1", n)
	}
	if !globalOrphanTable.pauseForks() {
		t.Fatal("no collection starts although no fork is running")
	}
	if globalOrphanTable.pauseForks() {
		t.Error("two collections run at the same time")
	}
	began := make(chan int)
	go func() { began <- globalOrphanTable.beginFork() }()
	select {
	case <-began:
		t.Error("a fork started during a collection")
	case <-time.After(10 * time.Millisecond):
	}
	globalOrphanTable.resumeForks()
	globalOrphanTable.endFork(<-began, 0)
}

// allocationSink keeps the compiler from removing the allocations of the test.
var allocationSink []byte
