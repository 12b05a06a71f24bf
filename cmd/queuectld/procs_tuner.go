package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// idleTimeBeforeSingleProc is the time without overlapping requests after which GOMAXPROCS returns to 1.
const idleTimeBeforeSingleProc = time.Second

// gomaxprocsTuner adapts GOMAXPROCS to the number of concurrent requests.
//
// With more than one processor, each goroutine that is woken also wakes a thread that searches for more work. That
// costs 5 % of the processor time while the service runs many short jobs. With only one processor, on the other hand,
// no goroutine can prepare the next commit while a thread waits for the disk. So gomaxprocsTuner uses more than one
// processor only while requests overlap.
type gomaxprocsTuner struct {
	setProcs           func(n int) // sets GOMAXPROCS
	maxProcs           int         // value of GOMAXPROCS while requests overlap
	requestsOverlapped atomic.Bool // requests have overlapped since the last call of lowerProcsIfIdle

	mu          sync.Mutex
	procsRaised bool // GOMAXPROCS is maxProcs instead of 1; guarded by mu
}

// newGOMAXPROCSTuner returns a gomaxprocsTuner, and sets GOMAXPROCS to 1.
func newGOMAXPROCSTuner() *gomaxprocsTuner {
	p := &gomaxprocsTuner{setProcs: func(n int) { runtime.GOMAXPROCS(n) }, maxProcs: min(max(2, runtime.NumCPU()), 4)}
	p.setProcs(1)
	return p
}

// raiseProcs sets GOMAXPROCS to maxProcs. The service calls this method when requests overlap. After
// idleTimeBeforeSingleProc without a call, GOMAXPROCS returns to 1.
func (p *gomaxprocsTuner) raiseProcs() {
	if p.requestsOverlapped.Swap(true) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.procsRaised {
		p.procsRaised = true
		p.setProcs(p.maxProcs)
		time.AfterFunc(idleTimeBeforeSingleProc, p.lowerProcsIfIdle)
	}
}

// lowerProcsIfIdle sets GOMAXPROCS to 1. But if requests have overlapped since its last run, it leaves GOMAXPROCS
// unchanged, and runs again after idleTimeBeforeSingleProc.
func (p *gomaxprocsTuner) lowerProcsIfIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.requestsOverlapped.Swap(false) {
		time.AfterFunc(idleTimeBeforeSingleProc, p.lowerProcsIfIdle)
		return
	}
	p.procsRaised = false
	p.setProcs(1)
}

// tuneGC and adjustGCMemoryLimit set the memory limit of the garbage collector to the size of the live memory plus
// gcHeadroomBytes, but at least to minGCMemoryLimitBytes. Both constants are in bytes.
const (
	minGCMemoryLimitBytes = 64 << 20
	gcHeadroomBytes       = minGCMemoryLimitBytes / 2
)

// tuneGC makes the garbage collector run rarely. The heap of a service has only a few MB, so with Go's default setting,
// short jobs would cause a collection each second. When requests are large or many browsers are connected, a memory
// limit keeps the heap small nevertheless. If the limit were lower than the live heap, the collector would run
// continuously, so adjustGCMemoryLimit keeps the limit higher. See docs/decisions/0073.
func tuneGC() {
	debug.SetGCPercent(400)
	adjustGCMemoryLimit(new(gcSentinel))
}

// gcSentinel is an object whose finalizer runs after each garbage collection. It has 16 bytes, because Go may
// never run the finalizer of a smaller object.
type gcSentinel [16]byte

// adjustGCMemoryLimit sets the memory limit for the current size of the live heap. It makes itself the finalizer of c,
// so that it runs again after the next garbage collection.
func adjustGCMemoryLimit(c *gcSentinel) {
	samples := [...]metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples[:])
	n := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	nonHeap := n(1) - n(2) - n(3) - n(4)
	debug.SetMemoryLimit(max(minGCMemoryLimitBytes, n(0)+nonHeap+gcHeadroomBytes))
	runtime.SetFinalizer(c, adjustGCMemoryLimit)
}
