package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var asking = []promise{
	{name: "a waiting job is cancelled at once", keep: cancelWaiting},
	{name: "cancel refuses what runs and what has ended", keep: cancelRefuses},
	{name: "retry makes an ended or failed job pending anew", keep: retryEnded},
	{name: "a retried job goes to the end of its priority", keep: retryGoesBack},
	{name: "retry refuses what it cannot revive", keep: retryRefuses},
	{name: "retry replaces the timeout if asked", keep: retryTimeout},
	{name: "retry drops what made the job expire", keep: retryNeverExpires},
	{name: "a removed job is gone with its history", keep: removeForgets},
	{name: "remove refuses what a worker holds", keep: removeRefuses},
	{name: "what names no job is not found", keep: notFound},
}

// jobIn brings a new job into state s. The queue must have no other ready job.
func (r *rig) jobIn(s queue.State) queue.Job {
	r.Helper()
	switch s {
	case queue.Pending:
		return r.one()
	case queue.Held:
		return r.run(ended(queue.Lost), onLost(queue.OnLostHold))
	case queue.Failed:
		return r.run(exit(3))
	case queue.Processing:
		r.one()
		return r.start(r.claimOne())
	case queue.Completed:
		return r.run(exit(0))
	case queue.Dead:
		return r.run(exit(3), maxAttempts(1))
	case queue.Cancelled:
		return r.run(ended(queue.Killed))
	}
	panic("storetest: no way into state " + s.String())
}

// wrongState checks that err refuses what was asked of j and says why.
func (r *rig) wrongState(what string, err error, j queue.Job) {
	r.Helper()
	e := r.refused(what, err, queue.CodeWrongState, "")
	if !strings.Contains(e.Message, j.ID) || !strings.Contains(e.Message, j.State.String()) {
		r.Errorf("%s: got message %q, want it to name job %s and state %s", what, e.Message, j.ID, j.State)
	}
}

func cancelWaiting(r *rig) {
	for _, s := range []queue.State{queue.Held, queue.Failed, queue.Pending} {
		j := r.jobIn(s)
		r.advance(time.Second)
		r.news()
		r.must(r.s.Cancel(r.Context(), j.Seq, 7))
		want := j
		want.State, want.EndedAt, want.UpdatedAt = queue.Cancelled, r.s.Now(), r.s.Now()
		got := r.get(j.ID)
		got.Reason, want.Reason = "", "" // the contract does not say what becomes of an older one
		same(r, s.String()+" job after cancel", got, want)
		same(r, "events", r.news(), []queue.Event{r.event(queue.EventCancelled, want, queue.EventDetail{UID: new(7)})})
		r.counted()
		r.unchanged(func() { r.must(r.s.Cancel(r.Context(), j.Seq, 8)) })
	}
	r.advance(time.Hour)
	r.promote()
	same(r, "jobs claimed after all were cancelled", r.claim(10), nil)
}

func cancelRefuses(r *rig) {
	for _, s := range []queue.State{queue.Completed, queue.Dead} {
		j := r.jobIn(s)
		r.unchanged(func() {
			r.wrongState("cancel", r.s.Cancel(r.Context(), j.Seq, asker), j)
		})
	}
	r.one()
	j := r.claimOne()
	r.unchanged(func() { r.leased("reserved", r.s.Cancel(r.Context(), j.Seq, asker)) })
	r.start(j)
	r.unchanged(func() { r.leased("processing", r.s.Cancel(r.Context(), j.Seq, asker)) })
}

func retryEnded(r *rig) {
	for _, s := range []queue.State{queue.Failed, queue.Completed, queue.Dead, queue.Cancelled} {
		j := r.jobIn(s)
		history, err := r.s.History(r.Context(), j.Seq)
		r.must(err)
		r.advance(time.Second)
		r.news()
		r.must(r.s.Retry(r.Context(), store.Revival{Seq: j.Seq, UID: 7, DeadOnly: s == queue.Dead}))
		now := r.s.Now()
		want := j
		want.State, want.Reason, want.Error, want.ExitCode, want.Signal, want.Attempts = queue.Pending, "", "", -1, 0, 0
		want.DueAt, want.Since, want.UpdatedAt, want.EndedAt, want.Arrival = now, now, now, 0, r.s.Counts().Enqueued
		got := r.get(j.ID)
		same(r, s.String()+" job after retry", got, want)
		same(r, "events", r.news(), []queue.Event{r.event(queue.EventRetried, want, queue.EventDetail{UID: new(7)})})
		kept, err := r.s.History(r.Context(), j.Seq)
		r.must(err)
		same(r, "history after retry", kept, history)
		r.counted()
		r.unchanged(func() { r.must(r.s.Retry(r.Context(), store.Revival{Seq: j.Seq, UID: 7})) })

		claimed := r.claimOne()
		want.Fence++
		same(r, "claimed again", claimed, want)
		after := r.end(claimed, exit(0))
		same(r, "runs and attempts of the revived job", []int{after.Runs, after.Attempts}, []int{j.Runs + 1, 1})
	}
}

func retryGoesBack(r *rig) {
	old := r.run(exit(3), maxAttempts(1))
	first := r.one()
	r.advance(time.Second)
	second := r.one()
	r.advance(time.Second)
	r.must(r.s.Retry(r.Context(), store.Revival{Seq: old.Seq, UID: asker}))
	r.advance(time.Second)
	last := r.one()
	same(r, "order of claims", seqs(r.claim(10)), []int64{first.Seq, second.Seq, old.Seq, last.Seq})
}

func retryRefuses(r *rig) {
	for _, c := range []struct {
		state    queue.State
		deadOnly bool
	}{
		{queue.Held, false}, {queue.Held, true}, {queue.Failed, true}, {queue.Completed, true}, {queue.Cancelled, true}, {queue.Pending, true},
	} {
		j := r.jobIn(c.state)
		r.unchanged(func() {
			r.wrongState("retry", r.s.Retry(r.Context(), store.Revival{Seq: j.Seq, UID: asker, DeadOnly: c.deadOnly}), j)
		})
	}
	j := r.claimOne()
	r.unchanged(func() { r.leased("reserved", r.s.Retry(r.Context(), store.Revival{Seq: j.Seq, UID: asker})) })
	r.start(j)
	r.unchanged(func() { r.leased("processing", r.s.Retry(r.Context(), store.Revival{Seq: j.Seq, UID: asker})) })
}

func retryTimeout(r *rig) {
	j := r.jobIn(queue.Dead)
	for _, timeout := range []time.Duration{time.Minute, 0} {
		r.must(r.s.Retry(r.Context(), store.Revival{Seq: j.Seq, UID: asker, Timeout: &timeout}))
		same(r, "timeout", r.get(j.ID).Timeout, timeout)
		claimed := r.claimOne()
		same(r, "timeout as claimed", claimed.Timeout, timeout)
		r.end(claimed, exit(0))
	}
}

func retryNeverExpires(r *rig) {
	j := r.one(expires(r.s.Now() + 1000))
	r.pass(time.Second)
	same(r, "state when expired", r.get(j.ID).State, queue.Cancelled)
	r.must(r.s.Retry(r.Context(), store.Revival{Seq: j.Seq, UID: asker}))
	r.pass(time.Hour)
	got := r.get(j.ID)
	same(r, "state and expiry of the revived job", []any{got.State, got.ExpiresAt, got.Reason}, []any{queue.Pending, queue.Millis(0), queue.Reason("")})
	same(r, "claimed", seqs(r.claim(1)), []int64{j.Seq})
}

func removeForgets(r *rig) {
	for _, s := range []queue.State{queue.Held, queue.Failed, queue.Completed, queue.Dead, queue.Cancelled, queue.Pending} {
		j := r.jobIn(s)
		r.news()
		enqueued := r.s.Counts().Enqueued
		r.must(r.s.Remove(r.Context(), j.Seq, 7))
		gone := j
		gone.State = 0 // which belongs to no stored job
		same(r, "events", r.news(), []queue.Event{r.event(queue.EventRemoved, gone, queue.EventDetail{UID: new(7)})})
		same(r, "jobs ever enqueued", r.s.Counts().Enqueued, enqueued)
		_, err := r.s.Get(r.Context(), j.ID)
		r.refusedCode("get of a removed job", err, queue.CodeNotFound)
		_, err = r.s.History(r.Context(), j.Seq)
		r.refusedCode("history of a removed job", err, queue.CodeNotFound)
		_, err = r.s.Attempt(r.Context(), j.Seq, 0)
		r.refusedCode("attempt of a removed job", err, queue.CodeNotFound)
		r.refusedCode("second remove", r.s.Remove(r.Context(), j.Seq, 7), queue.CodeNotFound)
		r.counted()
	}
	same(r, "list", r.all(store.Filter{}), nil)
	r.pass(time.Hour)
	same(r, "claims", r.claim(10), nil)
}

func removeRefuses(r *rig) {
	r.one()
	j := r.claimOne()
	r.unchanged(func() { r.leased("reserved", r.s.Remove(r.Context(), j.Seq, asker)) })
	r.start(j)
	r.unchanged(func() { r.leased("processing", r.s.Remove(r.Context(), j.Seq, asker)) })
	r.end(j, exit(1))
	r.must(r.s.Remove(r.Context(), j.Seq, asker))
}

func notFound(r *rig) {
	j := r.one()
	r.unchanged(func() {
		for _, seq := range []int64{j.Seq + 1, 0, -1, 1 << 62} {
			_, history := r.s.History(r.Context(), seq)
			_, attempt := r.s.Attempt(r.Context(), seq, 0)
			for what, err := range map[string]error{
				"cancel":  r.s.Cancel(r.Context(), seq, asker),
				"retry":   r.s.Retry(r.Context(), store.Revival{Seq: seq, UID: asker}),
				"remove":  r.s.Remove(r.Context(), seq, asker),
				"history": history,
				"attempt": attempt,
			} {
				r.refusedCode(fmt.Sprintf("%s of seq %d", what, seq), err, queue.CodeNotFound)
			}
		}
		for _, id := range slices.Concat([]string{"", "x", "0", "-1", "01", "99999999999999999999"}, []string{" " + j.ID, "0" + j.ID, "+" + j.ID}) {
			_, err := r.s.Get(r.Context(), id)
			r.refusedCode(fmt.Sprintf("get of %q", id), err, queue.CodeNotFound)
		}
		for _, n := range []int{0, 1, -1} {
			_, err := r.s.Attempt(r.Context(), j.Seq, n)
			r.refusedCode(fmt.Sprintf("attempt %d of a job that never ran", n), err, queue.CodeNotFound)
		}
	})
}
