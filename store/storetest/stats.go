package storetest

import (
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var statsPromises = []promise{
	{name: "starts, ends, waiting times and run times are counted by queue and minute", check: attemptsAreCounted},
	{name: "waiting times begin when a job is due, and only started attempts count", check: waitingTimeBeginsWhenDue},
	{name: "a repeated report counts once, and removing a job keeps the statistics", check: repeatedReportCountsOnce},
	{name: "hours and days are the sums of their minutes", check: statsGrainsAgree},
	{name: "ends recorded after the clock was set back count in every grain", check: clockSetbackCountsInStats},
	{name: "a range consists of whole periods of the finest grain that is kept", check: statsRangesAreWhole},
	{name: "a minute names MaxNamedQueues queues, and queues with settings", check: statsQueuesAreBounded},
	{name: "the typical run time is the mean of completed attempts", check: typicalRuntimeIsMean},
}

// sumStats returns the statistics that match a filter, added up over all queues.
func (r *rig) sumStats(f store.StatsFilter) (sum store.AttemptStatistics) {
	r.Helper()
	for _, q := range r.stats(f).Queues {
		sum.Add(&q.AttemptStatistics)
	}
	return sum
}

func (r *rig) stats(f store.StatsFilter) store.Stats {
	r.Helper()
	got, err := r.s.Stats(r.Context(), f)
	r.must(err)
	return got
}

// runFor starts a claimed job, advances the clock by run, and ends the job with outcome o.
func (r *rig) runFor(j queue.Job, o queue.Outcome, run time.Duration) queue.Job {
	r.Helper()
	j = r.startJob(j)
	r.advance(run)
	e := r.settlement(j, o)
	e.Attempt.StartedAt = j.StartedAt
	if e.Decision.State == queue.Completed {
		e.Fingerprint = j.Fingerprint()
	}
	r.exchange(store.Report{Settlements: []store.Settlement{e}})
	return r.getJob(j.ID)
}

// timeBefore returns the time that is d earlier than at.
func timeBefore(at queue.Millis, d time.Duration) queue.Millis {
	return at - queue.Millis(d.Milliseconds())
}

// advanceTo advances the clock to the start of the next minute, hour or day in UTC, as g
// says, and returns that time.
func (r *rig) advanceTo(g store.Grain) queue.Millis {
	r.advance(time.Duration(g.PeriodStart(r.s.Now()).Add(g.Length())-r.s.Now()) * time.Millisecond)
	return r.s.Now()
}

// Starts, ends, waiting times and run times are counted by queue and minute.
func attemptsAreCounted(r *rig) {
	checkEqual(r, "statistics of an empty store", r.stats(store.StatsFilter{WithPeriods: true}).Queues, nil)
	began := r.advanceTo(store.Hour)
	r.enqueueOne(withQueue("a"))
	r.advance(5 * time.Second)
	r.runFor(r.claimOne(), exitOutcome(0), 20*time.Second)
	r.must(r.change(r.runJob(exitOutcome(1), withQueue("b")), queue.VerbHold))
	r.advance(40 * time.Second) // the next attempts count toward the next minute
	r.runJob(exitOutcome(1), withQueue("b"), withMaxAttempts(1))
	r.runJob(outcomeOfCause(queue.EndKilled), withQueue("a"))
	r.runJob(outcomeOfCause(queue.EndStopped), withQueue("a"))

	a, b := store.AttemptStatistics{Started: 3, Completed: 1, Cancelled: 1, Returned: 1},
		store.AttemptStatistics{Started: 2, Failed: 1, Dead: 1}
	for _, wait := range []time.Duration{5 * time.Second, 0, 0} {
		a.WaitTimes.Observe(wait)
	}
	for _, run := range []time.Duration{20 * time.Second, 0, 0} {
		a.RunTimes.Observe(run)
	}
	for range 2 {
		b.WaitTimes.Observe(0)
		b.RunTimes.Observe(0)
	}
	want := store.Stats{Grain: store.Minute, Since: began, Until: began.Add(2 * time.Minute),
		Queues: []store.QueueStatistics{{Queue: "a", AttemptStatistics: a}, {Queue: "b", AttemptStatistics: b}}}
	checkEqual(r, "statistics", r.stats(store.StatsFilter{Since: began}), want)
	first, second := store.AttemptStatistics{Started: 2, Completed: 1, Failed: 1},
		store.AttemptStatistics{Started: 3, Dead: 1, Cancelled: 1, Returned: 1}
	first.WaitTimes.Observe(5 * time.Second)
	first.WaitTimes.Observe(0)
	first.RunTimes.Observe(20 * time.Second)
	first.RunTimes.Observe(0)
	for range 3 {
		second.WaitTimes.Observe(0)
		second.RunTimes.Observe(0)
	}
	want.Periods = []store.PeriodStatistics{{StartTime: began, AttemptStatistics: first},
		{StartTime: began.Add(time.Minute), AttemptStatistics: second}}
	checkEqual(r, "statistics by minute", r.stats(store.StatsFilter{Since: began, WithPeriods: true}), want)
	checkEqual(r, "statistics of one queue", r.stats(store.StatsFilter{Since: began, Queue: "b"}).Queues, want.Queues[1:])
	checkEqual(r, "statistics of the first minute",
		r.sumStats(store.StatsFilter{Since: began, Until: began.Add(time.Minute)}), first)
}

// The waiting time of a job begins when the job is due. It is counted when an attempt starts.
func waitingTimeBeginsWhenDue(r *rig) {
	began := r.advanceTo(store.Hour)
	r.enqueueOne(withDelay(time.Minute))
	r.advance(time.Minute + 2*time.Second)
	r.promote()
	j := r.runFor(r.claimOne(), exitOutcome(1), 0) // the job fails; the retry is due after 2 s
	r.advance(6 * time.Second)
	r.promote()
	r.claimOne()
	r.exchange(store.Report{Releases: []queue.Lease{r.leaseOf(j.Seq)}})
	j = r.claimOne()
	r.settle(j, outcomeOfCause(queue.EndNeverStarted))
	r.advance(time.Second)
	r.promote()
	j = r.runFor(r.claimOne(), exitOutcome(0), 0)
	var waits store.Histogram
	// The job has started twice. It waited 2 s for the first start, and 1 s from when it was
	// given back to the second.
	for _, wait := range []time.Duration{2 * time.Second, time.Second} {
		waits.Observe(wait)
	}
	checkEqual(r, "state", j.State, queue.Completed)
	checkEqual(r, "waiting times", r.sumStats(store.StatsFilter{Since: began}).WaitTimes, waits)
}

// leaseOf returns the lease of a job.
func (r *rig) leaseOf(seq int64) queue.Lease {
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
func repeatedReportCountsOnce(r *rig) {
	r.enqueueOne()
	j := r.startJob(r.claimOne())
	r.startJob(j)
	e := r.settlement(j, exitOutcome(0))
	r.exchange(store.Report{Settlements: []store.Settlement{e, e}})
	r.exchange(store.Report{Settlements: []store.Settlement{e}})
	want := r.sumStats(store.StatsFilter{})
	checkEqual(r, "starts and ends", []int64{want.Started, want.Completed}, []int64{1, 1})
	r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: testUID}))
	checkEqual(r, "statistics after a removal", r.sumStats(store.StatsFilter{}), want)
}

// The statistics of an hour or a day are the sums of the statistics of its minutes.
func statsGrainsAgree(r *rig) {
	began := r.advanceTo(store.Day)
	total := int64(0)
	for day := range 3 {
		for i := range 5 {
			r.runJob(exitOutcome(int64(i%2)), withQueue([]string{"a", "b"}[i%2]), withMaxAttempts(1))
			total++
			r.advanceAndPromote(time.Duration(50+day) * time.Minute)
		}
		r.advanceTo(store.Day)
		r.promote()
	}
	r.promote()
	r.runJob(exitOutcome(0))
	total++
	r.advanceAndPromote(0)
	byDay := r.sumStats(store.StatsFilter{Since: began, Grain: store.Day})
	checkEqual(r, "starts", byDay.Started, total)
	for _, g := range []store.Grain{store.Hour, 0} {
		checkEqual(r, "statistics by "+fmt.Sprint(int(g)), r.sumStats(store.StatsFilter{Since: began, Grain: g}), byDay)
	}
	days := r.stats(store.StatsFilter{Since: began, Grain: store.Day, WithPeriods: true}).Periods
	var starts []int64
	for _, d := range days {
		starts = append(starts, d.Started)
	}
	checkEqual(r, "starts by day", starts, []int64{5, 5, 5, 1})
	// On each of the first three days, two of the five attempts were in the same hour.
	checkEqual(r, "hours",
		len(r.stats(store.StatsFilter{Since: began, Grain: store.Hour, WithPeriods: true}).Periods), 3*4+1)
	r.advanceAndPromote(61 * 24 * time.Hour)
	r.advanceAndPromote(0)
	checkEqual(r, "statistics by day, two months later",
		r.sumStats(store.StatsFilter{Since: began, Grain: store.Day}), byDay)
	checkEqual(r, "statistics by hour, two months later", r.sumStats(store.StatsFilter{Since: began, Grain: store.Hour}),
		store.AttemptStatistics{})
	r.advanceAndPromote(3 * 366 * 24 * time.Hour)
	checkEqual(r, "statistics by day, three years later", r.sumStats(store.StatsFilter{Since: began}),
		store.AttemptStatistics{})
}

// If the clock is set back, later attempts still count in their minute, hour and day.
func clockSetbackCountsInStats(r *rig) {
	began := r.advanceTo(store.Day)
	r.runJob(exitOutcome(0))
	r.advanceAndPromote(30 * time.Hour)
	r.runJob(exitOutcome(0))
	r.advanceAndPromote(2 * time.Hour)
	// Set the clock back to an hour and a day that the store has already summed up.
	r.advance(-31 * time.Hour)
	j := r.runJob(exitOutcome(0))
	r.runJob(exitOutcome(0), withQueue("late"))
	if j.State != queue.Completed {
		r.Errorf("got state %s after the clock was set back", j.State)
	}
	r.advanceAndPromote(40 * time.Hour)
	r.advanceAndPromote(0)
	want := r.sumStats(store.StatsFilter{Since: began, Grain: store.Minute})
	checkEqual(r, "starts", want.Started, 4)
	for _, g := range []store.Grain{store.Hour, store.Day} {
		checkEqual(r, "statistics by "+g.String(), r.sumStats(store.StatsFilter{Since: began, Grain: g}), want)
	}
	checkEqual(r, "starts of the first day", r.sumStats(store.StatsFilter{Since: began, Until: began.Add(24 * time.Hour),
		Grain: store.Day}).Started, 3)
}

// The returned range always consists of whole periods. They have the shortest length that is
// still stored for the range.
func statsRangesAreWhole(r *rig) {
	now := r.advanceTo(store.Day).Add(12*time.Hour + 30*time.Minute + 20*time.Second)
	r.advance(time.Duration(now-r.s.Now()) * time.Millisecond)
	for _, c := range []struct {
		age  time.Duration
		want store.Grain
	}{{time.Hour, store.Minute}, {48 * time.Hour, store.Minute}, {49 * time.Hour, store.Hour},
		{60 * 24 * time.Hour, store.Hour}, {61 * 24 * time.Hour, store.Day}} {
		got := r.stats(store.StatsFilter{Since: timeBefore(now, c.age)})
		checkEqual(r, c.age.String(), got, store.Stats{Grain: c.want, Since: c.want.PeriodStart(timeBefore(now, c.age)),
			Until: c.want.PeriodStart(now).Add(c.want.Length())})
	}
	got := r.stats(store.StatsFilter{Since: 1, Until: timeBefore(now, time.Hour), Grain: store.Minute})
	checkEqual(r, "minutes since the beginning", got, store.Stats{Grain: store.Minute,
		Since: store.Minute.PeriodStart(timeBefore(now, 48*time.Hour)),
		Until: timeBefore(now, time.Hour).Add(40 * time.Second)})
}

// The statistics of a minute name MaxNamedQueues queues and, in addition, all queues with settings.
func statsQueuesAreBounded(r *rig) {
	r.advanceTo(store.Hour)
	r.must(r.s.SetQueue(r.Context(), "zz", store.QueueRule{Weight: 2}))
	run := func(name string) {
		r.enqueueOne(withQueue(name))
		r.settle(r.claimOne(), exitOutcome(0))
	}
	for i := range store.MaxNamedQueues + 6 {
		run(fmt.Sprintf("q%02d", i))
	}
	run("zz")
	run(queue.DefaultQueue)
	run("q00")
	check := func(f store.StatsFilter) {
		r.Helper()
		list := r.stats(f).Queues
		checkEqual(r, "queues", len(list), store.MaxNamedQueues+3)
		last := list[len(list)-1]
		checkEqual(r, "all other queues", []any{last.Queue, last.Started, last.Completed},
			[]any{store.OtherQueues, int64(6), int64(6)})
		checkEqual(r, "starts", r.sumStats(f).Started, store.MaxNamedQueues+9)
		checkEqual(r, "a queue with settings", list[len(list)-2].Started, 1)
		checkEqual(r, "name of the queue with settings", list[len(list)-2].Queue, "zz")
	}
	check(store.StatsFilter{})
	r.advanceAndPromote(time.Hour)
	check(store.StatsFilter{Grain: store.Hour})
	check(store.StatsFilter{AllTime: true})
}

// The typical run time is the mean run time of the completed attempts.
func typicalRuntimeIsMean(r *rig) {
	j := r.enqueueOne()
	checkEqual(r, "before the first run", r.s.TypicalRuntime(j.Fingerprint()), 0)
	r.runFor(r.claimOne(), exitOutcome(0), 2*time.Second)
	checkEqual(r, "after the first run", r.s.TypicalRuntime(j.Fingerprint()), 2*time.Second)
	r.enqueueOne()
	r.runFor(r.claimOne(), exitOutcome(0), 8*time.Second)
	checkEqual(r, "after the second run", r.s.TypicalRuntime(j.Fingerprint()), 4*time.Second)
	r.enqueueOne(withMaxAttempts(1))
	r.runFor(r.claimOne(), exitOutcome(1), time.Hour)
	checkEqual(r, "after a failure", r.s.TypicalRuntime(j.Fingerprint()), 4*time.Second)
	for range 20 { // the typical run time follows the most recent runs
		r.enqueueOne()
		r.runFor(r.claimOne(), exitOutcome(0), time.Minute)
	}
	if got := r.s.TypicalRuntime(j.Fingerprint()); got < 40*time.Second || got > time.Minute {
		r.Errorf("typical run time after many runs of a minute: got %v", got)
	}
	other := r.enqueueOne(withQueue("other"))
	checkEqual(r, "the same command in another queue", r.s.TypicalRuntime(other.Fingerprint()), 0)
}

// checkStats checks that the statistics agree with the attempts in the stored events.
func (w *walk) checkStats() {
	var expected store.AttemptStatistics
	for after := int64(0); ; {
		events, err := w.s.Events(w.Context(), after, 1000)
		w.must(err)
		if len(events) == 0 {
			break
		}
		for _, e := range events {
			if after = e.Seq; e.Kind == queue.EventEnded {
				expected.Started++
				expected.CountEnd(e.State, 0)
			}
		}
	}
	expected.Started += w.s.Counts().States[queue.Processing]
	got := w.sumStats(store.StatsFilter{})
	checkEqual(w.rig, "waits and runs", []int64{got.WaitTimes.Count(), got.RunTimes.Count()}, []int64{got.Started,
		expected.RunTimes.Count()})
	got.WaitTimes, got.RunTimes, expected.RunTimes = store.Histogram{}, store.Histogram{}, store.Histogram{}
	checkEqual(w.rig, "statistics, compared with the events", got, expected)
}

// compareStats compares the statistics and the typical run times of the two stores.
func (w *pairWalk) compareStats() {
	f := store.StatsFilter{WithPeriods: true, Grain: store.Grain(w.step % 4),
		Since: timeBefore(w.model.Now(), time.Duration(w.step%50)*time.Hour)}
	if w.step%3 == 0 {
		f.Queue = queues[w.step%len(queues)]
	}
	f.AllTime = w.step%5 == 0
	w.operation = fmt.Sprintf("statistics of %+v", f)
	got, want := askBoth(w, func(s store.Store) (store.Stats, error) { return s.Stats(w.Context(), f) })
	checkEqual(&rig{T: w.T}, w.operation, got, want)
	for fingerprint := range uint64(5) {
		if got, want := w.engine.Store.TypicalRuntime(fingerprint), w.model.TypicalRuntime(fingerprint); got != want {
			w.Errorf("step %d: typical run time of fingerprint %d: the engine returns %v, the model %v", w.step,
				fingerprint, got, want)
		}
	}
	w.operation = "time"
}
