package service

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// drains stops the pool from claiming jobs while the store contains a drain of this node.
type drains struct {
	cluster    store.Cluster // nil if no other node can use the store
	pool       *worker.Pool
	drainState *drainState

	mu sync.Mutex // makes the pool drain in the order of the changes
}

// A drain is stored first. A drain of all nodes is stored as a setting, and a drain of one node in that
// node's row. Then the service sends each affected node a request to confirm it. A node confirms once it
// has read the stored drain and no job can start on it any more. If a node does not confirm in time, the
// user gets an error.

// drainKey is the stored setting that keeps a drain across restarts. It is not a configuration key.
const drainKey = "drain"

// confirmTimeout is how long a drain waits for nodes to confirm. Each node first waits for its runners.
const confirmTimeout = worker.MaxNoStartsWait + broadcastTimeout

// Drain implements control.API.
func (h *Nodes) Drain(ctx context.Context, p control.Drain) (control.Draining, error) {
	value := "on"
	if p.Off {
		value = ""
	}
	err := h.lock.withSettingsLock(ctx, func() error {
		err := h.changes.storeSetting(ctx, store.Setting{Key: drainKey, Value: value, UID: control.PeerFrom(ctx).UID})
		if err == nil {
			h.drainState.setAll(!p.Off)
			h.drains.applyDrain()
		}
		return err
	})
	switch {
	case err != nil:
	case p.Off:
		h.changes.notifyNodes(ctx, nodeRequest{Command: "obey"})
	default:
		err = h.confirmDrainOfAll(ctx, p.Wait)
	}
	if err != nil {
		return control.Draining{}, err
	}
	state := control.Draining{Draining: h.pool.Draining(), Running: h.pool.Busy()}
	if h.cluster != nil { // count in the store, which includes jobs that run on other nodes
		state.Running = int(h.store.Counts().States[queue.Processing])
	}
	return state, nil
}

// confirmDrainOfAll waits until no job can start on any node. If wait is set, it then waits until no job
// runs.
func (h *Nodes) confirmDrainOfAll(ctx context.Context, wait bool) error {
	nodes, err := h.nodeList.nodes(ctx)
	if err == nil {
		err = h.confirmDrain(ctx, nodes)
	}
	if err == nil && wait {
		err = h.router.waitAllIdle(ctx)
	}
	if err == nil && !h.drainState.isAll() {
		return errDrainEnded
	}
	return err
}

// errDrainEnded is returned by a drain that another request ended while it waited.
var errDrainEnded = queue.Errorf(queue.CodeWrongState, "the drain was ended before it was complete, so jobs start again; to drain again, repeat the command")

// NodeDrain implements control.API.
func (h *Nodes) NodeDrain(ctx context.Context, p control.NodeDrain) (v control.NodeView, err error) {
	n, err := h.nodeList.nodeNamed(ctx, p.Name, "queuectl drain")
	if err != nil {
		return v, err
	}
	verb := "node.drain"
	if p.Off {
		verb = "node.drain off"
	}
	if err := h.guard.audit(ctx, verb, p.Name, nil); err != nil {
		return v, err
	}
	if err := h.cluster.DrainNode(ctx, p.Name, !p.Off); err != nil {
		return v, err
	}
	if p.Off {
		err = h.endNodeDrain(ctx, n)
	} else {
		err = h.confirmDrain(ctx, []store.NodeState{n})
	}
	if err == nil && p.Wait && n.Alive {
		err = h.router.waitIdle(ctx, &n)
	}
	if err == nil {
		n, err = h.nodeList.nodeNamed(ctx, p.Name, "")
	}
	if err == nil && !p.Off && !n.Drained {
		err = errDrainEnded
	}
	if err != nil {
		return v, err
	}
	return viewNode(&n), nil
}

// endNodeDrain ends a node's drain, so that jobs start there again. A node that does not answer ends its
// drain when it next reads the store.
func (h *Nodes) endNodeDrain(ctx context.Context, n store.NodeState) error {
	if n.This {
		return h.drains.readDrained(ctx)
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, broadcastTimeout)
	defer cancel()
	h.changes.warnUnconfirmed(h.router.sendToNodes(timeoutCtx, []store.NodeState{n}, nodeRequest{Command: "obey"}))
	return nil
}

// confirmDrain waits until no job can start on these nodes any more. Its error names the nodes on which a job
// may still start, and those that did not answer. A node whose lease has expired cannot start jobs.
func (h *Nodes) confirmDrain(ctx context.Context, nodes []store.NodeState) error {
	timeoutCtx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	thisNode := nodeResult{}
	var local sync.WaitGroup
	if i := slices.IndexFunc(nodes, func(n store.NodeState) bool { return n.This }); i >= 0 {
		thisNode.node = nodes[i]
		local.Go(func() { thisNode.failed = h.confirmDrainHere(timeoutCtx) })
	}
	others := h.router.sendToNodes(timeoutCtx, nodes, nodeRequest{Command: "drained"})
	local.Wait()
	var problems []string
	for _, result := range append(others, thisNode) {
		switch err := result.failed; {
		case err == nil || isNodeLost(err):
		case ctx.Err() != nil:
			return ctx.Err()
		case h.cluster == nil:
			return err
		case result.node.This || result.Error != "":
			problems = append(problems, "on "+result.node.Name+": "+err.Error())
		default:
			problems = append(problems, fmt.Sprintf("draining has begun, but node %s does not answer, so jobs may still start there for up to %v (setting node_lease)", result.node.Name, h.cluster.Lease()))
		}
	}
	if more := len(problems) - maxNamedNodes; more > 0 {
		problems = append(problems[:maxNamedNodes], fmt.Sprintf("jobs may also still start on %d more nodes", more))
	}
	if len(problems) == 0 {
		return nil
	}
	return queue.Errorf(queue.CodeUnavailable, "%s", strings.Join(problems, "; "))
}

// confirmDrainHere waits until no job can start on this node any more.
func (h *Nodes) confirmDrainHere(ctx context.Context) error {
	if h.cluster != nil {
		if err := h.drains.readDrained(ctx); err != nil {
			return err
		}
	}
	return h.pool.AwaitNoStarts(ctx, worker.NoStartsWithin)
}

// drainState holds which drains the store contains, as far as this node knows.
type drainState struct {
	mu    sync.Mutex
	all   bool // the store contains a drain of all nodes; guarded by mu
	node  bool // the store contains a drain of this node; guarded by mu
	reads int  // number of reads of this node's drain that have begun; guarded by mu
	// The number of the newest read whose result was applied, as counted in reads; guarded by mu.
	lastRead int
}

// setAll records whether all nodes are drained.
func (d *drainState) setAll(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = on
}

// isAll reports whether all nodes are drained.
func (d *drainState) isAll() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all
}

// isOn reports whether all nodes or this node are drained.
func (d *drainState) isOn() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all || d.node
}

// beginRead numbers a read of whether this node is drained.
func (d *drainState) beginRead() (number int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads++
	return d.reads
}

// record records the result of a read of whether this node is drained. Reads may finish in a different order
// than they began. So record ignores a result if the result of a later read was already recorded.
func (d *drainState) record(number int, on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if number > d.lastRead {
		d.lastRead, d.node = number, on
	}
}

// endCommand returns the command that a user can enter to end the drain of this node.
func (d *drainState) endCommand(node string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.node && !d.all {
		return "queuectl node drain " + queue.Word(node) + " --off"
	}
	return "queuectl drain --off"
}

// beginDrainRead must be called before each read of whether this node is drained. The caller passes the
// result of the read to the returned function record.
func (d *drains) beginDrainRead() (record func(on bool)) {
	number := d.drainState.beginRead()
	return func(on bool) {
		d.drainState.record(number, on)
		d.applyDrain()
	}
}

// readDrained reads from the store whether this node is drained, and stops or resumes starting jobs
// accordingly.
func (d *drains) readDrained(ctx context.Context) error {
	record := d.beginDrainRead()
	drained, err := d.cluster.Drained(ctx)
	if err == nil {
		record(drained)
	}
	return err
}

// applyDrain stops the pool from claiming jobs if all nodes or this node are drained. If neither is
// drained, it lets the pool claim.
func (d *drains) applyDrain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pool.Drain(d.drainState.isOn())
}
