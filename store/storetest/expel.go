package storetest

import (
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var expelling = []promise{
	{name: "what ended first is expelled first", keep: expelsOldest},
	{name: "nothing is expelled that has not ended", keep: expelsEnded},
	{name: "the oldest outputs go when all take too much room", keep: outputsTrimmed},
	{name: "events are trimmed by age and number", keep: eventsTrimmed},
}

func expelsOldest(r *rig) {
	var jobs []queue.Job
	for i, end := range []queue.Outcome{exit(0), ended(queue.Killed), exit(0), exit(0)} {
		j := r.run(end)
		jobs = append(jobs, j)
		r.advance(time.Duration(i+1) * time.Second)
	}
	both := []queue.State{queue.Completed, queue.Cancelled}
	before := r.get(jobs[3].ID).EndedAt
	count := func(states []queue.State, before queue.Millis) int64 {
		n, err := r.s.CountEnded(r.Context(), states, before)
		r.must(err)
		return n
	}
	same(r, "counts", []int64{count(both, before), count(both[:1], before), count(both, before+1), count(nil, before)}, []int64{3, 2, 4, 0})
	expel := func(states []queue.State, before queue.Millis, limit int) int {
		n, err := r.s.Purge(r.Context(), states, before, limit, new(7))
		r.must(err)
		r.counted()
		return n
	}
	r.news()
	same(r, "expelled", expel(both, before, 2), 2)
	gone := []queue.Job{jobs[0], jobs[1]}
	for i := range gone {
		gone[i].State = 0
	}
	same(r, "events", r.news(), []queue.Event{r.event(queue.EventRemoved, gone[0], queue.EventDetail{UID: new(7)}), r.event(queue.EventRemoved, gone[1], queue.EventDetail{UID: new(7)})})
	same(r, "expelled of one state", expel(both[1:], before, 9), 0)
	same(r, "expelled of the rest", expel(both, before, 9), 1)
	same(r, "left", seqs(r.all(store.Filter{})), []int64{jobs[3].Seq})
	_, err := r.s.History(r.Context(), jobs[2].Seq, 0, store.MaxPage)
	r.refusedCode("history of an expelled job", err, queue.CodeNotFound)
}

func expelsEnded(r *rig) {
	for _, s := range []queue.State{queue.Failed, queue.Held, queue.Dead, queue.Pending} {
		r.jobIn(s)
	}
	r.pass(time.Hour)
	all := append(queue.States(), queue.Completed)
	r.unchanged(func() {
		n, err := r.s.Purge(r.Context(), []queue.State{queue.Failed, queue.Held, queue.Pending, queue.Processing}, r.s.Now()+1, 9, nil)
		r.must(err)
		same(r, "expelled", n, 0)
	})
	n, err := r.s.Purge(r.Context(), all, r.s.Now()+1, 9, nil)
	r.must(err)
	same(r, "expelled of all states", n, 1)
	same(r, "left", len(r.all(store.Filter{})), 3)
}

func eventsTrimmed(r *rig) {
	for range 5 {
		r.one()
		r.advance(time.Second)
	}
	trim := func(before queue.Millis, keep int64) []int64 {
		more, err := r.s.TrimEvents(r.Context(), before, keep)
		r.must(err)
		same(r, "more", more, false)
		events, err := r.s.Events(r.Context(), 0, 100)
		r.must(err)
		var left []int64
		for _, e := range events {
			left = append(left, e.Seq)
		}
		return left
	}
	now, second := r.s.Now(), r.news()[1].At
	same(r, "nothing is old", trim(now.Add(-time.Hour), 100), []int64{1, 2, 3, 4, 5})
	same(r, "by age", trim(second, 100), []int64{2, 3, 4, 5})
	same(r, "by number", trim(now.Add(-time.Hour), 2), []int64{4, 5})
	last, _ := r.s.LastEvent()
	same(r, "the newest", last, 5)
	same(r, "all", trim(now.Add(time.Hour), 100), []int64(nil))
	r.one()
	same(r, "numbers go on", trim(0, 100), []int64{6})
}

func outputsTrimmed(r *rig) {
	const many = 120 // more than one step
	var jobs []queue.Job
	for i := range many {
		j := r.one()
		e := r.settlement(r.claimOne(), exit(0))
		e.Attempt.Output = make([]byte, 10)
		if i == 0 {
			e.Attempt.Output, e.Attempt.OutputRef, e.Attempt.OutputBytes = nil, "1-1", 1000
		}
		r.turn(store.Report{Ended: []store.Settlement{e}})
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
	same(r, "room that they take", r.s.Counts().Outputs, 1000+10*(many-1))
	trim(1000 + 10*(many-1))
	same(r, "what fits", r.s.Counts().Outputs, 1000+10*(many-1))
	trim(45)
	same(r, "after trimming", r.s.Counts().Outputs, 40)
	var left []int
	for i, j := range jobs {
		a, err := r.s.Attempt(r.Context(), j.Seq, 1)
		r.must(err)
		if a.OutputBytes > 0 {
			left = append(left, i)
		} else {
			same(r, "a forgotten output", []any{a.OutputBytes, len(a.Output), a.OutputRef}, []any{int64(queue.OutputForgotten), 0, ""})
		}
	}
	same(r, "those that are left", left, []int{many - 4, many - 3, many - 2, many - 1})
	refs, err := r.s.DeletableOutputs(r.Context(), 9)
	r.must(err)
	same(r, "garbage", refs, []string{"1-1"})
	r.must(r.s.Change(r.Context(), jobs[many-1].Seq, store.Change{Verb: queue.VerbRemove}))
	same(r, "after a removal", r.s.Counts().Outputs, 30)
}
