// Package rules decides how jobs are enqueued, ordered, claimed, settled and changed, in the same way for every
// database.
//
// An engine stores jobs in a database and makes no decisions itself. It gives the rules a transaction, Tx,
// which combines the interfaces in roles.go.
//
// Start with MoveToState, which changes a job's state, Claim, which leases jobs, and ReportAndClaim, which handles the
// reports of the worker pool. The comment at the top of lanes.go explains how claims avoid jobs that cannot start. The
// tests are a specification: start with TestDocumentedExampleOfTwoLanesSharingLock.
package rules

import "cmp"

// Rules carries out operations in one transaction. It embeds parts, such as the laneKeeper. Each part uses only
// some of the interfaces in roles.go. The methods of Rules itself use all parts.
type Rules struct {
	tx Tx // used only by the methods of Rules, not by the parts; see roles.go
	txFailure

	gatekeeper
	laneKeeper
	claimer
	parentChecker
	uniqueKeyChecker
	userQuotaRoomMaker

	// settledJob and insertedJob are memory that settle and InsertJob reuse for each job. Jobs are large, and a request
	// may settle or insert many.
	settledJob, insertedJob Job
	// HookBytesUsed is the number of bytes that the transaction has read and written to create hook jobs. They are
	// counted separately because an operation on a small job may have to read large jobs to create their hooks.
	HookBytesUsed int
}

// Init prepares r, which must be the zero value, for the transaction tx. recheckState is kept in memory between
// transactions. It lists the gates (locks, rates and other limits) that may have room again. The parts of r point to
// each other, so r must not be moved in memory. An engine may save a copy of r, and later copy it back to the same
// address.
func (r *Rules) Init(tx Tx, recheckState *GateRecheckState) {
	if recheckState.dirtyGates == nil {
		recheckState.dirtyGates = map[int64]recheckPass{}
	}
	r.tx = tx
	r.gatekeeper = gatekeeper{clock: tx, settings: tx, counters: tx, gates: tx}
	r.laneKeeper = laneKeeper{
		txFailure: &r.txFailure, gatekeeper: &r.gatekeeper, lanes: tx, leases: tx, queues: tx, unclaimableHandler: r,
		recheckState: recheckState,
		stepCounter:  &r.nonClaimSteps,
	}
	r.claimer = claimer{laneKeeper: &r.laneKeeper, jobs: tx, turns: tx}
	r.parentChecker = parentChecker{txFailure: &r.txFailure, jobs: tx, dependencies: tx}
	r.uniqueKeyChecker = uniqueKeyChecker{txFailure: &r.txFailure, clock: tx, jobs: tx, leases: tx}
	r.userQuotaRoomMaker = userQuotaRoomMaker{txFailure: &r.txFailure, clock: tx, counters: tx, history: tx}
}

// txFailure holds the first error that ends the transaction, as opposed to one that rejects a single operation.
// The parts of the rules record such an error here and do not return it to each other. They may continue with
// missing values, because the engine executes no more statements (see Err) and rolls the transaction back. Only
// the method that the engine has called returns the error.
type txFailure struct{ err error }

// Err returns the error that has ended the transaction, or nil. After an error, the engine must not execute
// further statements, even if the rules still ask for some.
func (f *txFailure) Err() error { return f.err }

// recordErr records an error that the engine has returned. It ignores nil.
func (f *txFailure) recordErr(err error) { f.err = cmp.Or(f.err, err) }

// hasFailed records an error like recordErr. It reports whether any error was recorded, by
// this call or an earlier one.
func (f *txFailure) hasFailed(err error) bool {
	f.recordErr(err)
	return f.err != nil
}

// boolToInt returns 1 for true and 0 for false.
func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
