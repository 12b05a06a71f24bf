package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var upkeepTests = []contractTest{
	{name: "a setting records its user and time", run: settingsRecordUserAndTime},
	{name: "Promote returns when the next job is due", run: applyDueChangesReturnsNextDueTime},
	{name: "repeated Promote calls finish even if very many jobs are due", run: applyDueChangesHandlesLimitedJobs},
	{name: "PromoteHints sends a hint when a job is due earlier", run: earlierDueJobSendsDueChangeHint},
	{name: "a new order changes the ranks of unfinished jobs", run: rankOrderChangeReranksJobs},
	{name: "output files of removed jobs are deletable until they are reported deleted",
		run: removedOutputsAreDeletable},
	{name: "the output file of a lost attempt is deletable", run: lostOutputIsDeletable},
}

func settingsRecordUserAndTime(r *storeTest) {
	r.readNewEvents()
	list := func() []store.Setting {
		settings, err := r.store.Settings(r.Context())
		r.must(err)
		slices.SortFunc(settings, func(a, b store.Setting) int { return strings.Compare(a.Key, b.Key) })
		return settings
	}
	set := func(key, value string, uid int) {
		r.must(r.store.SetSetting(r.Context(), store.Setting{Key: key, Value: value, SetByUID: uid}))
		want := queue.Event{Time: r.store.Now(), Kind: queue.EventSettingChanged,
			Detail: queue.EventDetail{CausedByUID: &uid, SettingName: key, SettingValue: value}}
		checkEqual(r, "events of "+key, r.readNewEvents(), []queue.Event{want})
	}
	checkEqual(r, "settings of a new store", list(), nil)
	begin := r.store.Now()
	set("workers", "4", 0)
	r.advanceClock(time.Second)
	set("aging", "enqueue", 7)
	workers, aging := store.Setting{Key: "workers", Value: "4", SetAt: begin},
		store.Setting{Key: "aging", Value: "enqueue", SetByUID: 7, SetAt: begin + 1000}
	checkEqual(r, "settings", list(), []store.Setting{aging, workers})
	r.advanceClock(time.Second)
	set("workers", "8", 9)
	workers = store.Setting{Key: "workers", Value: "8", SetByUID: 9, SetAt: begin + 2000}
	checkEqual(r, "settings after a change", list(), []store.Setting{aging, workers})
	set("aging", "", 9)
	checkEqual(r, "settings after a removal", list(), []store.Setting{workers})
}

// ApplyDueChanges returns the time until the next job is due.
func applyDueChangesReturnsNextDueTime(r *storeTest) {
	checkEqual(r, "of an empty store", r.applyDueChangesUntilDone(), time.Hour)
	r.enqueueOne()
	checkEqual(r, "of a ready job", r.applyDueChangesUntilDone(), time.Hour)
	r.enqueueOne(withDelay(3 * time.Hour))
	checkEqual(r, "of a job that is due in three hours", r.applyDueChangesUntilDone(), time.Hour)
	r.enqueueOne(withDelay(30 * time.Minute))
	checkEqual(r, "of a job that is due in half an hour", r.applyDueChangesUntilDone(), 30*time.Minute)
	r.enqueueOne(withExpiry(r.store.Now() + 20*60_000))
	checkEqual(r, "of an expiry", r.applyDueChangesUntilDone(), 20*time.Minute)
	r.runJob(exitOutcome(1))
	checkEqual(r, "of a retry", r.applyDueChangesUntilDone(), 2*time.Second)
	r.advanceClock(1999 * time.Millisecond)
	checkEqual(r, "just before", r.applyDueChangesUntilDone(), time.Millisecond)
	r.advanceClock(time.Millisecond)
	checkEqual(r, "just after", r.applyDueChangesUntilDone(), 20*time.Minute-2*time.Second)
	r.advanceClock(10 * time.Hour)
	checkEqual(r, "after the last job was due", r.applyDueChangesUntilDone(), time.Hour)
}

// predictedWalk performs random operations on a store. It predicts the state of each job, and checks that the stored
// jobs agree with the prediction.
func applyDueChangesHandlesLimitedJobs(r *storeTest) {
	const jobCount = 1200
	var drafts []queue.Job
	for range jobCount {
		drafts = append(drafts, newDraft(withExpiry(r.store.Now()+1)), newDraft(withDelay(time.Millisecond)),
			newDraft(withDelay(time.Hour), withExpiry(r.store.Now()+1)))
	}
	r.enqueueAndGet(drafts...)
	runConcurrently(jobCount, func(i int) {
		_, err := r.store.Enqueue(r.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft(withDelay(time.Hour))},
			UID:            testUID,
			IdempotencyKey: fmt.Sprint(i)})
		if err != nil {
			r.Errorf("enqueue: got error %v, want none", err)
		}
	})
	r.advanceAndApplyDueChanges(11 * time.Minute)
	var want [queue.Cancelled + 1]int64
	want[queue.Pending], want[queue.Cancelled] = 2*jobCount, 2*jobCount
	checkEqual(r, "counts", r.store.Counts().JobsByState, want)
	checkEqual(r, "claimable jobs", len(r.claimJobs(10*jobCount)), jobCount)
	r.checkJobCounts()
}

// DueChangeHints sends a value when a job is due earlier than ApplyDueChanges has said.
func earlierDueJobSendsDueChangeHint(r *storeTest) {
	drain := func() {
		r.applyDueChangesUntilDone()
		select {
		case <-r.store.DueChangeHints():
		default:
		}
	}
	wantHint := func(subject string) {
		r.Helper()
		receive(r, "hint for "+subject, r.store.DueChangeHints())
		drain()
	}
	drain()
	r.enqueueOne(withDelay(30 * time.Minute))
	wantHint("a job that is not due yet")
	r.enqueueOne(withDelay(20 * time.Minute))
	wantHint("a job that is due earlier")
	r.enqueueOne(withDelay(50*time.Minute), withExpiry(r.store.Now()+10*60_000))
	wantHint("an expiry")
	r.enqueueOne()
	claimed := r.claimOne()
	r.settleJob(claimed, exitOutcome(1))
	wantHint("a retry")
	r.advanceClock(2 * time.Second)
	drain()
	r.settleJob(r.claimOne(), outcomeOfCause(queue.EndResourceShortage))
	wantHint("a delay after a shortage")
}

// DeletableOutputs returns the output files of removed jobs until they are reported as deleted.
func removedOutputsAreDeletable(r *storeTest) {
	deletable := func(limit int) []string {
		r.Helper()
		refs, err := r.store.DeletableOutputs(r.Context(), limit)
		r.must(err)
		slices.Sort(refs)
		return refs
	}
	var jobs []queue.Job
	for _, refs := range [][]string{{"a", "b"}, {"", "c"}, {""}} {
		j := r.enqueueOne()
		for _, ref := range refs {
			e := r.newSettlement(r.claimOne(), outcomeOfCause(queue.EndStopped))
			e.Attempt.OutputFileRef = ref
			r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
		}
		r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbCancel, UID: testUID}))
		jobs = append(jobs, j)
	}
	checkEqual(r, "deletable files before the jobs are removed", deletable(10), nil)
	for _, j := range jobs {
		r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
	}
	checkEqual(r, "deletable files", deletable(10), []string{"a", "b", "c"})
	checkEqual(r, "deletable files, listed again", deletable(3), []string{"a", "b", "c"})
	checkEqual(r, "size of a limited list", len(deletable(2)), 2)
	r.must(r.store.ForgetDeletedOutputs(r.Context(), []string{"b", "unknown"}))
	checkEqual(r, "deletable files after one was deleted", deletable(10), []string{"a", "c"})
	r.must(r.store.ForgetDeletedOutputs(r.Context(), nil))
	r.must(r.store.ForgetDeletedOutputs(r.Context(), []string{"a", "c"}))
	checkEqual(r, "deletable files after all were deleted", deletable(10), nil)
}

// DeletableOutputs returns the output file of a lost attempt.
func lostOutputIsDeletable(r *storeTest) {
	r.enqueueAndGet(newDraft(), newDraft())
	jobs := r.claimJobs(2)
	lost := r.newSettlement(jobs[0], outcomeOfCause(queue.EndRunnerLost))
	lost.DeletableOutputFile = fmt.Sprintf("%d-%d", jobs[0].Seq, jobs[0].Fence)
	stale := r.newSettlement(jobs[1], outcomeOfCause(queue.EndRunnerLost))
	stale.Fence, stale.DeletableOutputFile = stale.Fence+1, fmt.Sprintf("%d-%d", jobs[1].Seq, jobs[1].Fence)
	grant, err := r.store.ReportAndClaim(r.Context(), store.LeaseReport{Settlements: []store.Settlement{lost, stale}})
	r.must(err)
	checkEqual(r, "stale leases", grant.StaleLeases, []queue.Lease{stale.Lease})
	deletable, err := r.store.DeletableOutputs(r.Context(), 9)
	r.must(err)
	checkEqual(r, "deletable files", deletable, []string{lost.DeletableOutputFile})
}

// After a change of the scheduling settings, RerankWaitingJobs computes new ranks for all unfinished jobs, including
// running jobs and jobs that are not due.
func rankOrderChangeReranksJobs(r *storeTest) {
	byPriority := queue.RankPolicy{Scheduling: queue.SchedulingByPriority, AgingUnit: queue.AgingByTime,
		AgingInterval: time.Minute}
	many := 600 // more jobs than one call of RerankWaitingJobs handles
	r.enqueueOne(withID("runs"), withPriority(1))
	runs := r.claimJobs(1)[0]
	r.sendLeaseReport(store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: runs.Lease(),
		StartedAt: r.store.Now()}}})
	r.enqueueOne(withID("reserved"), withPriority(3))
	reserved := r.claimJobs(1)[0]
	for i := range many {
		r.enqueueOne(withID(fmt.Sprintf("old%03d", i)), withPriority(2))
		if i%100 == 0 {
			r.advanceClock(10 * time.Minute)
		}
	}
	r.enqueueOne(withID("sleeps"), withPriority(8), withDelay(time.Hour))
	r.enqueueOne(withID("first"), withPriority(9))
	r.must(r.store.SetRankOrder(r.Context(), byPriority))
	r.enqueueOne(withID("new"), withPriority(7))
	r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{reserved.Lease()}})
	for more := true; more; {
		var err error
		more, err = r.store.RerankWaitingJobs(r.Context())
		r.must(err)
	}
	if r.store.Counts().IsRerankUnfinished {
		r.Error("Counts says that jobs are still being ranked")
	}
	decision := queue.DecideAfterAttempt(&runs, exitOutcome(1), testRetryPolicy)
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{{Lease: runs.Lease(),
		Attempt: queue.Attempt{ExitCode: 1, StartedAt: r.store.Now(), EndedAt: r.store.Now()}, Decision: decision}}})
	r.advanceClock(2 * time.Hour)
	r.applyDueChangesUntilDone()
	var ids []string
	for _, j := range r.claimJobs(many + 5) {
		ids = append(ids, j.ID)
	}
	checkEqual(r, "first jobs", ids[:4], []string{"first", "sleeps", "new", "reserved"})
	checkEqual(r, "jobs of one priority", []string{ids[4], ids[4+many-1]},
		[]string{"old000", fmt.Sprintf("old%03d", many-1)})
	checkEqual(r, "last job", ids[4+many:], []string{"runs"})
}
