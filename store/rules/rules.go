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
	clock      Clock
	settings   Settings
	jobs       Jobs
	history    History
	counters   Counters
	leases     Leases
	queues     Queues
	lanes      Lanes
	turns      UserTurns
	gates      Gates
	edges      Dependencies
	schedules  Schedules
	savepoints Savepoints

	gatekeeper
	laneKeeper
	claimer
	parentChecker
	uniqueKeys
	roomMaker

	// job is the job that is being inserted or settled. There is only one at a time, so its memory is reused.
	job Job
	// HookBytes is the number of bytes read and written for hooks. A job that has hooks may be large, even if
	// the operation on it is small.
	HookBytes int
}

// Init prepares r, which must be zero, for a transaction. The parts of r refer to each other, so r must keep
// its address afterwards. An engine may restore an earlier copy of r at the same address.
func (r *Rules) Init(tx Tx, mem *Memory) {
	if mem.recheck == nil {
		mem.recheck = map[int64]recheckRound{}
	}
	r.clock, r.settings, r.jobs, r.history, r.counters, r.leases, r.queues = tx, tx, tx, tx, tx, tx, tx
	r.lanes, r.turns, r.gates, r.edges, r.schedules, r.savepoints = tx, tx, tx, tx, tx, tx

	r.gatekeeper = gatekeeper{clock: r.clock, settings: r.settings, counters: r.counters, gates: r.gates}
	r.laneKeeper = laneKeeper{
		clock: r.clock, lanes: r.lanes, leases: r.leases, queues: r.queues, gates: r.gates,
		gatekeeper: &r.gatekeeper, dropper: r, mem: mem, steps: &r.otherSteps,
	}
	r.claimer = claimer{
		settings: r.settings, jobs: r.jobs, leases: r.leases, queues: r.queues, lanes: r.lanes, turns: r.turns,
		gates: r.gates, keeper: &r.laneKeeper, dropper: r,
	}
	r.parentChecker = parentChecker{jobs: r.jobs, edges: r.edges}
	r.uniqueKeys = uniqueKeys{clock: r.clock, jobs: r.jobs, leases: r.leases}
	r.roomMaker = roomMaker{clock: r.clock, counters: r.counters, history: r.history}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
