package rules

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// This file keeps claims from reading jobs that cannot start. A gate is a limited thing that a job needs in
// order to start, such as a lock. A lane is the list of ready jobs with the same queue, user and demands, so
// that they need the same gates. If a gate has no room for the first job of a lane, it closes the whole lane
// (Lane.ClosedBy). The head of a lane is the position from which claims read its jobs.
//
// Example: one user has two lanes in one queue. The jobs of both need the same lock, which one job may hold;
// those of lane B also need a rate. Lane A contains jobs 1 and 4, and lane B job 2. A claim takes job 1,
// because lane A has the better head. It reads no further, so the head of lane A is now just after job 1.
// When the claim checks lane A for another job, the lock is taken. So the lock closes lane A, and then lane
// B. A gate keeps the lanes of one queue and user that it has closed in a list, so both lanes are now in one
// list.
//
// When job 1 ends, endLease calls MarkGateDirty for the lock. OpenLanes then opens only the lane of the list
// with the best head, lane A. Lane B stays closed, because the next claim would read lane A first anyway.
// That claim finds no job in lane A that ranks before the head of lane B, and moves the head of lane A to job
// 4. Lane A no longer goes first, so storeLaneHead calls MarkGateDirty for the lock, and OpenLanes opens lane B.
// The claim takes job 2 and closes both lanes until job 2 ends.
//
// TestDocumentedExampleOfTwoLanesSharingLock executes this example.

// Lane is the list of ready jobs with the same queue, user and demands. Apart from the limits of their queue, only
// gates can keep these jobs from starting. A claim checks the gates for the first job only. To open or close a lane,
// the rows of its jobs need not be written. See docs/decisions/0011.
type Lane struct {
	ID    int64
	Queue string
	UID   int
	// GateNeeds lists the gates that each of the jobs needs, except the user's quota: first nodes, locks and
	// rates, then resources.
	GateNeeds []GateNeed
	// Head is the position of the lane's first unleased job, or an earlier position. Claims read the lane
	// from there.
	Head Position
	// Priority is the priority of the job at Head, or UnknownLanePriority.
	Priority int64
	// ClosedBy is the gate that has no room for the first job. It is Open if no such gate is known, and Empty
	// if the lane has no jobs.
	ClosedBy int64
	// HeapIndex is the index of the lane in the engine's heap of lanes, or -1 if the lane is in no heap. Only the engine
	// uses it.
	HeapIndex int
}

// The values of Lane.ClosedBy that are not gates.
const (
	Open  int64 = 0
	Empty int64 = math.MinInt64
)

// chooseLaneAgain is returned by laneRoom instead of a gate if laneRoom has opened another lane, which goes
// first. The caller must then choose the lane of the next job again.
const chooseLaneAgain int64 = math.MinInt64 + 1

// MinPosition comes before every other position.
var MinPosition = Position{math.MinInt64, 0}

// MaxPosition comes after every other position.
var MaxPosition = Position{math.MaxInt64, math.MaxInt64}

// GateNeed is a gate that a job needs in order to start, and the number of its units that the job takes.
type GateNeed struct {
	GateID int64
	Kind   queue.GateKind
	Units  int
}

// UserQuotaGateID returns the number of the gate for a user's quota. It is negative; the numbers of all other gates
// are positive.
func UserQuotaGateID(uid int) int64 {
	if uid < 0 {
		return 2*int64(uid) - 1 // odd numbers are for uids below 0
	}
	return -2*int64(uid) - 2 // even numbers are for all other uids
}

// ClosedLaneListKey identifies a list of closed lanes. Each gate keeps one list of the lanes that it has closed
// for each queue and user.
type ClosedLaneListKey struct {
	Queue string
	UID   int
}

// Compare orders the keys of lists by queue, then by user. The result is below 0 if l comes first.
func (l ClosedLaneListKey) Compare(other ClosedLaneListKey) int {
	return cmp.Or(strings.Compare(l.Queue, other.Queue), cmp.Compare(l.UID, other.UID))
}

// ClosedLaneListKey returns the key of the list that contains the lane while it is closed.
func (l *Lane) ClosedLaneListKey() ClosedLaneListKey { return ClosedLaneListKey{l.Queue, l.UID} }

// laneKeeper opens and closes lanes (lists of jobs), and moves their heads, the positions from which claims read them.
type laneKeeper struct {
	*txFailure
	*gatekeeper
	lanes              Lanes
	leases             Leases
	queues             Queues
	unclaimableHandler unclaimableJobHandler
	recheckState       *GateRecheckState

	// JobsMayBeClaimable is true if a waiting claim may find a job now, because the transaction has made a job
	// ready or a full queue has room again.
	JobsMayBeClaimable bool
	// claimSteps counts the steps of claims in this transaction: the lanes that claims check, including lanes that go
	// before the checked ones at a resource, and the jobs that claims read but cannot lease.
	claimSteps int
	// nonClaimSteps counts such steps outside of claims: the lanes that are checked, and the jobs that are read but cannot
	// be leased, in OpenLanes and when a job joins a lane.
	nonClaimSteps int
	// stepCounter points to the counter that the current operation uses: claimSteps while a claim chooses a lane,
	// otherwise nonClaimSteps.
	stepCounter *int
	// skippedPriorityByLaneID holds the priorities of lanes that the claim has skipped, by id of the lane. These lanes had
	// room, but not the priority of the best lane. When a lane changes, its entry is removed.
	skippedPriorityByLaneID map[int64]int64
}

// unclaimableJobHandler removes jobs that can no longer start from their lanes. Rules implements it with MoveToState.
// It is an interface because Rules itself contains the laneKeeper.
type unclaimableJobHandler interface {
	// CancelExpiredJob cancels a job that has expired before it started.
	CancelExpiredJob(j *Job) error
	// HoldDamagedJob sets a job that cannot be read to held.
	HoldDamagedJob(j *Job) error
}

// moveHead sets a lane's head, from which claims read it, and the gate that closes the lane. If the head changes, the
// lane's priority is unknown.
func (k *laneKeeper) moveHead(l *Lane, head Position, closedBy int64) {
	if head != l.Head {
		l.Priority = UnknownLanePriority
	}
	k.storeLaneHead(l, head, closedBy)
}

// storeLaneHead stores a lane's head (the position from which claims read it), the gate that closes the lane, and
// l.Priority. Only storeLaneHead changes these values.
func (k *laneKeeper) storeLaneHead(l *Lane, head Position, closedBy int64) {
	// While this lane was open, lanes behind it stayed closed in the lists of the gates that it needs. Now
	// they may open. Only the gate that closes this lane need not be checked, because it has no room for
	// those lanes either.
	if l.ClosedBy == Open && (closedBy != Open || head.After(l.Head)) {
		if gate := UserQuotaGateID(l.UID); gate != closedBy {
			k.MarkGateDirty(gate)
		}
		for _, n := range l.GateNeeds {
			if n.GateID != closedBy {
				k.MarkGateDirty(n.GateID)
			}
		}
	}
	// A lane that waits for a resource holds back the lanes behind its head. This lane now has another head or waits for
	// another gate, so it may hold back fewer lanes.
	if laneNeedsResource(l, l.ClosedBy) && (closedBy != l.ClosedBy || head.After(l.Head)) {
		k.MarkGateDirty(l.ClosedBy)
	}
	l.Head, l.ClosedBy = head, closedBy
	delete(k.skippedPriorityByLaneID, l.ID)
	k.recordErr(k.lanes.SetLane(*l))
}

// laneRoom returns how many jobs of a lane may be leased now. If none, fullGateID is the gate without room, or
// chooseLaneAgain if the caller must choose a lane again.
func (k *laneKeeper) laneRoom(l *Lane) (maxJobs int, fullGateID int64) {
	maxJobs, fullGateID = k.roomAtGate(l, GateNeed{GateID: UserQuotaGateID(l.UID), Kind: queue.GateUser, Units: 1})
	for i := 0; i < len(l.GateNeeds) && maxJobs > 0; i++ {
		var gateRoom int
		gateRoom, fullGateID = k.roomAtGate(l, l.GateNeeds[i])
		maxJobs = min(maxJobs, gateRoom)
	}
	return maxJobs, fullGateID
}

// roomAtGate returns how many jobs of a lane a gate has room for. If none, fullGateID is the gate, or chooseLaneAgain
// if the caller must choose a lane again. A resource has no room for a lane while another lane of the queue goes first;
// see keepResourceForBetterLane.
func (k *laneKeeper) roomAtGate(l *Lane, need GateNeed) (maxJobs int, fullGateID int64) {
	if need.Kind == queue.GateResource {
		if fullGateID := k.keepResourceForBetterLane(l, need.GateID); fullGateID != Open {
			return 0, fullGateID
		}
	}
	g, err := k.GateRoom(l.UID, need)
	k.recordErr(err)
	if maxJobs = max(0, g.FreeUnits) / need.Units; maxJobs == 0 {
		return 0, need.GateID
	}
	return maxJobs, Open
}

// laneNeedAtGate returns what a lane needs of a gate. If GateNeeds does not list the gate, it is the user's quota, of
// which a lane needs one unit.
func laneNeedAtGate(l *Lane, gateID int64) GateNeed {
	for _, n := range l.GateNeeds {
		if n.GateID == gateID {
			return n
		}
	}
	return GateNeed{GateID: gateID, Kind: queue.GateUser, Units: 1}
}

// laneNeedsResource reports whether gateID is a resource that the lane needs.
func laneNeedsResource(l *Lane, gateID int64) bool {
	return laneNeedAtGate(l, gateID).Kind == queue.GateResource
}

// addJobToLane adds a job to its lane, the list of ready jobs with the same queue, user and demands. The caller must
// then write the job's row.
func (k *laneKeeper) addJobToLane(j *Job) {
	l, err := k.lanes.FindOrAddLane(j)
	if k.hasFailed(err) {
		return
	}
	j.LaneID = l.ID
	p := j.Position()
	if l.ClosedBy != Empty && !l.Head.After(p) {
		k.JobsMayBeClaimable = k.JobsMayBeClaimable || l.ClosedBy == Open
		return
	}
	closedBy := Open
	if l.ClosedBy != Open {
		candidate := l
		candidate.Head = p
		n, fullGate := k.laneRoom(&candidate)
		// If fullGate is chooseLaneAgain, the lane stays open, and the next claim checks it.
		if n == 0 && fullGate != chooseLaneAgain {
			closedBy = fullGate
		}
	}
	k.JobsMayBeClaimable = k.JobsMayBeClaimable || closedBy == Open
	// A job that is still leased is not the first job of its lane, so the priority of the first job is
	// unknown.
	if l.Priority = UnknownLanePriority; k.leases.Lease(j.Seq) == nil {
		l.Priority = lanePriorityToStore(j)
	}
	k.storeLaneHead(&l, p, closedBy)
}

// prepareJobToLeaveLane must be called before an unleased job leaves its lane. If the lane holds back other lanes at a
// resource, the resource is checked again, because these lanes may open.
func (k *laneKeeper) prepareJobToLeaveLane(j *Job) {
	if j.IsDamaged && !slices.ContainsFunc(j.Demands, func(d queue.Demand) bool { return d.Kind == queue.GateResource }) {
		// The row may be damaged, and with it the number of the lane. The claim that found the damaged job
		// moves the head of the lane past the job, so there is nothing to do.
		return
	}
	l, err := k.lanes.FindOrAddLane(j)
	if k.hasFailed(err) {
		return
	}
	delete(k.skippedPriorityByLaneID, l.ID)
	if laneNeedsResource(&l, l.ClosedBy) {
		k.MarkGateDirty(l.ClosedBy)
	}
	switch {
	case l.Head.Seq != j.Seq || l.ClosedBy == Empty: // the job is not the first one, so the head stays
	case len(l.GateNeeds) > 0:
		k.moveHeadToNext(&l)
	case l.Priority != UnknownLanePriority:
		l.Priority = UnknownLanePriority
		k.storeLaneHead(&l, l.Head, l.ClosedBy)
	}
}

// moveHeadToNext moves the head of a lane with demands to the job after the first one, which is about to leave.
// Otherwise a user could create many lanes whose heads rank well although their jobs rank badly. Each search for the
// best job would then have to read all these lanes first. Lanes without demands need no such protection, because each
// user has only one such lane in each queue.
func (k *laneKeeper) moveHeadToNext(l *Lane) {
	scan := LaneScan{Lane: *l, StopPosition: MaxPosition, MaxJobs: 1, MaxDamagedJobs: 1}
	scan.Lane.Head.Seq++
	k.recordErr(k.lanes.ScanLane(&scan))
	l.Priority = UnknownLanePriority
	switch {
	case len(scan.DamagedJobs) > 0: // the claim that finds the damaged job will hold it
		k.storeLaneHead(l, scan.Lane.Head, l.ClosedBy)
	case len(scan.Jobs) > 0:
		k.storeLaneHead(l, scan.Jobs[0].Position(), l.ClosedBy)
	default:
		k.storeLaneHead(l, scan.NextPosition, Empty)
	}
}

// endLease ends a lease and frees the units of gates that the job has held.
func (k *laneKeeper) endLease(l *Lease) {
	k.leases.DeleteLease(l)
	k.MarkGateDirty(UserQuotaGateID(l.Job.UID))
	for _, n := range l.HeldGateUnits {
		k.MarkGateDirty(n.GateID)
	}
	// With room for exactly one job now, the queue had no room before this lease ended.
	k.JobsMayBeClaimable = k.JobsMayBeClaimable || k.queues.Queue(l.Job.Queue).LeasableJobs == 1
}
