package rules

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// This file keeps claims from reading jobs that cannot start. It groups waiting jobs into lanes, and a gate
// that lacks room for the first job of a lane closes the whole lane (Lane.Shut).
//
// An example with two lanes of one user and one queue: both need a lock that one job may hold, and lane B
// also needs a rate limit. Lane A contains jobs 1 and 4, lane B contains job 2. A claim takes job 1, because
// lane A has the better head. When the claim checks lane A again, the lock is taken. So the claim closes lane
// A at the lock, and then lane B. Both lanes are now in the same list of closed lanes, since a list contains
// the lanes that one gate has closed, of one queue and one user.
//
// When job 1 ends, endLease calls Recheck for the lock. Reopen opens only lane B, since job 2 ranks before
// job 4. Lane A stays closed, because a claim would take job 2 first anyway. Once the head of lane B has
// moved past job 2, setHead calls Recheck for the lock again. Job 2 holds the lock now, so lane A stays
// closed until job 2 ends.

// Lane is a group of jobs with the same queue, user and demands that are ready: only gates can hold them
// back. A claim checks the gates only for the first of them. When a gate closes or opens a lane, the jobs of
// the lane are not written.
// See docs/decisions/0011.
type Lane struct {
	ID    int64
	Queue string
	UID   int
	// Needs lists the gates of the lane except the user's quota: the node, locks and rates, then resources.
	Needs []Need
	// Head is the position of the first job of the lane that is not leased, or an earlier position.
	Head Position
	// Priority is the priority of the job at Head, or Unknown.
	Priority int64
	// Shut is the gate that lacks room for the first job. It is Open if no such gate is known, and Empty if
	// the lane has no jobs.
	Shut int64
	// HeapIndex is used by the engine: the index of the lane in one of its heaps, or -1.
	HeapIndex int
}

// The values of Lane.Shut that are not gates.
const (
	Open  int64 = 0
	Empty int64 = math.MinInt64
)

// laneRoom returns chooseAgain instead of a gate if it has opened another lane that goes first. The caller
// must then choose a lane again.
const chooseAgain int64 = math.MinInt64 + 1

// Start is before every other position.
var Start = Position{math.MinInt64, 0}

// End is after every other position.
var End = Position{math.MaxInt64, math.MaxInt64}

// Need is a gate, and the number of its units that one job takes.
type Need struct {
	Gate  int64
	Kind  queue.GateKind
	Units int
}

// UserGate returns the gate of a user's quota. It is below 0; all other gates are above 0.
func UserGate(uid int) int64 {
	if uid < 0 {
		return 2*int64(uid) - 1 // odd
	}
	return -2*int64(uid) - 2 // even
}

// Queue is the state of a queue.
type Queue struct {
	Name string
	// Weight is the queue's share of all starts, relative to the weights of the other queues.
	Weight int
	// Room is the number of further jobs of the queue that may be leased. It is 0 while the queue is paused.
	Room int
	Head Position // the best head among the queue's open lanes
	// Pass is the queue's next turn while queues have different weights. The queue with the lowest turn is
	// served first.
	Pass int64

	Waiting int64 // number of waiting jobs
	Most    int64 // limit of Waiting; 0 means unlimited
	Keeps   bool  // the queue has its own retention
}

// List names one list of closed lanes of a gate: the lanes of one queue and one user.
type List struct {
	Queue string
	UID   int
}

// Compare orders lists by queue, then by user.
func (l List) Compare(other List) int {
	return cmp.Or(strings.Compare(l.Queue, other.Queue), cmp.Compare(l.UID, other.UID))
}

// List returns the list that contains the lane while a gate closes it.
func (l *Lane) List() List { return List{l.Queue, l.UID} }

// moveHead calls setHead for callers that do not know the priority of a new head.
func (r *Rules) moveHead(l *Lane, head Position, closedBy int64) error {
	if head != l.Head {
		l.Priority = Unknown
	}
	return r.setHead(l, head, closedBy)
}

// setHead is the only function that writes a lane's head, priority and closing gate. The priority is
// l.Priority.
func (r *Rules) setHead(l *Lane, head Position, closedBy int64) error {
	// While this lane was open, the lanes behind it stayed closed in the lists of its gates. They may have to
	// open now, except at the gate that closes this lane: they have no room there either.
	if l.Shut == Open && (closedBy != Open || head.After(l.Head)) {
		if gate := UserGate(l.UID); gate != closedBy {
			r.Recheck(gate)
		}
		for _, n := range l.Needs {
			if n.Gate != closedBy {
				r.Recheck(n.Gate)
			}
		}
	}
	// The lane waits for a resource and holds back lanes that rank behind its head. It holds back fewer of
	// them now.
	if needsResource(l, l.Shut) && (closedBy != l.Shut || head.After(l.Head)) {
		r.Recheck(l.Shut)
	}
	l.Head, l.Shut = head, closedBy
	delete(r.skippedPriorities, l.ID)
	return r.tx.SetLane(*l)
}

// Recheck makes Reopen check whether lanes that a gate has closed can open. Code that makes room at a gate
// must call it. So must code that takes away an open lane behind which other lanes of the gate stay closed.
// No other code has to call it. If the gate is already being checked, the round continues from the list that
// it has reached, and ends after one more full pass. So repeated calls cannot keep Reopen from checking every
// list.
func (r *Rules) Recheck(gate int64) {
	progress := r.mem.recheck[gate]
	r.mem.recheck[gate] = recheckRound{startedBehind: progress.lastChecked, lastChecked: progress.lastChecked}
}

// recheckResources calls Recheck for all resources. It is called when another gate has less room now. A lane
// that goes first at a resource may now lack room at that gate, so the lanes that wait behind it may have
// room.
func (r *Rules) recheckResources() {
	for _, gate := range r.tx.Resources() {
		r.Recheck(gate)
	}
}

// StepsMost limits the steps that claims take in one transaction, and the steps that Reopen takes. The limit
// is low enough that other commits are not delayed noticeably.
// See docs/decisions/0015.
const StepsMost = 250

// stepCounter returns the counter of the steps that the current operation takes: Rules.Steps during a claim,
// and otherSteps at other times.
func (r *Rules) stepCounter() *int {
	if r.claiming {
		return &r.Steps
	}
	return &r.otherSteps
}

// outOfSteps reports whether the current operation has used up its steps.
func (r *Rules) outOfSteps() bool {
	if r.claiming {
		return r.Steps >= StepsMost
	}
	return r.otherSteps >= r.mem.maxReopenSteps()
}

// Reopen opens closed lanes that have room now. If it runs out of steps, Promote continues. Every transaction
// ends with Reopen. Apart from Reopen, only checkResourceOrder and joinLane open closed lanes.
func (r *Rules) Reopen() error {
	for len(r.mem.recheck) > 0 {
		for gate, progress := range r.mem.recheck {
			if r.otherSteps >= r.mem.maxReopenSteps() {
				r.tx.WakeAt(r.tx.Now())
				return nil
			}
			// Deleted first, because the code below may add the gate again.
			delete(r.mem.recheck, gate)
			if err := r.reopenGate(gate, progress); err != nil {
				return err
			}
		}
	}
	return nil
}

// reopenGate continues a round: it opens the best lane of each list of a gate if the lane has room. The rest of
// the list stays closed behind this lane. A lane that another gate holds back moves to the list of that gate.
func (r *Rules) reopenGate(gate int64, progress recheckRound) error {
	var lanes []Lane
	err := r.tx.Shut(gate, progress.lastChecked, func(l Lane) (bool, error) {
		lanes = append(lanes, l)
		return len(lanes) < StepsMost, nil
	})
	if err != nil {
		return err
	}
	r.otherSteps++
	if len(lanes) > 0 {
		if need := needAt(&lanes[0], gate); need.Kind != queue.GateResource {
			if g, err := r.Gate(lanes[0].UID, need); err != nil || g.Room < need.Units {
				return err // the gate itself has no room, so no lane can open
			}
		}
	}
	done := 0
	for ; done < len(lanes) && r.otherSteps < r.mem.maxReopenSteps() && !progress.endsBefore(lanes[done].List()); done++ {
		if err := r.reopenList(&lanes[done], gate); err != nil {
			return err
		}
		progress.lastChecked = lanes[done].List()
	}
	switch _, requested := r.mem.recheck[gate]; {
	case requested: // Recheck was called again for this gate during the round
		progress.startedBehind, progress.wrapped = progress.lastChecked, false
	case done < len(lanes) && progress.endsBefore(lanes[done].List()),
		done == len(lanes) && len(lanes) < StepsMost && (progress.startedBehind == List{} || progress.wrapped):
		return nil
	}
	if done == len(lanes) && len(lanes) < StepsMost { // the last list was checked; the first is next
		progress.lastChecked, progress.wrapped = List{}, progress.startedBehind != List{}
	}
	r.mem.recheck[gate] = progress
	return nil
}

// endsBefore reports whether the round has come back to where it started, so that it ends before this list.
func (at *recheckRound) endsBefore(list List) bool {
	return at.wrapped && list.Compare(at.startedBehind) > 0
}

// reopenList opens the best lane of one list if the lane has room.
func (r *Rules) reopenList(l *Lane, gate int64) error {
	list := l.List()
	for {
		r.otherSteps++
		moved, err := r.advanceHead(l, gate)
		if err != nil {
			return err
		}
		if !moved {
			n, fullGate, err := r.laneRoom(l)
			if err != nil || n == 0 && fullGate == gate {
				return err // the gate has no room for this lane, so the lanes behind it stay closed too
			}
			if n > 0 {
				r.Readied = true
				return r.moveHead(l, l.Head, Open)
			}
			if fullGate != chooseAgain {
				err = r.moveHead(l, l.Head, fullGate)
			}
			if err != nil {
				return err
			}
		}
		if r.otherSteps >= r.mem.maxReopenSteps() {
			r.Recheck(gate)
			return nil
		}
		next, found, err := r.tx.NextShut(gate, list)
		if err != nil || !found {
			return err
		}
		l = &next
	}
}

// needAt returns the need that a lane has at the gate that closes it.
func needAt(l *Lane, gate int64) Need {
	for _, n := range l.Needs {
		if n.Gate == gate {
			return n
		}
	}
	return Need{Gate: gate, Kind: queue.GateUser, Units: 1}
}

// advanceHead moves the head of a lane that is closed by a resource to the lane's first job. The lane holds
// back others from its head on, so the head must be exact. It reports whether the lane has changed its
// position.
func (r *Rules) advanceHead(l *Lane, gate int64) (moved bool, err error) {
	if !needsResource(l, gate) {
		return false, nil
	}
	return r.moveHeadToFirst(l)
}

// moveHeadToFirst moves the head of a lane to the lane's first job and sets l.Priority. changed is false if
// the head already was the position of that job. It is true if the head has moved, or if the lane has no job
// that can start at its head.
func (r *Rules) moveHeadToFirst(l *Lane) (changed bool, err error) {
	scan := Look{Lane: *l, Upto: End, Want: 1, Steps: StepsMost}
	if err := r.tx.Find(&scan); err != nil {
		return false, err
	}
	for i := range scan.Damaged {
		*r.stepCounter()++
		if err := r.HoldDamaged(&scan.Damaged[i]); err != nil {
			return false, err
		}
	}
	switch {
	case len(scan.Jobs) == 0 && scan.End:
		return true, r.moveHead(l, scan.Next, Empty)
	case len(scan.Jobs) == 0:
		return true, r.moveHead(l, scan.Next, l.Shut)
	case r.hasExpired(&scan.Jobs[0]):
		return true, r.Expire(&scan.Jobs[0])
	}
	j := &scan.Jobs[0]
	changed = j.Position() != l.Head
	if l.Priority = priorityToStore(j); changed || l.Priority != Unknown {
		err = r.setHead(l, j.Position(), l.Shut)
	}
	l.Priority = j.Priority
	return changed, err
}

// priorityToStore returns the priority to store for a lane whose head is this job. It is Unknown for a job that
// expires, so that each claim reads the job again.
func priorityToStore(j *Job) int64 {
	if j.ExpiresAt != 0 {
		return Unknown
	}
	return j.Priority
}

// needsResource reports whether a lane needs this gate and the gate is a resource.
func needsResource(l *Lane, gate int64) bool { return needAt(l, gate).Kind == queue.GateResource }

func (r *Rules) hasExpired(j *Job) bool { return j.ExpiresAt != 0 && j.ExpiresAt <= r.tx.Now() }

// laneRoom returns how many jobs of a lane may be leased now. If the number is 0, fullGate is the gate
// without room, or chooseAgain.
func (r *Rules) laneRoom(l *Lane) (n int, fullGate int64, err error) {
	n, fullGate, err = r.roomAtGate(l, Need{Gate: UserGate(l.UID), Kind: queue.GateUser, Units: 1})
	for i := 0; i < len(l.Needs) && n > 0 && err == nil; i++ {
		var atGate int
		atGate, fullGate, err = r.roomAtGate(l, l.Needs[i])
		n = min(n, atGate)
	}
	return n, fullGate, err
}

// roomAtGate returns the room for a lane at one gate. At a resource, a lane has no room while
// checkResourceOrder finds that a lane of the same queue goes first.
func (r *Rules) roomAtGate(l *Lane, need Need) (n int, fullGate int64, err error) {
	if need.Kind == queue.GateResource {
		if fullGate, err := r.checkResourceOrder(l, need.Gate); fullGate != Open || err != nil {
			return 0, fullGate, err
		}
	}
	g, err := r.Gate(l.UID, need)
	if n = max(0, g.Room) / need.Units; n == 0 || err != nil {
		return 0, need.Gate, err
	}
	return n, Open, nil
}

// checkResourceOrder returns the gate if another lane of the same queue ranks before this lane and waits only
// for this resource. If it finds that such a lane has room now, it opens that lane and returns chooseAgain.
// In all other cases it returns Open.
// See docs/decisions/0016.
func (r *Rules) checkResourceOrder(l *Lane, gate int64) (fullGate int64, err error) {
	for {
		first, found, err := r.tx.FirstShut(gate, l.Queue)
		if err != nil || !found || first.ID == l.ID || !l.Head.After(first.Head) {
			return Open, err
		}
		if r.outOfSteps() {
			// The other lane may still go first, so this lane waits until Reopen has checked it.
			r.Recheck(gate)
			return gate, nil
		}
		*r.stepCounter()++
		moved, err := r.advanceHead(&first, gate)
		if err != nil {
			return Open, err
		}
		if moved {
			continue
		}
		n, fullGate, err := r.laneRoom(&first)
		switch {
		case err != nil:
			return Open, err
		case n > 0: // the other lane has room, so it goes first unless another user has the turn
			r.Readied = true
			return chooseAgain, r.moveHead(&first, first.Head, Open)
		case fullGate == gate || fullGate == chooseAgain:
			return fullGate, nil
		}
		// The other lane waits for another gate, so it no longer holds back lanes at this resource.
		if err := r.moveHead(&first, first.Head, fullGate); err != nil {
			return Open, err
		}
	}
}

// joinLane adds a job to its lane. The caller writes the job's row afterwards.
func (r *Rules) joinLane(j *Job) error {
	l, err := r.tx.Lane(j)
	if err != nil {
		return err
	}
	j.Lane = l.ID
	p := j.Position()
	if l.Shut != Empty && !l.Head.After(p) {
		r.Readied = r.Readied || l.Shut == Open
		return nil
	}
	closedBy := Open
	if l.Shut != Open {
		candidate := l
		candidate.Head = p
		n, fullGate, err := r.laneRoom(&candidate)
		if err != nil {
			return err
		}
		// With chooseAgain, the lane stays open, and a claim checks it later.
		if n == 0 && fullGate != chooseAgain {
			closedBy = fullGate
		}
	}
	r.Readied = r.Readied || closedBy == Open
	// A job that is still leased does not count as the first job of its lane, so the priority of the head is
	// not known.
	if l.Priority = Unknown; r.tx.Lease(j.Seq) == nil {
		l.Priority = priorityToStore(j)
	}
	return r.setHead(&l, p, closedBy)
}

// leaveLane records that an unleased job is about to leave its lane. If other lanes wait behind its lane for
// a resource, these are checked again.
func (r *Rules) leaveLane(j *Job) error {
	if j.Damaged && !slices.ContainsFunc(j.Demands, func(d queue.Demand) bool { return d.Kind == queue.GateResource }) {
		// The row may be damaged, including the number of the lane. Nothing has to be done: the claim that
		// found the job moves the head of the lane past it.
		return nil
	}
	l, err := r.tx.Lane(j)
	delete(r.skippedPriorities, l.ID)
	if err == nil && needsResource(&l, l.Shut) {
		r.Recheck(l.Shut)
	}
	switch {
	case err != nil || l.Head.Seq != j.Seq || l.Shut == Empty: // nothing to move if the job is not the head
		return err
	case len(l.Needs) > 0:
		return r.moveHeadPast(&l)
	case l.Priority == Unknown:
		return nil
	}
	l.Priority = Unknown
	return r.setHead(&l, l.Head, l.Shut)
}

// moveHeadPast moves the head of a lane with demands from a job that is about to leave to the next job.
// Without that, a user could create any number of lanes whose head has a good rank although no job in them
// has. Each search for the best jobs would then have to read all of these lanes first. Lanes without demands
// are few: one for each user and queue.
func (r *Rules) moveHeadPast(l *Lane) error {
	scan := Look{Lane: *l, Upto: End, Want: 1, Steps: 1}
	scan.Lane.Head.Seq++
	if err := r.tx.Find(&scan); err != nil {
		return err
	}
	l.Priority = Unknown
	switch {
	case len(scan.Damaged) > 0: // a damaged job is held by the claim that finds it
		return r.setHead(l, scan.Lane.Head, l.Shut)
	case len(scan.Jobs) > 0:
		return r.setHead(l, scan.Jobs[0].Position(), l.Shut)
	}
	return r.setHead(l, scan.Next, Empty)
}

// endLease ends a lease and frees what the job held at its gates.
func (r *Rules) endLease(l *Lease) {
	r.tx.Drop(l)
	r.Recheck(UserGate(l.Job.UID))
	for _, n := range l.Needs {
		r.Recheck(n.Gate)
	}
	// If there is room for one job now, the queue had none before this lease ended.
	r.Readied = r.Readied || r.tx.Queue(l.Job.Queue).Room == 1
}
