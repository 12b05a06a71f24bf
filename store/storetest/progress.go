package storetest

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Each progress report of a running attempt is stored and adds an event. The last report is kept when the
// attempt ends, and deleted when the next attempt starts. Reports are rejected if the lease has ended or the
// attempt has not started.
func progressIsKeptUntilNextAttempt(r *storeTest) {
	r.enqueueOne(withMaxAttempts(3))
	j := r.claimOne()
	r.readNewEvents()
	report := func(l queue.Lease, p queue.Progress) store.ReportAndClaimResult {
		return r.sendLeaseReport(store.LeaseReport{ProgressReports: []store.AttemptProgress{{Lease: l, Progress: p}}})
	}
	early := report(j.Lease(), queue.Progress{Percent: 1, ReportedAt: 5})
	checkEqual(r, "stale before the start", early.StaleLeases, []queue.Lease{j.Lease()})
	j = r.startJob(j)
	r.readNewEvents()
	for _, p := range []queue.Progress{{Percent: 0, ReportedAt: 6}, {Percent: 40, Text: "epoch 4/10\x1b[2J",
		ReportedAt: 7},
		{Percent: 39, ReportedAt: 8}} {
		report(j.Lease(), p)
		checkEqual(r, "progress", *r.getJob(j.ID).Progress, p)
		checkEqual(r, "its event", r.readNewEvents(), []queue.Event{r.expectedEvent(queue.EventProgress, r.getJob(j.ID),
			queue.EventDetail{AttemptNumber: 1, ProgressPercent: &p.Percent})})
	}
	e := r.newSettlement(j, exitOutcome(1))
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	checkEqual(r, "after an end without progress", *r.getJob(j.ID).Progress, queue.Progress{Percent: 39, ReportedAt: 8})
	late := report(j.Lease(), queue.Progress{Percent: 99, ReportedAt: 9})
	checkEqual(r, "stale after the end", late.StaleLeases, []queue.Lease{j.Lease()})

	r.advanceAndApplyDueChanges(time.Minute)
	again := r.startJob(r.claimOne())
	checkEqual(r, "after the next start", r.getJob(again.ID).Progress, nil)
	e = r.newSettlement(again, exitOutcome(1))
	e.Progress = &queue.Progress{Percent: 70, Text: "last", ReportedAt: 10}
	report(again.Lease(), queue.Progress{Percent: 60, ReportedAt: 9})
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	e.Progress.Percent = 1 // a change of the caller's copy must not change the stored job
	checkEqual(r, "progress reported with the end", *r.getJob(j.ID).Progress, queue.Progress{Percent: 70, Text: "last",
		ReportedAt: 10})

	r.advanceAndApplyDueChanges(time.Minute)
	short := r.claimOne()
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{r.newSettlement(short, exitOutcome(0))}})
	checkEqual(r, "after an attempt whose start and progress were not reported", r.getJob(j.ID).Progress, nil)
}

// The result of an attempt counts as part of its output. TrimOutputs removes both together.
func jobResultCountsAsOutput(r *storeTest) {
	r.enqueueAndGet(newDraft(), newDraft())
	for _, j := range r.claimJobs(2) {
		e := r.newSettlement(j, exitOutcome(0))
		e.Attempt.Output, e.Attempt.Result = []byte("12345"), []byte(`"678"`)
		r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
		r.advanceAndApplyDueChanges(time.Second)
	}
	checkEqual(r, "bytes", r.store.Counts().OutputBytes, int64(20))
	for more := true; more; {
		var err error
		more, err = r.store.TrimOutputs(r.Context(), 10)
		r.must(err)
	}
	checkEqual(r, "remaining bytes", r.store.Counts().OutputBytes, int64(10))
	for seq, want := range map[int64]string{1: "", 2: `"678"`} {
		a, err := r.store.Attempt(r.Context(), seq, 1)
		r.must(err)
		checkEqual(r, "result", string(a.Result), want)
	}
}
