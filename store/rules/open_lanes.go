package rules

import (
	"cmp"
	"maps"

	"github.com/queuectl/queuectl/queue"
)

// RecheckState lists the gates that must be checked again. It is kept in memory between transactions. After a
// restart, an engine must call MarkGateDirty for every gate that closes a lane.
type RecheckState struct {
	// MaxSteps limits the steps that OpenLanes takes in one transaction; 0 means the constant MaxSteps. The
	// next call of Promote checks the remaining lanes. Until then, jobs of other lanes may start although they
	// have a worse rank.
	MaxSteps int

	// dirtyGates contains each gate that may have room again for a lane that it has closed. The value is the
	// progress of checking that gate.
	dirtyGates map[int64]recheckPass
}

// recheckPass is the progress of checking all lists of a gate once, in the order of ClosedListKey.Compare. A
// list contains the closed lanes of one queue and user.
type recheckPass struct {
	lastChecked ClosedListKey // the last list that was checked; zero if none was
	repeat      bool          // another pass follows, because MarkGateDirty was called during this one
}

// DirtyGateCount returns the number of gates that OpenLanes still has to check because it ran out of steps.
func (s *RecheckState) DirtyGateCount() int { return len(s.dirtyGates) }

// SaveDirtyGates remembers the gates that must be checked again. If the transaction is undone, the caller must
// call the returned function, which adds these gates to the list again.
func (s *RecheckState) SaveDirtyGates() (restore func()) {
	if len(s.dirtyGates) == 0 {
		return func() {}
	}
	kept := maps.Clone(s.dirtyGates)
	return func() { maps.Copy(s.dirtyGates, kept) }
}

// MaxSteps limits the steps that claims take in one transaction, and the steps that OpenLanes takes. The limit
// is so low that other commits are hardly delayed. See docs/decisions/0015.
const MaxSteps = 250

// MarkGateDirty makes OpenLanes check whether lanes that a gate has closed can open. Code that makes room at a
// gate must call it. Code that removes an open lane, or moves its head, must call it too, because other lanes
// of the gate stay closed behind that lane. If the gate is already being checked, the current pass continues,
// and another full pass follows. So OpenLanes reaches every list even if the calls repeat.
func (k *laneKeeper) MarkGateDirty(gate int64) {
	pass := k.rechecks.dirtyGates[gate]
	pass.repeat = pass.lastChecked != ClosedListKey{}
	k.rechecks.dirtyGates[gate] = pass
}

// markResourcesDirty calls MarkGateDirty for all resources. It is called when a gate has lost room. A lane that
// goes first at a resource may now lack room at that gate. Then it no longer holds back the lanes behind it.
func (k *laneKeeper) markResourcesDirty() {
	for _, gate := range k.gates.ResourceGates() {
		k.MarkGateDirty(gate)
	}
}

// outOfSteps reports whether the current operation has taken as many steps as it may in one transaction.
func (k *laneKeeper) outOfSteps() bool {
	if k.steps == &k.claimSteps {
		return k.claimSteps >= MaxSteps
	}
	return k.otherStepsUsedUp()
}

// otherStepsUsedUp reports whether the steps outside of claims are used up in this transaction.
func (k *laneKeeper) otherStepsUsedUp() bool {
	return k.otherSteps >= cmp.Or(k.rechecks.MaxSteps, MaxSteps)
}

// OpenLanes opens closed lanes that have room now. If it runs out of steps, the next Promote continues. Every
// transaction ends with OpenLanes. Apart from OpenLanes, only checkResourceOrder and joinLane open closed
// lanes.
func (k *laneKeeper) OpenLanes() error {
	for len(k.rechecks.dirtyGates) > 0 && k.err == nil {
		for gate, pass := range k.rechecks.dirtyGates {
			if k.otherStepsUsedUp() {
				k.clock.WakeAt(k.clock.Now())
				return k.err
			}
			// Delete the gate first, because the code below may add it again.
			delete(k.rechecks.dirtyGates, gate)
			k.openLanesOfGate(gate, pass)
		}
	}
	return k.err
}

// openLanesOfGate continues a pass: it opens the best lane of each list of a gate if the lane has room. The
// other lanes of the list stay closed behind the best one. A lane for which another gate lacks room moves to
// the list of that gate.
func (k *laneKeeper) openLanesOfGate(gate int64, pass recheckPass) {
	var lanes []Lane
	k.recordErr(k.lanes.EachClosedList(gate, pass.lastChecked, func(l Lane) (bool, error) {
		lanes = append(lanes, l)
		return len(lanes) < MaxSteps, nil
	}))
	k.otherSteps++
	if len(lanes) > 0 {
		if need := needAt(&lanes[0], gate); need.Kind != queue.GateResource {
			if g, err := k.GateRoom(lanes[0].UID, need); k.failed(err) || g.Free < need.Units {
				return // the gate itself has no room, so no lane can open
			}
		}
	}
	done := 0
	for ; done < len(lanes) && !k.otherStepsUsedUp(); done++ {
		k.openBestOfList(&lanes[done], gate)
		pass.lastChecked = lanes[done].ClosedListKey()
	}
	_, marked := k.rechecks.dirtyGates[gate]
	pass.repeat = pass.repeat || marked
	if done == len(lanes) && len(lanes) < MaxSteps { // the last list was checked
		if !pass.repeat {
			return
		}
		pass = recheckPass{}
	}
	k.rechecks.dirtyGates[gate] = pass
}

// openBestOfList opens the best lane of one list if the lane has room.
func (k *laneKeeper) openBestOfList(l *Lane, gate int64) {
	list := l.ClosedListKey()
	for {
		k.otherSteps++
		if !k.advanceHead(l, gate) {
			n, fullGate := k.laneRoom(l)
			if n == 0 && fullGate == gate {
				return // the gate has no room for this lane, so the lanes behind it stay closed too
			}
			if n > 0 {
				k.MadeJobsReady = true
				k.moveHead(l, l.Head, Open)
				return
			}
			if fullGate != chooseAgain {
				k.moveHead(l, l.Head, fullGate)
			}
		}
		if k.otherStepsUsedUp() {
			k.MarkGateDirty(gate)
			return
		}
		next, found, err := k.lanes.BestClosedInList(gate, list)
		if k.failed(err) || !found {
			return
		}
		l = &next
	}
}
