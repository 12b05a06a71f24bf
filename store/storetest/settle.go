package storetest

import (
	"bytes"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var settleTests = []contractTest{
	{name: "a started job is in the state processing", run: startedJobIsProcessing},
	{name: "the end of an attempt is recorded as decided", run: attemptEndIsRecordedAsDecided},
	{name: "a job that never started gets no attempt and no event", run: unstartedJobGetsNoAttemptRecord},
	{name: "a job whose uid belongs to another account is held instead of started", run: disownedJobDoesNotStart},
	{name: "a job fails after MaxShortages shortages in a row", run: consecutiveShortagesAreCounted},
	{name: "a reserved job can be cancelled through its lease, a running job cannot", run: reservedJobCanBeCancelled},
	{name: "a job's end time is that of its attempt", run: jobEndsWhenItsAttemptEnds},
	{name: "a job that always fails is dead after its last attempt", run: failingJobIsDeadAfterLastAttempt},
	{name: "an attempt is returned complete", run: attemptIsReturnedWithAllFields},
	{name: "the last reported progress stays until the next attempt", run: progressIsKeptUntilNextAttempt},
	{name: "a result counts as output and is removed with it", run: jobResultCountsAsOutput},
	{name: "a retry continues the numbers of the attempts", run: retryContinuesAttemptNumbers},
	{name: "a report with a stale lease changes nothing", run: staleLeaseChangesNothing},
	{name: "a late report of an older attempt is rejected", run: lateReportIsRejected},
	{name: "one Exchange applies all parts of its report", run: reportAndClaimAppliesWholeReport},
	{name: "an Exchange can claim the jobs that it releases", run: reportAndClaimReturnsReleasedJobs},
	{name: "PreviousSession lists the leased jobs", run: leasedJobsAreListed},
	{name: "epochs rise", run: laterEpochsAreHigher},
	{name: "LastSeq does not fall when the newest job is removed", run: highestJobSeqDoesNotFall},
	{name: "PreviousSession lists the runners of the last StoreRunnerDirs call", run: storedRunnerDirsAreReturned},
}

func startedJobIsProcessing(r *storeTest) {
	r.enqueueOne()
	j := r.claimOne()
	r.advanceClock(time.Second)
	r.readNewEvents()
	at := r.store.Now() - 400
	begun := store.AttemptStart{Lease: j.Lease(), StartedAt: at, WorkerID: "w7", PID: 99}
	checkEqual(r, "result", r.sendLeaseReport(store.LeaseReport{AttemptStarts: []store.AttemptStart{begun}}),
		store.ReportAndClaimResult{})
	want := j
	want.State, want.StartedAt, want.WorkerID, want.PID, want.UpdatedAt = queue.Processing, at, "w7", 99, r.store.Now()
	checkEqual(r, "job", r.getJob(j.ID), want)
	checkEqual(r, "events", r.readNewEvents(), []queue.Event{r.expectedEvent(queue.EventStarted, want,
		queue.EventDetail{AttemptNumber: 1, StartedAt: at})})
	r.checkJobCounts()
	checkEqual(r, "claimed", r.claimJobs(1), nil)
}

// expectedJobAfterSettle returns the leased job j in the state that the store must give it when it records the
// settlement e (the end of the attempt).
func (r *storeTest) expectedJobAfterSettle(j queue.Job, settlement store.Settlement) queue.Job {
	d, a, ran := settlement.Decision, settlement.Attempt, j.State == queue.Processing
	j.State, j.Reason, j.WorkerID, j.PID, j.UpdatedAt = d.NextState, d.Reason, "", 0, r.store.Now()
	j.PausedAt, j.PausedBy = 0, 0
	if d.CountsTowardMaxAttempts {
		j.Attempts++
	}
	if d.CountsAsDeferral {
		j.Deferrals++
	}
	if d.CountsAsShortage {
		j.Shortages++
	}
	if d.RecordsAttempt {
		j.StartedAttempts++
		j.Shortages = 0
		j.NeedsIsolation = d.NeedsIsolation
		if d.CountsAsRunnerCrash {
			j.RunnerCrashes++
		}
		j.Error, j.ExitCode, j.Signal, j.StartedAt = d.Error, a.ExitCode, a.Signal, a.StartedAt
		if settlement.Progress != nil || !ran {
			j.Progress = settlement.Progress
		}
	}
	if d.NextState.IsRunnable() {
		j.DueAt = r.store.Now().Add(d.StartDelay)
	}
	if d.NextState.HasEnded() {
		j.EndedAt = a.EndedAt
	}
	return j
}

// expectedEndEvent returns the event that the store must record when attempt a ends. j is the job after the attempt.
func (r *storeTest) expectedEndEvent(j queue.Job, a queue.Attempt) queue.Event {
	d := queue.EventDetail{AttemptNumber: j.StartedAttempts, StartedAt: a.StartedAt, Signal: a.Signal, Reason: j.Reason,
		HasOutput: len(a.Output) > 0 || a.OutputFileRef != ""}
	if a.ExitCode >= 0 {
		d.ExitCode = &a.ExitCode
	}
	return r.expectedEvent(queue.EventEnded, j, d)
}

// attemptEndings lists the ways in which a started attempt can end.
var attemptEndings = []struct {
	name    string
	outcome queue.AttemptOutcome
	set     func(*queue.Job)
	state   queue.State
}{
	{"success", exitOutcome(0), withOnLost(queue.OnLostRetry), queue.Completed},
	{"a failure", exitOutcome(3), withOnLost(queue.OnLostRetry), queue.Failed},
	{"the last failure", exitOutcome(3), withMaxAttempts(1), queue.Dead},
	{"not found", exitOutcome(127), withOnLost(queue.OnLostRetry), queue.Failed},
	{"the largest exit code", exitOutcome(1<<32 - 1), withOnLost(queue.OnLostRetry), queue.Failed},
	{"a signal", queue.AttemptOutcome{EndCause: queue.EndSignalled, Signal: 9}, withOnLost(queue.OnLostRetry),
		queue.Failed},
	{"the timeout", outcomeOfCause(queue.EndTimedOut), withOnLost(queue.OnLostRetry), queue.Failed},
	{"cancel", outcomeOfCause(queue.EndCancelled), withOnLost(queue.OnLostRetry), queue.Cancelled},
	{"an exit code that defers", exitOutcome(75), func(j *queue.Job) { j.DeferCodes = []int{75} }, queue.Pending},
	{"the idle timeout", outcomeOfCause(queue.EndIdleTimedOut), withOnLost(queue.OnLostRetry), queue.Failed},
	{"a stop of the service", outcomeOfCause(queue.EndStopped), withOnLost(queue.OnLostRetry), queue.Pending},
	{"a lost runner", outcomeOfCause(queue.EndRunnerLost), withOnLost(queue.OnLostRetry), queue.Failed},
	{"a lost runner, then hold", outcomeOfCause(queue.EndRunnerLost), withOnLost(queue.OnLostHold), queue.Held},
	{"a lost machine, then dead", outcomeOfCause(queue.EndInterrupted), withOnLost(queue.OnLostDead), queue.Dead},
	{"processes that cannot be killed", outcomeOfCause(queue.EndUnkillable), withOnLost(queue.OnLostRetry), queue.Dead},
}

func attemptEndIsRecordedAsDecided(r *storeTest) {
	for _, c := range attemptEndings {
		for _, reported := range []bool{false, true} {
			name := fmt.Sprintf("ended by %s, reported as started: %t", c.name, reported)
			r.enqueueOne(c.set)
			j := r.claimOne()
			r.advanceClock(time.Second)
			if reported {
				j = r.startJob(j)
			}
			r.readNewEvents()
			e := r.newSettlement(j, c.outcome)
			r.advanceClock(100 * time.Millisecond)
			done := r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
			checkEqual(r, name+": result", done, store.ReportAndClaimResult{})
			want := r.expectedJobAfterSettle(j, e)
			checkEqual(r, name+": state", want.State, c.state)
			checkEqual(r, name+": job", r.getJob(j.ID), want)
			checkEqual(r, name+": events", r.readNewEvents(), []queue.Event{r.expectedEndEvent(want, e.Attempt)})
			r.checkJobCounts()
			row := e.Attempt
			row.Number = 1
			history, err := r.store.AttemptHistory(r.Context(), j.Seq, 0, store.MaxPageRows)
			r.must(err)
			checkEqual(r, name+": history", history, []queue.Attempt{row})
			leased, err := r.leasedJobs()
			r.must(err)
			checkEqual(r, name+": leased jobs", leased, nil)
			r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
		}
	}
}

func reservedJobCanBeCancelled(r *storeTest) {
	j := r.enqueueOne()
	claimed := r.claimOne()
	r.readNewEvents()
	cancelled := store.LeasedJobChange{Lease: claimed.Lease(),
		JobChange: store.JobChange{Verb: queue.VerbCancel, UID: testUID}}
	checkEqual(r, "result", r.sendLeaseReport(store.LeaseReport{LeasedJobChanges: []store.LeasedJobChange{cancelled}}),
		store.ReportAndClaimResult{})
	got := r.getJob(j.ID)
	checkEqual(r, "state, attempts", [2]int{int(got.State), got.Attempts}, [2]int{int(queue.Cancelled), 0})
	checkEqual(r, "result of a repeated cancellation",
		r.sendLeaseReport(store.LeaseReport{LeasedJobChanges: []store.LeasedJobChange{cancelled}}),
		store.ReportAndClaimResult{StaleLeases: []queue.Lease{claimed.Lease()}})
	running := r.enqueueOne()
	claimed = r.claimOne()
	r.sendLeaseReport(store.LeaseReport{AttemptStarts: []store.AttemptStart{
		{Lease: claimed.Lease(), StartedAt: r.store.Now(), WorkerID: "w1", PID: 7}}})
	checkEqual(r, "result for a running job",
		r.sendLeaseReport(store.LeaseReport{LeasedJobChanges: []store.LeasedJobChange{{Lease: claimed.Lease(),
			JobChange: cancelled.JobChange}}}), store.ReportAndClaimResult{StaleLeases: []queue.Lease{claimed.Lease()}})
	checkEqual(r, "state of the running job", r.getJob(running.ID).State, queue.Processing)
	r.checkJobCounts()
}

func unstartedJobGetsNoAttemptRecord(r *storeTest) {
	first := r.enqueueOne()
	r.readNewEvents()
	claimed := r.claimOne()
	e := r.newSettlement(claimed, outcomeOfCause(queue.EndNeverStarted))
	checkEqual(r, "result", r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}}),
		store.ReportAndClaimResult{})
	first.Fence = claimed.Fence
	checkEqual(r, "job that was not started", r.getJob(first.ID), first)

	claimed = r.claimOne()
	e = r.newSettlement(claimed, outcomeOfCause(queue.EndResourceShortage))
	checkEqual(r, "result", r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}}),
		store.ReportAndClaimResult{})
	first.Fence, first.Reason, first.DueAt, first.Shortages = claimed.Fence, queue.ReasonResourceShortage,
		r.store.Now()+1000, 1
	checkEqual(r, "job that could not be started", r.getJob(first.ID), first)
	checkEqual(r, "claimed before the delay is over", r.claimJobs(1), nil)
	r.advanceAndApplyDueChanges(time.Second)
	again := r.claimJobs(1)
	checkEqual(r, "claimed after the delay", again, r.expectedClaimedJobs(again, first))
	checkEqual(r, "events", r.readNewEvents(), nil)
	history, err := r.store.AttemptHistory(r.Context(), first.Seq, 0, store.MaxPageRows)
	r.must(err)
	checkEqual(r, "history", history, nil)
	r.settleJob(again[0], exitOutcome(1))
	r.advanceAndApplyDueChanges(2 * time.Second)
	for _, c := range []struct {
		outcome queue.AttemptOutcome
		want    string
	}{{outcomeOfCause(queue.EndNeverStarted), "exit code 1"},
		{queue.AttemptOutcome{EndCause: queue.EndResourceShortage, Error: "no memory"}, "no memory"},
		{outcomeOfCause(queue.EndNeverStarted), "no memory"}} {
		checkEqual(r, "error of the last attempt, or of the failed start", r.settleJob(r.claimOne(), c.outcome).Error, c.want)
		r.advanceAndApplyDueChanges(time.Second)
	}
	r.checkJobCounts()
}

// A uid may belong to another account when a job of its former owner is about to start. The store then holds the job
// instead.
func disownedJobDoesNotStart(r *storeTest) {
	j := r.enqueueOne()
	r.readNewEvents()
	claimed := r.claimOne()
	r.advanceClock(time.Second)
	e := r.newSettlement(claimed, queue.AttemptOutcome{EndCause: queue.EndAccountChanged, Error: "why"})
	checkEqual(r, "result", r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}, MaxJobsToClaim: 1}),
		store.ReportAndClaimResult{})
	j.Fence, j.State, j.Reason, j.Error, j.UpdatedAt = claimed.Fence, queue.Held, queue.ReasonDisowned, "why",
		r.store.Now()
	checkEqual(r, "job", r.getJob(j.ID), j)
	checkEqual(r, "events", r.readNewEvents(), []queue.Event{r.expectedEvent(queue.EventHeld, j,
		queue.EventDetail{Reason: queue.ReasonDisowned})})
	r.checkJobCounts()
	r.must(r.applyVerb(j, queue.VerbRelease))
	checkEqual(r, "claimed after the release", seqsOf(r.claimJobs(1)), []int64{j.Seq})
}

// An attempt may be unable to start because the machine is short of something, such as memory. Each such shortage makes
// the job wait longer. The store counts how many shortages in a row a job has had. After queue.MaxConsecutiveShortages
// of them, the next one counts as a failure. The count returns to zero after such a failure, when an attempt starts,
// and when a user retries the job.
func consecutiveShortagesAreCounted(r *storeTest) {
	j := r.enqueueOne(withMaxAttempts(2))
	short := func(want int) {
		r.Helper()
		r.settleJob(r.claimOne(), outcomeOfCause(queue.EndResourceShortage))
		j = r.getJob(j.ID)
		checkEqual(r, "refunds", j.Shortages, want)
		r.advanceAndApplyDueChanges(time.Duration(j.DueAt-r.store.Now()) * time.Millisecond)
	}
	for n := range 7 {
		before := r.store.Now()
		short(n + 1)
		checkEqual(r, "waited in seconds", int(r.store.Now()-before)/1000, min(30, 1<<n))
	}
	r.settleJob(r.claimOne(), outcomeOfCause(queue.EndStopped)) // the attempt has started, so the count of shortages is 0
	checkEqual(r, "refunds of a job that was started", r.getJob(j.ID).Shortages, 0)
	short(1)
	r.settleJob(r.claimOne(), outcomeOfCause(queue.EndCancelled))
	r.must(r.applyVerb(j, queue.VerbRetry))
	checkEqual(r, "refunds of a retried job", r.getJob(j.ID).Shortages, 0)
	for n := range queue.MaxConsecutiveShortages {
		short(n + 1)
	}
	j = r.settleJob(r.claimOne(), outcomeOfCause(queue.EndResourceShortage))
	checkEqual(r, "after all refunds", []any{j.State, j.Reason, j.Attempts, j.Shortages},
		[]any{queue.Failed, queue.ReasonResourceShortage, 1, 0})
	r.advanceAndApplyDueChanges(2 * time.Second)
	short(1)
	r.checkJobCounts()
}

func jobEndsWhenItsAttemptEnds(r *storeTest) {
	r.enqueueAndGet(newDraft(), newDraft())
	jobs := r.claimJobs(2)
	known, unknown := r.newSettlement(jobs[0], exitOutcome(0)),
		r.newSettlement(jobs[1], outcomeOfCause(queue.EndUnkillable))
	r.advanceClock(time.Second)
	known.Attempt.EndedAt, unknown.Attempt.EndedAt = r.store.Now()-300, 0
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{known, unknown}})
	checkEqual(r, "end time of the job whose attempt has one", r.getJob(jobs[0].ID).EndedAt, r.store.Now()-300)
	checkEqual(r, "end time of the job whose attempt has none", r.getJob(jobs[1].ID).EndedAt, r.store.Now())
}

func failingJobIsDeadAfterLastAttempt(r *storeTest) {
	j := r.enqueueOne()
	begin := r.store.Now()
	var retryDelays []time.Duration
	for range 100 {
		claimed := r.claimJobs(1)
		if len(claimed) == 0 {
			r.advanceAndApplyDueChanges(time.Second)
			continue
		}
		retryDelays = append(retryDelays, time.Duration(r.store.Now()-begin)*time.Millisecond)
		if j = r.settleJob(claimed[0], exitOutcome(1)); j.State == queue.Dead {
			break
		}
	}
	checkEqual(r, "times of the attempts", retryDelays, []time.Duration{0, 2 * time.Second, 6 * time.Second,
		14 * time.Second})
	checkEqual(r, "state", j.State, queue.Dead)
	checkEqual(r, "attempts and runs", []int{j.Attempts, j.StartedAttempts}, []int{4, 4})
}

func attemptIsReturnedWithAllFields(r *storeTest) {
	r.enqueueAndGet(newDraft(), newDraft(), newDraft())
	jobs := r.claimJobs(3)
	e := r.newSettlement(jobs[0], queue.AttemptOutcome{EndCause: queue.EndSignalled, Signal: 15, Error: "ended: ä\x1b[1m"})
	e.Attempt.CPUTime, e.Attempt.PeakRSSBytes, e.Attempt.LeftoverProcesses = 90*time.Minute+7*time.Microsecond, 1<<40, 3
	e.Attempt.DroppedBytes, e.Attempt.PeakTasks = 1<<33, 1<<34
	e.Attempt.Output = bytes.Repeat([]byte{0, 1, 0xff, '\n'}, 16<<10)
	output := bytes.Clone(e.Attempt.Output)
	e.Attempt.Result, e.Attempt.ResultError = []byte(`{"ä":[1,2]}`), "ö"
	large := r.newSettlement(jobs[1], exitOutcome(0))
	large.Attempt.OutputFileRef, large.Attempt.OutputBytes = "runner-1/7.out", 1<<20
	silent := r.newSettlement(jobs[2], exitOutcome(0))
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e, large, silent}})
	e.Attempt.Output[0] = 'x' // a change of the caller's copy must not change the stored job

	for i, want := range []queue.Attempt{e.Attempt, large.Attempt, silent.Attempt} {
		want.Number = 1
		if i == 0 {
			want.Output, want.OutputBytes = output, int64(len(output)+len(want.Result))
		}
		for _, n := range []int{0, 1} {
			got, err := r.store.Attempt(r.Context(), jobs[i].Seq, n)
			r.must(err)
			if len(got.Output) == 0 {
				got.Output = nil
			}
			if len(got.Result) == 0 {
				got.Result = nil
			}
			checkEqual(r, fmt.Sprintf("attempt %d of job %d", n, i+1), got, want)
		}
		history, err := r.store.AttemptHistory(r.Context(), jobs[i].Seq, 0, store.MaxPageRows)
		r.must(err)
		for i := range history {
			checkEqual(r, "output in the history", len(history[i].Output), 0)
			// A history need not contain outputs or the names of output files, so do not compare them.
			history[i].Output, history[i].OutputFileRef = nil, ""
		}
		want.Output, want.OutputFileRef, want.Result = nil, "", nil
		checkEqual(r, "history", history, []queue.Attempt{want})
	}
}

func retryContinuesAttemptNumbers(r *storeTest) {
	j := r.enqueueOne(withMaxAttempts(2))
	var want []queue.Attempt
	attempt := func(o queue.AttemptOutcome) {
		claimed := r.claimOne()
		e := r.newSettlement(claimed, o)
		e.Attempt.Output = fmt.Appendf(nil, "output %d", len(want)+1)
		r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
		e.Attempt.Number, e.Attempt.OutputBytes = len(want)+1, int64(len(e.Attempt.Output))
		want = append(want, e.Attempt)
		r.advanceAndApplyDueChanges(time.Minute)
	}
	attempt(outcomeOfCause(queue.EndStopped))
	attempt(exitOutcome(1))
	attempt(exitOutcome(2))
	checkEqual(r, "state", r.getJob(j.ID).State, queue.Dead)
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRetry, UID: testUID}))
	attempt(exitOutcome(1))
	attempt(exitOutcome(0))
	checkEqual(r, "runs and attempts", []int{r.getJob(j.ID).StartedAttempts, r.getJob(j.ID).Attempts}, []int{5, 2})
	for _, n := range []int{0, 1, 2, 3, 4, 5} {
		got, err := r.store.Attempt(r.Context(), j.Seq, n)
		r.must(err)
		checkEqual(r, fmt.Sprintf("attempt %d", n), got, want[(n+4)%5])
	}
	for _, n := range []int{6, -1} {
		_, err := r.store.Attempt(r.Context(), j.Seq, n)
		r.checkErrorCode(fmt.Sprintf("attempt %d", n), err, queue.CodeNotFound)
	}
	for i := range want {
		want[i].Output = nil
	}
	history, err := r.store.AttemptHistory(r.Context(), j.Seq, 0, store.MaxPageRows)
	r.must(err)
	checkEqual(r, "history", history, want)
}

func staleLeaseChangesNothing(r *storeTest) {
	reserved, _, running := r.enqueueOne(), r.enqueueOne(), r.enqueueOne()
	jobs := r.claimJobs(3)
	r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{jobs[1].Lease()}})
	r.startJob(jobs[2])
	settled := func() queue.Job {
		r.enqueueOne(withPriority(1000))
		j := r.claimOne()
		r.settleJob(j, exitOutcome(0))
		return j
	}()
	for name, l := range map[string]queue.Lease{
		"unknown job":      {Seq: 1 << 40, Fence: jobs[0].Fence},
		"older fence":      {Seq: reserved.Seq, Fence: jobs[0].Fence - 1},
		"newer fence":      {Seq: reserved.Seq, Fence: jobs[0].Fence + 1},
		"released":         jobs[1].Lease(),
		"running, other":   {Seq: running.Seq, Fence: jobs[2].Fence + 7},
		"settled":          settled.Lease(),
		"zero lease":       {},
		"negative numbers": {Seq: -1, Fence: -1},
	} {
		r.checkStoreUnchanged(func() {
			fake := queue.Job{Seq: l.Seq, Fence: l.Fence, MaxAttempts: 4}
			for how, t := range map[string]store.LeaseReport{
				"started":  {AttemptStarts: []store.AttemptStart{{Lease: l, StartedAt: r.store.Now(), WorkerID: "w", PID: 1}}},
				"ended":    {Settlements: []store.Settlement{r.newSettlement(fake, exitOutcome(0))}},
				"refunded": {Settlements: []store.Settlement{r.newSettlement(fake, outcomeOfCause(queue.EndNeverStarted))}},
				"released": {ReleasedLeases: []queue.Lease{l}},
			} {
				checkEqual(r, name+" "+how, r.sendLeaseReport(t), store.ReportAndClaimResult{StaleLeases: []queue.Lease{l}})
			}
		})
	}
	r.checkStoreUnchanged(func() {
		done := r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{jobs[2].Lease()}})
		checkEqual(r, "release of a running job", done,
			store.ReportAndClaimResult{StaleLeases: []queue.Lease{jobs[2].Lease()}})
	})
	leased, err := r.leasedJobs()
	r.must(err)
	checkEqual(r, "leased jobs", sortedLeases(leasesOf(leased)), []queue.Lease{jobs[0].Lease(), jobs[2].Lease()})
}

func lateReportIsRejected(r *storeTest) {
	r.enqueueOne()
	first := r.claimOne()
	r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{first.Lease()}})
	second := r.claimOne()
	checkEqual(r, "the second fence is higher", second.Fence > first.Fence, true)
	r.checkStoreUnchanged(func() {
		done := r.sendLeaseReport(store.LeaseReport{
			AttemptStarts:  []store.AttemptStart{{Lease: first.Lease(), StartedAt: r.store.Now(), WorkerID: "w", PID: 1}},
			Settlements:    []store.Settlement{r.newSettlement(first, exitOutcome(0))},
			ReleasedLeases: []queue.Lease{first.Lease()},
		})
		checkEqual(r, "stale leases", done.StaleLeases, []queue.Lease{first.Lease(), first.Lease(), first.Lease()})
	})
	e := r.newSettlement(second, exitOutcome(1))
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	r.checkStoreUnchanged(func() {
		checkEqual(r, "the same end twice",
			r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}}).StaleLeases,
			[]queue.Lease{second.Lease()})
	})
}

func reportAndClaimAppliesWholeReport(r *storeTest) {
	r.enqueueAndGet(newDraft(), newDraft(), newDraft(), newDraft(), newDraft())
	waiting := r.enqueueOne()
	jobs := r.claimJobs(5)
	r.readNewEvents()
	stale := queue.Lease{Seq: jobs[0].Seq, Fence: jobs[0].Fence + 9}
	ends := []store.Settlement{r.newSettlement(jobs[1], exitOutcome(0)), r.newSettlement(jobs[2], exitOutcome(1))}
	done := r.sendLeaseReport(store.LeaseReport{
		AttemptStarts: []store.AttemptStart{
			{Lease: stale, StartedAt: r.store.Now(), WorkerID: "w", PID: 1},
			{Lease: jobs[0].Lease(), StartedAt: r.store.Now(), WorkerID: "w1", PID: 4242},
			{Lease: jobs[1].Lease(), StartedAt: r.store.Now(), WorkerID: "w1", PID: 4242},
		},
		Settlements:    ends,
		ReleasedLeases: []queue.Lease{jobs[3].Lease()},
		MaxJobsToClaim: 10,
	})
	checkEqual(r, "result", done, store.ReportAndClaimResult{
		ClaimedJobs: r.expectedClaimedJobs(done.ClaimedJobs, jobs[3], waiting),
		StaleLeases: []queue.Lease{stale}})
	jobs[3], waiting = done.ClaimedJobs[0], done.ClaimedJobs[1]
	running := jobs[0]
	running.State, running.StartedAt, running.WorkerID, running.PID = queue.Processing, r.store.Now(), "w1", 4242
	completed, failed := r.expectedJobAfterSettle(jobs[1], ends[0]), r.expectedJobAfterSettle(jobs[2], ends[1])
	for _, want := range []queue.Job{running, completed, failed, jobs[3], jobs[4], waiting} {
		checkEqual(r, "job "+want.ID, r.getJob(want.ID), want)
	}
	begun := jobs[1]
	begun.State = queue.Processing
	checkEqual(r, "events", r.readNewEvents(), []queue.Event{
		r.expectedEvent(queue.EventStarted, running, queue.EventDetail{AttemptNumber: 1, StartedAt: r.store.Now()}),
		r.expectedEvent(queue.EventStarted, begun, queue.EventDetail{AttemptNumber: 1, StartedAt: r.store.Now()}),
		r.expectedEndEvent(completed, ends[0].Attempt), r.expectedEndEvent(failed, ends[1].Attempt),
	})
	r.checkJobCounts()
}
