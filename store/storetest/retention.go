package storetest

import (
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var retentionTests = []contractTest{
	{name: "jobs of a queue with its own retention are counted and trimmed separately", run: queueRetentionIsSeparate},
	{name: "TrimJobs removes the jobs that ended first", run: trimEndedJobsStartsWithOldest},
	{name: "Purge removes the jobs that ended first", run: purgeStartsWithOldestJobs},
	{name: "Purge removes only ended jobs", run: purgeRemovesOnlyEndedJobs},
	{name: "Purge leaves the number of jobs that the filter keeps", run: purgeKeepsRequestedJobCount},
	{name: "TrimOutputs removes the oldest outputs", run: trimOutputsStartsWithOldest},
	{name: "events are trimmed by age and number", run: eventsAreTrimmedByAgeAndNumber},
}

// Purge counts the jobs in the transaction that removes them. So several callers together leave KeptJobs jobs.
func purgeKeepsRequestedJobCount(r *storeTest) {
	for range 3 {
		r.runJob(exitOutcome(0))
	}
	r.runJob(outcomeOfCause(queue.EndCancelled))
	purge := func(keptJobs int64, limit int, states ...queue.State) int {
		n, err := r.store.PurgeEndedJobs(r.Context(), store.EndedJobFilter{States: states,
			EndedBefore: r.store.Now() + 1, MinKeptJobs: keptJobs}, limit, nil)
		r.must(err)
		return n
	}
	both := []queue.State{queue.Completed, queue.Cancelled}
	got := []int{purge(4, 9, both...), purge(9, 9, both...), purge(3, 9, queue.Completed), purge(3, 9, both...),
		purge(2, 9, both...), purge(2, 9, both...), purge(1, 9, queue.Cancelled), purge(0, 9, both...)}
	checkEqual(r, "purged jobs", got, []int{0, 0, 0, 1, 1, 0, 0, 2})
}

func purgeStartsWithOldestJobs(r *storeTest) {
	var jobs []queue.Job
	for i, end := range []queue.AttemptOutcome{exitOutcome(0), outcomeOfCause(queue.EndCancelled), exitOutcome(0),
		exitOutcome(0)} {
		j := r.runJob(end)
		jobs = append(jobs, j)
		r.advanceClock(time.Duration(i+1) * time.Second)
	}
	both := []queue.State{queue.Completed, queue.Cancelled}
	before := r.getJob(jobs[3].ID).EndedAt
	count := func(states []queue.State, endedBefore queue.UnixMillis) int64 {
		n, err := r.store.CountEndedJobs(r.Context(), store.EndedJobFilter{States: states, EndedBefore: endedBefore})
		r.must(err)
		return n
	}
	checkEqual(r, "counts", []int64{count(both, before), count(both[:1], before), count(both, before+1),
		count(nil, before)},
		[]int64{3, 2, 4, 0})
	purge := func(states []queue.State, endedBefore queue.UnixMillis, limit int) int {
		n, err := r.store.PurgeEndedJobs(r.Context(), store.EndedJobFilter{States: states, EndedBefore: endedBefore}, limit,
			new(7))
		r.must(err)
		r.checkJobCounts()
		return n
	}
	r.readNewEvents()
	checkEqual(r, "purged jobs", purge(both, before, 2), 2)
	gone := []queue.Job{jobs[0], jobs[1]}
	for i := range gone {
		gone[i].State = 0
	}
	checkEqual(r, "events", r.readNewEvents(),
		[]queue.Event{r.expectedEvent(queue.EventRemoved, gone[0], queue.EventDetail{CausedByUID: new(7)}),
			r.expectedEvent(queue.EventRemoved, gone[1], queue.EventDetail{CausedByUID: new(7)})})
	checkEqual(r, "purged jobs of one state", purge(both[1:], before, 9), 0)
	checkEqual(r, "purged jobs of both states", purge(both, before, 9), 1)
	checkEqual(r, "remaining jobs", seqsOf(r.listAllJobs(store.JobFilter{})), []int64{jobs[3].Seq})
	_, err := r.store.AttemptHistory(r.Context(), jobs[2].Seq, 0, store.MaxPageRows)
	r.checkErrorCode("history of a purged job", err, queue.CodeNotFound)
}

func trimEndedJobsStartsWithOldest(r *storeTest) {
	r.must(r.store.SetQueue(r.Context(), "own", store.QueueRule{Weight: 1, Retention: store.Retention{MaxJobs: 1}}))
	var ownSeqs, otherSeqs []int64
	for i := range 10 {
		name := []string{"default", "own"}[i%2]
		j := r.enqueueOne(func(j *queue.Job) { j.Queue = name })
		end := exitOutcome(0)
		if i >= 8 {
			end = outcomeOfCause(queue.EndCancelled)
		}
		r.settleJob(r.claimOne(), end)
		r.advanceClock(time.Second)
		if i%2 == 0 {
			otherSeqs = append(otherSeqs, j.Seq)
		} else {
			ownSeqs = append(ownSeqs, j.Seq)
		}
	}
	dead := r.newJobInState(queue.Dead)
	trim := func(queueName string, keep int64, limit int) bool {
		r.Helper()
		more, err := r.store.TrimEndedJobs(r.Context(), queueName, keep, limit)
		r.must(err)
		r.checkJobCounts()
		return more
	}
	wantLeft := func(subject string, want ...int64) {
		r.Helper()
		want = append(slices.Clone(want), dead.Seq)
		slices.Sort(want)
		got := seqsOf(r.listAllJobs(store.JobFilter{}))
		slices.Sort(got)
		checkEqual(r, subject, got, want)
	}
	checkEqual(r, "more to remove when all jobs may be kept", []bool{trim("", 5, 9), trim("own", 5, 9),
		trim("none", 0, 9)},
		[]bool{false, false, false})
	wantLeft("when all jobs may be kept", slices.Concat(ownSeqs, otherSeqs)...)
	checkEqual(r, "more to remove after the first of two steps", trim("", 2, 2), true)
	wantLeft("after the first step", slices.Concat(ownSeqs, otherSeqs[2:])...)
	checkEqual(r, "more to remove after the last step", trim("", 2, 2), false)
	wantLeft("after the last step", slices.Concat(ownSeqs, otherSeqs[3:])...)
	r.must(r.store.SetQueue(r.Context(), "own", store.DefaultQueueRule))
	r.checkJobCounts()
	checkEqual(r, "more to remove in a queue whose retention was removed", trim("own", 1, 9), false)
	wantLeft("after trimming one queue", slices.Concat(ownSeqs[4:], otherSeqs[3:])...)
	checkEqual(r, "more to remove when no job may be kept", []bool{trim("own", 0, 9), trim("", 0, 9)},
		[]bool{false, false})
	wantLeft("dead jobs are never trimmed")
	r.checkQueuesWithOwnRetention()
}

func purgeRemovesOnlyEndedJobs(r *storeTest) {
	for _, s := range []queue.State{queue.Failed, queue.Held, queue.Dead, queue.Pending} {
		r.newJobInState(s)
	}
	r.advanceAndApplyDueChanges(time.Hour)
	all := append(queue.States(), queue.Completed)
	r.checkStoreUnchanged(func() {
		n, err := r.store.PurgeEndedJobs(r.Context(), store.EndedJobFilter{States: []queue.State{queue.Failed, queue.Held,
			queue.Pending, queue.Processing}, EndedBefore: r.store.Now() + 1}, 9, nil)
		r.must(err)
		checkEqual(r, "purged jobs", n, 0)
	})
	n, err := r.store.PurgeEndedJobs(r.Context(), store.EndedJobFilter{States: all, EndedBefore: r.store.Now() + 1}, 9,
		nil)
	r.must(err)
	checkEqual(r, "purged jobs of all states", n, 1)
	checkEqual(r, "remaining jobs", len(r.listAllJobs(store.JobFilter{})), 3)
}

func eventsAreTrimmedByAgeAndNumber(r *storeTest) {
	for range 5 {
		r.enqueueOne()
		r.advanceClock(time.Second)
	}
	trim := func(occurredBefore queue.UnixMillis, keep int64) []int64 {
		more, err := r.store.TrimEvents(r.Context(), occurredBefore, keep)
		r.must(err)
		checkEqual(r, "more", more, false)
		events, err := r.store.Events(r.Context(), 0, 100)
		r.must(err)
		var remaining []int64
		for _, e := range events {
			remaining = append(remaining, e.Seq)
		}
		return remaining
	}
	now, second := r.store.Now(), r.readNewEvents()[1].Time
	checkEqual(r, "no event is too old", trim(now.Add(-time.Hour), 100), []int64{1, 2, 3, 4, 5})
	checkEqual(r, "by age", trim(second, 100), []int64{2, 3, 4, 5})
	checkEqual(r, "by number of events", trim(now.Add(-time.Hour), 2), []int64{4, 5})
	last, _ := r.store.LastEventSeq()
	checkEqual(r, "number of the newest event", last, 5)
	checkEqual(r, "all events are too old", trim(now.Add(time.Hour), 100), []int64(nil))
	r.enqueueOne()
	checkEqual(r, "the numbers continue", trim(0, 100), []int64{6})
}

func trimOutputsStartsWithOldest(r *storeTest) {
	const jobCount = 120 // more jobs than the store removes in one step
	var jobs []queue.Job
	for i := range jobCount {
		j := r.enqueueOne()
		e := r.newSettlement(r.claimOne(), exitOutcome(0))
		e.Attempt.Output = make([]byte, 10)
		if i == 0 {
			e.Attempt.Output, e.Attempt.OutputFileRef, e.Attempt.OutputBytes = nil, "1-1", 1000
		}
		r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
		jobs = append(jobs, j)
		r.advanceClock(time.Second)
	}
	trim := func(keep int64) {
		r.Helper()
		for more := true; more; {
			var err error
			more, err = r.store.TrimOutputs(r.Context(), keep)
			r.must(err)
		}
	}
	checkEqual(r, "bytes of all outputs", r.store.Counts().OutputBytes, 1000+10*(jobCount-1))
	trim(1000 + 10*(jobCount-1))
	checkEqual(r, "bytes when all outputs fit", r.store.Counts().OutputBytes, 1000+10*(jobCount-1))
	trim(45)
	checkEqual(r, "bytes after trimming", r.store.Counts().OutputBytes, 40)
	var remaining []int
	for i, j := range jobs {
		a, err := r.store.Attempt(r.Context(), j.Seq, 1)
		r.must(err)
		if a.OutputBytes > 0 {
			remaining = append(remaining, i)
		} else {
			checkEqual(r, "a removed output", []any{a.OutputBytes, len(a.Output), a.OutputFileRef},
				[]any{int64(queue.OutputRemovedByRetention), 0, ""})
		}
	}
	checkEqual(r, "jobs with an output", remaining, []int{jobCount - 4, jobCount - 3, jobCount - 2, jobCount - 1})
	refs, err := r.store.DeletableOutputs(r.Context(), 9)
	r.must(err)
	checkEqual(r, "deletable files", refs, []string{"1-1"})
	r.must(r.store.ChangeJob(r.Context(), jobs[jobCount-1].Seq, store.JobChange{Verb: queue.VerbRemove}))
	checkEqual(r, "bytes after removing a job", r.store.Counts().OutputBytes, 30)
}

// If a queue has a separate retention, its jobs are counted and trimmed separately from those of other queues.
func queueRetentionIsSeparate(r *storeTest) {
	r.must(r.store.SetQueue(r.Context(), "own", store.QueueRule{Weight: 1, Retention: store.Retention{MaxJobs: 1}}))
	in := func(name string) func(*queue.Job) { return func(j *queue.Job) { j.Queue = name } }
	done := func(name, output string, o queue.AttemptOutcome) queue.Job {
		r.enqueueOne(in(name), withMaxAttempts(1))
		e := r.newSettlement(r.claimOne(), o)
		e.Attempt.Output, e.Attempt.EndedAt = []byte(output), r.store.Now()
		r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
		r.advanceClock(time.Second)
		return r.listAllJobs(store.JobFilter{Limit: 1})[0]
	}
	first, plain, dead, second := done("own", "aaaa", exitOutcome(0)), done("other", "bb", exitOutcome(0)),
		done("own", "ccc", exitOutcome(1)), done("own", "dddd", exitOutcome(0))
	if !first.UsesQueueRetention || first.OutputBytes != 4 || plain.UsesQueueRetention || dead.UsesQueueRetention ||
		plain.OutputBytes != 2 {
		r.Errorf("own retention and output bytes: %v %d, other queue: %v %d, dead job: %v",
			first.UsesQueueRetention, first.OutputBytes, plain.UsesQueueRetention, plain.OutputBytes, dead.UsesQueueRetention)
	}
	endedOf := func(name *string) store.EndedJobFilter {
		return store.EndedJobFilter{States: []queue.State{queue.Completed, queue.Dead}, EndedBefore: r.store.Now() + 1,
			RetentionQueue: name}
	}
	for what, want := range map[*string]int64{nil: 4, new(""): 2, new("own"): 2, new("other"): 0} {
		n, err := r.store.CountEndedJobs(r.Context(), endedOf(what))
		r.must(err)
		checkEqual(r, "number of ended jobs", n, want)
	}
	r.checkQueuesWithOwnRetention(store.OwnRetentionQueue{Name: "own", EndedJobCount: 2, OutputBytes: 8})
	screen, err := r.store.ReadScreen(r.Context(), store.ScreenFilter{RowsPerPart: 9})
	r.must(err)
	checkEqual(r, "jobs that ended last", seqsOf(screen.CompletedOrCancelled), []int64{second.Seq, plain.Seq, first.Seq})
	trim := func(keep int64) {
		for more := true; more; {
			var err error
			more, err = r.store.TrimQueueOutputs(r.Context(), "own", keep)
			r.must(err)
		}
	}
	trim(8)
	checkEqual(r, "output bytes when all outputs fit", r.getJob(first.ID).OutputBytes, 4)
	r.checkQueuesWithOwnRetention(store.OwnRetentionQueue{Name: "own", EndedJobCount: 2, OutputBytes: 8})
	trim(7)
	r.checkQueuesWithOwnRetention(store.OwnRetentionQueue{Name: "own", EndedJobCount: 2, OutputBytes: 4})
	checkEqual(r, "output bytes after trimming the queue",
		[]int64{r.getJob(first.ID).OutputBytes, r.getJob(second.ID).OutputBytes, r.getJob(plain.ID).OutputBytes,
			r.getJob(dead.ID).OutputBytes},
		[]int64{0, 4, 2, 3})
	n, err := r.store.PurgeEndedJobs(r.Context(), endedOf(new("own")), 1, nil)
	r.must(err)
	checkEqual(r, "purged jobs of the queue", n, 1)
	checkEqual(r, "remaining jobs", seqsOf(r.listAllJobs(store.JobFilter{})), []int64{second.Seq, dead.Seq, plain.Seq})
	n, err = r.store.PurgeEndedJobs(r.Context(), endedOf(new("")), 9, nil)
	r.must(err)
	checkEqual(r, "purged jobs of the other queues", n, 2)
	r.must(r.applyVerb(second, queue.VerbRetry))
	r.must(r.store.SetQueue(r.Context(), "own", store.DefaultQueueRule))
	r.settleJob(r.claimOne(), exitOutcome(0))
	if j := r.getJob(second.ID); j.UsesQueueRetention {
		r.Error("the job counts under a retention that its queue no longer has")
	}
	r.checkJobCounts()
}
