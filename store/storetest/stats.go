package storetest

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var statsTests = []contractTest{
	{name: "starts, ends, waiting times and run times are counted by queue and minute",
		run: attemptsAreCountedByQueueAndMinute},
	{name: "waiting times begin when a job is due, and only started attempts count", run: waitingTimeBeginsWhenDue},
	{name: "a repeated report counts once, and removing a job keeps the statistics", run: repeatedReportCountsOnce},
	{name: "hours and days are the sums of their minutes", run: hourAndDayStatsSumMinutes},
	{name: "ends recorded after the clock was set back count in every grain", run: statsCountAttemptsAfterClockSetback},
	{name: "a range consists of whole periods of the finest grain that is kept", run: statsRangesConsistOfWholePeriods},
	{name: "a minute names MaxNamedQueues queues, and queues with settings", run: statsLimitNumberOfNamedQueues},
	{name: "the typical run time is the mean of completed attempts", run: typicalRuntimeIsMean},
}

// sumStats returns the statistics that match a filter, added up over all queues.
func (r *storeTest) sumStats(f store.StatsFilter) (sum store.AttemptStatistics) {
	r.Helper()
	for _, q := range r.readStats(f).Queues {
		sum.Add(&q.AttemptStatistics)
	}
	return sum
}

func (r *storeTest) readStats(f store.StatsFilter) store.Stats {
	r.Helper()
	got, err := r.store.Stats(r.Context(), f)
	r.must(err)
	return got
}

// runClaimedJobFor starts a claimed job, lets it run for the given time by advancing the clock, and ends the job with
// outcome o.
func (r *storeTest) runClaimedJobFor(j queue.Job, o queue.AttemptOutcome, runTime time.Duration) queue.Job {
	r.Helper()
	j = r.startJob(j)
	r.advanceClock(runTime)
	e := r.newSettlement(j, o)
	e.Attempt.StartedAt = j.StartedAt
	if e.Decision.NextState == queue.Completed {
		e.CommandFingerprint = j.CommandFingerprint()
	}
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	return r.getJob(j.ID)
}

// timeBefore returns the time that is d earlier than at.
func timeBefore(at queue.UnixMillis, d time.Duration) queue.UnixMillis {
	return at - queue.UnixMillis(d.Milliseconds())
}

// advanceToNextPeriod advances the clock to the start of the next period of grain g (the next minute, hour or day in
// UTC), and returns that time.
func (r *storeTest) advanceToNextPeriod(g store.Granularity) queue.UnixMillis {
	r.advanceClock(time.Duration(g.PeriodStart(r.store.Now()).Add(g.PeriodLength())-r.store.Now()) * time.Millisecond)
	return r.store.Now()
}

// Starts, ends, waiting times and run times are counted by queue and minute.
func attemptsAreCountedByQueueAndMinute(r *storeTest) {
	checkEqual(r, "statistics of an empty store", r.readStats(store.StatsFilter{IncludePeriods: true}).Queues, nil)
	began := r.advanceToNextPeriod(store.PerHour)
	r.enqueueOne(withQueue("a"))
	r.advanceClock(5 * time.Second)
	r.runClaimedJobFor(r.claimOne(), exitOutcome(0), 20*time.Second)
	r.must(r.applyVerb(r.runJob(exitOutcome(1), withQueue("b")), queue.VerbHold))
	r.advanceClock(40 * time.Second) // the next attempts count toward the next minute
	r.runJob(exitOutcome(1), withQueue("b"), withMaxAttempts(1))
	r.runJob(outcomeOfCause(queue.EndCancelled), withQueue("a"))
	r.runJob(outcomeOfCause(queue.EndStopped), withQueue("a"))

	a, b := store.AttemptStatistics{Started: 3, Completed: 1, Cancelled: 1, ReturnedToQueue: 1},
		store.AttemptStatistics{Started: 2, Failed: 1, Dead: 1}
	for _, wait := range []time.Duration{5 * time.Second, 0, 0} {
		a.WaitTimes.AddDuration(wait)
	}
	for _, run := range []time.Duration{20 * time.Second, 0, 0} {
		a.RunTimes.AddDuration(run)
	}
	for range 2 {
		b.WaitTimes.AddDuration(0)
		b.RunTimes.AddDuration(0)
	}
	want := store.Stats{Granularity: store.PerMinute, Since: began, Until: began.Add(2 * time.Minute),
		Queues: []store.QueueStatistics{{QueueName: "a", AttemptStatistics: a}, {QueueName: "b", AttemptStatistics: b}}}
	checkEqual(r, "statistics", r.readStats(store.StatsFilter{Since: began}), want)
	first, second := store.AttemptStatistics{Started: 2, Completed: 1, Failed: 1},
		store.AttemptStatistics{Started: 3, Dead: 1, Cancelled: 1, ReturnedToQueue: 1}
	first.WaitTimes.AddDuration(5 * time.Second)
	first.WaitTimes.AddDuration(0)
	first.RunTimes.AddDuration(20 * time.Second)
	first.RunTimes.AddDuration(0)
	for range 3 {
		second.WaitTimes.AddDuration(0)
		second.RunTimes.AddDuration(0)
	}
	want.Periods = []store.PeriodStatistics{{StartTime: began, AttemptStatistics: first},
		{StartTime: began.Add(time.Minute), AttemptStatistics: second}}
	checkEqual(r, "statistics by minute", r.readStats(store.StatsFilter{Since: began, IncludePeriods: true}), want)
	checkEqual(r, "statistics of one queue", r.readStats(store.StatsFilter{Since: began, Queue: "b"}).Queues,
		want.Queues[1:])
	checkEqual(r, "statistics of the first minute",
		r.sumStats(store.StatsFilter{Since: began, Until: began.Add(time.Minute)}), first)
}

// The waiting time of a job begins when the job is due. It is counted when an attempt starts.
func waitingTimeBeginsWhenDue(r *storeTest) {
	began := r.advanceToNextPeriod(store.PerHour)
	r.enqueueOne(withDelay(time.Minute))
	r.advanceClock(time.Minute + 2*time.Second)
	r.applyDueChangesUntilDone()
	j := r.runClaimedJobFor(r.claimOne(), exitOutcome(1), 0) // the job fails; the retry is due after 2 s
	r.advanceClock(6 * time.Second)
	r.applyDueChangesUntilDone()
	r.claimOne()
	r.sendLeaseReport(store.LeaseReport{ReleasedLeases: []queue.Lease{r.leaseOf(j.Seq)}})
	j = r.claimOne()
	r.settleJob(j, outcomeOfCause(queue.EndNeverStarted))
	r.advanceClock(time.Second)
	r.applyDueChangesUntilDone()
	j = r.runClaimedJobFor(r.claimOne(), exitOutcome(0), 0)
	var waits store.Histogram
	// The job has started twice. It waited 2 s before the first start. It waited 1 s between the time when it was given
	// back and the second start.
	for _, wait := range []time.Duration{2 * time.Second, time.Second} {
		waits.AddDuration(wait)
	}
	checkEqual(r, "state", j.State, queue.Completed)
	checkEqual(r, "waiting times", r.sumStats(store.StatsFilter{Since: began}).WaitTimes, waits)
}

// leaseOf returns the lease of a job.
func (r *storeTest) leaseOf(seq int64) queue.Lease {
	r.Helper()
	leased, err := r.leasedJobs()
	r.must(err)
	for i := range leased {
		if leased[i].Seq == seq {
			return leased[i].Lease()
		}
	}
	r.Fatalf("job %d is not leased", seq)
	return queue.Lease{}
}

// A report that is sent twice counts once. Removing a job does not change the statistics.
func repeatedReportCountsOnce(r *storeTest) {
	r.enqueueOne()
	j := r.startJob(r.claimOne())
	r.startJob(j)
	e := r.newSettlement(j, exitOutcome(0))
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e, e}})
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	want := r.sumStats(store.StatsFilter{})
	checkEqual(r, "starts and ends", []int64{want.Started, want.Completed}, []int64{1, 1})
	r.must(r.store.ChangeJob(r.Context(), j.Seq, store.JobChange{Verb: queue.VerbRemove, UID: testUID}))
	checkEqual(r, "statistics after a removal", r.sumStats(store.StatsFilter{}), want)
}

// The statistics of an hour or a day are the sums of the statistics of its minutes.
func hourAndDayStatsSumMinutes(r *storeTest) {
	began := r.advanceToNextPeriod(store.PerDay)
	total := int64(0)
	for day := range 3 {
		for i := range 5 {
			r.runJob(exitOutcome(int64(i%2)), withQueue([]string{"a", "b"}[i%2]), withMaxAttempts(1))
			total++
			r.advanceAndApplyDueChanges(time.Duration(50+day) * time.Minute)
		}
		r.advanceToNextPeriod(store.PerDay)
		r.applyDueChangesUntilDone()
	}
	r.applyDueChangesUntilDone()
	r.runJob(exitOutcome(0))
	total++
	r.advanceAndApplyDueChanges(0)
	byDay := r.sumStats(store.StatsFilter{Since: began, Granularity: store.PerDay})
	checkEqual(r, "starts", byDay.Started, total)
	for _, g := range []store.Granularity{store.PerHour, 0} {
		checkEqual(r, "statistics by "+fmt.Sprint(int(g)), r.sumStats(store.StatsFilter{Since: began, Granularity: g}), byDay)
	}
	days := r.readStats(store.StatsFilter{Since: began, Granularity: store.PerDay, IncludePeriods: true}).Periods
	var starts []int64
	for _, d := range days {
		starts = append(starts, d.Started)
	}
	checkEqual(r, "starts by day", starts, []int64{5, 5, 5, 1})
	// On each of the first three days, five attempts were made, two of them in the same hour.
	checkEqual(r, "hours",
		len(r.readStats(store.StatsFilter{Since: began, Granularity: store.PerHour, IncludePeriods: true}).Periods), 3*4+1)
	r.advanceAndApplyDueChanges(61 * 24 * time.Hour)
	r.advanceAndApplyDueChanges(0)
	checkEqual(r, "statistics by day, two months later",
		r.sumStats(store.StatsFilter{Since: began, Granularity: store.PerDay}), byDay)
	checkEqual(r, "statistics by hour, two months later", r.sumStats(store.StatsFilter{Since: began,
		Granularity: store.PerHour}),
		store.AttemptStatistics{})
	r.advanceAndApplyDueChanges(3 * 366 * 24 * time.Hour)
	checkEqual(r, "statistics by day, three years later", r.sumStats(store.StatsFilter{Since: began}),
		store.AttemptStatistics{})
}

// If the clock is set back, later attempts still count in their minute, hour and day.
func statsCountAttemptsAfterClockSetback(r *storeTest) {
	began := r.advanceToNextPeriod(store.PerDay)
	r.runJob(exitOutcome(0))
	r.advanceAndApplyDueChanges(30 * time.Hour)
	r.runJob(exitOutcome(0))
	r.advanceAndApplyDueChanges(2 * time.Hour)
	// Set the clock back to an hour and a day that the store has already summed up.
	r.advanceClock(-31 * time.Hour)
	j := r.runJob(exitOutcome(0))
	r.runJob(exitOutcome(0), withQueue("late"))
	if j.State != queue.Completed {
		r.Errorf("got state %s after the clock was set back", j.State)
	}
	r.advanceAndApplyDueChanges(40 * time.Hour)
	r.advanceAndApplyDueChanges(0)
	want := r.sumStats(store.StatsFilter{Since: began, Granularity: store.PerMinute})
	checkEqual(r, "starts", want.Started, 4)
	for _, g := range []store.Granularity{store.PerHour, store.PerDay} {
		checkEqual(r, "statistics by "+g.String(), r.sumStats(store.StatsFilter{Since: began, Granularity: g}), want)
	}
	checkEqual(r, "starts of the first day", r.sumStats(store.StatsFilter{Since: began, Until: began.Add(24 * time.Hour),
		Granularity: store.PerDay}).Started, 3)
}

// The returned range always consists of whole periods. These have the shortest length for which the statistics of the
// whole range are still stored.
func statsRangesConsistOfWholePeriods(r *storeTest) {
	now := r.advanceToNextPeriod(store.PerDay).Add(12*time.Hour + 30*time.Minute + 20*time.Second)
	r.advanceClock(time.Duration(now-r.store.Now()) * time.Millisecond)
	for _, c := range []struct {
		age  time.Duration
		want store.Granularity
	}{{time.Hour, store.PerMinute}, {48 * time.Hour, store.PerMinute}, {49 * time.Hour, store.PerHour},
		{60 * 24 * time.Hour, store.PerHour}, {61 * 24 * time.Hour, store.PerDay}} {
		got := r.readStats(store.StatsFilter{Since: timeBefore(now, c.age)})
		checkEqual(r, c.age.String(), got, store.Stats{Granularity: c.want, Since: c.want.PeriodStart(timeBefore(now, c.age)),
			Until: c.want.PeriodStart(now).Add(c.want.PeriodLength())})
	}
	got := r.readStats(store.StatsFilter{Since: 1, Until: timeBefore(now, time.Hour), Granularity: store.PerMinute})
	checkEqual(r, "minutes since the beginning", got, store.Stats{Granularity: store.PerMinute,
		Since: store.PerMinute.PeriodStart(timeBefore(now, 48*time.Hour)),
		Until: timeBefore(now, time.Hour).Add(40 * time.Second)})
}

// The statistics of a minute contain separate values for MaxQueuesWithStats queues and, in addition, for all queues
// with settings.
func statsLimitNumberOfNamedQueues(r *storeTest) {
	r.advanceToNextPeriod(store.PerHour)
	r.must(r.store.SetQueue(r.Context(), "zz", store.QueueRule{Weight: 2}))
	run := func(name string) {
		r.enqueueOne(withQueue(name))
		r.settleJob(r.claimOne(), exitOutcome(0))
	}
	for i := range store.MaxQueuesWithStats + 6 {
		run(fmt.Sprintf("q%02d", i))
	}
	run("zz")
	run(queue.DefaultQueue)
	run("q00")
	check := func(f store.StatsFilter) {
		r.Helper()
		list := r.readStats(f).Queues
		checkEqual(r, "queues", len(list), store.MaxQueuesWithStats+3)
		last := list[len(list)-1]
		checkEqual(r, "all other queues", []any{last.QueueName, last.Started, last.Completed},
			[]any{store.OtherQueuesName, int64(6), int64(6)})
		checkEqual(r, "starts", r.sumStats(f).Started, store.MaxQueuesWithStats+9)
		checkEqual(r, "a queue with settings", list[len(list)-2].Started, 1)
		checkEqual(r, "name of the queue with settings", list[len(list)-2].QueueName, "zz")
	}
	check(store.StatsFilter{})
	r.advanceAndApplyDueChanges(time.Hour)
	check(store.StatsFilter{Granularity: store.PerHour})
	check(store.StatsFilter{OnlyAllTimeTotals: true})
}

// The typical run time is the mean run time of the completed attempts.
func typicalRuntimeIsMean(r *storeTest) {
	j := r.enqueueOne()
	checkEqual(r, "before the first run", r.store.TypicalRuntime(j.CommandFingerprint()), 0)
	r.runClaimedJobFor(r.claimOne(), exitOutcome(0), 2*time.Second)
	checkEqual(r, "after the first run", r.store.TypicalRuntime(j.CommandFingerprint()), 2*time.Second)
	r.enqueueOne()
	r.runClaimedJobFor(r.claimOne(), exitOutcome(0), 8*time.Second)
	checkEqual(r, "after the second run", r.store.TypicalRuntime(j.CommandFingerprint()), 4*time.Second)
	r.enqueueOne(withMaxAttempts(1))
	r.runClaimedJobFor(r.claimOne(), exitOutcome(1), time.Hour)
	checkEqual(r, "after a failure", r.store.TypicalRuntime(j.CommandFingerprint()), 4*time.Second)
	for range 20 { // the typical run time changes with new runs, until it reflects mainly these
		r.enqueueOne()
		r.runClaimedJobFor(r.claimOne(), exitOutcome(0), time.Minute)
	}
	if got := r.store.TypicalRuntime(j.CommandFingerprint()); got < 40*time.Second || got > time.Minute {
		r.Errorf("typical run time after many runs of a minute: got %v", got)
	}
	other := r.enqueueOne(withQueue("other"))
	checkEqual(r, "the same command in another queue", r.store.TypicalRuntime(other.CommandFingerprint()), 0)
}

// checkStats checks that the statistics agree with the attempts in the stored events.
func (w *predictedWalk) checkStats() {
	var expected store.AttemptStatistics
	for after := int64(0); ; {
		events, err := w.store.Events(w.Context(), after, 1000)
		w.must(err)
		if len(events) == 0 {
			break
		}
		for _, e := range events {
			if after = e.Seq; e.Kind == queue.EventEnded {
				expected.Started++
				expected.AddEndedAttempt(e.State, 0)
			}
		}
	}
	expected.Started += w.store.Counts().JobsByState[queue.Processing]
	got := w.sumStats(store.StatsFilter{})
	checkEqual(w.storeTest, "waits and runs", []int64{got.WaitTimes.Count(), got.RunTimes.Count()}, []int64{got.Started,
		expected.RunTimes.Count()})
	got.WaitTimes, got.RunTimes, expected.RunTimes = store.Histogram{}, store.Histogram{}, store.Histogram{}
	checkEqual(w.storeTest, "statistics, compared with the events", got, expected)
}

// compareStats compares the statistics and the typical run times of the two stores.
func (w *comparisonWalk) compareStats() {
	f := store.StatsFilter{IncludePeriods: true, Granularity: store.Granularity(w.step % 4),
		Since: timeBefore(w.modelStore.Now(), time.Duration(w.step%50)*time.Hour)}
	if w.step%3 == 0 {
		f.Queue = walkQueueNames[w.step%len(walkQueueNames)]
	}
	f.OnlyAllTimeTotals = w.step%5 == 0
	w.operationName = fmt.Sprintf("statistics of %+v", f)
	got, want := callBothStores(w, func(s store.Store) (store.Stats, error) { return s.Stats(w.Context(), f) })
	checkEqual(&storeTest{T: w.T}, w.operationName, got, want)
	for fingerprint := range uint64(5) {
		if got, want := w.engine.Store.TypicalRuntime(fingerprint), w.modelStore.TypicalRuntime(fingerprint); got != want {
			w.Errorf("step %d: typical run time of fingerprint %d: the engine returns %v, the model %v", w.step,
				fingerprint, got, want)
		}
	}
	w.operationName = "time"
}
