package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// calm is how long requests must not overlap before the service returns to one processor.
const calm = time.Second

// places adapts GOMAXPROCS to the number of concurrent requests.
//
// With more than one processor, each goroutine that is woken also wakes a thread to search for more
// work. That costs a twentieth of the machine while short jobs are drained. With one processor, a
// thread that waits for the disk keeps all other goroutines from preparing the next commit.
type places struct {
	set   func(n int) // sets GOMAXPROCS
	most  int         // value of GOMAXPROCS while requests overlap
	asked atomic.Bool // crowded was called since the last look

	mu   sync.Mutex
	many bool // GOMAXPROCS is most; guarded by mu
}

// fewPlaces sets GOMAXPROCS to 1.
func fewPlaces() *places {
	p := &places{set: func(n int) { runtime.GOMAXPROCS(n) }, most: min(max(2, runtime.NumCPU()), 4)}
	p.set(1)
	return p
}

// crowded raises GOMAXPROCS, until it has not been called for a while. The service calls it when
// requests overlap.
func (p *places) crowded() {
	if p.asked.Swap(true) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.many {
		p.many = true
		p.set(p.most)
		time.AfterFunc(calm, p.look)
	}
}

func (p *places) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked.Swap(false) {
		time.AfterFunc(calm, p.look)
		return
	}
	p.many = false
	p.set(1)
}

// These constants define the memory limit for the garbage collector: heapLimit bytes, or the live
// memory plus heapRoom if that is more.
const (
	heapLimit = 64 << 20
	heapRoom  = heapLimit / 2
)

// tuneGC makes the garbage collector run rarely: the heap of a service is only a few MB, but short
// jobs fill it each second. Above heapLimit, which large requests or many browsers cause, memory
// matters more than time. But a limit near the size of the live heap would make the collector run
// continuously. So tuneGC adjusts the limit after each collection, until stop is called.
// See docs/decisions/0073.
func tuneGC() (stop func()) {
	debug.SetGCPercent(400)
	c := &collected{new(atomic.Bool)}
	stopped := c.stopped
	fitLimit(c)
	return func() { stopped.Store(true) }
}

// collected is an object without references. Its finalizer runs after each garbage collection.
type collected struct{ stopped *atomic.Bool }

func fitLimit(c *collected) {
	if c.stopped.Load() {
		return
	}
	samples := [...]metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples[:])
	n := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	besideHeap := n(1) - n(2) - n(3) - n(4)
	debug.SetMemoryLimit(max(heapLimit, n(0)+besideHeap+heapRoom))
	runtime.SetFinalizer(c, fitLimit)
}
