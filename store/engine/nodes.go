package engine

import (
	"slices"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// This file holds what the engine knows about nodes, the services that share a database. A database that only
// one process uses has one node, with the number 0.

// NoNode is the node number of a lease that belongs to no node, because its node was removed.
const NoNode = -1

// Node returns the number of this node in the database. It is 0 in a database that only one process uses, and
// until this node has joined.
func (e *Engine) Node() int64 { return e.node }

// DatabaseID returns the identifier of the database. Every copy of the database has another identifier.
func (e *Engine) DatabaseID() string { return e.databaseID }

// SetOtherNodes records how many other nodes are active.
func (e *Engine) SetOtherNodes(n int64) { e.otherNodes.Store(n) }

// HasOtherNodes reports whether another node was active when the last transaction was executed. It is safe
// for concurrent use.
func (e *Engine) HasOtherNodes() bool { return e.otherNodes.Load() > 0 }

// JoinAs sets the number of this node. A rollback restores the old number.
func (t *Tx) JoinAs(node int64) {
	s := t.engine
	old := s.node
	s.node = node
	t.OnUndo(func() { s.node = old })
	t.OnCommitted(func() { s.mem.thisNode.ID = node })
}

// OnUndo calls f if the transaction is rolled back. The functions are called in reverse order.
func (t *Tx) OnUndo(f func()) { t.undo = append(t.undo, f) }

// OnCommitted calls f after the commit, before the callers get their results.
func (t *Tx) OnCommitted(f func()) { t.afterCommit = append(t.afterCommit, f) }

// Leases returns the leases of all nodes, by seq of the job. The caller must not change the map, except
// by TransferLease.
func (t *Tx) Leases() map[int64]*rules.Lease { return t.engine.mem.leases }

// HasOwnLeases reports whether this node has leases. Only the goroutine with the right to write may call it,
// and Backend.Close.
func (e *Engine) HasOwnLeases() bool {
	for _, l := range e.mem.leases {
		if l.Job.Node == e.node {
			return true
		}
	}
	return false
}

// ReservationsByNode returns the lists of reserved leases (leases of attempts that are not known to have
// started) as text, by node. It contains the nodes whose leases the transaction has changed, or all nodes if
// the table meta still lists reserved leases.
func (t *Tx) ReservationsByNode() map[int64][]byte {
	m := &t.engine.mem
	byNode := map[int64][]byte{}
	for _, node := range t.changedNodes {
		byNode[node] = nil
	}
	for seq, l := range m.leases {
		if list, listed := byNode[l.Job.Node]; !l.Running && (listed || m.reservedInMeta) {
			byNode[l.Job.Node] = database.AppendReservation(list, seq, l.Job.Fence, l.Job.Node)
		}
	}
	return byNode
}

// SetReservedInMeta records whether the list of reserved leases in the table meta will contain any after the
// transaction. It reports whether this list changes.
func (t *Tx) SetReservedInMeta(hasReservations bool) (changed bool) {
	m := &t.engine.mem
	changed = m.reservedInMeta || hasReservations || slices.Contains(t.changedNodes, NoNode)
	m.reservedInMeta = hasReservations
	return changed
}

// OrphanLeases makes the leases of a removed node belong to no node. The next node that takes over leases
// gets them. The uncommitted batches of the removed node now belong to this node.
func (t *Tx) OrphanLeases(formerNode int64) error {
	t.TakeBatches(func(node int64) bool { return node == formerNode })
	for _, l := range t.engine.mem.leases {
		if l.Job.Node == formerNode {
			if err := t.TransferLease(l, NoNode); err != nil {
				return err
			}
		}
	}
	return t.err
}

// TakeBatches makes this node the owner of uncommitted batches of other nodes, for which isGone returns true.
// The time limit for the next part of each batch starts again.
func (t *Tx) TakeBatches(isGone func(node int64) bool) error {
	for _, b := range t.engine.mem.batches {
		if b.acceptsFrames() && isGone(b.node) {
			t.takeBatch(&b)
		}
	}
	return t.err
}

// takeBatch makes this node the owner of a batch. The time limit for the next part of the batch starts again.
func (t *Tx) takeBatch(b *batch) {
	b.node, b.lastFrameAt = t.engine.node, t.startTime
	t.setBatch(b.number, *b)
	t.Exec(`UPDATE batches SET node = ? WHERE n = ?`, b.node, b.number)
}

// TransferLease gives a lease to another node, with a new fence (the number of the lease).
func (t *Tx) TransferLease(l *rules.Lease, node int64) error {
	l, err := t.loadFullLease(l)
	if err != nil {
		return err
	}
	given := *l
	given.Job.Node = node
	given.Job.Fence += t.FenceStep()
	t.PutLease(&given)
	if !l.Running { // before the start, the job's row contains nothing about the lease
		return nil
	}
	return t.Put(&given.Job)
}

// Counters are those numbers of a database that never decrease.
type Counters struct {
	Commits   int64 // number of commits of all nodes
	NextSeq   int64 // seq of the next job
	NextEvent int64 // number of the next event
}

// Counters returns the counters from the engine's cache. Only the goroutine with the right to write may call
// it.
func (e *Engine) Counters() Counters {
	return Counters{e.mem.commits, e.mem.nextSeq, e.mem.nextEvent}
}

// InTxWithoutWaiter reports whether a transaction is running and no claim waits for a job.
func (e *Engine) InTxWithoutWaiter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.writerToken) == 0 && e.waiter == nil
}

// UpdateTime sets the time of the transaction to the current time, because waiting for other nodes may have
// taken long.
func (t *Tx) UpdateTime() { t.startTime = t.engine.now() }
