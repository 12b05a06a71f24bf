package rules

import (
	"cmp"
	"maps"

	"github.com/queuectl/queuectl/queue"
)

// RecheckState holds the state that the rules keep between transactions. An engine that loses it must
// call MarkGateDirty for every gate that closes a lane.
type RecheckState struct {
	// MaxSteps limits the steps that OpenLanes takes in one transaction; 0 means the constant MaxSteps. The
	// next Promote checks the lanes that remain. Until then, jobs of other lanes may start although they have
	// a worse rank.
	MaxSteps int

	// dirtyGates contains the gates that may have room for a lane that they have closed, with the progress of
	// the check.
	dirtyGates map[int64]recheckRound
}

// recheckRound is the progress of checking all lists of a gate once, in the order of ClosedLaneList.Compare.
// A round starts behind one list, continues to the last one, then from the first back to where it started.
type recheckRound struct {
	startedBehind ClosedLaneList // the round started behind this list
	lastChecked   ClosedLaneList // the last list that was checked
	wrapped       bool           // the round has passed the last list and continues from the first
}

// DirtyGateCount returns the number of gates that OpenLanes still has to check because it ran out of steps.
func (s *RecheckState) DirtyGateCount() int { return len(s.dirtyGates) }

// SaveDirtyGates remembers the gates that are to be checked. If the transaction is undone, the caller must call the
// returned function, so that these gates are checked again.
func (s *RecheckState) SaveDirtyGates() (back func()) {
	if len(s.dirtyGates) == 0 {
		return func() {}
	}
	kept := maps.Clone(s.dirtyGates)
	return func() { maps.Copy(s.dirtyGates, kept) }
}

// MaxSteps limits the steps that claims take in one transaction, and the steps that OpenLanes takes. The
// limit is low enough that other commits are not delayed noticeably.
// See docs/decisions/0015.
const MaxSteps = 250

// MarkGateDirty makes OpenLanes check whether lanes that a gate has closed can open. Code that makes room at
// a gate must call it. So must code that takes away an open lane behind which other lanes of the gate stay
// closed. No other code has to call it. If the gate is already being checked, the round continues from the
// list that it has reached, and ends after one more full pass. So repeated calls cannot keep OpenLanes from
// checking every list.
func (k *laneKeeper) MarkGateDirty(gate int64) {
	progress := k.mem.dirtyGates[gate]
	k.mem.dirtyGates[gate] = recheckRound{startedBehind: progress.lastChecked, lastChecked: progress.lastChecked}
}

// markResourcesDirty calls MarkGateDirty for all resources. It is called when another gate has less room now. A lane
// that goes first at a resource may now lack room at that gate, so the lanes that wait behind it may have
// room.
func (k *laneKeeper) markResourcesDirty() {
	for _, gate := range k.gates.ResourceGates() {
		k.MarkGateDirty(gate)
	}
}

// outOfSteps reports whether the current operation has used up its steps.
func (k *laneKeeper) outOfSteps() bool {
	if k.steps == &k.claimSteps {
		return k.claimSteps >= MaxSteps
	}
	return k.openingOutOfSteps()
}

func (k *laneKeeper) openingOutOfSteps() bool {
	return k.otherSteps >= cmp.Or(k.mem.MaxSteps, MaxSteps)
}

// OpenLanes opens closed lanes that have room now. If it runs out of steps, Promote continues. Every transaction
// ends with OpenLanes. Apart from OpenLanes, only checkResourceOrder and joinLane open closed lanes.
func (k *laneKeeper) OpenLanes() error {
	for len(k.mem.dirtyGates) > 0 && k.err == nil {
		for gate, progress := range k.mem.dirtyGates {
			if k.openingOutOfSteps() {
				k.clock.WakeAt(k.clock.Now())
				return k.err
			}
			// Deleted first, because the code below may add the gate again.
			delete(k.mem.dirtyGates, gate)
			k.openLanesOfGate(gate, progress)
		}
	}
	return k.err
}

// openLanesOfGate continues a round: it opens the best lane of each list of a gate if the lane has room. The rest of
// the list stays closed behind this lane. A lane that another gate holds back moves to the list of that gate.
func (k *laneKeeper) openLanesOfGate(gate int64, progress recheckRound) {
	var lanes []Lane
	k.check(k.lanes.EachClosedList(gate, progress.lastChecked, func(l Lane) (bool, error) {
		lanes = append(lanes, l)
		return len(lanes) < MaxSteps, nil
	}))
	k.otherSteps++
	if len(lanes) > 0 {
		if need := needAt(&lanes[0], gate); need.Kind != queue.GateResource {
			if g, err := k.gatekeeper.GateRoom(lanes[0].UID, need); k.failed(err) || g.Free < need.Units {
				return // the gate itself has no room, so no lane can open
			}
		}
	}
	done := 0
	for ; done < len(lanes) && !k.openingOutOfSteps() && !progress.endsBefore(lanes[done].ClosedList()); done++ {
		k.openBestOfList(&lanes[done], gate)
		progress.lastChecked = lanes[done].ClosedList()
	}
	switch _, requested := k.mem.dirtyGates[gate]; {
	case requested: // MarkGateDirty was called again for this gate during the round
		progress.startedBehind, progress.wrapped = progress.lastChecked, false
	case done < len(lanes) && progress.endsBefore(lanes[done].ClosedList()),
		done == len(lanes) && len(lanes) < MaxSteps && (progress.startedBehind == ClosedLaneList{} || progress.wrapped):
		return
	}
	if done == len(lanes) && len(lanes) < MaxSteps { // the last list was checked; the first is next
		progress.lastChecked, progress.wrapped = ClosedLaneList{}, progress.startedBehind != ClosedLaneList{}
	}
	k.mem.dirtyGates[gate] = progress
}

// endsBefore reports whether the round has come back to where it started, so that it ends before this list.
func (r *recheckRound) endsBefore(list ClosedLaneList) bool {
	return r.wrapped && list.Compare(r.startedBehind) > 0
}

// openBestOfList opens the best lane of one list if the lane has room.
func (k *laneKeeper) openBestOfList(l *Lane, gate int64) {
	list := l.ClosedList()
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
		if k.openingOutOfSteps() {
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
