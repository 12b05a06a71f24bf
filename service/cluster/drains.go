package cluster

import (
	"context"
	"sync"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// Drains stops the pool from claiming jobs while the store contains a drain of this node.
type Drains struct {
	Cluster    store.Cluster // nil if no other node can use the store
	Pool       *worker.Pool
	DrainState *DrainState

	mu sync.Mutex // makes the pool drain in the order of the changes
}

// DrainState is this node's copy of which drains the store contains.
type DrainState struct {
	mu    sync.Mutex
	all   bool // the store contains a drain of all nodes; guarded by mu
	node  bool // the store contains a drain of this node; guarded by mu
	reads int  // number of reads of this node's drain that have begun; guarded by mu
	// lastRead is the number, as counted in reads, of the newest read that was applied; guarded by mu.
	lastRead int
}

// SetAll records whether all nodes are drained.
func (d *DrainState) SetAll(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = on
}

// IsAll reports whether all nodes are drained.
func (d *DrainState) IsAll() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all
}

// isOn reports whether all nodes or this node are drained.
func (d *DrainState) isOn() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all || d.node
}

// beginRead numbers a read of whether this node is drained.
func (d *DrainState) beginRead() (number int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads++
	return d.reads
}

// record records the result of a read of whether this node is drained. Reads may finish in a different order
// than they began. So record ignores a result if the result of a later read was already recorded.
func (d *DrainState) record(number int, on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if number > d.lastRead {
		d.lastRead, d.node = number, on
	}
}

// EndCommand returns the command that a user can enter to end the drain of this node.
func (d *DrainState) EndCommand(node string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.node && !d.all {
		return "queuectl node drain " + queue.ShellWord(node) + " --off"
	}
	return "queuectl drain --off"
}

// BeginDrainRead must be called before each read of whether this node is drained. The caller passes the
// result of the read to the returned function record.
func (d *Drains) BeginDrainRead() (record func(on bool)) {
	number := d.DrainState.beginRead()
	return func(on bool) {
		d.DrainState.record(number, on)
		d.ApplyDrain()
	}
}

// ReadDrained reads from the store whether this node is drained, and stops or resumes starting jobs
// accordingly.
func (d *Drains) ReadDrained(ctx context.Context) error {
	record := d.BeginDrainRead()
	drained, err := d.Cluster.IsDrained(ctx)
	if err == nil {
		record(drained)
	}
	return err
}

// ApplyDrain stops the pool from claiming jobs if all nodes or this node are drained. If neither is
// drained, it lets the pool claim.
func (d *Drains) ApplyDrain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Pool.Drain(d.DrainState.isOn())
}
