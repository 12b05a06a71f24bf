package rules

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// This file keeps claims from reading jobs that cannot start. A gate is a limited thing that a job needs in
// order to start, such as a lock. Waiting jobs that need the same gates form a lane. A gate that lacks room for
// the first job of a lane closes the whole lane (Lane.ClosedBy).
//
// An example with two lanes of one user and one queue: the jobs of both need a lock that one job may hold.
// Those of lane B also need a rate limit. Lane A contains jobs 1 and 4, lane B contains job 2. A claim takes
// job 1, because lane A has the better head. The claim reads no further, so the head of lane A is now the
// position just after job 1. When the claim checks lane A again, the lock is taken. So the lock closes lane A,
// and then lane B. The lanes of one queue and one user that the same gate has closed form a list. So both lanes
// are now in one list.
//
// When job 1 ends, endLease calls MarkGateDirty for the lock. OpenLanes opens only the lane with the best
// head of the list, lane A. Lane B stays closed, because the next claim reads lane A first anyway. That claim
// finds no job in lane A that ranks before the head of lane B, and moves the head of lane A to job 4. Lane A
// no longer goes first, so setHead calls MarkGateDirty for the lock, and OpenLanes opens lane B. The claim
// takes job 2 and closes both lanes again. They stay closed until job 2 ends.
//
// TestTwoLanesAndOneLock executes this example.

// Lane is a group of ready jobs with the same queue, user and demands. Only gates can hold ready jobs back. A
// claim checks the gates only for the first job of a lane. When a gate closes or opens a lane, the rows of its
// jobs are not written.
// See docs/decisions/0011.
type Lane struct {
	ID    int64
	Queue string
	UID   int
	// Needs lists the gates that the jobs need, except the user's quota. Nodes, locks and rates come first,
	// then resources.
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

// UserGate returns the number of the gate for a user's quota. It is below 0; the numbers of all other gates are
// above 0.
func UserGate(uid int) int64 {
	if uid < 0 {
		return 2*int64(uid) - 1 // odd numbers are for uids below 0
	}
	return -2*int64(uid) - 2 // even numbers are for all other uids
}

// ClosedListKey is the key of a list. The lanes that a gate has closed are divided into lists: one for each
// queue and user.
type ClosedListKey struct {
	Queue string
	UID   int
}

// Compare orders the keys of lists by queue, then by user. The result is below 0 if l comes first.
func (l ClosedListKey) Compare(other ClosedListKey) int {
	return cmp.Or(strings.Compare(l.Queue, other.Queue), cmp.Compare(l.UID, other.UID))
}

// ClosedListKey returns the key of the list that contains the lane while a gate closes the lane.
func (l *Lane) ClosedListKey() ClosedListKey { return ClosedListKey{l.Queue, l.UID} }

// laneKeeper opens and closes lanes, and moves their heads.
type laneKeeper struct {
	*failure
	*gatekeeper
	lanes    Lanes
	leases   Leases
	queues   Queues
	dropper  jobDropper
	rechecks *RecheckState

	// MadeJobsReady is true if a waiting claim may now find a job: the transaction has made a job runnable, or
	// it has freed room in a full queue.
	MadeJobsReady bool
	// claimSteps counts the steps of claims in this transaction. Each lane that a claim checks is a step, and
	// so is each job that it reads but cannot lease. At a resource, a claim also checks the lanes that go
	// before its lane; these are steps too.
	claimSteps int
	// otherSteps counts the same kinds of steps outside of claims: in OpenLanes, and when a job joins a lane.
	otherSteps int
	// steps points to the counter of the current operation: claimSteps while a claim chooses a lane,
	// otherSteps at other times.
	steps *int
	// skippedPriorities holds, by id, the priority of each lane that the claim has skipped. Such a lane had
	// room, but its priority differed from that of the best lane. A change of the lane removes its entry.
	skippedPriorities map[int64]int64
}

// jobDropper removes jobs from their lanes if they can no longer start. It is an interface because Rules
// implements it with Move, and Move itself needs a laneKeeper.
type jobDropper interface {
	// Expire cancels a job that was not started before it expired.
	Expire(j *Job) error
	// HoldDamaged holds a job that cannot be read.
	HoldDamaged(j *Job) error
}

// moveHead sets a lane's head and the gate that closes the lane. If the head changes, the lane's priority is
// unknown afterwards.
func (k *laneKeeper) moveHead(l *Lane, head Position, closedBy int64) {
	if head != l.Head {
		l.Priority = UnknownPriority
	}
	k.setHead(l, head, closedBy)
}

// setHead writes a lane: its head, the gate that closes it, and l.Priority. No other function writes these
// values.
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
	// A lane that waits for a resource holds back all lanes behind its head. If this lane was such a lane, it
	// now holds back fewer lanes.
	if needsResource(l, l.ClosedBy) && (closedBy != l.ClosedBy || head.After(l.Head)) {
		k.MarkGateDirty(l.ClosedBy)
	}
	l.Head, l.ClosedBy = head, closedBy
	delete(k.skippedPriorities, l.ID)
	k.recordErr(k.lanes.SetLane(*l))
}

// laneRoom returns how many jobs of a lane may be leased now. If maxJobs is 0, fullGate is the gate without
// room, or chooseAgain.
func (k *laneKeeper) laneRoom(l *Lane) (maxJobs int, fullGate int64) {
	maxJobs, fullGate = k.roomAtGate(l, Need{Gate: UserGate(l.UID), Kind: queue.GateUser, Units: 1})
	for i := 0; i < len(l.Needs) && maxJobs > 0; i++ {
		var gateRoom int
		gateRoom, fullGate = k.roomAtGate(l, l.Needs[i])
		maxJobs = min(maxJobs, gateRoom)
	}
	return maxJobs, fullGate
}

// roomAtGate returns how many jobs of a lane one gate has room for. If maxJobs is 0, fullGate is set as by
// laneRoom. A resource has no room for a lane while checkResourceOrder finds that another lane of the queue
// goes first.
func (k *laneKeeper) roomAtGate(l *Lane, need Need) (maxJobs int, fullGate int64) {
	if need.Kind == queue.GateResource {
		if fullGate := k.checkResourceOrder(l, need.Gate); fullGate != Open {
			return 0, fullGate
		}
	}
	g, err := k.GateRoom(l.UID, need)
	k.recordErr(err)
	if maxJobs = max(0, g.Free) / need.Units; maxJobs == 0 {
		return 0, need.Gate
	}
	return maxJobs, Open
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

// leaveLane records that an unleased job is about to leave its lane. If the job's lane holds back other lanes
// at a resource, that resource is checked again.
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
		k.moveHeadToNext(&l)
	case l.Priority != UnknownPriority:
		l.Priority = UnknownPriority
		k.setHead(&l, l.Head, l.ClosedBy)
	}
}

// moveHeadToNext moves the head of a lane with demands from a job that is about to leave to the next job. Without
// this, a user could create many lanes whose heads have a good rank although all their jobs rank badly. Each
// search for the best jobs would have to read all of these lanes first. Lanes without demands are few: one for
// each user and queue.
func (k *laneKeeper) moveHeadToNext(l *Lane) {
	scan := LaneScan{Lane: *l, StopAt: EndPosition, WantedJobs: 1, MaxDamagedJobs: 1}
	scan.Lane.Head.Seq++
	k.recordErr(k.lanes.ScanLane(&scan))
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
