package cluster

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Drainer stops the worker pool from claiming jobs while this node is drained. A drain is stored in the
// database.
type Drainer struct {
	Cluster    store.Cluster // nil if no other node can use the store
	Pool       *worker.Pool
	DrainState *DrainState

	mu sync.Mutex // held while a change of the drain is passed to the pool, so that changes keep their order
}

// DrainState is a copy of the stored drains that apply to this node.
type DrainState struct {
	AllDrained atomic.Bool // the store contains a drain of all nodes

	mu           sync.Mutex
	nodeDrained  bool // the store contains a drain of this node; guarded by mu
	startedReads int  // number of reads of this node's drain that have begun; guarded by mu
	// lastAppliedRead is the value of startedReads for the newest read that was applied; guarded by mu.
	lastAppliedRead int
}

// isDrained reports whether this node is drained, alone or together with all nodes.
func (d *DrainState) isDrained() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.AllDrained.Load() || d.nodeDrained
}

// beginRead must be called before a read of this node's drain from the store. The returned function records the
// result of that read. Reads may finish in another order than they began. So that function ignores a result if
// the result of a later read was already recorded.
func (d *DrainState) beginRead() (record func(isDrained bool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.startedReads++
	number := d.startedReads
	return func(isDrained bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if number > d.lastAppliedRead {
			d.lastAppliedRead, d.nodeDrained = number, isDrained
		}
	}
}

// EndDrainCommand returns the command that a user can enter to end the drain of this node.
func (d *DrainState) EndDrainCommand(node string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.nodeDrained && !d.AllDrained.Load() {
		return "queuectl node drain " + queue.QuoteShellWord(node) + " --off"
	}
	return "queuectl drain --off"
}

// BeginDrainRead must be called before each read of this node's drain from the store. The caller passes the
// result of the read to the returned function, which records this result and applies it to the pool.
func (d *Drainer) BeginDrainRead() (record func(isDrained bool)) {
	setNodeDrain := d.DrainState.beginRead()
	return func(isDrained bool) {
		setNodeDrain(isDrained)
		d.ApplyDrain()
	}
}

// ReloadNodeDrain reads this node's drain from the store and applies it to the pool.
func (d *Drainer) ReloadNodeDrain(ctx context.Context) error {
	record := d.BeginDrainRead()
	drained, err := d.Cluster.IsDrained(ctx)
	if err == nil {
		record(drained)
	}
	return err
}

// ApplyDrain stops the pool from claiming jobs if this node is drained, alone or together with all nodes.
// Otherwise it lets the pool claim.
func (d *Drainer) ApplyDrain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Pool.SetDraining(d.DrainState.isDrained())
}
