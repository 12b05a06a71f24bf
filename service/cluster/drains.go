package cluster

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Drainer stops the worker pool from claiming jobs while this node is drained. A drain prevents the start of jobs on
// one node or on all nodes. Drains are stored in the database.
type Drainer struct {
	Cluster    store.Cluster // nil if no other node can use the store
	Pool       *worker.Pool
	DrainState *DrainState

	mu sync.Mutex // held while the start or end of a drain is passed to the pool, so that the pool gets them in order
}

// DrainState is this node's copy of the stored drains that affect this node.
type DrainState struct {
	AllNodesDrained atomic.Bool // the store contains a drain of all nodes

	mu                    sync.Mutex
	thisNodeDrained       bool // the store contains a drain of this node; guarded by mu
	startedDrainReadCount int  // number of reads of this node's drain that have been started; guarded by mu
	// lastAppliedReadNumber is the number of the newest read whose result was applied; guarded by mu.
	lastAppliedReadNumber int
}

// isDrained reports whether a drain of this node or a drain of all nodes exists.
func (d *DrainState) isDrained() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.AllNodesDrained.Load() || d.thisNodeDrained
}

// beginDrainRead must be called before this node's drain is read from the store. The caller passes the result of the
// read to the returned function applyResult. Reads may finish in another order than they began. So applyResult ignores
// the result of a read if the result of a later read was already applied.
func (d *DrainState) beginDrainRead() (applyResult func(isDrained bool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.startedDrainReadCount++
	number := d.startedDrainReadCount
	return func(isDrained bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if number > d.lastAppliedReadNumber {
			d.lastAppliedReadNumber, d.thisNodeDrained = number, isDrained
		}
	}
}

// CommandToEndDrain returns the command that a user can enter to end the drain of this node.
func (d *DrainState) CommandToEndDrain(nodeName string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.thisNodeDrained && !d.AllNodesDrained.Load() {
		return "queuectl node drain " + queue.QuoteShellWord(nodeName) + " --off"
	}
	return "queuectl drain --off"
}

// BeginDrainRead must be called before this node's drain is read from the store. The caller passes the result of the
// read to the returned function applyResult. This function records the result in DrainState and applies it to the pool.
func (d *Drainer) BeginDrainRead() (applyResult func(isDrained bool)) {
	setNodeDrain := d.DrainState.beginDrainRead()
	return func(isDrained bool) {
		setNodeDrain(isDrained)
		d.ApplyDrainToPool()
	}
}

// ReloadNodeDrain reads this node's drain from the store and applies it to the pool.
func (d *Drainer) ReloadNodeDrain(ctx context.Context) error {
	record := d.BeginDrainRead()
	drained, err := d.Cluster.IsThisNodeDrained(ctx)
	if err == nil {
		record(drained)
	}
	return err
}

// ApplyDrainToPool stops the pool from claiming jobs if a drain of this node or a drain of all nodes exists.
// Otherwise the pool may claim jobs.
func (d *Drainer) ApplyDrainToPool() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Pool.SetDraining(d.DrainState.isDrained())
}
