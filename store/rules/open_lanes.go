package rules

import (
	"cmp"
	"maps"

	"github.com/queuectl/queuectl/queue"
)

// GateRecheckState lists the gates (locks, rates and other limits) that may have room again. OpenLanes must check the
// lanes that these gates have closed. The list stays in memory between transactions. After a restart, the engine must
// call MarkGateDirty for every gate that closes a lane.
type GateRecheckState struct {
	// MaxNonClaimSteps limits the steps of OpenLanes in one transaction; 0 means the constant MaxLaneStepsPerTx. The next
	// call of ApplyDueChanges continues. Until then, jobs with a worse rank may start before jobs of lanes that are still
	// to be checked.
	MaxNonClaimSteps int

	// dirtyGates contains the gates to check. The value is the progress of the check.
	dirtyGates map[int64]recheckPass
}

// recheckPass is the progress of one check of all lists of a gate, in the order of ClosedLaneListKey.Compare. A
// list contains the lanes of one queue and user that the gate has closed.
type recheckPass struct {
	lastCheckedList ClosedLaneListKey // the list that was checked last; zero if none was
	mustRepeat      bool              // check all lists once more, because MarkGateDirty was called during this pass
}

// DirtyGateCount returns the number of gates that OpenLanes still has to check because it ran out of steps.
func (s *GateRecheckState) DirtyGateCount() int { return len(s.dirtyGates) }

// SaveDirtyGates saves the list of gates to check. If the transaction is undone, the caller must call
// restore, which adds the saved gates to the list again.
func (s *GateRecheckState) SaveDirtyGates() (restore func()) {
	if len(s.dirtyGates) == 0 {
		return func() {}
	}
	kept := maps.Clone(s.dirtyGates)
	return func() { maps.Copy(s.dirtyGates, kept) }
}

// MaxLaneStepsPerTx limits the steps of claims in one transaction, and also those of OpenLanes, so that other commits
// are hardly delayed. A step is a lane that is checked, or a job that is read but cannot be leased. See
// docs/decisions/0015.
const MaxLaneStepsPerTx = 250

// MarkGateDirty makes OpenLanes check whether lanes that a gate has closed can open. It must be called when
// the gate has more room, and also when an open lane that needs the gate is removed or its head moves,
// because other lanes stay closed behind that lane. If a pass over the gate's lists is in progress, it
// continues, and another pass follows. So OpenLanes reaches every list however often MarkGateDirty is called.
func (k *laneKeeper) MarkGateDirty(gateID int64) {
	pass := k.recheckState.dirtyGates[gateID]
	pass.mustRepeat = pass.lastCheckedList != ClosedLaneListKey{}
	k.recheckState.dirtyGates[gateID] = pass
}

// markResourcesDirty calls MarkGateDirty for all resources. It is called when a gate has less room. A lane that goes
// first at a resource may now wait for that gate, and then no longer holds back the lanes behind it.
func (k *laneKeeper) markResourcesDirty() {
	for _, gate := range k.gates.ResourceGateIDs() {
		k.MarkGateDirty(gate)
	}
}

// operationStepsUsedUp reports whether the current operation has taken all the steps that it may take in this
// transaction.
func (k *laneKeeper) operationStepsUsedUp() bool {
	if k.stepCounter == &k.claimSteps {
		return k.claimSteps >= MaxLaneStepsPerTx
	}
	return k.nonClaimStepsUsedUp()
}

// nonClaimStepsUsedUp reports whether the limit of steps outside of claims is reached in this transaction.
func (k *laneKeeper) nonClaimStepsUsedUp() bool {
	return k.nonClaimSteps >= cmp.Or(k.recheckState.MaxNonClaimSteps, MaxLaneStepsPerTx)
}

// OpenLanes opens closed lanes that have room now. It runs at the end of every transaction. If it runs out of steps,
// the next call of ApplyDueChanges continues. Only OpenLanes, keepResourceForBetterLane and addJobToLane open closed
// lanes.
func (k *laneKeeper) OpenLanes() error {
	for len(k.recheckState.dirtyGates) > 0 && k.err == nil {
		for gate, pass := range k.recheckState.dirtyGates {
			if k.nonClaimStepsUsedUp() {
				k.clock.WakeServiceAt(k.clock.Now())
				return k.err
			}
			// openLanesOfGate may add the gate again, so delete it first.
			delete(k.recheckState.dirtyGates, gate)
			k.openLanesOfGate(gate, pass)
		}
	}
	return k.err
}

// openLanesOfGate continues a pass over the lists of a gate: it opens the best lane of each list if that lane
// has room. The other lanes of a list stay closed behind the best one. If another gate has no room for a
// lane, the lane moves to a list of that gate.
func (k *laneKeeper) openLanesOfGate(gateID int64, pass recheckPass) {
	var lanes []Lane
	k.recordErr(k.lanes.EachClosedLaneList(gateID, pass.lastCheckedList, func(l Lane) (bool, error) {
		lanes = append(lanes, l)
		return len(lanes) < MaxLaneStepsPerTx, nil
	}))
	k.nonClaimSteps++
	if len(lanes) > 0 {
		if need := laneNeedAtGate(&lanes[0], gateID); need.Kind != queue.GateResource {
			if g, err := k.GateRoom(lanes[0].UID, need); k.hasFailed(err) || g.FreeUnits < need.Units {
				return // the gate itself has no room, so no lane can open
			}
		}
	}
	done := 0
	for ; done < len(lanes) && !k.nonClaimStepsUsedUp(); done++ {
		k.openBestLaneOfList(&lanes[done], gateID)
		pass.lastCheckedList = lanes[done].ClosedLaneListKey()
	}
	_, marked := k.recheckState.dirtyGates[gateID]
	pass.mustRepeat = pass.mustRepeat || marked
	if done == len(lanes) && len(lanes) < MaxLaneStepsPerTx { // all lists of the gate were checked
		if !pass.mustRepeat {
			return
		}
		pass = recheckPass{}
	}
	k.recheckState.dirtyGates[gateID] = pass
}

// openBestLaneOfList opens the best lane of one list if the lane has room at all its gates.
func (k *laneKeeper) openBestLaneOfList(bestLane *Lane, gateID int64) {
	list := bestLane.ClosedLaneListKey()
	for {
		k.nonClaimSteps++
		if !k.advanceHeadAtResource(bestLane, gateID) {
			n, fullGate := k.laneRoom(bestLane)
			if n == 0 && fullGate == gateID {
				return // the gate has no room for the best lane, so the other lanes of the list stay closed too
			}
			if n > 0 {
				k.JobsMayBeClaimable = true
				k.moveHead(bestLane, bestLane.Head, Open)
				return
			}
			if fullGate != chooseLaneAgain {
				k.moveHead(bestLane, bestLane.Head, fullGate)
			}
		}
		if k.nonClaimStepsUsedUp() {
			k.MarkGateDirty(gateID)
			return
		}
		next, found, err := k.lanes.BestClosedLaneInList(gateID, list)
		if k.hasFailed(err) || !found {
			return
		}
		bestLane = &next
	}
}
