package rules

import (
	"github.com/queuectl/queuectl/queue"
)

// LaneScan holds the parameters and the results of Lanes.ScanLane, which reads the next jobs of a lane.
type LaneScan struct {
	Lane Lane
	// Scope is the part of each job to be read.
	Scope ReadScope
	// StopAt ends the search: from this position on, jobs of another lane go first.
	StopAt     Position
	WantedJobs int // number of jobs that the caller wants
	// MaxDamagedJobs limits DamagedJobs. The search ends when it has found this number of damaged jobs.
	MaxDamagedJobs int
	// BytesRead is the size of the jobs that this search and earlier searches of the claim have read, in bytes.
	// The search ends once it has reached MaxClaimBytes.
	BytesRead    int
	PeekPriority bool // true: ScanLane also reads NextPriority, even if it has found enough jobs
	// ExpectedJobs is the approximate number of jobs that the claim will take from this lane, and from each
	// upcoming lane. It is 0 if users do not take turns.
	ExpectedJobs int
	// UpcomingLanes returns up to n other lanes that will probably have the next turns, in that order. It is
	// nil if users do not take turns.
	UpcomingLanes func(n int) []Lane
	// StartPlace is the place that the found jobs get in the order of starts. If it is nil, the rank of each
	// job decides its place.
	StartPlace *queue.StartPosition

	Jobs         []Job    // jobs that may be leased
	DamagedJobs  []Job    // jobs that cannot be read or do not belong in the lane
	NextPosition Position // ScanLane has read all jobs before this position
	// NextPriority is the priority of the job at NextPosition, or UnknownPriority.
	NextPriority int64
	Exhausted    bool // the lane has no further jobs at all
}

// MaxClaimBytes limits the size of the jobs that a claim reads, in bytes. The claim ends once the size has
// reached the limit.
const MaxClaimBytes = 1 << 20

// advanceHead moves a lane's head to its first job, if the lane is closed by gate and gate is a resource. Such
// a lane holds back the lanes that rank behind its head, so the head must be exact. advanceHead reports whether
// the lane has changed.
func (k *laneKeeper) advanceHead(l *Lane, gate int64) (laneChanged bool) {
	return needsResource(l, gate) && k.moveHeadToFirst(l)
}

// ensurePriority calls moveHeadToFirst if the lane's priority is not known. It reports whether the lane has changed.
func (k *laneKeeper) ensurePriority(l *Lane) (laneChanged bool) {
	if l.Priority != UnknownPriority {
		return false
	}
	*k.steps++
	return k.moveHeadToFirst(l)
}

// moveHeadToFirst moves the head of a lane to the lane's first job and sets l.Priority. laneChanged is false if the
// head was already there. It is true if the head has moved, or if the job at the head cannot start.
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

// priorityToStore returns the priority to store for a lane whose head is this job. For a job with an expiry
// time, it returns UnknownPriority, so that each claim reads the job again.
func priorityToStore(j *Job) int64 {
	if j.ExpiresAt != 0 {
		return UnknownPriority
	}
	return j.Priority
}

func (k *laneKeeper) hasExpired(j *Job) bool { return j.ExpiresAt != 0 && j.ExpiresAt <= k.clock.Now() }

// checkResourceOrder checks whether another lane of the queue goes before the lane l at a resource. Such a lane
// ranks before l and waits only for this resource. If it still lacks room, checkResourceOrder returns gate, the
// resource. If it has room now, checkResourceOrder opens it and returns chooseAgain. If no lane goes before l,
// the result is Open.
//
// See docs/decisions/0016.
func (k *laneKeeper) checkResourceOrder(l *Lane, gate int64) (fullGate int64) {
	for {
		first, found, err := k.lanes.BestClosedInQueue(gate, l.Queue)
		if k.failed(err) || !found || first.ID == l.ID || !l.Head.After(first.Head) {
			return Open
		}
		if k.outOfSteps() {
			// The other lane may still go first, so the lane l waits until OpenLanes has checked the other one.
			k.MarkGateDirty(gate)
			return gate
		}
		*k.steps++
		if k.advanceHead(&first, gate) {
			continue
		}
		n, fullGate := k.laneRoom(&first)
		switch {
		case n > 0: // the other lane has room, so it goes first, except if another user has the turn
			k.MadeJobsReady = true
			k.moveHead(&first, first.Head, Open)
			return chooseAgain
		case fullGate == gate || fullGate == chooseAgain:
			return fullGate
		}
		// The other lane lacks room at the gate fullGate, so it no longer holds back lanes at this resource.
		k.moveHead(&first, first.Head, fullGate)
	}
}
