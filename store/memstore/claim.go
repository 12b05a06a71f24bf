package memstore

import (
	"cmp"
	"maps"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// gate identifies a gate: a limited thing, such as a lock or a resource, that a job needs in order to start.
type gate struct {
	ownerUID int
	kind     queue.GateKind
	key      string
}

func gateOf(j *job, d queue.Demand) gate { return gate{d.GateOwner(j.UID), d.Kind, d.GateKey} }

// applyDeclaredLimits sets the limits of the locks and rates that a job declares. A limit that users share changes only
// if no unfinished job except ignoredJob, which may be nil, uses the same lock or rate. Before a rate changes,
// applyDeclaredLimits deletes the recorded starts that are older than its present period. Otherwise a longer new period
// would count them again.
func (s *Store) applyDeclaredLimits(j, ignoredJob *job, now queue.UnixMillis) {
	for _, d := range j.Demands {
		g := gateOf(j, d)
		if s.fixedGates[g] || g.ownerUID == queue.SharedGateOwner && d.DeclaresLimit() && s.anyJobNamesGate(g, ignoredJob) {
			continue
		}
		s.deleteExpiredRateStarts(g, now)
		s.gateRules[g] = d
	}
}

// deleteExpiredRateStarts deletes the recorded starts that are older than the period of a rate.
func (s *Store) deleteExpiredRateStarts(g gate, now queue.UnixMillis) {
	s.rateStarts[g] = slices.DeleteFunc(s.rateStarts[g],
		func(at queue.UnixMillis) bool { return at.Add(s.gateRules[g].RatePeriod) < now })
}

// recordRateStarts records the start of a job, at the given time, for each rate that the job names.
func (s *Store) recordRateStarts(j *job, startedAt, now queue.UnixMillis) {
	for _, d := range j.Demands {
		if g := gateOf(j, d); d.Kind == queue.GateRate {
			s.deleteExpiredRateStarts(g, now)
			s.rateStarts[g] = append(s.rateStarts[g], min(startedAt, now))
		}
	}
}

// usedUnits returns how many units of a gate are in use. For a rate, the used units are the starts within its period,
// and the units of leased jobs that are not known to have started. For other gates, the used units are those of all
// leased jobs.
func (s *Store) usedUnits(g gate, now queue.UnixMillis, leasedJobs []*job) (unitCount int) {
	for _, j := range leasedJobs {
		for _, d := range j.Demands {
			if gateOf(j, d) == g && (g.kind != queue.GateRate || j.State != queue.Processing) {
				unitCount += d.UnitsWhileRunning()
			}
		}
	}
	for _, at := range s.rateStarts[g] {
		if at.Add(s.gateRules[g].RatePeriod) >= now { // a start counts one millisecond longer, because times are rounded
			unitCount++
		}
	}
	return unitCount
}

// totalUnits returns the number of units of a gate (a lock or other limit) that all jobs together may hold.
func (s *Store) totalUnits(g gate) int {
	switch g.kind {
	case queue.GateNode:
		if s.node.MatchesSelector(g.key) {
			return len(s.jobs) // no limit: as many units as there are stored jobs
		}
		return 0
	case queue.GateResource:
		return s.node.ResourceUnits[g.key]
	}
	return s.gateRules[g].Amount
}

// nextRateOpeningTime returns the next time at which a rate that has reached its limit allows another start,
// because an old start leaves its period. It returns 0 if there is no such time.
func (s *Store) nextRateOpeningTime(now queue.UnixMillis) (opensAt queue.UnixMillis) {
	var leased []*job
	for _, j := range s.jobs {
		if j.isLeased {
			leased = append(leased, j)
		}
	}
	for g, starts := range s.rateStarts {
		if s.usedUnits(g, now, leased) < s.totalUnits(g) {
			continue
		}
		for _, at := range starts {
			if at = at.Add(s.gateRules[g].RatePeriod) + 1; at > now && (opensAt == 0 || at < opensAt) {
				opensAt = at
			}
		}
	}
	return opensAt
}

// queueRule returns the rule of a queue: its limits, weight and pause.
func (s *Store) queueRule(queueName string) store.QueueRule {
	if r, found := s.queueRules[queueName]; found {
		return r
	}
	return store.QueueRule{Weight: 1}
}

// queueUser identifies a user within a queue.
type queueUser struct {
	queue string
	uid   int
}

// resetUserTurns forgets when jobs of each user were last claimed from a queue.
func (s *Store) resetUserTurns(queueName string) {
	maps.DeleteFunc(s.lastClaimByQueueUser, func(u queueUser, _ int64) bool { return u.queue == queueName })
	s.claimCountAtTurnReset[queueName] = s.claimCount
}

// undoUserTurn is called when a job is returned before it started. It undoes how the claim of the job has changed the
// turns of the users.
func (s *Store) undoUserTurn(j *job) {
	if u := (queueUser{j.Queue, j.UID}); j.lastClaimNumber > s.claimCountAtTurnReset[j.Queue] {
		s.lastClaimByQueueUser[u] = min(s.lastClaimByQueueUser[u], j.previousUserClaimNumber)
	}
}

// claim leases up to maxJobs jobs that may start, one after another. It cancels the expired jobs that it finds.
func (s *Store) claim(now queue.UnixMillis, maxJobs int) (claimedJobs []queue.Job) {
	var ready, leased []*job
	for _, j := range s.jobs {
		if j.isLeased {
			leased = append(leased, j)
		} else if j.State.IsRunnable() && j.DueAt <= now {
			ready = append(ready, j)
		}
	}
	slices.SortFunc(ready, func(a, b *job) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Seq, b.Seq))
	})
	for len(claimedJobs) < maxJobs {
		first := s.bestJob(now, ready, leased)
		if first == nil {
			return claimedJobs
		}
		j := first
		if s.order.Scheduling != queue.SchedulingByArrival {
			j = s.jobOfNextUser(first, now, ready, leased)
		}
		u := queueUser{j.Queue, j.UID}
		s.claimCount++
		j.lastClaimNumber, j.previousUserClaimNumber, s.lastClaimByQueueUser[u] = s.claimCount, s.lastClaimByQueueUser[u],
			s.claimCount
		j.Fence++
		j.isLeased = true
		j.HeldUnits = s.resourceUnitsFor(j, leased)
		leased = append(leased, j)
		if s.queueWeightsDiffer() {
			s.lastServedQueueTurn = max(s.nextQueueTurns[j.Queue], s.lastServedQueueTurn)
			s.nextQueueTurns[j.Queue] = s.lastServedQueueTurn + (1<<30)/int64(s.queueRule(j.Queue).Weight)
		}
		claimedJobs = append(claimedJobs, j.copyWithRank())
		claimedJobs[len(claimedJobs)-1].StartPosition = queue.StartPosition{Rank: first.rank, Seq: first.Seq}
	}
	return claimedJobs
}

// copyWithRank returns a copy of a leased job with its rank. Other methods return jobs without their rank.
func (j *job) copyWithRank() queue.Job {
	c := copyJob(j.Job)
	c.Rank = j.rank
	return c
}

// resourceUnitsFor returns the numbers of the resource units that a job gets: for each resource, the lowest ones that
// no leased job holds.
func (s *Store) resourceUnitsFor(j *job, leasedJobs []*job) (unitNumbers string) {
	for _, d := range j.Demands {
		if d.Kind != queue.GateResource {
			continue
		}
		taken := map[int]bool{}
		for _, other := range leasedJobs {
			queue.ParseResourceUnits(other.HeldUnits, func(name string, units []int) {
				for _, u := range units {
					taken[u] = taken[u] || name == d.GateKey
				}
			})
		}
		unitNumbers = queue.AppendResourceUnits(unitNumbers, d.GateKey, queue.PickFreeUnits(d.Amount, taken))
	}
	return unitNumbers
}

// queueWeightsDiffer reports whether any queue has a weight other than 1.
func (s *Store) queueWeightsDiffer() bool {
	for _, r := range s.queueRules {
		if r.Weight != 1 {
			return true
		}
	}
	return false
}

// jobOfNextUser returns the job that starts instead of firstJob, so that users take turns. The candidates
// are, for each user, the best-ranked job that may start in the same queue and has the same priority as
// firstJob. The job of the user who was served least recently is chosen.
func (s *Store) jobOfNextUser(firstJob *job, now queue.UnixMillis, readyJobs, leasedJobs []*job) *job {
	best := firstJob
	seen := map[int]bool{}
	s.eachStartableJob(now, readyJobs, leasedJobs, func(j *job) bool {
		if j.Queue != firstJob.Queue || seen[j.UID] {
			return true
		}
		seen[j.UID] = true
		if j.Priority == firstJob.Priority &&
			s.lastClaimByQueueUser[queueUser{j.Queue, j.UID}] < s.lastClaimByQueueUser[queueUser{best.Queue, best.UID}] {
			best = j
		}
		return true
	})
	return best
}

// bestJob returns the best-ranked job that may start, or nil if none may. If queues have different weights, it
// considers only the queue with the lowest turn number.
func (s *Store) bestJob(now queue.UnixMillis, readyJobs, leasedJobs []*job) (best *job) {
	turn := func(j *job) int64 { return max(s.nextQueueTurns[j.Queue], s.lastServedQueueTurn) }
	s.eachStartableJob(now, readyJobs, leasedJobs, func(j *job) bool {
		if best == nil || turn(j) < turn(best) || turn(j) == turn(best) && j.Queue < best.Queue {
			best = j
		}
		return s.queueWeightsDiffer()
	})
	return best
}

// eachStartableJob calls visit for each job that may start, in order of rank, until visit returns false. It cancels
// the expired jobs that it finds.
func (s *Store) eachStartableJob(now queue.UnixMillis, readyJobs, leasedJobs []*job, visit func(*job) (more bool)) {
	leasedByUser, leasedByQueue := map[int]int{}, map[string]int{} // leased jobs by user and by queue
	for _, j := range leasedJobs {
		leasedByUser[j.UID]++
		leasedByQueue[j.Queue]++
	}
	type queueResource struct{ queue, resource string }
	barred := map[queueResource]bool{} // resources for which a better-ranked job of the same queue waits
	for _, j := range readyJobs {
		if j.isLeased || !j.State.IsRunnable() {
			continue
		}
		r := s.queueRule(j.Queue)
		if r.Paused || r.Concurrency > 0 && leasedByQueue[j.Queue] >= r.Concurrency {
			continue
		}
		if j.isExpired(now) {
			s.cancelExpiredJob(j, now)
			continue
		}
		if s.node.UIDsWithoutAccount[j.UID] || s.maxLeasedPerUser > 0 && leasedByUser[j.UID] >= s.maxLeasedPerUser ||
			slices.ContainsFunc(j.Demands, func(d queue.Demand) bool {
				g := gateOf(j, d)
				fits := s.usedUnits(g, now, leasedJobs)+d.UnitsWhileRunning() <= s.totalUnits(g)
				if d.Kind == queue.GateResource {
					resource := queueResource{j.Queue, d.GateKey}
					barred[resource] = barred[resource] || !fits
					return barred[resource]
				}
				return !fits
			}) {
			continue
		}
		if !visit(j) {
			return
		}
	}
}

// anyJobNamesGate reports whether an unfinished job names the gate (a lock or other limit). It ignores the given
// job.
func (s *Store) anyJobNamesGate(g gate, ignoredJob *job) bool {
	for _, j := range s.jobs {
		if j == ignoredJob || j.State.HasEnded() {
			continue
		}
		for _, d := range j.Demands {
			if gateOf(j, d) == g {
				return true
			}
		}
	}
	return false
}
