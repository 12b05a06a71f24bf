package process

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

// A garbage collection stops all goroutines for a moment. To do so, it waits for each fork that is in progress until
// the child has executed its program. So a user whose program hangs at its start could stop the jobs of all users.
// Therefore, the workers start the collections themselves, between two commands, while no fork is in progress. They
// start a collection at the heap size at which the Go runtime normally would. The runtime itself starts collections
// only at larger sizes. See docs/decisions/0052.
const (
	minCollectedHeapBytes = 8 << 20 // size of all objects; a smaller heap is not collected
	runtimeGCPercent      = 1000    // GOGC for the collections that the runtime starts, in percent
	// minGoMemoryLimitBytes is the minimum of the memory limit that the runtime gets, in bytes. The limit is twice the
	// size of the live objects, but not less than minGoMemoryLimitBytes.
	minGoMemoryLimitBytes = 48 << 20
	commandsPerHeapCheck  = 16                   // number of commands between two checks of the heap size
	maxForkWait           = 5 * time.Millisecond // how long a collection waits for the forks that are in progress

	// Names of metrics of the runtime (see heapSizes).
	heapObjectsMetric = "/memory/classes/heap/objects:bytes"
	heapLiveMetric    = "/gc/heap/live:bytes"
)

// garbageCollector is the state of the garbage collections that workers start. takeOverGarbageCollection enables
// these collections before the first command.
var garbageCollector struct {
	enabled    bool         // workers collect garbage
	endedCount atomic.Int64 // number of commands that have ended
}

// takeOverGarbageCollection makes the workers collect garbage (see collectGarbageIfDue), and raises the heap
// sizes at which the runtime itself collects.
func takeOverGarbageCollection() {
	garbageCollector.enabled = true
	debug.SetGCPercent(runtimeGCPercent)
	debug.SetMemoryLimit(minGoMemoryLimitBytes)
}

// collectGarbageIfDue collects garbage if the heap has grown enough. It first waits until no fork is in progress, and
// does nothing if that takes longer than maxForkWait.
func collectGarbageIfDue() {
	if !garbageCollector.enabled || garbageCollector.endedCount.Add(1)%commandsPerHeapCheck != 0 {
		return
	}
	if objects, live := heapSizes(); objects < max(minCollectedHeapBytes, 2*live) || !globalOrphanTable.pauseForks() {
		return
	}
	defer globalOrphanTable.resumeForks()
	runtime.GC()
	_, live := heapSizes()
	debug.SetMemoryLimit(int64(max(minGoMemoryLimitBytes, 2*live)))
}

// heapSizes returns the size of all objects on the heap, and the size of the objects that survived the last
// collection, both in bytes.
func heapSizes() (objectBytes, liveBytes uint64) {
	samples := [...]metrics.Sample{{Name: heapObjectsMetric}, {Name: heapLiveMetric}}
	metrics.Read(samples[:])
	return samples[0].Value.Uint64(), samples[1].Value.Uint64()
}

// pauseForks blocks new forks until resumeForks is called, and waits until no fork is in progress. If a fork takes
// longer than maxForkWait, pauseForks unblocks new forks and returns false.
func (o *orphanTable) pauseForks() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forksPaused {
		return false
	}
	start := time.Now()
	for _, startedAt := range o.activeForkStartTimes {
		if start.Sub(startedAt) > maxForkWait {
			return false
		}
	}
	o.forksPaused = true
	timer := time.AfterFunc(maxForkWait, o.forksChanged.Broadcast)
	defer timer.Stop()
	for len(o.activeForkStartTimes) > 0 && time.Since(start) < maxForkWait {
		o.forksChanged.Wait()
	}
	if len(o.activeForkStartTimes) > 0 {
		o.forksPaused = false
		o.forksChanged.Broadcast()
	}
	return o.forksPaused
}

// resumeForks lets forks start again.
func (o *orphanTable) resumeForks() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forksPaused = false
	o.forksChanged.Broadcast()
}
