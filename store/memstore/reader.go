package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Get returns the job with an id, without its environment and standard input.
func (s *Store) GetJob(ctx context.Context, id string) (queue.Job, error) {
	j, err := s.GetWithEnvAndStdin(ctx, id)
	return withoutEnvAndStdin(j), err
}

// GetWithEnvAndStdin returns the complete job with an id.
func (s *Store) GetWithEnvAndStdin(ctx context.Context, id string) (fullJob queue.Job, err error) {
	err = s.runReadTx(ctx, func() error {
		for _, j := range s.jobs {
			if j.ID == id {
				fullJob = s.copyForReader(j)
				return nil
			}
		}
		return queue.ErrNotFound
	})
	return fullJob, err
}

// withoutEnvAndStdin returns a job without its environment and standard input, which may be large.
func withoutEnvAndStdin(j queue.Job) queue.Job {
	j.Env, j.Stdin = nil, ""
	return j
}

// Queues lists the queues that have unfinished jobs or a rule (limits, weight or pause).
func (s *Store) Queues(ctx context.Context) (queueStates []store.QueueState, err error) {
	err = s.runReadTx(ctx, func() error {
		states := map[string]*store.QueueState{}
		stateOf := func(name string) *store.QueueState {
			if states[name] == nil {
				states[name] = &store.QueueState{Name: name, Rule: s.queueRule(name)}
			}
			return states[name]
		}
		for name := range s.queueRules {
			stateOf(name)
		}
		for _, j := range s.jobs {
			if j.State.IsWaiting() {
				stateOf(j.Queue).WaitingJobs++
			}
			if j.isLeased {
				stateOf(j.Queue).LeasedJobs++
			} else if j.State.IsRunnable() && j.DueAt <= s.now() {
				if q := stateOf(j.Queue); q.OldestReadySince == 0 || j.AgingSince < q.OldestReadySince {
					q.OldestReadySince = j.AgingSince
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(states)) {
			queueStates = append(queueStates, *states[name])
		}
		return nil
	})
	return queueStates, err
}

// BestWaitingPriority returns the priority, with ageing points, of the user's best-ranked job that is due or
// waits for a retry.
func (s *Store) BestWaitingPriority(ctx context.Context, uid int) (waitingPriority store.WaitingPriority, err error) {
	err = s.runReadTx(ctx, func() error {
		var best *job
		now := s.now()
		for _, j := range s.jobs {
			counts := j.State == queue.Failed || j.State == queue.Pending && j.DueAt <= now && !j.hasNeverBeenDue
			if j.UID != uid || !counts || j.isLeased {
				continue
			}
			if best == nil || cmp.Or(cmp.Compare(j.rank, best.rank), cmp.Compare(j.Seq, best.Seq)) < 0 {
				best = j
			}
		}
		if best != nil {
			waitingPriority.Priority, waitingPriority.JobFound = best.Priority+
				s.order.AgingPoints(best.AgingSince, now, best.ArrivalNumber, s.enqueuedTotal), true
			waitingPriority.Priority = min(waitingPriority.Priority, store.MaxWaitingPriority)
		}
		return nil
	})
	return waitingPriority, err
}

// SimulateClaims returns the jobs that the next claims would take, at most maxJobs jobs. It claims them in a copy of
// the store.
func (s *Store) SimulateClaims(ctx context.Context, maxJobs int) (simulation store.ClaimSimulation, err error) {
	err = s.runReadTx(ctx, func() error {
		other := NewWithClock(s.order, s.now)
		other.maxLeasedPerUser, other.lastServedQueueTurn = s.maxLeasedPerUser, s.lastServedQueueTurn
		other.node, other.enqueuedTotal, other.claimCount = s.node, s.enqueuedTotal, s.claimCount
		other.lastClaimByQueueUser, other.claimCountAtTurnReset = maps.Clone(s.lastClaimByQueueUser),
			maps.Clone(s.claimCountAtTurnReset)
		other.queueRules, other.nextQueueTurns = maps.Clone(s.queueRules), maps.Clone(s.nextQueueTurns)
		other.gateRules = maps.Clone(s.gateRules)
		for g, starts := range s.rateStarts {
			other.rateStarts[g] = slices.Clone(starts)
		}
		for seq, j := range s.jobs {
			c := *j
			c.Job, c.dependencyLinks = copyJob(j.Job), slices.Clone(j.dependencyLinks)
			other.jobs[seq] = &c
		}
		now := s.now()
		other.rankNewlyDueJobs(now)
		simulation.StartingJobs = other.claim(now, maxJobs)
		return nil
	})
	return simulation, err
}

// WaitReasons returns, by seq, what keeps jobs from starting.
func (s *Store) WaitReasons(ctx context.Context, seqs []int64) (reasons map[int64][]store.WaitReason, err error) {
	reasons = map[int64][]store.WaitReason{}
	err = s.runReadTx(ctx, func() error {
		for _, seq := range seqs {
			j, err := s.findJob(seq)
			if err != nil {
				continue // the job was removed
			}
			if list := s.waitReasons(j); len(list) > 0 {
				reasons[seq] = list
			}
		}
		return nil
	})
	return reasons, err
}

func (s *Store) waitReasons(j *job) (reasons []store.WaitReason) {
	now := s.now()
	if j.isLeased || !j.State.IsRunnable() {
		return nil
	}
	var leased []*job
	running, ofUser := 0, 0
	for _, other := range s.jobs {
		if other.isLeased {
			leased = append(leased, other)
			if other.Queue == j.Queue {
				running++
			}
			if other.UID == j.UID {
				ofUser++
			}
		}
	}
	timed := j.DueAt > now
	if r := s.queueRule(j.Queue); r.Paused || !timed && r.Concurrency > 0 && running >= r.Concurrency {
		reasons = append(reasons, store.WaitReason{GateKeyOrQueueName: j.Queue, UsedUnits: running, MaxUnits: r.Concurrency,
			NeededUnits: 1, QueuePaused: r.Paused})
	}
	if timed {
		return reasons
	}
	switch {
	case s.node.UIDsWithoutAccount[j.UID]:
		reasons = append(reasons, store.WaitReason{GateKind: queue.GateUser, NeededUnits: 1})
	case s.maxLeasedPerUser > 0 && ofUser >= s.maxLeasedPerUser:
		reasons = append(reasons, store.WaitReason{GateKind: queue.GateUser, UsedUnits: ofUser, MaxUnits: s.maxLeasedPerUser,
			NeededUnits: 1})
	}
	for _, d := range j.Demands {
		g := gateOf(j, d)
		used := s.usedUnits(g, now, leased)
		o := store.WaitReason{GateKind: d.Kind, GateKeyOrQueueName: d.GateKey, UsedUnits: used, MaxUnits: s.totalUnits(g),
			NeededUnits: d.UnitsWhileRunning()}
		if d.Kind == queue.GateNode {
			o.UsedUnits, o.MaxUnits = 0, min(0, o.MaxUnits)
		}
		switch {
		case used+d.UnitsWhileRunning() > s.totalUnits(g):
			o.RateOpensAt = s.rateOpensAt(g, leased)
			reasons = append(reasons, o)
		case d.Kind == queue.GateResource && s.waitsForReservedResource(j, d, now, leased):
			o.UnitsKeptForOtherJob = true
			reasons = append(reasons, o)
		}
	}
	return reasons
}

// waitsForReservedResource reports whether the job j must wait because another job of its queue ranks before it and
// waits only for the same resource. That job needs more units than are free, and the free units are kept for that job.
func (s *Store) waitsForReservedResource(j *job, demand queue.Demand, now queue.UnixMillis, leasedJobs []*job) bool {
	for _, other := range s.jobs {
		if other.isLeased || !other.State.IsRunnable() || other.DueAt > now || other.Queue != j.Queue ||
			cmp.Or(cmp.Compare(other.rank, j.rank), cmp.Compare(other.Seq, j.Seq)) >= 0 {
			continue
		}
		for _, d := range other.Demands {
			g := gateOf(other, d)
			if d.Kind == queue.GateResource && d.GateKey == demand.GateKey && s.usedUnits(g, now, leasedJobs)+
				d.UnitsWhileRunning() > s.totalUnits(g) {
				return true
			}
		}
	}
	return false
}

// DependencyLinks returns the parents and dependants of a job, including those for which the job no longer
// waits.
func (s *Store) DependencyLinks(ctx context.Context, seq int64, limit int) (parents, children []store.DependencyLink,
	err error) {
	if err := checkPageLimit(limit); err != nil {
		return nil, nil, err
	}
	err = s.runReadTx(ctx, func() error {
		if _, err := s.findJob(seq); err != nil {
			return err
		}
		linkTo := func(otherSeq int64, l dependencyLink) store.DependencyLink {
			result := store.DependencyLink{LinkedJobSeq: otherSeq, Condition: l.Condition, Status: l.status}
			if j := s.jobs[otherSeq]; j != nil {
				result.LinkedJobID, result.LinkedJobState = j.ID, j.State
			}
			return result
		}
		for _, j := range s.jobsBySeq() {
			for _, l := range j.dependencyLinks {
				if j.Seq == seq {
					parents = append(parents, linkTo(l.ParentSeq, l))
				}
				if l.ParentSeq == seq {
					children = append(children, linkTo(j.Seq, l))
				}
			}
		}
		return nil
	})
	byStatus := func(a, b store.DependencyLink) int { return cmp.Compare(a.Status, b.Status) }
	slices.SortStableFunc(parents, byStatus)
	slices.SortStableFunc(children, byStatus)
	return parents[:min(len(parents), limit)], children[:min(len(children), limit)], err
}

// copyForReader returns a copy of a job for the methods that read jobs. For a blocked job, the copy lists the
// parents that the job still waits for.
func (s *Store) copyForReader(j *job) queue.Job {
	visible := copyJob(j.Job)
	if j.State != queue.Blocked {
		return visible
	}
	for _, l := range j.dependencyLinks {
		if l.status == store.Unresolved && len(visible.DependsOn) < store.MaxLoadedDependencies {
			d := l.Dependency
			if parent := s.jobs[d.ParentSeq]; parent != nil {
				d.ParentID = parent.ID
			}
			visible.DependsOn = append(visible.DependsOn, d)
		}
	}
	return visible
}

// AttemptHistory returns a page of a job's attempts, without their output.
func (s *Store) AttemptHistory(ctx context.Context, seq int64, beforeAttemptNumber,
	limit int) (attempts []queue.Attempt,
	err error) {
	if err := checkPageLimit(limit); err != nil {
		return nil, err
	}
	err = s.runReadTx(ctx, func() error {
		j, err := s.findJob(seq)
		if err != nil {
			return err
		}
		bytes := 0
		for _, a := range slices.Backward(j.attempts) {
			if beforeAttemptNumber > 0 && a.Number >= beforeAttemptNumber {
				continue
			}
			bytes += store.AttemptTextBytes(&a)
			if len(attempts) == limit || len(attempts) > 0 && bytes > store.MaxHistoryTextBytes {
				break
			}
			a.Output, a.OutputFileRef, a.Result = nil, "", nil
			attempts = append(attempts, a)
		}
		slices.Reverse(attempts)
		return nil
	})
	return attempts, err
}

func checkPageLimit(limit int) error {
	if limit < 1 || limit > store.MaxPageRows {
		return queue.InvalidFieldError("limit", "the limit must be between 1 and %[2]d, not %[1]d", limit, store.MaxPageRows)
	}
	return nil
}

// Attempt returns one attempt with its output. If attemptNumber is 0, it returns the last attempt.
func (s *Store) Attempt(ctx context.Context, seq int64, attemptNumber int) (attempt queue.Attempt, err error) {
	err = s.runReadTx(ctx, func() error {
		j, err := s.findJob(seq)
		if err != nil {
			return err
		}
		index := len(j.attempts) - 1
		if attemptNumber != 0 {
			index = slices.IndexFunc(j.attempts, func(a queue.Attempt) bool { return a.Number == attemptNumber })
		}
		if index < 0 {
			return queue.ErrNotFound
		}
		attempt = j.attempts[index]
		attempt.Output, attempt.Result = slices.Clone(attempt.Output), slices.Clone(attempt.Result)
		return nil
	})
	return attempt, err
}

// List returns a page of the jobs that match a filter, newest first.
func (s *Store) ListJobs(ctx context.Context, f store.JobFilter) (page store.JobPage, err error) {
	err = s.withMatchingJobs(ctx, f, func(list []*job) {
		bytes := 0
		for _, j := range list {
			bytes += store.JobTextBytes(&j.Job)
			if len(page.Jobs) == f.Limit || len(page.Jobs) > 0 && bytes > store.MaxPageTextBytes {
				page.NextBeforeSeq = page.Jobs[len(page.Jobs)-1].Seq
				return
			}
			page.Jobs = append(page.Jobs, withoutEnvAndStdin(s.copyForReader(j)))
		}
	})
	return page, err
}

// ListJobRefs returns a page of references to the jobs that match a filter.
func (s *Store) ListJobRefs(ctx context.Context, f store.JobFilter) (page store.JobRefPage, err error) {
	err = s.withMatchingJobs(ctx, f, func(list []*job) {
		for _, j := range list {
			if len(page.Refs) == f.Limit {
				page.NextBeforeSeq = page.Refs[f.Limit-1].Seq
				return
			}
			page.Refs = append(page.Refs, store.JobRef{Seq: j.Seq, ID: j.ID, State: j.State, UID: j.UID})
		}
	})
	return page, err
}

// withMatchingJobs passes the jobs that match a filter, newest first, to one call of handleJobs.
func (s *Store) withMatchingJobs(ctx context.Context, f store.JobFilter, handleJobs func([]*job)) error {
	if err := checkPageLimit(f.Limit); err != nil {
		return err
	}
	glob, err := queue.CompileGlob(cmp.Or(f.IDGlob, "*"))
	if err != nil {
		return err
	}
	return s.runReadTx(ctx, func() error {
		var matchingJobs []*job
		for _, j := range slices.Backward(s.jobsBySeq()) {
			if matchesFilter(f, j) && glob(j.ID) {
				matchingJobs = append(matchingJobs, j)
			}
		}
		handleJobs(matchingJobs)
		return nil
	})
}

func matchesFilter(f store.JobFilter, j *job) bool {
	for name, value := range f.Labels {
		if label, found := j.Labels[name]; !found || label != value {
			return false
		}
	}
	return (len(f.States) == 0 || slices.Contains(f.States, j.State)) &&
		(f.UID == nil || *f.UID == j.UID) &&
		(f.ViewerUID == nil || j.HookEvents&queue.SettingsHookFlag == 0 || *f.ViewerUID == j.UID) &&
		(f.Queue == "" || f.Queue == j.Queue) &&
		(f.Until == 0 || cmp.Or(j.EndedAt, j.CreatedAt) < f.Until) &&
		cmp.Or(j.EndedAt, j.CreatedAt) >= f.Since &&
		(f.BeforeSeq == 0 || j.Seq < f.BeforeSeq)
}

// OldestReadySince returns since when the job that has waited longest could have started, or 0 if no job is
// waiting to start.
func (s *Store) OldestReadySince(ctx context.Context) (oldestSince queue.UnixMillis, err error) {
	err = s.runReadTx(ctx, func() error {
		now := s.now()
		for _, j := range s.jobs {
			if j.State.IsRunnable() && j.DueAt <= now && (oldestSince == 0 || j.AgingSince < oldestSince) {
				oldestSince = j.AgingSince
			}
		}
		return nil
	})
	return oldestSince, err
}

// ReadScreen returns an overview of the queue: the running jobs, the next jobs and the ended jobs.
func (s *Store) ReadScreen(ctx context.Context, f store.ScreenFilter) (screen store.Screen, err error) {
	if f.RowsPerPart < 1 || f.RowsPerPart > store.MaxScreenRowsPerPart {
		return screen, queue.InvalidFieldError("rows", "the number of rows must be between 1 and %[2]d, not %[1]d",
			f.RowsPerPart,
			store.MaxScreenRowsPerPart)
	}
	err = s.runReadTx(ctx, func() error {
		now := s.now()
		part := func(isIncluded func(j *job) bool, compare func(a, b *job) int) (list []queue.Job) {
			var matchingJobs []*job
			for _, j := range s.jobsBySeq() {
				if isIncluded(j) {
					matchingJobs = append(matchingJobs, j)
				}
			}
			slices.SortStableFunc(matchingJobs, compare)
			bytes := 0
			for _, j := range matchingJobs[:min(len(matchingJobs), f.RowsPerPart)] {
				shownJob := withoutEnvAndStdin(s.copyForReader(j))
				if f.DetailsForUID != nil && shownJob.UID != *f.DetailsForUID {
					shownJob.ExecutionSettings = queue.ExecutionSettings{Labels: shownJob.Labels}
				}
				if bytes += store.JobTextBytes(&shownJob); bytes > store.MaxScreenPartTextBytes && len(list) > 0 {
					break
				}
				list = append(list, shownJob)
			}
			return list
		}
		age := func(a, b *job) int { return cmp.Compare(a.Seq, b.Seq) }
		lastEnded := func(a, b *job) int { return cmp.Or(cmp.Compare(b.EndedAt, a.EndedAt), cmp.Compare(b.Seq, a.Seq)) }
		inState := func(states ...queue.State) func(j *job) bool {
			return func(j *job) bool { return slices.Contains(states, j.State) }
		}
		screen = store.Screen{
			Running: part(inState(queue.Processing), age),
			Ready:   part(func(j *job) bool { return j.State.IsRunnable() && j.DueAt <= now }, s.newStartOrderComparer(now)),
			NotYetDue: part(func(j *job) bool { return j.State.IsRunnable() && j.DueAt > now }, func(a, b *job) int {
				return cmp.Or(cmp.Compare(a.DueAt, b.DueAt), cmp.Compare(a.Seq, b.Seq))
			}),
			HeldOrBlocked:        part(inState(queue.Held, queue.Blocked), age),
			Dead:                 part(inState(queue.Dead), lastEnded),
			CompletedOrCancelled: part(inState(queue.Completed, queue.Cancelled), lastEnded),
		}
		return nil
	})
	return screen, err
}

// newStartOrderComparer returns a function that compares ready jobs by the order in which they would start if no limit
// held them back: first the leased jobs, then the others, with users taking turns.
func (s *Store) newStartOrderComparer(now queue.UnixMillis) func(a, b *job) int {
	position := map[*job]int{}
	for _, leased := range []bool{true, false} {
		served := map[queueUser]int64{}
		if !leased {
			maps.Copy(served, s.lastClaimByQueueUser)
		}
		var remainingJobs []*job
		for _, j := range s.jobsBySeq() {
			if j.State.IsRunnable() && j.DueAt <= now && j.isLeased == leased {
				remainingJobs = append(remainingJobs, j)
			}
		}
		slices.SortStableFunc(remainingJobs, func(a, b *job) int { return cmp.Compare(a.rank, b.rank) })
		for n := int64(1); len(remainingJobs) > 0; n++ {
			best := 0
			seen := map[int]bool{}
			for i, j := range remainingJobs {
				if j.Queue != remainingJobs[0].Queue || seen[j.UID] || s.order.Scheduling == queue.SchedulingByArrival {
					continue
				}
				seen[j.UID] = true
				if j.Priority == remainingJobs[0].Priority &&
					served[queueUser{j.Queue, j.UID}] < served[queueUser{j.Queue, remainingJobs[best].UID}] {
					best = i
				}
			}
			j := remainingJobs[best]
			position[j], served[queueUser{j.Queue, j.UID}] = len(position), s.claimCount+n
			remainingJobs = slices.Delete(remainingJobs, best, best+1)
		}
	}
	return func(a, b *job) int { return cmp.Compare(position[a], position[b]) }
}
