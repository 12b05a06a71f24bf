package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// calm is how long nobody may have met another before places are taken back.
const calm = time.Second

// places fits GOMAXPROCS to how many ask the service at once. With more than one
// place every goroutine that is woken wakes a thread too, to look for more work;
// that is a twentieth of the machine while short jobs are drained. With one, a
// thread that waits for the disk keeps all others from gathering the next commit.
type places struct {
	set   func(n int) // GOMAXPROCS
	most  int         // while many ask
	asked atomic.Bool // since the last look

	mu   sync.Mutex
	many bool // guarded by mu
}

// fewPlaces gives this process one place.
func fewPlaces() *places {
	p := &places{set: func(n int) { runtime.GOMAXPROCS(n) }, most: min(max(2, runtime.NumCPU()), 4)}
	p.set(1)
	return p
}

// crowded gives more, until nobody has called it for a while.
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

// The service's collector allows for heapLimit bytes of memory, and for heapRoom beside what lives where that is more.
const (
	heapLimit = 64 << 20
	heapRoom  = heapLimit / 2
)

// tuneGC has the collector of a service seldom run: its heap is a few MB, which short jobs fill anew each second. Above
// heapLimit, where large requests or many browsers bring it, memory is worth more than time; but a limit near what lives
// would have it run without end. It goes on until stop is called.
// See docs/decisions/0073.
func tuneGC() (stop func()) {
	debug.SetGCPercent(400)
	c := &collected{new(atomic.Bool)}
	stopped := c.stopped
	fitLimit(c)
	return func() { stopped.Store(true) }
}

// collected is garbage as soon as it is made: its finalizer runs after each collection.
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
