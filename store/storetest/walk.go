package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

var walking = []promise{
	{name: "a long walk breaks no rule", keep: func(r *rig) { walkFor(r, 2000) }},
	{name: "a long walk by enqueues breaks no rule", keep: func(r *rig) { walkFor(r, 500) }, order: byEnqueue},
}

// walk performs random operations on a store, and predicts the state of each job.
type walk struct {
	*rig
	dice     *rand.Rand
	known    map[int64]queue.Job // each job as last seen
	held     map[int64]bool      // leased jobs
	asleep   map[int64]bool      // jobs that have never been due
	old      []queue.Lease       // leases that are over
	enqueued int64
	step     int
}

func walkFor(r *rig, steps int) {
	w := &walk{rig: r, dice: rand.New(rand.NewPCG(2, 3)), known: map[int64]queue.Job{}, held: map[int64]bool{}, asleep: map[int64]bool{}}
	for w.step = range steps {
		w.next()
		if r.Failed() {
			r.Fatalf("the rules broke in step %d", w.step)
		}
	}
	w.recount()
	w.historiesMatch()
	w.figuresMatch()
}

func (w *walk) next() {
	switch n := w.dice.IntN(22); {
	case n < 5:
		w.enqueue()
	case n < 12:
		w.work()
	case n < 13:
		w.cancel()
	case n < 14:
		w.retry()
	case n < 15:
		w.remove()
	case n < 16:
		w.report(w.old)
	case n < 17:
		w.hold()
	case n < 18:
		w.edit()
	case n < 19:
		w.pause()
	default:
		w.pass(time.Duration(w.dice.IntN(3000)) * time.Millisecond)
		w.wake()
	}
	for _, e := range w.news() {
		w.told(e)
	}
	if w.step%100 == 99 {
		w.recount()
	}
}

// told checks an event against the known job, and updates a job that has expired.
func (w *walk) told(e queue.Event) {
	switch j, known := w.known[e.Job]; {
	case e.Kind == queue.EventRemoved && known, e.Kind != queue.EventRemoved && !known:
		w.Errorf("event %s of job %d, which is known: %t", e.Kind, e.Job, known)
	case e.Kind == queue.EventExpired:
		w.saw(w.lapsed(j))
	case e.Kind != queue.EventStarted && e.Kind != queue.EventProgress && e.Kind != queue.EventEnded && known:
		same(w.rig, "state in event "+string(e.Kind), e.State, j.State)
	}
}

// lapsed returns j after it has expired now, and checks that it was due to expire.
func (w *walk) lapsed(j queue.Job) queue.Job {
	if w.held[j.Seq] || !j.State.Waiting() || j.ExpiresAt == 0 || j.ExpiresAt > w.s.Now() {
		w.Errorf("job %s expired when it might not", j.ID)
	}
	return w.expiredJob(j)
}

// saw compares a stored job with its expected value. It checks the transition against the state table, and
// the rules that hold for every job.
func (w *walk) saw(want queue.Job) {
	got := w.get(want.ID)
	same(w.rig, fmt.Sprintf("job %s in step %d", want.ID, w.step), got, want)
	was, known := w.known[got.Seq]
	var from queue.State
	if known {
		from = was.State
	}
	straight := from == got.State || from.May(got.State)
	if !straight && !(from.May(queue.Processing) && queue.Processing.May(got.State)) {
		w.Errorf("job %s became %s from %s, which the state table forbids", got.ID, got.State, from)
	}
	for rule, kept := range map[string]bool{
		"an ended job has an end, and no other":      got.State.Ended() == (got.EndedAt != 0),
		"only a processing job has a worker":         (got.State == queue.Processing) == (got.WorkerID != "" && got.PID != 0),
		"only a processing job is paused":            got.PausedAt == 0 || got.State == queue.Processing,
		"a processing job is leased":                 got.State != queue.Processing || w.held[got.Seq],
		"attempts are runs that count":               got.Attempts <= got.Runs && got.Attempts <= got.MaxAttempts,
		"a fence never falls":                        got.Fence >= was.Fence,
		"runs never fall":                            got.Runs >= was.Runs,
		"an ended state stays but for a person":      !was.State.Ended() || got.State == was.State || got.State == queue.Pending && got.Attempts == 0,
		"nothing is updated before it is created":    got.UpdatedAt >= got.CreatedAt && got.UpdatedAt <= w.s.Now(),
		"a job that never ran has nothing of an end": got.Runs > 0 || got.ExitCode == -1 && got.Signal == 0,
	} {
		if !kept {
			w.Errorf("job %s: broken rule: %s", got.ID, rule)
		}
	}
	w.known[got.Seq] = got
}

// pick returns a random known job.
func (w *walk) pick() (queue.Job, bool) {
	if len(w.known) == 0 {
		return queue.Job{}, false
	}
	all := slices.Sorted(maps.Keys(w.known))
	return w.known[all[w.dice.IntN(len(all))]], true
}

func (w *walk) enqueue() {
	var drafts []queue.Job
	for range 1 + w.dice.IntN(3) {
		d := draft(priority(int64(w.dice.IntN(10))), maxAttempts(1+w.dice.IntN(3)))
		d.OnLost = []queue.OnLost{queue.OnLostRetry, queue.OnLostDead, queue.OnLostHold}[w.dice.IntN(3)]
		switch w.dice.IntN(6) {
		case 0:
			d.Delay = time.Duration(w.dice.IntN(5000)) * time.Millisecond
		case 1:
			d.ExpiresAt = w.s.Now() + queue.Millis(w.dice.IntN(5000))
		case 2:
			d.RunAt = w.s.Now() + queue.Millis(w.dice.IntN(4000)-2000)
		case 3:
			d.ID = fmt.Sprintf("j%d", w.dice.IntN(200))
		}
		drafts = append(drafts, d)
	}
	taken := map[string]bool{}
	for _, j := range w.known {
		taken[j.ID] = true
	}
	clash := false
	for _, d := range drafts {
		clash = clash || taken[d.ID]
		taken[d.ID] = d.ID != ""
	}
	receipt, err := w.s.Enqueue(w.Context(), store.Request{Drafts: drafts, UID: asker})
	if clash {
		w.refused("enqueue of a taken id", err, queue.CodeExists, "id")
		return
	}
	w.must(err)
	now := w.s.Now()
	for i, want := range drafts {
		want.Seq, want.ID = receipt.Seqs[i], receipt.IDs[i]
		if want.RunAt == 0 {
			want.RunAt = now.Add(want.Delay)
		}
		want.Delay, want.CreatedAt, want.UpdatedAt, want.DueAt = 0, now, now, want.RunAt
		w.enqueued++
		want.Since, want.Arrival = max(now, want.RunAt), w.enqueued
		w.asleep[want.Seq] = want.RunAt > now
		w.saw(want)
	}
}

// wake updates jobs that are due for the first time, which gain ageing points from now on.
func (w *walk) wake() {
	for seq, sleeps := range w.asleep {
		j, known := w.known[seq]
		if !sleeps || known && j.State == queue.Pending && j.DueAt > w.s.Now() {
			continue
		}
		if known && j.State == queue.Pending {
			j.Arrival = w.enqueued
			w.known[seq] = j
		}
		delete(w.asleep, seq)
	}
}

// outcome returns a random outcome of an attempt of j.
func (w *walk) outcome(j queue.Job) queue.Outcome {
	all := []queue.Outcome{
		exit(0), exit(0), exit(0), exit(1), exit(126), {End: queue.Signalled, Signal: 6},
		ended(queue.TimedOut), ended(queue.Killed), ended(queue.Stopped), ended(queue.Lost), {End: queue.Lost, Alone: true}, ended(queue.Interrupted), ended(queue.Unkillable),
	}
	if j.State != queue.Processing && j.Runs == 0 && j.Reason == "" {
		all = append(all, ended(queue.Unstarted), ended(queue.Shortage), ended(queue.Disowned))
	}
	return all[w.dice.IntN(len(all))]
}

// work reports random results of some leased jobs and claims others.
func (w *walk) work() {
	var t store.Report
	now := w.s.Now()
	want := map[int64]queue.Job{}
	for _, seq := range slices.Sorted(maps.Keys(w.held)) {
		j := w.known[seq]
		if j.State != queue.Processing && w.dice.IntN(3) == 0 {
			t.Started = append(t.Started, store.Started{Lease: j.Lease(), At: now, Worker: "w1", PID: 4242})
			j.State, j.StartedAt, j.WorkerID, j.PID, j.UpdatedAt, j.Progress = queue.Processing, now, "w1", 4242, now, nil
			want[seq] = j
		}
		if j.State == queue.Processing && w.dice.IntN(3) == 0 {
			told := queue.Progress{Percent: w.dice.IntN(101), Text: "é\x1b", At: now}
			t.Progress = append(t.Progress, store.Progress{Lease: j.Lease(), Progress: told})
			j.Progress = &told
			want[seq] = j
		}
		switch n := w.dice.IntN(6); {
		case n < 3:
			e := w.settlement(j, w.outcome(j))
			if e.Decision.Started && w.dice.IntN(4) == 0 {
				e.Progress = &queue.Progress{Percent: 100, At: now}
			}
			t.Ended = append(t.Ended, e)
			want[seq] = w.settled(j, e)
			w.lose(j)
		case n == 3 && j.State != queue.Processing:
			t.Released = append(t.Released, j.Lease())
			want[seq] = j
			w.lose(j)
		}
	}
	t.Want = w.dice.IntN(4)
	if len(w.held) > 30 {
		t.Want = 0
	}
	head := w.head(want, t.Want)
	done := w.turn(t)
	same(w.rig, "stale leases of a turn", done.Stale, nil)
	head = w.asClaimed(done.Jobs, head...)
	same(w.rig, "claimed jobs", done.Jobs, head)
	for _, j := range head {
		want[j.Seq] = j
		w.held[j.Seq] = true
	}
	events := w.news()
	for _, e := range events {
		if j, changed := want[e.Job]; changed && e.Kind == queue.EventExpired {
			want[e.Job] = w.lapsed(j) // it was given back after its expiry, and the claim cancelled it
		}
	}
	for _, seq := range slices.Sorted(maps.Keys(want)) {
		w.saw(want[seq])
	}
	for _, e := range events {
		if _, changed := want[e.Job]; !changed || e.Kind != queue.EventExpired {
			w.told(e)
		}
	}
}

// lose marks a lease as over.
func (w *walk) lose(j queue.Job) {
	delete(w.held, j.Seq)
	w.old = append(w.old, j.Lease())
}

// head returns the jobs that a claim must take after the changes in the same report.
func (w *walk) head(changed map[int64]queue.Job, want int) []queue.Job {
	var ready []queue.Job
	now := w.s.Now()
	for seq, j := range w.known {
		if after, found := changed[seq]; found {
			j = after
		}
		if j.State.Runnable() && !w.held[seq] && j.DueAt <= now && (j.ExpiresAt == 0 || j.ExpiresAt > now) {
			ready = append(ready, j)
		}
	}
	rank := func(j queue.Job) int64 { return w.order.Rank(j.Priority, j.Since, j.Arrival) }
	slices.SortFunc(ready, func(a, b queue.Job) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Seq, b.Seq))
	})
	return ready[:min(want, len(ready))]
}

// report reports a lease that is over. The store must ignore it.
func (w *walk) report(old []queue.Lease) {
	if len(old) == 0 {
		return
	}
	l := old[w.dice.IntN(len(old))]
	e := w.settlement(queue.Job{Seq: l.Seq, Fence: l.Fence, MaxAttempts: 4}, exit(0))
	done := w.turn(store.Report{Ended: []store.Settlement{e}, Released: []queue.Lease{l}})
	same(w.rig, "stale leases", done.Stale, []queue.Lease{l, l})
	if j, known := w.known[l.Seq]; known {
		w.saw(j)
	}
}

func (w *walk) cancel() {
	j, found := w.pick()
	if !found {
		return
	}
	switch err := w.s.Change(w.Context(), j.Seq, store.Change{Verb: queue.VerbCancel, UID: asker}); {
	case w.held[j.Seq]:
		w.leased("cancel", err)
	case j.State == queue.Cancelled:
		w.must(err)
	case j.State.Ended():
		w.refused("cancel", err, queue.CodeWrongState, "")
	default:
		w.must(err)
		j.State, j.EndedAt, j.UpdatedAt = queue.Cancelled, w.s.Now(), w.s.Now()
		j.Reason = w.get(j.ID).Reason // the contract does not define the new reason
	}
	w.saw(j)
}

// pause pauses or resumes a leased job.
func (w *walk) pause() {
	list := slices.Sorted(maps.Keys(w.held))
	if len(list) == 0 {
		return
	}
	j, on := w.known[list[w.dice.IntN(len(list))]], w.dice.IntN(2) == 0
	err := w.rig.pause(j.Lease(), on, asker)
	if j.State != queue.Processing {
		w.leased("pause", err)
	} else if w.must(err); on != (j.PausedAt != 0) {
		j.PausedAt, j.PausedBy, j.UpdatedAt = 0, 0, w.s.Now()
		if on {
			j.PausedAt, j.PausedBy = w.s.Now(), asker
		}
	}
	w.saw(j)
}

func (w *walk) retry() {
	j, found := w.pick()
	if !found {
		return
	}
	verb, deadOnly := queue.VerbRetry, w.dice.IntN(3) == 0
	if deadOnly {
		verb = queue.VerbRetryDead
	}
	switch err := w.s.Change(w.Context(), j.Seq, store.Change{Verb: verb, UID: asker}); {
	case w.held[j.Seq]:
		w.leased("retry", err)
	case deadOnly && j.State != queue.Dead, j.State == queue.Held:
		w.refused("retry", err, queue.CodeWrongState, "")
	case j.State == queue.Pending:
		w.must(err)
	default:
		w.must(err)
		now := w.s.Now()
		j.State, j.Reason, j.Error, j.ExitCode, j.Signal, j.Attempts, j.Crashes, j.Refunds, j.ExpiresAt, j.EndedAt = queue.Pending, "", "", -1, 0, 0, 0, 0, 0, 0
		j.DueAt, j.Since, j.UpdatedAt, j.Arrival = now, now, now, w.enqueued
	}
	w.saw(j)
}

// hold holds a job, or releases a held one.
func (w *walk) hold() {
	j, found := w.pick()
	if !found {
		return
	}
	verb := queue.VerbHold
	if j.State == queue.Held {
		verb = queue.VerbRelease
	}
	switch err := w.s.Change(w.Context(), j.Seq, store.Change{Verb: verb, UID: asker}); {
	case w.held[j.Seq]:
		w.leased(string(verb), err)
	case j.State.Ended():
		w.refused(string(verb), err, queue.CodeWrongState, "")
	case verb == queue.VerbHold:
		w.must(err)
		j.State, j.Reason, j.UpdatedAt = queue.Held, "", w.s.Now()
	default:
		w.must(err)
		due := max(w.s.Now(), j.DueAt)
		j.State, j.Reason, j.UpdatedAt = queue.Pending, "", w.s.Now()
		j.DueAt, j.Since, j.Arrival = due, due, w.enqueued
		w.asleep[j.Seq] = due > w.s.Now()
		j.Attempts = min(j.Attempts, j.MaxAttempts-1)
	}
	w.saw(j)
}

// edit changes the priority of a job, and sometimes its start time.
func (w *walk) edit() {
	j, found := w.pick()
	if !found {
		return
	}
	priority, delay := int64(w.dice.IntN(10)), time.Duration(w.dice.IntN(3))*time.Second
	err := w.s.Change(w.Context(), j.Seq, store.Change{Verb: queue.VerbEdit, UID: asker, Edit: func(j *queue.Job) error {
		j.Priority, j.Delay = priority, delay
		return nil
	}})
	switch {
	case w.held[j.Seq]:
		w.leased("edit", err)
	case j.State.Ended():
		w.refused("edit", err, queue.CodeWrongState, "")
	default:
		w.must(err)
		now := w.s.Now()
		j.Priority, j.UpdatedAt = priority, now
		if at := now.Add(delay); delay > 0 && at != j.RunAt {
			j.RunAt, j.DueAt, j.Since, j.Arrival = at, at, at, w.enqueued
			w.asleep[j.Seq] = true
		}
	}
	w.saw(j)
}

func (w *walk) remove() {
	j, found := w.pick()
	if !found {
		return
	}
	err := w.s.Change(w.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: asker})
	if w.held[j.Seq] {
		w.leased("remove", err)
		w.saw(j)
		return
	}
	w.must(err)
	delete(w.known, j.Seq)
	if _, err := w.s.Get(w.Context(), j.ID); !errors.Is(err, queue.ErrNotFound) {
		w.Errorf("get of a removed job: got error %v, want ErrNotFound", err)
	}
}

// recount compares all jobs, leases and counts with the expected ones.
func (w *walk) recount() {
	want := slices.SortedFunc(maps.Values(w.known), func(a, b queue.Job) int { return cmp.Compare(b.Seq, a.Seq) })
	same(w.rig, "all jobs", w.all(store.Filter{Limit: 50}), want)
	w.counted()
	same(w.rig, "jobs ever enqueued", w.s.Counts().Enqueued, w.enqueued)
	held, err := w.heldJobs()
	w.must(err)
	same(w.rig, "leased jobs", sortedLeases(leases(held)), w.leases())
}

func (w *walk) leases() (list []queue.Lease) {
	for seq := range w.held {
		j := w.known[seq]
		list = append(list, j.Lease())
	}
	return sortedLeases(list)
}

// historiesMatch checks that each job has one attempt record for each run.
func (w *walk) historiesMatch() {
	for seq, j := range w.known {
		history, err := w.s.History(w.Context(), seq, 0, store.MaxPage)
		w.must(err)
		same(w.rig, "rows of job "+j.ID, len(history), j.Runs)
		for i, a := range history {
			same(w.rig, "number of a row of job "+j.ID, a.N, i+1)
		}
	}
}
