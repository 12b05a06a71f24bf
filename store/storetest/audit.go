package storetest

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Each action of a user on a job or on the queue is recorded as an audit event. If a user ended an attempt, the
// event that records its end contains the user's uid.
func userActionsAreAudited(r *rig) {
	j := r.enqueueOne()
	r.newEvents()
	r.must(r.s.Audit(r.Context(), store.Audit{UID: 7, PID: 70, Verb: "kill", JobSeq: j.Seq, JobID: j.ID,
		Target: "SIGHUP"}))
	r.must(r.s.Audit(r.Context(), store.Audit{UID: 0, Verb: "backup"}))
	checkEqual(r, "events", r.newEvents(), []queue.Event{
		{Time: r.s.Now(), Kind: queue.EventAudit, JobSeq: j.Seq, JobID: j.ID,
			Detail: queue.EventDetail{UID: new(7), ClientPID: 70, Verb: "kill", Target: "SIGHUP"}},
		{Time: r.s.Now(), Kind: queue.EventAudit, Detail: queue.EventDetail{UID: new(0), Verb: "backup"}},
	})
	j = r.startJob(r.claimOne())
	e := r.settlement(j, outcomeOfCause(queue.EndKilled))
	e.EndedBy, e.Verb = new(9), "cancel"
	j = r.afterSettle(j, e)
	r.newEvents()
	r.exchange(store.Report{Settlements: []store.Settlement{e}})
	want := r.endEvent(j, e.Attempt)
	want.Detail.UID, want.Detail.Verb = e.EndedBy, e.Verb
	checkEqual(r, "event of an end that a user requested", r.newEvents(), []queue.Event{want})
	checkEqual(r, "job", r.getJob(j.ID), j)
}
