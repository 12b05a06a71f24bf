package storetest

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Each action of a user on a job or on the queue is recorded as an audit event. If a user ended an attempt, the
// event that records its end contains the user's uid.
func userActionsAreAudited(r *storeTest) {
	j := r.enqueueOne()
	r.readNewEvents()
	r.must(r.store.RecordAudit(r.Context(), store.AuditRecord{UID: 7, UserName: "ann", PID: 70, Verb: "kill",
		JobSeq: j.Seq, JobID: j.ID, Target: "SIGHUP"}))
	r.must(r.store.RecordAudit(r.Context(), store.AuditRecord{UID: 0, Verb: "backup"}))
	checkEqual(r, "events", r.readNewEvents(), []queue.Event{
		{Time: r.store.Now(), Kind: queue.EventAudit, JobSeq: j.Seq, JobID: j.ID,
			Detail: queue.EventDetail{CausedByUID: new(7), CausedByUser: "ann", ClientPID: 70, Verb: "kill",
				ActionTarget: "SIGHUP"}},
		{Time: r.store.Now(), Kind: queue.EventAudit, Detail: queue.EventDetail{CausedByUID: new(0), Verb: "backup"}},
	})
	j = r.startJob(r.claimOne())
	e := r.newSettlement(j, outcomeOfCause(queue.EndCancelled))
	e.EndedByUID, e.EndedByVerb = new(9), "cancel"
	j = r.expectedJobAfterSettle(j, e)
	r.readNewEvents()
	r.sendLeaseReport(store.LeaseReport{Settlements: []store.Settlement{e}})
	want := r.expectedEndEvent(j, e.Attempt)
	want.Detail.CausedByUID, want.Detail.Verb = e.EndedByUID, e.EndedByVerb
	checkEqual(r, "event of an end that a user requested", r.readNewEvents(), []queue.Event{want})
	checkEqual(r, "job", r.getJob(j.ID), j)
}
