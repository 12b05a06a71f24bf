package storetest

import (
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var retentionPromises = []promise{
	{name: "jobs of a queue with its own retention are counted and trimmed separately", check: ownRetentionIsSeparate},
	{name: "TrimJobs removes the jobs that ended first", check: trimJobsStartsWithOldest},
	{name: "Purge removes the jobs that ended first", check: purgeStartsWithOldest},
	{name: "Purge removes only ended jobs", check: purgeRemovesOnlyEndedJobs},
	{name: "TrimOutputs removes the oldest outputs", check: trimOutputsStartsWithOldest},
	{name: "events are trimmed by age and number", check: eventsAreTrimmedByAgeAndNumber},
}

func purgeStartsWithOldest(r *rig) {
	var jobs []queue.Job
	for i, end := range []queue.Outcome{exitOutcome(0), outcomeOfCause(queue.EndKilled), exitOutcome(0), exitOutcome(0)} {
		j := r.runJob(end)
		jobs = append(jobs, j)
		r.advance(time.Duration(i+1) * time.Second)
	}
	both := []queue.State{queue.Completed, queue.Cancelled}
	before := r.getJob(jobs[3].ID).EndedAt
	count := func(states []queue.State, endedBefore queue.Millis) int64 {
		n, err := r.s.CountEnded(r.Context(), store.EndedFilter{States: states, Cutoff: endedBefore})
		r.must(err)
		return n
	}
	checkEqual(r, "counts", []int64{count(both, before), count(both[:1], before), count(both, before+1),
		count(nil, before)},
		[]int64{3, 2, 4, 0})
	purge := func(states []queue.State, endedBefore queue.Millis, limit int) int {
		n, err := r.s.Purge(r.Context(), store.EndedFilter{States: states, Cutoff: endedBefore}, limit, new(7))
		r.must(err)
		r.checkCounts()
		return n
	}
	r.newEvents()
	checkEqual(r, "purged jobs", purge(both, before, 2), 2)
	gone := []queue.Job{jobs[0], jobs[1]}
	for i := range gone {
		gone[i].State = 0
	}
	checkEqual(r, "events", r.newEvents(),
		[]queue.Event{r.event(queue.EventRemoved, gone[0], queue.EventDetail{UID: new(7)}),
			r.event(queue.EventRemoved, gone[1], queue.EventDetail{UID: new(7)})})
	checkEqual(r, "purged jobs of one state", purge(both[1:], before, 9), 0)
	checkEqual(r, "purged jobs of both states", purge(both, before, 9), 1)
	checkEqual(r, "remaining jobs", seqs(r.listAll(store.Filter{})), []int64{jobs[3].Seq})
	_, err := r.s.History(r.Context(), jobs[2].Seq, 0, store.MaxPageRows)
	r.wantCode("history of a purged job", err, queue.CodeNotFound)
}

func trimJobsStartsWithOldest(r *rig) {
	r.must(r.s.SetQueue(r.Context(), "own", store.QueueRule{Weight: 1, Retention: store.Retention{MaxJobs: 1}}))
	var ownSeqs, otherSeqs []int64
	for i := range 10 {
		name := []string{"default", "own"}[i%2]
		j := r.enqueueOne(func(j *queue.Job) { j.Queue = name })
		end := exitOutcome(0)
		if i >= 8 {
			end = outcomeOfCause(queue.EndKilled)
		}
		r.settle(r.claimOne(), end)
		r.advance(time.Second)
		if i%2 == 0 {
			otherSeqs = append(otherSeqs, j.Seq)
		} else {
			ownSeqs = append(ownSeqs, j.Seq)
		}
	}
	dead := r.newJobInState(queue.Dead)
	trim := func(queueName string, keep int64, limit int) bool {
		r.Helper()
		more, err := r.s.TrimJobs(r.Context(), queueName, keep, limit)
		r.must(err)
		r.checkCounts()
		return more
	}
	wantLeft := func(subject string, want ...int64) {
		r.Helper()
		want = append(slices.Clone(want), dead.Seq)
		slices.Sort(want)
		got := seqs(r.listAll(store.Filter{}))
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
	r.must(r.s.SetQueue(r.Context(), "own", store.DefaultQueueRule))
	r.checkCounts()
	checkEqual(r, "more to remove in a queue whose retention was removed", trim("own", 1, 9), false)
	wantLeft("after trimming one queue", slices.Concat(ownSeqs[4:], otherSeqs[3:])...)
	checkEqual(r, "more to remove when no job may be kept", []bool{trim("own", 0, 9), trim("", 0, 9)},
		[]bool{false, false})
	wantLeft("dead jobs are never trimmed")
	r.checkOwnRetentionQueues()
}

func purgeRemovesOnlyEndedJobs(r *rig) {
	for _, s := range []queue.State{queue.Failed, queue.Held, queue.Dead, queue.Pending} {
		r.newJobInState(s)
	}
	r.advanceAndPromote(time.Hour)
	all := append(queue.States(), queue.Completed)
	r.checkUnchanged(func() {
		n, err := r.s.Purge(r.Context(), store.EndedFilter{States: []queue.State{queue.Failed, queue.Held, queue.Pending,
			queue.Processing}, Cutoff: r.s.Now() + 1}, 9, nil)
		r.must(err)
		checkEqual(r, "purged jobs", n, 0)
	})
	n, err := r.s.Purge(r.Context(), store.EndedFilter{States: all, Cutoff: r.s.Now() + 1}, 9, nil)
	r.must(err)
	checkEqual(r, "purged jobs of all states", n, 1)
	checkEqual(r, "remaining jobs", len(r.listAll(store.Filter{})), 3)
}

func eventsAreTrimmedByAgeAndNumber(r *rig) {
	for range 5 {
		r.enqueueOne()
		r.advance(time.Second)
	}
	trim := func(occurredBefore queue.Millis, keep int64) []int64 {
		more, err := r.s.TrimEvents(r.Context(), occurredBefore, keep)
		r.must(err)
		checkEqual(r, "more", more, false)
		events, err := r.s.Events(r.Context(), 0, 100)
		r.must(err)
		var remaining []int64
		for _, e := range events {
			remaining = append(remaining, e.Seq)
		}
		return remaining
	}
	now, second := r.s.Now(), r.newEvents()[1].Time
	checkEqual(r, "no event is too old", trim(now.Add(-time.Hour), 100), []int64{1, 2, 3, 4, 5})
	checkEqual(r, "by age", trim(second, 100), []int64{2, 3, 4, 5})
	checkEqual(r, "by number of events", trim(now.Add(-time.Hour), 2), []int64{4, 5})
	last, _ := r.s.LastEvent()
	checkEqual(r, "number of the newest event", last, 5)
	checkEqual(r, "all events are too old", trim(now.Add(time.Hour), 100), []int64(nil))
	r.enqueueOne()
	checkEqual(r, "the numbers continue", trim(0, 100), []int64{6})
}

func trimOutputsStartsWithOldest(r *rig) {
	const jobCount = 120 // more jobs than the store removes in one step
	var jobs []queue.Job
	for i := range jobCount {
		j := r.enqueueOne()
		e := r.settlement(r.claimOne(), exitOutcome(0))
		e.Attempt.Output = make([]byte, 10)
		if i == 0 {
			e.Attempt.Output, e.Attempt.OutputRef, e.Attempt.OutputBytes = nil, "1-1", 1000
		}
		r.exchange(store.Report{Settlements: []store.Settlement{e}})
		jobs = append(jobs, j)
		r.advance(time.Second)
	}
	trim := func(keep int64) {
		r.Helper()
		for more := true; more; {
			var err error
			more, err = r.s.TrimOutputs(r.Context(), keep)
			r.must(err)
		}
	}
	checkEqual(r, "bytes of all outputs", r.s.Counts().OutputBytes, 1000+10*(jobCount-1))
	trim(1000 + 10*(jobCount-1))
	checkEqual(r, "bytes when all outputs fit", r.s.Counts().OutputBytes, 1000+10*(jobCount-1))
	trim(45)
	checkEqual(r, "bytes after trimming", r.s.Counts().OutputBytes, 40)
	var remaining []int
	for i, j := range jobs {
		a, err := r.s.Attempt(r.Context(), j.Seq, 1)
		r.must(err)
		if a.OutputBytes > 0 {
			remaining = append(remaining, i)
		} else {
			checkEqual(r, "a removed output", []any{a.OutputBytes, len(a.Output), a.OutputRef},
				[]any{int64(queue.OutputOverRetention), 0, ""})
		}
	}
	checkEqual(r, "jobs with an output", remaining, []int{jobCount - 4, jobCount - 3, jobCount - 2, jobCount - 1})
	refs, err := r.s.DeletableOutputs(r.Context(), 9)
	r.must(err)
	checkEqual(r, "deletable files", refs, []string{"1-1"})
	r.must(r.s.Change(r.Context(), jobs[jobCount-1].Seq, store.Change{Verb: queue.VerbRemove}))
	checkEqual(r, "bytes after removing a job", r.s.Counts().OutputBytes, 30)
}

// If a queue has a separate retention, its jobs are counted and trimmed separately from those of other queues.
func ownRetentionIsSeparate(r *rig) {
	r.must(r.s.SetQueue(r.Context(), "own", store.QueueRule{Weight: 1, Retention: store.Retention{MaxJobs: 1}}))
	in := func(name string) func(*queue.Job) { return func(j *queue.Job) { j.Queue = name } }
	done := func(name, output string, o queue.Outcome) queue.Job {
		r.enqueueOne(in(name), withMaxAttempts(1))
		e := r.settlement(r.claimOne(), o)
		e.Attempt.Output, e.Attempt.EndedAt = []byte(output), r.s.Now()
		r.exchange(store.Report{Settlements: []store.Settlement{e}})
		r.advance(time.Second)
		return r.listAll(store.Filter{Limit: 1})[0]
	}
	first, plain, dead, second := done("own", "aaaa", exitOutcome(0)), done("other", "bb", exitOutcome(0)),
		done("own", "ccc", exitOutcome(1)), done("own", "dddd", exitOutcome(0))
	if !first.OwnRetention || first.OutputBytes != 4 || plain.OwnRetention || dead.OwnRetention || plain.OutputBytes != 2 {
		r.Errorf("own retention and output bytes: %v %d, other queue: %v %d, dead job: %v",
			first.OwnRetention, first.OutputBytes, plain.OwnRetention, plain.OutputBytes, dead.OwnRetention)
	}
	endedOf := func(name *string) store.EndedFilter {
		return store.EndedFilter{States: []queue.State{queue.Completed, queue.Dead}, Cutoff: r.s.Now() + 1,
			RetentionQueue: name}
	}
	for what, want := range map[*string]int64{nil: 4, new(""): 2, new("own"): 2, new("other"): 0} {
		n, err := r.s.CountEnded(r.Context(), endedOf(what))
		r.must(err)
		checkEqual(r, "number of ended jobs", n, want)
	}
	r.checkOwnRetentionQueues(store.OwnRetentionQueue{Name: "own", Jobs: 2, OutputBytes: 8})
	screen, err := r.s.Screen(r.Context(), store.ScreenFilter{Rows: 9})
	r.must(err)
	checkEqual(r, "jobs that ended last", seqs(screen.Done), []int64{second.Seq, plain.Seq, first.Seq})
	trim := func(keep int64) {
		for more := true; more; {
			var err error
			more, err = r.s.TrimQueueOutputs(r.Context(), "own", keep)
			r.must(err)
		}
	}
	trim(8)
	checkEqual(r, "output bytes when all outputs fit", r.getJob(first.ID).OutputBytes, 4)
	r.checkOwnRetentionQueues(store.OwnRetentionQueue{Name: "own", Jobs: 2, OutputBytes: 8})
	trim(7)
	r.checkOwnRetentionQueues(store.OwnRetentionQueue{Name: "own", Jobs: 2, OutputBytes: 4})
	checkEqual(r, "output bytes after trimming the queue",
		[]int64{r.getJob(first.ID).OutputBytes, r.getJob(second.ID).OutputBytes, r.getJob(plain.ID).OutputBytes,
			r.getJob(dead.ID).OutputBytes},
		[]int64{0, 4, 2, 3})
	n, err := r.s.Purge(r.Context(), endedOf(new("own")), 1, nil)
	r.must(err)
	checkEqual(r, "purged jobs of the queue", n, 1)
	checkEqual(r, "remaining jobs", seqs(r.listAll(store.Filter{})), []int64{second.Seq, dead.Seq, plain.Seq})
	n, err = r.s.Purge(r.Context(), endedOf(new("")), 9, nil)
	r.must(err)
	checkEqual(r, "purged jobs of the other queues", n, 2)
	r.must(r.change(second, queue.VerbRetry))
	r.must(r.s.SetQueue(r.Context(), "own", store.DefaultQueueRule))
	r.settle(r.claimOne(), exitOutcome(0))
	if j := r.getJob(second.ID); j.OwnRetention {
		r.Error("the job counts under a retention that its queue no longer has")
	}
	r.checkCounts()
}
