package process

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

// A garbage collection stops the whole Go runtime for a moment, and to do so waits for every
// fork under way until its child is a program. A user whose program does not begin would so
// stop everybody's jobs. So workers collect garbage between jobs, while no fork is under way,
// at heap sizes like those at which the runtime would; the runtime's own turn comes later.
// See docs/decisions/0052.
const (
	leastHeap     = 8 << 20  // bytes of objects; below it nothing is collected
	runtimesTurn  = 1000     // percent of what lives, and of 4 MB, where the runtime collects by itself
	plentyOfHeap  = 48 << 20 // bytes; the runtime collects before it has more than that, and twice what lives
	collectEvery  = 16       // commands, between looks at the heap; their outputs fit into it
	longFork      = 5 * time.Millisecond
	heapObjects   = "/memory/classes/heap/objects:bytes"
	heapThatLives = "/gc/heap/live:bytes"
)

// collector is set before the first command.
var collector struct {
	on   bool         // garbage is collected here
	ends atomic.Int64 // commands that have ended
}

// paceCollections leaves the collection of garbage to collect.
func paceCollections() {
	collector.on = true
	debug.SetGCPercent(runtimesTurn)
	debug.SetMemoryLimit(plentyOfHeap)
}

// collect collects garbage if it is time to, unless forks are under way that take long.
func collect() {
	if !collector.on || collector.ends.Add(1)%collectEvery != 0 {
		return
	}
	if objects, live := heap(); objects < max(leastHeap, 2*live) || !orphans.pause() {
		return
	}
	defer orphans.goOn()
	runtime.GC()
	_, live := heap()
	debug.SetMemoryLimit(int64(max(plentyOfHeap, 2*live)))
}

// heap are the bytes of all objects on the heap and of those that lived at its last
// collection.
func heap() (objects, live uint64) {
	samples := [...]metrics.Sample{{Name: heapObjects}, {Name: heapThatLives}}
	metrics.Read(samples[:])
	return samples[0].Value.Uint64(), samples[1].Value.Uint64()
}

// pause has new forks wait until goOn, once none is under way. It reports whether that is so;
// a fork that takes long is not waited for.
func (o *orphanage) pause() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.paused {
		return false
	}
	begun := time.Now()
	for _, f := range o.forks {
		if begun.Sub(f.began) > longFork {
			return false
		}
	}
	o.paused = true
	timer := time.AfterFunc(longFork, o.changed.Broadcast)
	defer timer.Stop()
	for len(o.forks) > 0 && time.Since(begun) < longFork {
		o.changed.Wait()
	}
	if len(o.forks) > 0 {
		o.paused = false
		o.changed.Broadcast()
	}
	return o.paused
}

// goOn has new forks wait no longer.
func (o *orphanage) goOn() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.paused = false
	o.changed.Broadcast()
}
