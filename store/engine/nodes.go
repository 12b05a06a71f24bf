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

// NodeNumber returns the number of this node in the database. It is 0 in a database that only one process uses, and
// until this node has joined.
func (e *Engine) NodeNumber() int64 { return e.nodeID }

// DatabaseID returns the identifier of the database. Every copy of the database has another identifier.
func (e *Engine) DatabaseID() string { return e.databaseID }

// SetOtherActiveNodeCount records how many other nodes are active.
func (e *Engine) SetOtherActiveNodeCount(n int64) { e.otherActiveNodeCount.Store(n) }

// HasOtherNodes reports whether another node was active when the last transaction was executed. It is safe
// for concurrent use.
func (e *Engine) HasOtherNodes() bool { return e.otherActiveNodeCount.Load() > 0 }

// JoinAsNode sets the number of this node. A rollback restores the old number.
func (t *Tx) JoinAsNode(nodeNumber int64) {
	s := t.engine
	old := s.nodeID
	s.nodeID = nodeNumber
	t.OnRollback(func() { s.nodeID = old })
	t.OnCommitted(func() { t.thisNode.ID = nodeNumber })
}

// OnRollback calls f if the transaction is rolled back. The functions are called in reverse order.
func (t *Tx) OnRollback(f func()) { t.undoFuncs = append(t.undoFuncs, f) }

// restoreOnRollback makes a rollback restore the present entry of a map for a key, or its absence.
func restoreOnRollback[K comparable, V any](t *Tx, entries map[K]V, key K) {
	old, found := entries[key]
	t.OnRollback(func() {
		if delete(entries, key); found {
			entries[key] = old
		}
	})
}

// OnCommitted calls f after the commit, before the callers get their results.
func (t *Tx) OnCommitted(f func()) { t.afterCommitFuncs = append(t.afterCommitFuncs, f) }

// Leases returns the leases of all nodes, by seq of the job. The caller must not change the map, except
// by TransferLease.
func (t *Tx) Leases() map[int64]*rules.Lease { return t.leases }

// ThisNodeHasLeases reports whether this node has leases. Only the goroutine with the right to write may call it,
// and Backend.Close.
func (e *Engine) ThisNodeHasLeases() bool {
	for _, l := range e.cache.leases {
		if l.Job.LastLeasingNodeID == e.nodeID {
			return true
		}
	}
	return false
}

// EncodedReservationsByNode returns the lists of reserved leases (leases of attempts that are not known to have
// started) as text, by node. It contains the nodes whose leases the transaction has changed, or all nodes if
// the table meta still lists reserved leases.
func (t *Tx) EncodedReservationsByNode() map[int64][]byte {
	byNode := map[int64][]byte{}
	for _, node := range t.nodesWithChangedReservations {
		byNode[node] = nil
	}
	for seq, l := range t.leases {
		if list, listed := byNode[l.Job.LastLeasingNodeID]; !l.AttemptStarted && (listed || t.metaListsReservedLeases) {
			byNode[l.Job.LastLeasingNodeID] = database.AppendLeaseReservation(list, seq, l.Job.Fence, l.Job.LastLeasingNodeID)
		}
	}
	return byNode
}

// SetMetaHasReservations records whether the list in the table meta will contain reserved leases after the
// transaction. (A lease is reserved while its attempt is not known to have started.) It reports whether this list
// changes.
func (t *Tx) SetMetaHasReservations(hasReservations bool) (changed bool) {
	changed = t.metaListsReservedLeases || hasReservations || slices.Contains(t.nodesWithChangedReservations, NoNode)
	t.metaListsReservedLeases = hasReservations
	return changed
}

// OrphanLeases makes the leases of a removed node belong to no node. The next node that takes over leases gets these
// leases. The uncommitted batches of the removed node now belong to this node.
func (t *Tx) OrphanLeases(removedNodeNumber int64) error {
	t.TakeOverBatches(func(node int64) bool { return node == removedNodeNumber })
	for _, l := range t.leases {
		if l.Job.LastLeasingNodeID == removedNodeNumber {
			if err := t.TransferLease(l, NoNode); err != nil {
				return err
			}
		}
	}
	return t.statementErr
}

// TakeOverBatches makes this node the owner of the uncommitted batches of those nodes for which isNodeGone returns
// true. The time limit for the next part of each batch starts again.
func (t *Tx) TakeOverBatches(isNodeGone func(node int64) bool) error {
	for _, b := range t.batches {
		if b.acceptsFrames() && isNodeGone(b.receivingNodeID) {
			t.takeOverBatch(&b)
		}
	}
	return t.statementErr
}

// takeOverBatch makes this node the owner of a batch. The time limit for the next part of the batch starts again.
func (t *Tx) takeOverBatch(b *batch) {
	b.receivingNodeID, b.lastFrameAt = t.engine.nodeID, t.startTime
	t.cacheBatch(b.number, *b)
	t.Exec(`UPDATE batches SET node = ? WHERE n = ?`, b.receivingNodeID, b.number)
}

// TransferLease gives a lease to another node, with a new fence (the number of the lease).
func (t *Tx) TransferLease(l *rules.Lease, newNodeNumber int64) error {
	l, err := t.loadFullLease(l)
	if err != nil {
		return err
	}
	given := *l
	given.Job.LastLeasingNodeID = newNodeNumber
	given.Job.Fence += t.RandomFenceIncrement()
	t.PutLease(&given)
	if !l.AttemptStarted { // before the start, the job's row contains nothing about the lease
		return nil
	}
	return t.PutJob(&given.Job)
}

// DatabaseCounters are those numbers of a database that never decrease.
type DatabaseCounters struct {
	CommitCount     int64 // number of commits of all nodes
	NextJobSeq      int64 // seq of the next job
	NextEventNumber int64 // number of the next event
}

// Counters returns the counters from the engine's cache. Only the goroutine with the right to write may call
// it.
func (e *Engine) DatabaseCounters() DatabaseCounters {
	return DatabaseCounters{e.cache.commitCount, e.cache.NextJobSeq, e.cache.NextEventNumber}
}

// InTxWithoutClaimWaiter reports whether a transaction is running and no claim waits for a job.
func (e *Engine) InTxWithoutClaimWaiter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.writerToken) == 0 && e.waitingClaim == nil
}

// ResetStartTime sets the time of the transaction to the current time, because waiting for other nodes may have
// taken long.
func (t *Tx) ResetStartTime() { t.startTime = t.engine.clock() }
