package rules

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// This file keeps claims from reading jobs that cannot start. It groups waiting jobs into lanes, and a gate
// that lacks room for the first job of a lane closes the whole lane (Lane.ClosedBy).
//
// An example with two lanes of one user and one queue: both need a lock that one job may hold, and lane B
// also needs a rate limit. Lane A contains jobs 1 and 4, lane B contains job 2. A claim takes job 1, because
// lane A has the better head. The claim reads no further, so the head of lane A is now the position just
// after job 1. When the claim checks lane A again, the lock is taken. So the claim closes lane A at the lock,
// and then lane B. Both lanes are now in the same list of closed lanes, since a list contains the lanes that
// one gate has closed, of one queue and one user.
//
// When job 1 ends, endLease calls MarkGateDirty for the lock. OpenLanes opens only the lane with the best
// head of the list, lane A. Lane B stays closed, because the next claim reads lane A first anyway. That claim
// finds no job in lane A that ranks before the head of lane B, and moves the head of lane A to job 4. Lane A
// no longer goes first, so setHead calls MarkGateDirty for the lock, and OpenLanes opens lane B. The claim
// takes job 2 and closes both lanes again. They stay closed until job 2 ends.
//
// TestTwoLanesAndOneLock executes this example.

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
	// Head is the position of the lane's first unleased job, or an earlier position.
	Head Position
	// Priority is the priority of the job at Head, or UnknownPriority.
	Priority int64
	// ClosedBy is the gate that lacks room for the first job. It is Open if no such gate is known, and Empty if
	// the lane has no jobs.
	ClosedBy int64
	// HeapIndex is used by the engine: the index of the lane in one of its heaps, or -1.
	HeapIndex int
}

// The values of Lane.ClosedBy that are not gates.
const (
	Open  int64 = 0
	Empty int64 = math.MinInt64
)

// chooseAgain is returned by laneRoom instead of a gate if laneRoom has opened another lane that goes first. The
// caller must then choose a lane again.
const chooseAgain int64 = math.MinInt64 + 1

// StartPosition is before every other position.
var StartPosition = Position{math.MinInt64, 0}

// EndPosition is after every other position.
var EndPosition = Position{math.MaxInt64, math.MaxInt64}

// Need is a gate that a job needs in order to start, and the number of its units that the job takes.
type Need struct {
	Gate  int64
	Kind  queue.GateKind
	Units int
}

// UserGate returns the gate of a user's quota. It is below 0; all other gates are above 0.
func UserGate(uid int) int64 {
	if uid < 0 {
		return 2*int64(uid) - 1 // odd numbers are for uids below 0
	}
	return -2*int64(uid) - 2 // even numbers are for all other uids
}

// ClosedLaneList names one list of lanes that a gate has closed: the lanes of one queue and one user.
type ClosedLaneList struct {
	Queue string
	UID   int
}

// Compare orders lists by queue, then by user. The result is below 0 if l comes first.
func (l ClosedLaneList) Compare(other ClosedLaneList) int {
	return cmp.Or(strings.Compare(l.Queue, other.Queue), cmp.Compare(l.UID, other.UID))
}

// ClosedList names the list that contains the lane when a gate closes it.
func (l *Lane) ClosedList() ClosedLaneList { return ClosedLaneList{l.Queue, l.UID} }

// laneKeeper opens and closes lanes, and moves their heads.
type laneKeeper struct {
	*failure
	*gatekeeper
	lanes   Lanes
	leases  Leases
	queues  Queues
	dropper jobDropper
	mem     *RecheckState

	// MadeJobsReady reports whether the transaction made a job runnable, or gave a queue room for one.
	MadeJobsReady bool
	// claimSteps counts the steps of claims in this transaction: each checked lane and each job that cannot run
	// is a step. Lanes that rank first at the same resource count as checked too.
	claimSteps int
	// otherSteps counts the steps that OpenLanes takes, and those of jobs that join a lane.
	otherSteps int
	// steps points to the counter of the current operation: claimSteps while a claim chooses a lane,
	// otherSteps at other times.
	steps *int
	// skippedPriorities holds, by id, the priority of each lane that the claim has skipped. Such a lane had
	// room, but its priority differed from that of the best lane. A change of the lane removes its entry.
	skippedPriorities map[int64]int64
}

// jobDropper takes jobs that cannot start out of their lanes. It is an interface because Rules implements it
// with Move, and Move itself needs a laneKeeper.
type jobDropper interface {
	// Expire cancels a job that was not started before it expired.
	Expire(j *Job) error
	// HoldDamaged holds a job that cannot be read.
	HoldDamaged(j *Job) error
}

// moveHead sets a lane's head and closing gate. If the head changes, the lane's priority is then unknown.
func (k *laneKeeper) moveHead(l *Lane, head Position, closedBy int64) {
	if head != l.Head {
		l.Priority = UnknownPriority
	}
	k.setHead(l, head, closedBy)
}

// setHead writes a lane's head and closing gate, with l.Priority as its priority. No other function writes
// these values.
func (k *laneKeeper) setHead(l *Lane, head Position, closedBy int64) {
	// While this lane was open, the lanes behind it stayed closed in the lists of its gates. They may have to
	// open now. Only the gate that closes this lane need not be checked, because it has no room for them
	// either.
	if l.ClosedBy == Open && (closedBy != Open || head.After(l.Head)) {
		if gate := UserGate(l.UID); gate != closedBy {
			k.MarkGateDirty(gate)
		}
		for _, n := range l.Needs {
			if n.Gate != closedBy {
				k.MarkGateDirty(n.Gate)
			}
		}
	}
	// The lane was waiting for a resource and held back all lanes behind its head. Now it holds back fewer
	// lanes.
	if needsResource(l, l.ClosedBy) && (closedBy != l.ClosedBy || head.After(l.Head)) {
		k.MarkGateDirty(l.ClosedBy)
	}
	l.Head, l.ClosedBy = head, closedBy
	delete(k.skippedPriorities, l.ID)
	k.check(k.lanes.SetLane(*l))
}

// laneRoom returns how many jobs of a lane may be leased now. If n is 0, fullGate is the gate without room, or
// chooseAgain.
func (k *laneKeeper) laneRoom(l *Lane) (n int, fullGate int64) {
	n, fullGate = k.roomAtGate(l, Need{Gate: UserGate(l.UID), Kind: queue.GateUser, Units: 1})
	for i := 0; i < len(l.Needs) && n > 0; i++ {
		var atGate int
		atGate, fullGate = k.roomAtGate(l, l.Needs[i])
		n = min(n, atGate)
	}
	return n, fullGate
}

// roomAtGate returns the room for a lane at one gate. A resource has no room for a lane while
// checkResourceOrder finds that another lane of the queue goes first.
func (k *laneKeeper) roomAtGate(l *Lane, need Need) (n int, fullGate int64) {
	if need.Kind == queue.GateResource {
		if fullGate := k.checkResourceOrder(l, need.Gate); fullGate != Open {
			return 0, fullGate
		}
	}
	g, err := k.GateRoom(l.UID, need)
	k.check(err)
	if n = max(0, g.Free) / need.Units; n == 0 {
		return 0, need.Gate
	}
	return n, Open
}

// needAt returns how much a lane needs of a gate. For a gate that Needs does not list, it returns one unit of
// the user's quota.
func needAt(l *Lane, gate int64) Need {
	for _, n := range l.Needs {
		if n.Gate == gate {
			return n
		}
	}
	return Need{Gate: gate, Kind: queue.GateUser, Units: 1}
}

// needsResource reports whether a lane needs this gate and the gate is a resource.
func needsResource(l *Lane, gate int64) bool { return needAt(l, gate).Kind == queue.GateResource }

// joinLane adds a job to its lane. The caller writes the job's row afterwards.
func (k *laneKeeper) joinLane(j *Job) {
	l, err := k.lanes.Lane(j)
	if k.failed(err) {
		return
	}
	j.Lane = l.ID
	p := j.Position()
	if l.ClosedBy != Empty && !l.Head.After(p) {
		k.MadeJobsReady = k.MadeJobsReady || l.ClosedBy == Open
		return
	}
	closedBy := Open
	if l.ClosedBy != Open {
		candidate := l
		candidate.Head = p
		n, fullGate := k.laneRoom(&candidate)
		// If fullGate is chooseAgain, the lane stays open, and a claim checks it later.
		if n == 0 && fullGate != chooseAgain {
			closedBy = fullGate
		}
	}
	k.MadeJobsReady = k.MadeJobsReady || closedBy == Open
	// A job that is still leased does not count as the first job of its lane, so the priority of the head is
	// not known.
	if l.Priority = UnknownPriority; k.leases.Lease(j.Seq) == nil {
		l.Priority = priorityToStore(j)
	}
	k.setHead(&l, p, closedBy)
}

// leaveLane records that an unleased job is about to leave its lane. If other lanes wait for a resource behind
// the job's lane, their gates are checked again.
func (k *laneKeeper) leaveLane(j *Job) {
	if j.Damaged && !slices.ContainsFunc(j.Demands, func(d queue.Demand) bool { return d.Kind == queue.GateResource }) {
		// The row may be damaged, including the number of the lane. Nothing has to be done here: the claim that
		// found the damaged job moves the lane's head past it.
		return
	}
	l, err := k.lanes.Lane(j)
	if k.failed(err) {
		return
	}
	delete(k.skippedPriorities, l.ID)
	if needsResource(&l, l.ClosedBy) {
		k.MarkGateDirty(l.ClosedBy)
	}
	switch {
	case l.Head.Seq != j.Seq || l.ClosedBy == Empty: // the job is not at the head, so the head stays
	case len(l.Needs) > 0:
		k.moveHeadPast(&l)
	case l.Priority != UnknownPriority:
		l.Priority = UnknownPriority
		k.setHead(&l, l.Head, l.ClosedBy)
	}
}

// moveHeadPast moves the head of a lane with demands from a job that is about to leave to the next job.
// Otherwise a user could create any number of lanes whose head has a good rank although none of their jobs has
// one. Each search for the best jobs would then have to read all of these lanes first. Lanes without demands
// are few: one for each user and queue.
func (k *laneKeeper) moveHeadPast(l *Lane) {
	scan := LaneScan{Lane: *l, StopAt: EndPosition, WantedJobs: 1, MaxDamagedJobs: 1}
	scan.Lane.Head.Seq++
	k.check(k.lanes.ScanLane(&scan))
	l.Priority = UnknownPriority
	switch {
	case len(scan.DamagedJobs) > 0: // a damaged job is held by the claim that finds it
		k.setHead(l, scan.Lane.Head, l.ClosedBy)
	case len(scan.Jobs) > 0:
		k.setHead(l, scan.Jobs[0].Position(), l.ClosedBy)
	default:
		k.setHead(l, scan.NextPosition, Empty)
	}
}

// endLease ends a lease and frees what the job held at its gates.
func (k *laneKeeper) endLease(l *Lease) {
	k.leases.DeleteLease(l)
	k.MarkGateDirty(UserGate(l.Job.UID))
	for _, n := range l.Needs {
		k.MarkGateDirty(n.Gate)
	}
	// If the queue has room for exactly one job now, it had no room before this lease ended.
	k.MadeJobsReady = k.MadeJobsReady || k.queues.Queue(l.Job.Queue).Room == 1
}
