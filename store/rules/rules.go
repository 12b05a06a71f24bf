// Package rules decides how jobs are enqueued, ordered, claimed, settled and changed, once for every
// database.
//
// An engine stores jobs in a database and makes no decisions itself. It gives the rules a transaction, Tx,
// which combines the roles in roles.go.
//
// Start with Move, which changes a job's state, Claim, which leases jobs, and Exchange, which handles the
// reports of the worker pool. The comment at the top of lanes.go explains how claims avoid jobs that cannot
// start. The tests are a specification: start with TestTwoLanesAndOneLock.
package rules

import "cmp"

// Rules carries out operations in one transaction. It consists of parts, which know only some roles of the
// transaction, and of the methods of Rules, which use all parts.
type Rules struct {
	tx Tx // used by the methods of Rules only; see roles.go
	failure

	gatekeeper
	laneKeeper
	claimer
	parentChecker
	uniqueKeys
	roomMaker

	// HookBytes is the number of bytes read and written for hooks. A job that has hooks may be large, even if
	// the operation on it is small.
	HookBytes int
}

// Init prepares r, which must be zero, for a transaction. The parts of r refer to each other, so r must keep
// its address afterwards. An engine may restore an earlier copy of r at the same address.
func (r *Rules) Init(tx Tx, mem *RecheckState) {
	if mem.dirtyGates == nil {
		mem.dirtyGates = map[int64]recheckPass{}
	}
	r.tx = tx
	r.gatekeeper = gatekeeper{clock: tx, settings: tx, counters: tx, gates: tx}
	r.laneKeeper = laneKeeper{
		failure: &r.failure, gatekeeper: &r.gatekeeper, lanes: tx, leases: tx, queues: tx, dropper: r, mem: mem,
		steps: &r.otherSteps,
	}
	r.claimer = claimer{laneKeeper: &r.laneKeeper, jobs: tx, turns: tx}
	r.parentChecker = parentChecker{failure: &r.failure, jobs: tx, edges: tx}
	r.uniqueKeys = uniqueKeys{failure: &r.failure, clock: tx, jobs: tx, leases: tx}
	r.roomMaker = roomMaker{failure: &r.failure, clock: tx, counters: tx, history: tx}
}

// failure holds the first error of a transaction that does more than reject an operation. After it, the engine refuses
// further statements (see Err) and rolls the transaction back. So the parts of the rules need not return such an error
// to each other: they record it here, and the method that the engine has called returns it. After an error, they may
// continue with values that are missing, because nothing of what they do is stored.
type failure struct{ err error }

// Err returns the error with which the transaction has failed, or nil. The engine must not execute a statement
// after it, since the rules may continue until they return.
func (f *failure) Err() error { return f.err }

// check records an error of the engine.
func (f *failure) check(err error) { f.err = cmp.Or(f.err, err) }

// failed records an error of the engine, and reports whether the transaction has failed.
func (f *failure) failed(err error) bool {
	f.check(err)
	return f.err != nil
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
