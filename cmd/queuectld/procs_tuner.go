package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// singleProcessorDelay is the time without overlapping requests after which the service returns to one
// processor.
const singleProcessorDelay = time.Second

// procsTuner adapts GOMAXPROCS to the number of concurrent requests.
//
// With more than one processor, each goroutine that is woken also wakes a thread to search for more work. That
// costs a twentieth of the processor time while the service runs many short jobs. With only one processor, a
// thread that waits for the disk keeps all other goroutines from preparing the next commit.
type procsTuner struct {
	setProcs           func(n int) // sets GOMAXPROCS
	maxProcs           int         // value of GOMAXPROCS while requests overlap
	requestsOverlapped atomic.Bool // requests have overlapped since the last call of lowerProcsIfIdle

	mu          sync.Mutex
	procsRaised bool // GOMAXPROCS is maxProcs instead of 1; guarded by mu
}

// newProcsTuner returns a procsTuner, and sets GOMAXPROCS to 1.
func newProcsTuner() *procsTuner {
	p := &procsTuner{setProcs: func(n int) { runtime.GOMAXPROCS(n) }, maxProcs: min(max(2, runtime.NumCPU()), 4)}
	p.setProcs(1)
	return p
}

// raiseProcs sets GOMAXPROCS to maxProcs. The service calls this method when requests overlap. After
// singleProcessorDelay without a call, GOMAXPROCS returns to 1.
func (p *procsTuner) raiseProcs() {
	if p.requestsOverlapped.Swap(true) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.procsRaised {
		p.procsRaised = true
		p.setProcs(p.maxProcs)
		time.AfterFunc(singleProcessorDelay, p.lowerProcsIfIdle)
	}
}

// lowerProcsIfIdle sets GOMAXPROCS to 1. If requests have overlapped since its last run, it runs again later instead.
func (p *procsTuner) lowerProcsIfIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.requestsOverlapped.Swap(false) {
		time.AfterFunc(singleProcessorDelay, p.lowerProcsIfIdle)
		return
	}
	p.procsRaised = false
	p.setProcs(1)
}

// The memory limit of the garbage collector is heapLimit or, if that is more, the size of the live memory plus
// heapHeadroom. Both constants are in bytes.
const (
	heapLimit    = 64 << 20
	heapHeadroom = heapLimit / 2
)

// tuneGC makes the garbage collector run rarely. The heap of a service is only a few MB, so short jobs would
// cause a collection each second. A memory limit bounds the heap when requests are large or many browsers are
// connected. With a limit near the size of the live heap, the collector would run continuously. So tuneGC
// adjusts the limit after each collection.
// See docs/decisions/0073.
func tuneGC() {
	debug.SetGCPercent(400)
	adjustMemoryLimit(new(gcSentinel))
}

// gcSentinel is an object without references. Its finalizer runs after each garbage collection. It has
// 16 bytes, because Go may never run the finalizer of a smaller object.
type gcSentinel [16]byte

// adjustMemoryLimit sets the memory limit. It runs again after the next collection, as the finalizer of c.
func adjustMemoryLimit(c *gcSentinel) {
	samples := [...]metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples[:])
	n := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	nonHeap := n(1) - n(2) - n(3) - n(4)
	debug.SetMemoryLimit(max(heapLimit, n(0)+nonHeap+heapHeadroom))
	runtime.SetFinalizer(c, adjustMemoryLimit)
}
