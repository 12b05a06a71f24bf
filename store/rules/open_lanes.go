package rules

import (
	"cmp"
	"maps"

	"github.com/queuectl/queuectl/queue"
)

// RecheckState lists the gates (locks, rates and other limits) that may have room again. OpenLanes must check
// the lanes that they have closed. The list stays in memory between transactions. After a restart, the engine
// must call MarkGateDirty for every gate that closes a lane.
type RecheckState struct {
	// MaxSteps limits the steps of OpenLanes in one transaction; 0 means the constant MaxSteps. The next call
	// of Promote continues. Until then, jobs with a worse rank may start before jobs of lanes that are still
	// to be checked.
	MaxSteps int

	// dirtyGates contains the gates to check. The value is the progress of the check.
	dirtyGates map[int64]recheckPass
}

// recheckPass is the progress of one check of all lists of a gate, in the order of ClosedListKey.Compare. A
// list contains the lanes of one queue and user that the gate has closed.
type recheckPass struct {
	lastChecked ClosedListKey // the list that was checked last; zero if none was
	repeat      bool          // check all lists once more, because MarkGateDirty was called during this pass
}

// DirtyGateCount returns the number of gates that OpenLanes still has to check because it ran out of steps.
func (s *RecheckState) DirtyGateCount() int { return len(s.dirtyGates) }

// SaveDirtyGates saves the list of gates to check. If the transaction is undone, the caller must call
// restore, which adds the saved gates to the list again.
func (s *RecheckState) SaveDirtyGates() (restore func()) {
	if len(s.dirtyGates) == 0 {
		return func() {}
	}
	kept := maps.Clone(s.dirtyGates)
	return func() { maps.Copy(s.dirtyGates, kept) }
}

// MaxSteps limits the steps of claims in one transaction, and also those of OpenLanes, so that they hardly
// delay other commits. A step is a lane that is checked, or a job that is read but cannot be leased. See
// docs/decisions/0015.
const MaxSteps = 250

// MarkGateDirty makes OpenLanes check whether lanes that a gate has closed can open. It must be called when
// the gate has more room, and also when an open lane that needs the gate is removed or its head moves,
// because other lanes stay closed behind that lane. If a pass over the gate's lists is in progress, it
// continues, and another pass follows. So OpenLanes reaches every list however often MarkGateDirty is called.
func (k *laneKeeper) MarkGateDirty(gate int64) {
	pass := k.rechecks.dirtyGates[gate]
	pass.repeat = pass.lastChecked != ClosedListKey{}
	k.rechecks.dirtyGates[gate] = pass
}

// markResourcesDirty calls MarkGateDirty for all resources. It is called when a gate has less room: a lane
// that goes first at a resource may now wait for that gate, and then no longer holds back the lanes behind
// it.
func (k *laneKeeper) markResourcesDirty() {
	for _, gate := range k.gates.ResourceGates() {
		k.MarkGateDirty(gate)
	}
}

// outOfSteps reports whether the current operation has taken all the steps that it may take in this
// transaction.
func (k *laneKeeper) outOfSteps() bool {
	if k.steps == &k.claimSteps {
		return k.claimSteps >= MaxSteps
	}
	return k.otherStepsUsedUp()
}

// otherStepsUsedUp reports whether the limit of steps outside of claims is reached in this transaction.
func (k *laneKeeper) otherStepsUsedUp() bool {
	return k.otherSteps >= cmp.Or(k.rechecks.MaxSteps, MaxSteps)
}

// OpenLanes opens closed lanes that have room now. It runs at the end of every transaction. If it runs out of
// steps, the next call of Promote continues. Only OpenLanes, checkResourceOrder and joinLane open closed
// lanes.
func (k *laneKeeper) OpenLanes() error {
	for len(k.rechecks.dirtyGates) > 0 && k.err == nil {
		for gate, pass := range k.rechecks.dirtyGates {
			if k.otherStepsUsedUp() {
				k.clock.WakeAt(k.clock.Now())
				return k.err
			}
			// openLanesOfGate may add the gate again, so delete it first.
			delete(k.rechecks.dirtyGates, gate)
			k.openLanesOfGate(gate, pass)
		}
	}
	return k.err
}

// openLanesOfGate continues a pass over the lists of a gate: it opens the best lane of each list if that lane
// has room. The other lanes of a list stay closed behind the best one. If another gate has no room for a
// lane, the lane moves to a list of that gate.
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
	if done == len(lanes) && len(lanes) < MaxSteps { // all lists of the gate were checked
		if !pass.repeat {
			return
		}
		pass = recheckPass{}
	}
	k.rechecks.dirtyGates[gate] = pass
}

// openBestOfList opens the best lane of one list if the lane has room at all its gates.
func (k *laneKeeper) openBestOfList(l *Lane, gate int64) {
	list := l.ClosedListKey()
	for {
		k.otherSteps++
		if !k.advanceHead(l, gate) {
			n, fullGate := k.laneRoom(l)
			if n == 0 && fullGate == gate {
				return // the gate has no room for the best lane, so the other lanes of the list stay closed too
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
