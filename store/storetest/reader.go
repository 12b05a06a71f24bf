package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var reading = []promise{
	{name: "news come with the next event, to all who listen", keep: newsComes},
	{name: "a list is newest first, page by page", keep: listPages},
	{name: "a page holds up to MaxPage jobs", keep: listLargest},
	{name: "a list holds what its filter selects", keep: listFilters},
	{name: "counts follow every move", keep: countsFollow},
	{name: "the oldest is when the longest wait began", keep: oldestWaits},
	{name: "events are gapless and stay", keep: eventsGapless},
	{name: "a watch hints at every change", keep: watchHints},
	{name: "watches do not disturb each other", keep: watchesApart},
}

func (r *rig) page(f store.Filter) store.Page {
	r.Helper()
	page, err := r.s.List(r.Context(), f)
	r.must(err)
	return page
}

func listPages(r *rig) {
	same(r, "page of an empty store", r.page(store.Filter{Limit: 1}), store.Page{})
	drafts := make([]queue.Job, 7)
	for i := range drafts {
		drafts[i] = draft(priority(int64(i % 3)))
	}
	want := r.store(drafts...)
	slices.Reverse(want)
	for limit := 1; limit <= 8; limit++ {
		same(r, fmt.Sprintf("pages of %d", limit), r.all(store.Filter{Limit: limit}), want)
	}
	first := r.page(store.Filter{Limit: 3})
	same(r, "first page", first.Jobs, want[:3])
	r.one() // comes before the next page, so it does not move it
	second := r.page(store.Filter{Limit: 3, Before: first.Next})
	same(r, "second page", second.Jobs, want[3:6])
	same(r, "last page", r.page(store.Filter{Limit: 3, Before: second.Next}), store.Page{Jobs: want[6:]})
	same(r, "whole pages to the end", r.page(store.Filter{Limit: 7, Before: want[0].Seq + 1}), store.Page{Jobs: want})
	same(r, "before the first", r.page(store.Filter{Limit: 3, Before: want[6].Seq}), store.Page{})
}

func listLargest(r *rig) {
	drafts := make([]queue.Job, store.MaxPage+1)
	for i := range drafts {
		drafts[i] = draft()
	}
	want := r.store(drafts...)
	slices.Reverse(want)
	page := r.page(store.Filter{Limit: store.MaxPage})
	same(r, "seqs of the largest page", seqs(page.Jobs), seqs(want[:store.MaxPage]))
	same(r, "the rest", r.page(store.Filter{Limit: store.MaxPage, Before: page.Next}), store.Page{Jobs: want[store.MaxPage:]})
}

func listFilters(r *rig) {
	begin := r.s.Now()
	done := r.run(exit(0), labels(map[string]string{"app": "x", "tier": "1"}))
	r.advance(time.Second)
	dead := r.run(exit(1), maxAttempts(1), labels(map[string]string{"app": "x", "tier": "2"}))
	other := r.one(func(j *queue.Job) { j.UID = 7 })
	r.advance(time.Second)
	quoted := r.one(labels(map[string]string{`a"b.c'd$`: `x%_"'`, "app": "y"}))
	empty := r.one(labels(map[string]string{"app": ""}))
	for _, c := range []struct {
		name   string
		filter store.Filter
		want   []queue.Job
	}{
		{"nothing", store.Filter{}, []queue.Job{empty, quoted, other, dead, done}},
		{"a state", store.Filter{States: []queue.State{queue.Dead}}, []queue.Job{dead}},
		{"states", store.Filter{States: []queue.State{queue.Completed, queue.Pending}}, []queue.Job{empty, quoted, other, done}},
		{"a state of no job", store.Filter{States: []queue.State{queue.Blocked}}, nil},
		{"a label", store.Filter{Labels: map[string]string{"app": "x"}}, []queue.Job{dead, done}},
		{"labels", store.Filter{Labels: map[string]string{"app": "x", "tier": "1"}}, []queue.Job{done}},
		{"labels of different jobs", store.Filter{Labels: map[string]string{"app": "y", "tier": "1"}}, nil},
		{"a strange label", store.Filter{Labels: map[string]string{`a"b.c'd$`: `x%_"'`}}, []queue.Job{quoted}},
		{"an empty label", store.Filter{Labels: map[string]string{"app": ""}}, []queue.Job{empty}},
		{"a label that no job has", store.Filter{Labels: map[string]string{"zone": ""}}, nil},
		{"a uid", store.Filter{UID: new(7)}, []queue.Job{other}},
		{"root's uid", store.Filter{UID: new(0)}, nil},
		{"an instant", store.Filter{Since: begin + 1000}, []queue.Job{empty, quoted, other, dead}},
		{"just after an instant", store.Filter{Since: begin + 1001}, []queue.Job{empty, quoted}},
		{"before a seq", store.Filter{Before: other.Seq}, []queue.Job{dead, done}},
		{"all at once", store.Filter{States: []queue.State{queue.Dead, queue.Pending}, Labels: map[string]string{"app": "x"}, UID: new(asker), Since: begin + 1, Before: empty.Seq}, []queue.Job{dead}},
	} {
		same(r, "filtered by "+c.name, r.all(c.filter), c.want)
		c.filter.Limit = 1
		same(r, "filtered one by one by "+c.name, r.all(c.filter), c.want)
	}
}

func countsFollow(r *rig) {
	states := func(what string, want map[queue.State]int64) {
		r.Helper()
		var all [queue.Cancelled + 1]int64
		for s, n := range want {
			all[s] = n
		}
		same(r, "counts after "+what, r.s.Counts().States, all)
		r.counted()
	}
	states("nothing", nil)
	r.store(draft(), draft(), draft(delay(time.Hour)))
	states("three enqueues", map[queue.State]int64{queue.Pending: 3})
	jobs := r.claim(2)
	states("two claims", map[queue.State]int64{queue.Pending: 3})
	r.start(jobs[0])
	states("a start", map[queue.State]int64{queue.Pending: 2, queue.Processing: 1})
	r.end(jobs[0], exit(1))
	states("a failure", map[queue.State]int64{queue.Pending: 2, queue.Failed: 1})
	r.end(jobs[1], exit(0))
	states("a success", map[queue.State]int64{queue.Pending: 1, queue.Failed: 1, queue.Completed: 1})
	r.must(r.s.Change(r.Context(), jobs[1].Seq, store.Change{Verb: queue.VerbRetry, UID: asker}))
	states("a revival", map[queue.State]int64{queue.Pending: 2, queue.Failed: 1})
	r.must(r.s.Change(r.Context(), jobs[0].Seq, store.Change{Verb: queue.VerbCancel, UID: asker}))
	states("a cancel", map[queue.State]int64{queue.Pending: 2, queue.Cancelled: 1})
	r.must(r.s.Change(r.Context(), jobs[0].Seq, store.Change{Verb: queue.VerbRemove, UID: asker}))
	states("a removal", map[queue.State]int64{queue.Pending: 2})
	same(r, "jobs ever enqueued", r.s.Counts().Enqueued, 3)
}

func oldestWaits(r *rig) {
	oldest := func(what string, want queue.Millis) {
		r.Helper()
		got, err := r.s.Oldest(r.Context())
		r.must(err)
		same(r, "oldest "+what, got, want)
	}
	oldest("of nothing", 0)
	begin := r.s.Now()
	first := r.one(delay(time.Minute))
	oldest("while the only job sleeps", 0)
	r.pass(time.Second)
	r.one(priority(9))
	oldest("beside a sleeper", begin+1000)
	r.pass(time.Minute)
	oldest("of a waiter and a former sleeper", begin+1000)
	r.end(r.start(r.claimOne()), exit(0))
	oldest("when only the former sleeper waits", first.RunAt)
	r.start(r.claimOne())
	oldest("when all run", 0)
}

func eventsGapless(r *rig) {
	r.store(draft(), draft(), draft())
	for _, j := range r.claim(3) {
		r.end(r.start(j), exit(0))
		r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: asker}))
	}
	same(r, "events in all", len(r.news()), 3+3+3+3)
	all, err := r.s.Events(r.Context(), 0, 100)
	r.must(err)
	for _, c := range []struct {
		after       int64
		limit       int
		first, last int
	}{{0, 100, 0, 12}, {0, 5, 0, 5}, {5, 5, 5, 10}, {11, 5, 11, 12}, {12, 5, 12, 12}, {1000, 5, 12, 12}, {0, 1, 0, 1}, {-5, 2, 0, 2}} {
		got, err := r.s.Events(r.Context(), c.after, c.limit)
		r.must(err)
		same(r, fmt.Sprintf("up to %d events after %d", c.limit, c.after), got, all[c.first:c.last])
	}
}

func watchHints(r *rig) {
	j := r.one(expires(r.s.Now() + 60_000))
	changed, stop := r.s.Watch(j.Seq)
	defer stop()
	hinted := func(what string) {
		r.Helper()
		within(r, "hint of "+what, changed)
		// Drain a second hint of the same change, so that the next is its own.
		select {
		case <-changed:
		default:
		}
	}
	claimed := r.claimOne()
	r.start(claimed)
	hinted("a start")
	r.end(claimed, exit(1))
	hinted("an end")
	r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbCancel, UID: asker}))
	hinted("a cancel")
	r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRetry, UID: asker}))
	hinted("a retry")
	r.end(r.claimOne(), exit(0))
	hinted("an end of a reserved job")
	r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: asker}))
	hinted("a removal")

	late := r.one(expires(r.s.Now() + 1))
	expired, stopLate := r.s.Watch(late.Seq)
	defer stopLate()
	r.pass(time.Millisecond)
	within(r, "hint of an expiry", expired)
}

func watchesApart(r *rig) {
	j := r.one()
	first, stopFirst := r.s.Watch(j.Seq)
	second, stopSecond := r.s.Watch(j.Seq)
	defer stopSecond()
	_, stopOther := r.s.Watch(1 << 40) // no job: it will never be hinted at
	defer stopOther()
	r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbCancel, UID: asker}))
	within(r, "first watch", first)
	within(r, "second watch", second)
	stopFirst()
	r.must(r.s.Change(r.Context(), j.Seq, store.Change{Verb: queue.VerbRetry, UID: asker}))
	within(r, "watch whose neighbour has stopped", second)
}

func newsComes(r *rig) {
	r.one()
	last, first := r.s.News()
	again, second := r.s.News()
	same(r, "number of the newest event", []int64{last, again}, []int64{1, 1})
	r.unchanged(func() {
		select {
		case <-first:
			r.Error("news came of nothing")
		default:
		}
	})
	r.one()
	for _, newer := range []<-chan struct{}{first, second} {
		select {
		case <-newer:
		default:
			r.Error("an event was stored and no news came")
		}
	}
	last, _ = r.s.News()
	same(r, "number of the newest event", last, 2)
}
