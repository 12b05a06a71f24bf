package cluster

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Drainer stops the pool from claiming jobs while the store contains a drain of this node.
type Drainer struct {
	Cluster    store.Cluster // nil if no other node can use the store
	Pool       *worker.Pool
	DrainState *DrainState

	mu sync.Mutex // makes the pool drain in the order of the changes
}

// DrainState is this node's copy of which drains the store contains.
type DrainState struct {
	AllDrained atomic.Bool // the store contains a drain of all nodes

	mu           sync.Mutex
	nodeDrained  bool // the store contains a drain of this node; guarded by mu
	startedReads int  // number of reads of this node's drain that have begun; guarded by mu
	// lastAppliedRead is the value of startedReads for the newest read that was applied; guarded by mu.
	lastAppliedRead int
}

// isDrained reports whether all nodes or this node are drained.
func (d *DrainState) isDrained() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.AllDrained.Load() || d.nodeDrained
}

// beginRead begins a read of whether this node is drained. The returned function records the result of the read. Reads
// may finish in a different order than they began. So a result is ignored if the result of a later read was already
// recorded.
func (d *DrainState) beginRead() (record func(on bool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.startedReads++
	number := d.startedReads
	return func(on bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if number > d.lastAppliedRead {
			d.lastAppliedRead, d.nodeDrained = number, on
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

// BeginDrainRead must be called before each read of whether this node is drained. The caller passes the
// result of the read to the returned function record.
func (d *Drainer) BeginDrainRead() (record func(on bool)) {
	setNodeDrain := d.DrainState.beginRead()
	return func(on bool) {
		setNodeDrain(on)
		d.ApplyDrain()
	}
}

// ReloadNodeDrain reads from the store whether this node is drained, and stops or resumes starting jobs
// accordingly.
func (d *Drainer) ReloadNodeDrain(ctx context.Context) error {
	record := d.BeginDrainRead()
	drained, err := d.Cluster.IsDrained(ctx)
	if err == nil {
		record(drained)
	}
	return err
}

// ApplyDrain stops the pool from claiming jobs if all nodes or this node are drained. If neither is
// drained, it lets the pool claim.
func (d *Drainer) ApplyDrain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Pool.SetDraining(d.DrainState.isDrained())
}
