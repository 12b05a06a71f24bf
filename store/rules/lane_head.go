package rules

import (
	"github.com/queuectl/queuectl/queue"
)

// LaneScan holds the parameters and the results of Lanes.ScanLane, which reads the next jobs of a lane: a
// list of ready jobs with the same queue, user and demands.
type LaneScan struct {
	Lane Lane
	// Scope is the part of each job to be read.
	Scope ReadScope
	// StopAt is the position from which jobs of another lane go first. The search ends there.
	StopAt     Position
	WantedJobs int // number of jobs that the caller wants
	// MaxDamagedJobs is the maximum length of DamagedJobs. The search ends when it is reached.
	MaxDamagedJobs int
	// BytesRead is the size in bytes of the jobs that the claim has read, in this lane and in the lanes that
	// it searched before. The search ends when BytesRead reaches MaxClaimBytes.
	BytesRead    int
	PeekPriority bool // if true, ScanLane reads NextPriority even if it has found enough jobs
	// ExpectedJobs is roughly how many jobs the claim will take from this lane, and from each of
	// UpcomingLanes. It is 0 if users do not take turns.
	ExpectedJobs int
	// UpcomingLanes returns up to n other lanes that will probably be served next, in that order. It is nil
	// if users do not take turns.
	UpcomingLanes func(n int) []Lane
	// StartPlace is the start position (Job.StartPosition) that the claim gives to the jobs found. If it is
	// nil, the jobs start in the order of their ranks.
	StartPlace *queue.StartPosition

	Jobs         []Job    // jobs that can be leased
	DamagedJobs  []Job    // jobs that cannot be read or do not belong in the lane
	NextPosition Position // ScanLane has read all jobs before this position
	// NextPriority is the priority of the job at NextPosition, or UnknownPriority.
	NextPriority int64
	Exhausted    bool // the lane has no further jobs
}

// MaxClaimBytes limits the bytes of the jobs that a claim reads. Once they reach the limit, the claim reads no more.
const MaxClaimBytes = 1 << 20

// advanceHead moves the head of a lane to its first job if gate, which closes the lane, is a resource. Such a
// lane holds back the lanes that rank behind its head, so the head must be exact. It reports whether the lane
// has changed.
func (k *laneKeeper) advanceHead(l *Lane, gate int64) (laneChanged bool) {
	return needsResource(l, gate) && k.moveHeadToFirst(l)
}

// ensurePriority reads the priority of the lane's first job into l.Priority if it is unknown. It reports
// whether the lane has changed.
func (k *laneKeeper) ensurePriority(l *Lane) (laneChanged bool) {
	if l.Priority != UnknownPriority {
		return false
	}
	*k.steps++
	return k.moveHeadToFirst(l)
}

// moveHeadToFirst moves the head of a lane to the lane's first job, and sets l.Priority. laneChanged reports
// that the head has moved, or that the job at the head cannot start.
func (k *laneKeeper) moveHeadToFirst(l *Lane) (laneChanged bool) {
	scan := LaneScan{Lane: *l, StopAt: EndPosition, WantedJobs: 1, MaxDamagedJobs: MaxSteps}
	k.recordErr(k.lanes.ScanLane(&scan))
	for i := range scan.DamagedJobs {
		*k.steps++
		k.recordErr(k.dropper.HoldDamaged(&scan.DamagedJobs[i]))
	}
	switch {
	case len(scan.Jobs) == 0 && scan.Exhausted:
		k.moveHead(l, scan.NextPosition, Empty)
		return true
	case len(scan.Jobs) == 0:
		k.moveHead(l, scan.NextPosition, l.ClosedBy)
		return true
	case k.hasExpired(&scan.Jobs[0]):
		k.recordErr(k.dropper.Expire(&scan.Jobs[0]))
		return true
	}
	j := &scan.Jobs[0]
	laneChanged = j.Position() != l.Head
	if l.Priority = priorityToStore(j); laneChanged || l.Priority != UnknownPriority {
		k.setHead(l, j.Position(), l.ClosedBy)
	}
	l.Priority = j.Priority
	return laneChanged
}

// priorityToStore returns the priority to store for a lane whose first job is j. If j has an expiry time, it
// returns UnknownPriority, so that each claim reads the job and notices when it has expired.
func priorityToStore(j *Job) int64 {
	if j.ExpiresAt != 0 {
		return UnknownPriority
	}
	return j.Priority
}

func (k *laneKeeper) hasExpired(j *Job) bool { return j.ExpiresAt != 0 && j.ExpiresAt <= k.clock.Now() }

// checkResourceOrder keeps lane l from taking units of a resource before another lane of the queue that ranks
// before l and waits only for this resource. It returns Open if there is no such lane, and gate, the
// resource, if the other lane still lacks room. If the other lane has room now, checkResourceOrder opens that
// lane and returns chooseAgain.
//
// See docs/decisions/0016.
func (k *laneKeeper) checkResourceOrder(l *Lane, gate int64) (fullGate int64) {
	for {
		first, found, err := k.lanes.BestClosedInQueue(gate, l.Queue)
		if k.failed(err) || !found || first.ID == l.ID || !l.Head.After(first.Head) {
			return Open
		}
		if k.outOfSteps() {
			// The other lane may go first, so l waits until OpenLanes has checked that lane.
			k.MarkGateDirty(gate)
			return gate
		}
		*k.steps++
		if k.advanceHead(&first, gate) {
			continue
		}
		n, fullGate := k.laneRoom(&first)
		switch {
		case n > 0: // the other lane goes first, unless it is another user's turn
			k.MadeJobsReady = true
			k.moveHead(&first, first.Head, Open)
			return chooseAgain
		case fullGate == gate || fullGate == chooseAgain:
			return fullGate
		}
		// Another gate, fullGate, has no room for the other lane. So that lane holds back no lanes at this
		// resource.
		k.moveHead(&first, first.Head, fullGate)
	}
}
