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

// Rules carries out operations in one transaction. It consists of parts, which know only some roles of the
// transaction, and of the methods of Rules, which use all parts.
type Rules struct {
	tx Tx // used by the methods of Rules only; see roles.go

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
		mem.dirtyGates = map[int64]recheckRound{}
	}
	r.tx = tx
	r.gatekeeper = gatekeeper{clock: tx, settings: tx, counters: tx, gates: tx}
	r.laneKeeper = laneKeeper{
		clock: tx, lanes: tx, leases: tx, queues: tx, gates: tx, gatekeeper: &r.gatekeeper, dropper: r, mem: mem,
		steps: &r.otherSteps,
	}
	r.claimer = claimer{
		settings: tx, jobs: tx, leases: tx, queues: tx, lanes: tx, turns: tx, gates: tx, keeper: &r.laneKeeper, dropper: r,
	}
	r.parentChecker = parentChecker{jobs: tx, edges: tx}
	r.uniqueKeys = uniqueKeys{clock: tx, jobs: tx, leases: tx}
	r.roomMaker = roomMaker{clock: tx, counters: tx, history: tx}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
