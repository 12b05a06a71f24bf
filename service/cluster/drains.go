package cluster

import (
	"context"
	"sync"

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
	mu           sync.Mutex
	allDrained   bool // the store contains a drain of all nodes; guarded by mu
	nodeDrained  bool // the store contains a drain of this node; guarded by mu
	startedReads int  // number of reads of this node's drain that have begun; guarded by mu
	// lastAppliedRead is the value of startedReads for the newest read that was applied; guarded by mu.
	lastAppliedRead int
}

// SetAllDrained records whether all nodes are drained.
func (d *DrainState) SetAllDrained(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.allDrained = on
}

// IsAllDrained reports whether all nodes are drained.
func (d *DrainState) IsAllDrained() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.allDrained
}

// isDrained reports whether all nodes or this node are drained.
func (d *DrainState) isDrained() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.allDrained || d.nodeDrained
}

// beginRead numbers a read of whether this node is drained.
func (d *DrainState) beginRead() (number int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.startedReads++
	return d.startedReads
}

// recordNodeDrain records the result of a read of whether this node is drained. Reads may finish in a different order
// than they began. So recordNodeDrain ignores a result if the result of a later read was already recorded.
func (d *DrainState) recordNodeDrain(number int, on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if number > d.lastAppliedRead {
		d.lastAppliedRead, d.nodeDrained = number, on
	}
}

// EndDrainCommand returns the command that a user can enter to end the drain of this node.
func (d *DrainState) EndDrainCommand(node string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.nodeDrained && !d.allDrained {
		return "queuectl node drain " + queue.QuoteShellWord(node) + " --off"
	}
	return "queuectl drain --off"
}

// BeginDrainRead must be called before each read of whether this node is drained. The caller passes the
// result of the read to the returned function record.
func (d *Drainer) BeginDrainRead() (record func(on bool)) {
	number := d.DrainState.beginRead()
	return func(on bool) {
		d.DrainState.recordNodeDrain(number, on)
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
