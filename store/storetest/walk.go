package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var randomWalkTests = []contractTest{
	{name: "a random walk keeps all rules", run: func(r *storeTest) { randomWalk(r, 2000) }},
	{name: "a random walk with ageing by enqueues keeps all rules",
		run: func(r *storeTest) { randomWalk(r, 500) }, rankOrder: enqueueAgingRankOrder},
}

// predictedWalk performs random operations on a store, and checks that each job is in the state that it predicts.
type predictedWalk struct {
	*storeTest
	rng              *rand.Rand
	expectedJobs     map[int64]queue.Job // by seq, each job as the store must return it
	leasedSeqs       map[int64]bool      // the seqs of the leased jobs
	notYetDueSeqs    map[int64]bool      // the seqs of jobs that have not been due yet
	endedLeases      []queue.Lease       // leases that have ended
	enqueuedJobCount int64
	step             int // number of the current step
}

// randomWalk performs random operations on a new store, and checks each result.
func randomWalk(r *storeTest, steps int) {
	w := &predictedWalk{storeTest: r, rng: rand.New(rand.NewPCG(2, 3)), expectedJobs: map[int64]queue.Job{},
		leasedSeqs: map[int64]bool{}, notYetDueSeqs: map[int64]bool{}}
	for w.step = range walkSteps(steps) {
		w.doRandomOperation()
		if r.Failed() {
			r.Fatalf("a rule was broken in step %d", w.step)
		}
	}
	w.checkStoreContents()
	w.checkJobHistories()
	w.checkStats()
}

// doRandomOperation performs one random operation.
func (w *predictedWalk) doRandomOperation() {
	switch n := w.rng.IntN(22); {
	case n < 5:
		w.enqueueRandomJobs()
	case n < 12:
		w.reportAndClaim()
	case n < 13:
		w.cancelRandomJob()
	case n < 14:
		w.retryRandomJob()
	case n < 15:
		w.removeRandomJob()
	case n < 16:
		w.reportWithEndedLease(w.endedLeases)
	case n < 17:
		w.holdRandomJob()
	case n < 18:
		w.editRandomJob()
	case n < 19:
		w.pauseRandomJob()
	default:
		w.advanceAndApplyDueChanges(time.Duration(w.rng.IntN(3000)) * time.Millisecond)
		w.markDueJobs()
	}
	for _, e := range w.readNewEvents() {
		w.checkEvent(e)
	}
	if w.step%100 == 99 {
		w.checkStoreContents()
	}
}

// checkEvent checks that an event fits the expected state of its job. If the event reports that the job has expired,
// checkEvent updates the expected state.
func (w *predictedWalk) checkEvent(e queue.Event) {
	switch j, known := w.expectedJobs[e.JobSeq]; {
	case e.Kind == queue.EventRemoved && known, e.Kind != queue.EventRemoved && !known:
		w.Errorf("unexpected event %s of job %d (the job exists: %t)", e.Kind, e.JobSeq, known)
	case e.Kind == queue.EventExpired:
		w.checkJob(w.expireExpectedJob(j))
	case e.Kind != queue.EventStarted && e.Kind != queue.EventProgress && e.Kind != queue.EventEnded && known:
		checkEqual(w.storeTest, "state in event "+string(e.Kind), e.State, j.State)
	}
}

// expireExpectedJob returns job j as it must be after it has expired at the current time. It
// checks that j may expire.
func (w *predictedWalk) expireExpectedJob(j queue.Job) queue.Job {
	if w.leasedSeqs[j.Seq] || !j.State.IsWaiting() || j.ExpiresAt == 0 || j.ExpiresAt > w.store.Now() {
		w.Errorf("job %s expired, but it must not expire now", j.ID)
	}
	return w.expectedExpiredJob(j)
}

// checkJob compares a stored job with want. It also checks that the job's state may follow the job's previous state,
// and that the job's fields fit together.
func (w *predictedWalk) checkJob(want queue.Job) {
	got := w.getJob(want.ID)
	checkEqual(w.storeTest, fmt.Sprintf("job %s in step %d", want.ID, w.step), got, want)
	previous, known := w.expectedJobs[got.Seq]
	var oldState queue.State
	if known {
		oldState = previous.State
	}
	direct := oldState == got.State || oldState.CanChangeTo(got.State)
	if !direct && !(oldState.CanChangeTo(queue.Processing) && queue.Processing.CanChangeTo(got.State)) {
		w.Errorf("job %s changed its state to %s from %s, which the state table forbids", got.ID, got.State, oldState)
	}
	for rule, holds := range map[string]bool{
		"only an ended job has an end time":  got.State.HasEnded() == (got.EndedAt != 0),
		"only a processing job has a worker": (got.State == queue.Processing) == (got.WorkerID != "" && got.PID != 0),
		"only a processing job is paused":    got.PausedAt == 0 || got.State == queue.Processing,
		"a processing job is leased":         got.State != queue.Processing || w.leasedSeqs[got.Seq],
		"at most all runs count as attempts": got.Attempts <= got.StartedAttempts && got.Attempts <= got.MaxAttempts,
		"a fence never falls":                got.Fence >= previous.Fence,
		"runs never fall":                    got.StartedAttempts >= previous.StartedAttempts,
		"only a retry changes the state of an ended job": !previous.State.HasEnded() || got.State == previous.State ||
			got.State == queue.Pending && got.Attempts == 0,
		"the last update is between creation and now":     got.UpdatedAt >= got.CreatedAt && got.UpdatedAt <= w.store.Now(),
		"a job that never ran has no exit code or signal": got.StartedAttempts > 0 || got.ExitCode == -1 && got.Signal == 0,
	} {
		if !holds {
			w.Errorf("job %s: broken rule: %s", got.ID, rule)
		}
	}
	w.expectedJobs[got.Seq] = got
}

// pickRandomJob returns a random job of those that must exist. It returns false if the expected state contains no job.
func (w *predictedWalk) pickRandomJob() (queue.Job, bool) {
	if len(w.expectedJobs) == 0 {
		return queue.Job{}, false
	}
	all := slices.Sorted(maps.Keys(w.expectedJobs))
	return w.expectedJobs[all[w.rng.IntN(len(all))]], true
}

// enqueueRandomJobs enqueues random jobs.
func (w *predictedWalk) enqueueRandomJobs() {
	var drafts []queue.Job
	for range 1 + w.rng.IntN(3) {
		d := newDraft(withPriority(int64(w.rng.IntN(10))), withMaxAttempts(1+w.rng.IntN(3)))
		d.OnLost = []queue.OnLost{queue.OnLostRetry, queue.OnLostDead, queue.OnLostHold}[w.rng.IntN(3)]
		switch w.rng.IntN(6) {
		case 0:
			d.Delay = time.Duration(w.rng.IntN(5000)) * time.Millisecond
		case 1:
			d.ExpiresAt = w.store.Now() + queue.UnixMillis(w.rng.IntN(5000))
		case 2:
			d.RunAt = w.store.Now() + queue.UnixMillis(w.rng.IntN(4000)-2000)
		case 3:
			d.ID = fmt.Sprintf("j%d", w.rng.IntN(200))
		}
		drafts = append(drafts, d)
	}
	taken := map[string]bool{}
	for _, j := range w.expectedJobs {
		taken[j.ID] = true
	}
	clash := false
	for _, d := range drafts {
		clash = clash || taken[d.ID]
		taken[d.ID] = d.ID != ""
	}
	receipt, err := w.store.Enqueue(w.Context(), store.EnqueueRequest{Drafts: drafts, UID: testUID})
	if clash {
		w.checkError("enqueue of a taken id", err, queue.CodeExists, "id")
		return
	}
	w.must(err)
	now := w.store.Now()
	for i, want := range drafts {
		want.Seq, want.ID = receipt.Seqs[i], receipt.IDs[i]
		if want.RunAt == 0 {
			want.RunAt = now.Add(want.Delay)
		}
		want.Delay, want.CreatedAt, want.UpdatedAt, want.DueAt = 0, now, now, want.RunAt
		w.enqueuedJobCount++
		want.AgingSince, want.ArrivalNumber = max(now, want.RunAt), w.enqueuedJobCount
		w.notYetDueSeqs[want.Seq] = want.RunAt > now
		w.checkJob(want)
	}
}

// markDueJobs updates the expected jobs that are due for the first time. A job starts to gain points of priority by
// waiting only at that time.
func (w *predictedWalk) markDueJobs() {
	for seq, sleeps := range w.notYetDueSeqs {
		j, known := w.expectedJobs[seq]
		if !sleeps || known && j.State == queue.Pending && j.DueAt > w.store.Now() {
			continue
		}
		if known && j.State == queue.Pending {
			j.ArrivalNumber = w.enqueuedJobCount
			w.expectedJobs[seq] = j
		}
		delete(w.notYetDueSeqs, seq)
	}
}

// randomOutcome returns a random outcome of an attempt of j.
func (w *predictedWalk) randomOutcome(j queue.Job) queue.AttemptOutcome {
	all := []queue.AttemptOutcome{
		exitOutcome(0), exitOutcome(0), exitOutcome(0), exitOutcome(1), exitOutcome(126),
		{EndCause: queue.EndSignalled, Signal: 6}, outcomeOfCause(queue.EndTimedOut),
		outcomeOfCause(queue.EndCancelled), outcomeOfCause(queue.EndStopped), outcomeOfCause(queue.EndRunnerLost),
		{EndCause: queue.EndRunnerLost, RanIsolated: true}, outcomeOfCause(queue.EndInterrupted),
		outcomeOfCause(queue.EndUnkillable),
	}
	if j.State != queue.Processing && j.StartedAttempts == 0 && j.Reason == "" {
		all = append(all, outcomeOfCause(queue.EndNeverStarted), outcomeOfCause(queue.EndResourceShortage),
			outcomeOfCause(queue.EndAccountChanged))
	}
	return all[w.rng.IntN(len(all))]
}

// reportAndClaim reports random results of some leased jobs and claims more jobs.
func (w *predictedWalk) reportAndClaim() {
	var report store.LeaseReport
	now := w.store.Now()
	want := map[int64]queue.Job{}
	for _, seq := range slices.Sorted(maps.Keys(w.leasedSeqs)) {
		j := w.expectedJobs[seq]
		if j.State != queue.Processing && w.rng.IntN(3) == 0 {
			report.AttemptStarts = append(report.AttemptStarts, store.AttemptStart{Lease: j.Lease(), StartedAt: now,
				WorkerID: "w1", PID: 4242})
			j.State, j.StartedAt, j.WorkerID, j.PID, j.UpdatedAt, j.Progress = queue.Processing, now, "w1", 4242, now, nil
			want[seq] = j
		}
		if j.State == queue.Processing && w.rng.IntN(3) == 0 {
			progress := queue.Progress{Percent: w.rng.IntN(101), Text: "é\x1b", ReportedAt: now}
			report.ProgressReports = append(report.ProgressReports, store.AttemptProgress{Lease: j.Lease(), Progress: progress})
			j.Progress = &progress
			want[seq] = j
		}
		switch n := w.rng.IntN(6); {
		case n < 3:
			e := w.newSettlement(j, w.randomOutcome(j))
			if e.Decision.RecordsAttempt && w.rng.IntN(4) == 0 {
				e.Progress = &queue.Progress{Percent: 100, ReportedAt: now}
			}
			report.Settlements = append(report.Settlements, e)
			want[seq] = w.expectedJobAfterSettle(j, e)
			w.recordEndedLease(j)
		case n == 3 && j.State != queue.Processing:
			report.ReleasedLeases = append(report.ReleasedLeases, j.Lease())
			want[seq] = j
			w.recordEndedLease(j)
		}
	}
	report.MaxJobsToClaim = w.rng.IntN(4)
	if len(w.leasedSeqs) > 30 {
		report.MaxJobsToClaim = 0
	}
	head := w.expectedNextClaim(want, report.MaxJobsToClaim)
	done := w.sendLeaseReport(report)
	checkEqual(w.storeTest, "stale leases of a report", done.StaleLeases, nil)
	head = w.expectedClaimedJobs(done.ClaimedJobs, head...)
	checkEqual(w.storeTest, "claimed jobs", done.ClaimedJobs, head)
	for _, j := range head {
		want[j.Seq] = j
		w.leasedSeqs[j.Seq] = true
	}
	events := w.readNewEvents()
	for _, e := range events {
		if j, changed := want[e.JobSeq]; changed && e.Kind == queue.EventExpired {
			// The job has expired before it was given back, so the store has cancelled it.
			want[e.JobSeq] = w.expireExpectedJob(j)
		}
	}
	for _, seq := range slices.Sorted(maps.Keys(want)) {
		w.checkJob(want[seq])
	}
	for _, e := range events {
		if _, changed := want[e.JobSeq]; !changed || e.Kind != queue.EventExpired {
			w.checkEvent(e)
		}
	}
}

// recordEndedLease records that the lease of j has ended.
func (w *predictedWalk) recordEndedLease(j queue.Job) {
	delete(w.leasedSeqs, j.Seq)
	w.endedLeases = append(w.endedLeases, j.Lease())
}

// expectedNextClaim returns the jobs that a claim must return. changedJobs contains the jobs that were changed by the
// report that is sent together with the claim.
func (w *predictedWalk) expectedNextClaim(changedJobs map[int64]queue.Job, maxJobs int) []queue.Job {
	var ready []queue.Job
	now := w.store.Now()
	for seq, j := range w.expectedJobs {
		if after, found := changedJobs[seq]; found {
			j = after
		}
		if j.State.IsRunnable() && !w.leasedSeqs[seq] && j.DueAt <= now && (j.ExpiresAt == 0 || j.ExpiresAt > now) {
			ready = append(ready, j)
		}
	}
	rank := func(j queue.Job) int64 { return w.rankOrder.Rank(j.Priority, j.AgingSince, j.ArrivalNumber) }
	slices.SortFunc(ready, func(a, b queue.Job) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Seq, b.Seq))
	})
	return ready[:min(maxJobs, len(ready))]
}

// reportWithEndedLease reports the end of an attempt whose lease has already ended. The store must ignore this report.
func (w *predictedWalk) reportWithEndedLease(endedLeases []queue.Lease) {
	if len(endedLeases) == 0 {
		return
	}
	l := endedLeases[w.rng.IntN(len(endedLeases))]
	e := w.newSettlement(queue.Job{Seq: l.Seq, Fence: l.Fence, MaxAttempts: 4}, exitOutcome(0))
	done := w.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}, ReleasedLeases: []queue.Lease{l}})
	checkEqual(w.storeTest, "stale leases", done.StaleLeases, []queue.Lease{l, l})
	if j, known := w.expectedJobs[l.Seq]; known {
		w.checkJob(j)
	}
}

func (w *predictedWalk) cancelRandomJob() {
	j, found := w.pickRandomJob()
	if !found {
		return
	}
	switch err := w.store.ChangeJob(w.Context(), j.Seq, store.JobChange{Verb: queue.VerbCancel, UID: testUID}); {
	case w.leasedSeqs[j.Seq]:
		w.checkErrLeased("cancel", err)
	case j.State == queue.Cancelled:
		w.must(err)
	case j.State.HasEnded():
		w.checkError("cancel", err, queue.CodeWrongState, "")
	default:
		w.must(err)
		j.State, j.EndedAt, j.UpdatedAt = queue.Cancelled, w.store.Now(), w.store.Now()
		j.Reason = w.getJob(j.ID).Reason // stores may choose different reasons
	}
	w.checkJob(j)
}

func (w *predictedWalk) retryRandomJob() {
	j, found := w.pickRandomJob()
	if !found {
		return
	}
	verb, deadOnly := queue.VerbRetry, w.rng.IntN(3) == 0
	if deadOnly {
		verb = queue.VerbRetryDead
	}
	switch err := w.store.ChangeJob(w.Context(), j.Seq, store.JobChange{Verb: verb, UID: testUID}); {
	case w.leasedSeqs[j.Seq]:
		w.checkErrLeased("retry", err)
	case deadOnly && j.State != queue.Dead, j.State == queue.Held:
		w.checkError("retry", err, queue.CodeWrongState, "")
	case j.State == queue.Pending:
		w.must(err)
	default:
		w.must(err)
		now := w.store.Now()
		j.State, j.Reason, j.Error, j.ExitCode, j.Signal, j.Attempts, j.RunnerCrashes, j.Shortages, j.ExpiresAt,
			j.EndedAt = queue.Pending, "", "", -1, 0, 0, 0, 0, 0, 0
		j.DueAt, j.AgingSince, j.UpdatedAt, j.ArrivalNumber = now, now, now, w.enqueuedJobCount
	}
	w.checkJob(j)
}

// holdRandomJob holds a random job, or releases it if it is held.
func (w *predictedWalk) holdRandomJob() {
	j, found := w.pickRandomJob()
	if !found {
		return
	}
	verb := queue.VerbHold
	if j.State == queue.Held {
		verb = queue.VerbRelease
	}
	switch err := w.store.ChangeJob(w.Context(), j.Seq, store.JobChange{Verb: verb, UID: testUID}); {
	case w.leasedSeqs[j.Seq]:
		w.checkErrLeased(string(verb), err)
	case j.State.HasEnded():
		w.checkError(string(verb), err, queue.CodeWrongState, "")
	case verb == queue.VerbHold:
		w.must(err)
		j.State, j.Reason, j.UpdatedAt = queue.Held, "", w.store.Now()
	default:
		w.must(err)
		due := max(w.store.Now(), j.DueAt)
		j.State, j.Reason, j.UpdatedAt = queue.Pending, "", w.store.Now()
		j.DueAt, j.AgingSince, j.ArrivalNumber = due, due, w.enqueuedJobCount
		w.notYetDueSeqs[j.Seq] = due > w.store.Now()
		j.Attempts = min(j.Attempts, j.MaxAttempts-1)
	}
	w.checkJob(j)
}

// editRandomJob changes the priority of a job and sometimes its start time.
func (w *predictedWalk) editRandomJob() {
	j, found := w.pickRandomJob()
	if !found {
		return
	}
	priority, delay := int64(w.rng.IntN(10)), time.Duration(w.rng.IntN(3))*time.Second
	err := w.store.ChangeJob(w.Context(), j.Seq, store.JobChange{Verb: queue.VerbEdit, UID: testUID,
		EditJob: func(j *queue.Job) error {
			j.Priority, j.Delay = priority, delay
			return nil
		}})
	switch {
	case w.leasedSeqs[j.Seq]:
		w.checkErrLeased("edit", err)
	case j.State.HasEnded():
		w.checkError("edit", err, queue.CodeWrongState, "")
	default:
		w.must(err)
		now := w.store.Now()
		j.Priority, j.UpdatedAt = priority, now
		if at := now.Add(delay); delay > 0 && at != j.RunAt {
			j.RunAt, j.DueAt, j.AgingSince, j.ArrivalNumber = at, at, at, w.enqueuedJobCount
			w.notYetDueSeqs[j.Seq] = true
		}
	}
	w.checkJob(j)
}

func (w *predictedWalk) removeRandomJob() {
	j, found := w.pickRandomJob()
	if !found {
		return
	}
	err := w.store.ChangeJob(w.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID})
	if w.leasedSeqs[j.Seq] {
		w.checkErrLeased("remove", err)
		w.checkJob(j)
		return
	}
	w.must(err)
	delete(w.expectedJobs, j.Seq)
	if _, err := w.store.GetJob(w.Context(), j.ID); !errors.Is(err, queue.ErrNotFound) {
		w.Errorf("get of a removed job: got error %v, want ErrNotFound", err)
	}
}

// checkStoreContents compares all stored jobs, leases and counts with the expected values.
func (w *predictedWalk) checkStoreContents() {
	want := slices.SortedFunc(maps.Values(w.expectedJobs), func(a, b queue.Job) int { return cmp.Compare(b.Seq, a.Seq) })
	checkEqual(w.storeTest, "all jobs", w.listAllJobs(store.JobFilter{Limit: 50}), want)
	w.checkJobCounts()
	checkEqual(w.storeTest, "jobs ever enqueued", w.store.Counts().JobsEverEnqueued, w.enqueuedJobCount)
	leased, err := w.leasedJobs()
	w.must(err)
	checkEqual(w.storeTest, "leased jobs", sortedLeases(leasesOf(leased)), w.expectedLeases())
}

// expectedLeases returns the leases of the leased jobs.
func (w *predictedWalk) expectedLeases() (list []queue.Lease) {
	for seq := range w.leasedSeqs {
		j := w.expectedJobs[seq]
		list = append(list, j.Lease())
	}
	return sortedLeases(list)
}

// checkJobHistories checks that the history of each job has one record per attempt.
func (w *predictedWalk) checkJobHistories() {
	for seq, j := range w.expectedJobs {
		history, err := w.store.AttemptHistory(w.Context(), seq, 0, store.MaxPageRows)
		w.must(err)
		checkEqual(w.storeTest, "attempts of job "+j.ID, len(history), j.StartedAttempts)
		for i, a := range history {
			checkEqual(w.storeTest, "number of an attempt of job "+j.ID, a.Number, i+1)
		}
	}
}
