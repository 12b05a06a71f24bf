package rules

import (
	"github.com/queuectl/queuectl/queue"
)

// LaneScan holds the parameters and the results of Lanes.ScanLane, which reads the next jobs of a lane: a
// list of ready jobs with the same queue, user and demands.
type LaneScan struct {
	Lane Lane
	// JobReadScope is the part of each job to be read.
	JobReadScope ReadScope
	// StopPosition is the position from which jobs of another lane go first. The search ends there.
	StopPosition Position
	MaxJobs      int // number of jobs that the caller wants
	// MaxDamagedJobs is the maximum length of DamagedJobs. The search ends when it is reached.
	MaxDamagedJobs int
	// ClaimBytesRead is the size in bytes of the jobs that the claim has read, in this lane and in the lanes that
	// it searched before. The search ends when ClaimBytesRead reaches MaxBytesReadPerClaim.
	ClaimBytesRead       int
	MustReadNextPriority bool // if true, ScanLane reads NextPriority even if it has found enough jobs
	// ExpectedJobsPerLane is roughly how many jobs the claim will take from this lane, and from each of
	// UpcomingLanes. It is 0 if users do not take turns.
	ExpectedJobsPerLane int
	// UpcomingLanes returns up to n other lanes that will probably be served next, in that order. It is nil
	// if users do not take turns.
	UpcomingLanes func(n int) []Lane
	// NewStartPosition is the start position (Job.StartPosition) that the claim gives to the jobs found. If it is
	// nil, the jobs start in the order of their ranks.
	NewStartPosition *queue.StartPosition

	Jobs         []Job    // jobs that can be leased
	DamagedJobs  []Job    // jobs that cannot be read or do not belong in the lane
	NextPosition Position // ScanLane has read all jobs before this position
	// NextPriority is the priority of the job at NextPosition, or UnknownLanePriority.
	NextPriority   int64
	ReachedLaneEnd bool // the lane has no further jobs
}

// MaxBytesReadPerClaim limits the bytes of the jobs that a claim reads. Once they reach the limit, the claim reads no
// more.
const MaxBytesReadPerClaim = 1 << 20

// advanceHeadAtResource moves the head of a lane (the position from which claims read it) to its first job if gateID,
// which closes the lane, is a resource. A lane that waits for a resource holds back the lanes that rank behind its
// head, so the head must be exact. It reports whether the lane has changed.
func (k *laneKeeper) advanceHeadAtResource(l *Lane, gateID int64) (laneChanged bool) {
	return laneNeedsResource(l, gateID) && k.moveHeadToFirst(l)
}

// ensureLanePriority reads the priority of the lane's first job into l.Priority if it is unknown. It reports
// whether the lane has changed.
func (k *laneKeeper) ensureLanePriority(l *Lane) (laneChanged bool) {
	if l.Priority != UnknownLanePriority {
		return false
	}
	*k.stepCounter++
	return k.moveHeadToFirst(l)
}

// moveHeadToFirst moves the head of a lane (the position from which claims read it) to the lane's first job, and sets
// l.Priority. laneChanged reports that the head has moved, or that the job at the head cannot start.
func (k *laneKeeper) moveHeadToFirst(l *Lane) (laneChanged bool) {
	scan := LaneScan{Lane: *l, StopPosition: MaxPosition, MaxJobs: 1, MaxDamagedJobs: MaxLaneStepsPerTx}
	k.recordErr(k.lanes.ScanLane(&scan))
	for i := range scan.DamagedJobs {
		*k.stepCounter++
		k.recordErr(k.unclaimableHandler.HoldDamagedJob(&scan.DamagedJobs[i]))
	}
	switch {
	case len(scan.Jobs) == 0 && scan.ReachedLaneEnd:
		k.moveHead(l, scan.NextPosition, Empty)
		return true
	case len(scan.Jobs) == 0:
		k.moveHead(l, scan.NextPosition, l.ClosedBy)
		return true
	case k.jobHasExpired(&scan.Jobs[0]):
		k.recordErr(k.unclaimableHandler.CancelExpiredJob(&scan.Jobs[0]))
		return true
	}
	j := &scan.Jobs[0]
	laneChanged = j.Position() != l.Head
	if l.Priority = lanePriorityToStore(j); laneChanged || l.Priority != UnknownLanePriority {
		k.storeLaneHead(l, j.Position(), l.ClosedBy)
	}
	l.Priority = j.Priority
	return laneChanged
}

// lanePriorityToStore returns the priority to store for a lane (a list of jobs) whose first job is j. If j has an
// expiry time, it returns UnknownLanePriority, so that each claim reads the job and notices when it has expired.
func lanePriorityToStore(j *Job) int64 {
	if j.ExpiresAt != 0 {
		return UnknownLanePriority
	}
	return j.Priority
}

func (k *laneKeeper) jobHasExpired(j *Job) bool {
	return j.ExpiresAt != 0 && j.ExpiresAt <= k.clock.Now()
}

// keepResourceForBetterLane keeps lane l from taking units of a resource, whose gate is gateID, before another lane of
// the queue that ranks before l and waits only for this resource. If there is no such lane, it returns Open. If the
// other lane still lacks room, it returns gateID. If the other lane has room now, it opens that lane and returns
// chooseLaneAgain.
//
// See docs/decisions/0016.
func (k *laneKeeper) keepResourceForBetterLane(l *Lane, gateID int64) (fullGateID int64) {
	for {
		first, found, err := k.lanes.BestClosedLaneInQueue(gateID, l.Queue)
		if k.hasFailed(err) || !found || first.ID == l.ID || !l.Head.After(first.Head) {
			return Open
		}
		if k.operationStepsUsedUp() {
			// The other lane may go first, so l waits until OpenLanes has checked that lane.
			k.MarkGateDirty(gateID)
			return gateID
		}
		*k.stepCounter++
		if k.advanceHeadAtResource(&first, gateID) {
			continue
		}
		n, fullGateID := k.laneRoom(&first)
		switch {
		case n > 0: // the other lane goes first, unless it is another user's turn
			k.JobsMayBeClaimable = true
			k.moveHead(&first, first.Head, Open)
			return chooseLaneAgain
		case fullGateID == gateID || fullGateID == chooseLaneAgain:
			return fullGateID
		}
		// Another gate, fullGateID, has no room for the other lane. So that lane holds back no lanes at this
		// resource.
		k.moveHead(&first, first.Head, fullGateID)
	}
}
