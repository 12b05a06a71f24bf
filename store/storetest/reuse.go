package storetest

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// identityReuseTests lists what a store must do when a schedule's name or a uid now belongs to another user than
// before.
var identityReuseTests = []contractTest{
	{name: "a schedule does not affect jobs of another user's schedule that had its name",
		run: reusedScheduleNameAffectsNoOldJobs},
	{name: "a schedule does not affect leased jobs of the former owner of its user's uid",
		run: reusedUIDKeepsLeasedJobsOfSchedule},
	{name: "waiting hooks of a former owner do not count for the next owner of the uid", run: reusedUIDInheritsNoHookJobs},
}

// replaceSchedule removes the schedule "n" and adds a schedule with the same name that belongs to the user newOwnerUID.
func (r *storeTest) replaceSchedule(newOwnerUID int, overlap store.OverlapPolicy) {
	r.Helper()
	old, _ := r.getSchedule("n")
	r.must(r.store.RemoveSchedule(r.Context(), "n", old.Generation, old.OwnerUID))
	r.putSchedule("n", withOverlap(overlap), func(s *store.Schedule) { s.OwnerUID = newOwnerUID })
}

// A user removes a schedule, and another user creates a schedule with the same name. The new schedule neither cancels
// the jobs of the removed schedule nor waits for them.
func reusedScheduleNameAffectsNoOldJobs(r *storeTest) {
	r.putSchedule("n", func(s *store.Schedule) { s.OwnerUID = 1 })
	first := r.runNextOccurrence("n").Records[0]
	r.replaceSchedule(2, store.OverlapReplace)
	second := r.runNextOccurrence("n").Records[0]
	checkEqual(r, "outcome", second.Outcome, store.OccurrenceEnqueued)
	checkEqual(r, "state of the other user's waiting job", r.getJob(first.JobID).State, queue.Pending)
	claimed := r.claimJobs(2)
	checkEqual(r, "claimed jobs", len(claimed), 2)
	r.replaceSchedule(3, store.OverlapReplace)
	fired := r.runNextOccurrence("n")
	checkEqual(r, "leased jobs to be ended", fired.JobSeqsToCancel, nil)
	checkEqual(r, "outcome", fired.Records[0].Outcome, store.OccurrenceEnqueued)
	for i, overlap := range []store.OverlapPolicy{store.OverlapSkip, store.OverlapQueue} {
		r.replaceSchedule(4+i, overlap)
		run := r.runNextOccurrence("n").Records[0]
		checkEqual(r, "outcome with overlap "+string(overlap), run.Outcome, store.OccurrenceEnqueued)
		checkEqual(r, "state with overlap "+string(overlap), r.getJob(run.JobID).State, queue.Pending)
	}
	r.replaceSchedule(1, store.OverlapReplace)
	checkEqual(r, "leased jobs of the owner's earlier schedule", r.runNextOccurrence("n").JobSeqsToCancel,
		[]int64{first.JobSeq})
	r.checkJobCounts()
}

// While a job of the former owner of a uid is leased, DisownJobs leaves the job's uid unchanged. A schedule of the next
// owner of that uid does not end the job.
func reusedUIDKeepsLeasedJobsOfSchedule(r *storeTest) {
	r.enqueueAs(7, "alice", withPriority(1))
	r.putSchedule("n", func(s *store.Schedule) { s.OwnerUID = 7 })
	first := r.runNextOccurrence("n").Records[0]
	claimed := r.claimJobs(2)
	r.disownJobsUntilDone(7)
	r.replaceSchedule(7, store.OverlapReplace)
	fired := r.runNextOccurrence("n")
	checkEqual(r, "leased jobs to be ended", fired.JobSeqsToCancel, nil)
	checkEqual(r, "number of records", len(fired.Records), 1)
	for _, j := range claimed {
		r.settleJob(j, exitOutcome(0))
	}
	checkEqual(r, "uid of the former owner's job", r.getJob(first.JobID).UID, -1)
	r.checkJobCounts()
}

// Waiting hook jobs of the former owner of a uid do not count toward the limit of the next owner. This holds whichever
// account runs the hook jobs, and even if a hook job is leased during DisownJobs.
func reusedUIDInheritsNoHookJobs(r *storeTest) {
	r.installHooks(0)
	hooks := func(n, uid int) (drafts []queue.Job) {
		for range n {
			drafts = append(drafts, newDraft(withUID(uid), withHooks(queue.HookJobFlag),
				func(j *queue.Job) { j.Queue, j.HookUID = queue.HookQueue, 7 }))
		}
		return drafts
	}
	r.enqueueAs(7, "alice", withDelay(time.Hour))
	own := r.enqueueJobs(7, hooks(queue.MaxWaitingHookJobs/2, 7)...)
	others := r.enqueueJobs(8, hooks(queue.MaxWaitingHookJobs/2, 8)...)
	leased := r.claimJobs(4)
	checkEqual(r, "users of the leased hooks", []int{leased[0].UID, leased[1].UID, len(leased)}, []int{7, 8, 4})
	hookEvents := func(when, name string, want queue.EventKind) {
		r.Helper()
		j := r.enqueueAs(7, name, withHooks(queue.HookEnded))
		r.readNewEvents()
		r.must(r.applyVerb(j, queue.VerbCancel))
		events := r.readNewEvents()
		checkEqual(r, "event after the cancellation, "+when, events[len(events)-1].Kind, want)
	}
	hookEvents("before the change of owner", "alice", queue.EventHookDropped)
	r.disownJobsUntilDone(7)
	hookEvents("by the next owner", "bob", queue.EventEnqueued)
	r.sendLeaseReport(store.LeaseReport{ReleasedLeases: leasesOf(leased)})
	hookEvents("after the leased hooks were given back", "bob", queue.EventEnqueued)
	for _, list := range [][]string{own.IDs, others.IDs} {
		for _, id := range []string{list[0], list[len(list)-1]} {
			checkEqual(r, "HookUID of "+id, r.getJob(id).HookUID, -1)
		}
	}
	r.checkJobCounts()
}
