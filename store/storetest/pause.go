package storetest

import (
	"errors"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var pausePromises = []promise{
	{name: "a running job can be paused and resumed, and the events name the user", check: runningJobPausesAndResumes},
	{name: "only a job that is known to run can be paused", check: pauseNeedsRunningJob},
	{name: "a pause ends with the attempt", check: pauseEndsWithAttempt},
	{name: "a change of a setting can be recorded as another kind of event", check: settingRecordsGivenKind},
}

// pause pauses or resumes a leased job on behalf of a user.
func (r *rig) pause(l queue.Lease, pause bool, uid int) error {
	return r.s.Pause(r.Context(), store.Pause{Lease: l, Paused: pause, UID: uid})
}

// A running job can be paused and resumed, and the events name the user.
func runningJobPausesAndResumes(r *rig) {
	r.enqueueOne()
	j := r.startJob(r.claimOne())
	r.newEvents()
	r.checkUnchanged(func() { r.must(r.pause(j.Lease(), false, testUID)) })
	r.advance(time.Second)
	r.must(r.pause(j.Lease(), true, 7))
	j.PausedAt, j.PausedBy, j.UpdatedAt = r.s.Now(), 7, r.s.Now()
	checkEqual(r, "paused job", r.getJob(j.ID), j)
	checkEqual(r, "events", r.newEvents(), []queue.Event{r.event(queue.EventPaused, j, queue.EventDetail{UID: new(7)})})
	r.advance(time.Second)
	r.checkUnchanged(func() { r.must(r.pause(j.Lease(), true, 8)) }) // pausing a paused job changes nothing
	r.checkCounts()
	leased, err := r.leasedJobs()
	r.must(err)
	checkEqual(r, "jobs leased by an earlier service", leased, []queue.Job{j})
	r.must(r.pause(j.Lease(), false, 8))
	j.PausedAt, j.PausedBy, j.UpdatedAt = 0, 0, r.s.Now()
	checkEqual(r, "resumed job", r.getJob(j.ID), j)
	checkEqual(r, "events", r.newEvents(), []queue.Event{r.event(queue.EventResumed, j, queue.EventDetail{UID: new(8)})})
	r.checkCounts()
}

// Only a job that was reported as started can be paused.
func pauseNeedsRunningJob(r *rig) {
	waits := r.enqueueAndGet(draft(), draft())[1]
	j := r.claimOne()
	r.checkUnchanged(func() {
		for _, on := range []bool{true, false} {
			r.wantErrLeased("pause before the start", r.pause(j.Lease(), on, testUID))
			for what, l := range map[string]queue.Lease{"a waiting job": waits.Lease(),
				"another fence": {Seq: j.Seq, Fence: j.Fence + 1}, "no job": {Seq: 99, Fence: 1}} {
				if err := r.pause(l, on, testUID); !errors.Is(err, store.ErrStateChanged) {
					r.Errorf("%s: got error %v, want %v", what, err, store.ErrStateChanged)
				}
			}
		}
	})
}

// When an attempt ends, its pause ends too.
func pauseEndsWithAttempt(r *rig) {
	for _, o := range []queue.Outcome{exitOutcome(0), exitOutcome(1), outcomeOfCause(queue.EndKilled),
		outcomeOfCause(queue.EndStopped), {EndCause: queue.EndStopped, WasPaused: true},
		outcomeOfCause(queue.EndRunnerLost)} {
		r.enqueueOne()
		j := r.startJob(r.claimOne())
		r.must(r.pause(j.Lease(), true, testUID))
		e := r.settlement(j, o)
		checkEqual(r, "result", r.exchange(store.Report{Settlements: []store.Settlement{e}}), store.Grant{})
		if got := r.getJob(j.ID); got.PausedAt != 0 || got.PausedBy != 0 || got.State != e.Decision.State {
			r.Errorf("after %+v, the job is %s, paused at %v by %d", o, got.State, got.PausedAt, got.PausedBy)
		}
		if err := r.pause(j.Lease(), true, testUID); !errors.Is(err, store.ErrStateChanged) {
			r.Errorf("after %+v: got error %v, want %v", o, err, store.ErrStateChanged)
		}
		r.must(r.change(r.getJob(j.ID), queue.VerbRemove))
	}
}

// SetSetting records an event of the kind that the caller chooses.
func settingRecordsGivenKind(r *rig) {
	set := func(value string, uid int, kind queue.EventKind) {
		r.must(r.s.SetSetting(r.Context(), store.Setting{Key: "pause", Value: value, UID: uid, Kind: kind}))
		checkEqual(r, "events", r.newEvents(), []queue.Event{{Time: r.s.Now(), Kind: kind,
			Detail: queue.EventDetail{UID: &uid, Setting: "pause", Value: value}}})
	}
	set("on", 7, queue.EventPaused)
	list, err := r.s.Settings(r.Context())
	r.must(err)
	checkEqual(r, "settings", list, []store.Setting{{Key: "pause", Value: "on", UID: 7, SetAt: r.s.Now()}})
	set("", 8, queue.EventResumed)
}
