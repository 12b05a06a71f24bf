package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Engine is a store that is compared with the model. Both use the same clock.
type Engine struct {
	Store store.Store
	// Reopen closes the store and opens it again.
	Reopen func() store.Store
	// Undo performs n random operations in a transaction that is undone.
	Undo func(n int, dice *rand.Rand)
	// Check compares the engine's memory with its tables. Nil means that there is nothing to check.
	Check func() error
}

// Environment variables that control Walks: the number of walks, and the seed of a single walk.
const (
	runsVariable = "QUEUECTL_WALKS"
	seedVariable = "QUEUECTL_WALK"
)

// Walks takes random walks of the given number of steps. Each step calls the engine and the model in the same
// way, and compares the answers. Both must claim the same jobs in the same order. open creates both stores
// with an order, and returns a function that advances their clock. A failed walk prints its seed.
func Walks(t *testing.T, runs, steps int, open func(t *testing.T, o queue.Order) (engine Engine, model store.Store, advance func(time.Duration))) {
	if n, err := strconv.Atoi(os.Getenv(runsVariable)); err == nil {
		runs = n
	}
	first := 0
	if n, err := strconv.Atoi(os.Getenv(seedVariable)); err == nil {
		first, runs = n, 1
	}
	for seed := first; seed < first+runs; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := &pairWalk{T: t, dice: rand.New(rand.NewPCG(uint64(seed), 17))}
			w.orders = orders
			if seed%4 == 1 {
				w.orders = []queue.Order{byArrival}
			}
			w.order = w.orders[w.dice.IntN(len(w.orders))]
			w.gated, w.weighted, w.hooked = seed%4 != 0, seed%3 == 0, seed%5 == 0
			w.engine, w.model, w.advance = open(t, w.order)
			w.leases, w.ours = map[int64]queue.Lease{}, map[int64]queue.Lease{}
			w.rules = map[string]store.QueueRule{}
			w.node = store.Node{Name: "a", Labels: map[string]string{"zone": "x"}, Resources: map[string]int{"gpu": 4, "disk": 2}}
			w.setRules()
			for w.step = range steps {
				w.next()
				if len(w.seqs) > 0 {
					w.alike(w.seqs[w.dice.IntN(len(w.seqs))])
				}
				if t.Failed() {
					t.Fatalf("it went wrong in step %d; walk it again with %s=%d", w.step, seedVariable, seed)
				}
			}
		})
	}
}

// orders are the orders in which users take turns.
var orders = []queue.Order{
	{Scheduling: queue.ByPriority},
	{Scheduling: queue.ByAging, Aging: queue.AgingTime, Interval: time.Minute},
	{Scheduling: queue.ByAging, Aging: queue.AgingEnqueue, Interval: time.Minute},
}

// pairWalk is a random walk through an engine and the model.
type pairWalk struct {
	*testing.T
	engine   Engine
	model    store.Store
	advance  func(time.Duration)
	dice     *rand.Rand
	order    queue.Order
	orders   []queue.Order // orders that the walk may change to
	gated    bool          // jobs make demands
	weighted bool          // queues may have different weights
	hooked   bool          // each completed job gets a hook
	step     int
	what     string                // the current operation, for messages
	seqs     []int64               // jobs that may exist
	held     []int64               // leased jobs
	leases   map[int64]queue.Lease // leases of the engine, whose fences are random
	ours     map[int64]queue.Lease // leases of the model

	maxUser int
	rules   map[string]store.QueueRule
	node    store.Node
}

// both calls ask with both stores and checks that the codes of their errors are equal.
func both[T any](w *pairWalk, ask func(s store.Store) (T, error)) (engine, model T) {
	w.Helper()
	engine, err := ask(w.engine.Store)
	model, wanted := ask(w.model)
	if codeOf(err) != codeOf(wanted) {
		w.Errorf("step %d, %s: the engine says %v, the model %v", w.step, w.what, err, wanted)
	}
	return engine, model
}

// codeOf returns the code of an error, or "" for nil.
func codeOf(err error) queue.Code {
	var e *queue.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Code
	}
	return queue.CodeInternal
}

// alike compares a job in both stores, except its fence, which is random.
func (w *pairWalk) alike(seq int64) {
	w.Helper()
	w.what = "get"
	got, want := both(w, func(s store.Store) (queue.Job, error) { return s.Get(w.Context(), strconv.FormatInt(seq, 10)) })
	if want.ExpiresAt != 0 && want.ExpiresAt <= w.model.Now() {
		// A claim may have cancelled the expired job in one store and not yet in the other.
		return
	}
	if got.Fence, want.Fence = 0, 0; !reflect.DeepEqual(got, want) {
		w.Errorf("step %d: the engine has %+v, the model %+v", w.step, got, want)
	}
}

// act performs an operation in both stores.
func (w *pairWalk) act(do func(s store.Store) error) {
	w.Helper()
	both(w, func(s store.Store) (struct{}, error) { return struct{}{}, do(s) })
}

func (w *pairWalk) next() {
	switch n := w.dice.IntN(100); {
	case n < 22:
		w.what = "enqueue"
		w.enqueue()
	case n < 70:
		w.what = "exchange"
		w.exchange()
	case n < 84:
		w.what = "change"
		w.change()
	case n < 92:
		w.what = "time"
		w.advance(time.Duration(w.dice.IntN(4000)) * time.Millisecond)
		if w.step%20 == 0 { // let hours and days pass
			w.advance(time.Duration(w.step%9) * time.Hour)
		}
		w.promote()
		w.measured()
	case n < 96:
		w.what = "rule"
		w.rule()
	case n < 97:
		w.what = "order"
		w.order = w.orders[w.dice.IntN(len(w.orders))]
		w.act(func(s store.Store) error {
			err := s.SetOrder(w.Context(), w.order)
			for more := true; more && err == nil; {
				more, err = s.Rerank(w.Context())
			}
			return err
		})
	case n < 98 && w.dice.IntN(4) == 0:
		w.what = "disown"
		uid := w.dice.IntN(12)
		w.act(func(s store.Store) (err error) {
			for more := true; more && err == nil; {
				more, err = s.Disown(w.Context(), uid, "x")
			}
			return err
		})
	case n < 98 && w.dice.IntN(3) > 0:
		w.what = "undo"
		w.engine.Undo(1+w.dice.IntN(9), w.dice)
	case n < 98:
		w.what = "reopen"
		w.engine.Store = w.engine.Reopen()
		w.setRules()
	default:
		w.what = "purge"
		w.purge()
	}
	if w.Failed() || w.engine.Check == nil {
		return
	}
	if err := w.engine.Check(); err != nil {
		w.Errorf("step %d, after %s: %v", w.step, w.what, err)
	}
	// Only Promote cancels all expired jobs. At other times, one store may have cancelled an expired job
	// during a claim and the other not.
	if w.what != "time" {
		return
	}
	engine, model := w.engine.Store.Counts(), w.model.Counts()
	same(&rig{T: w.T}, fmt.Sprintf("counts after step %d, %s", w.step, w.what), engine.States, model.States)
	same(&rig{T: w.T}, fmt.Sprintf("size of outputs after step %d, %s", w.step, w.what), engine.Outputs, model.Outputs)
}

var queues = []string{"default", "night", "bulk", "rare", queue.HookQueue}

// rule changes a random rule in both stores.
func (w *pairWalk) rule() {
	switch w.dice.IntN(5) {
	case 4:
		d := queue.Demand{Kind: queue.GateLock, Key: fmt.Sprint("@k", w.dice.IntN(3)), N: w.dice.IntN(4)}
		if w.dice.IntN(3) == 0 {
			d = queue.Demand{Kind: queue.GateRate, Key: fmt.Sprint("@r", w.dice.IntN(2)), N: w.dice.IntN(4), Per: time.Duration(1+w.dice.IntN(3)) * time.Second}
		}
		w.act(func(s store.Store) error { return s.SetGate(w.Context(), d) })
	case 0:
		w.maxUser = w.dice.IntN(5)
		w.act(func(s store.Store) error { return s.SetMaxRunningUser(w.Context(), w.maxUser) })
	case 1:
		w.node = store.Node{Name: []string{"a", "b"}[w.dice.IntN(2)], Labels: map[string]string{"zone": []string{"x", "y"}[w.dice.IntN(2)]},
			Resources: map[string]int{"gpu": w.dice.IntN(6), "disk": w.dice.IntN(4)}}
		if w.dice.IntN(3) == 0 {
			w.node.Strangers = map[int]bool{1 + w.dice.IntN(3): true}
		}
		w.act(func(s store.Store) error { return s.SetNode(w.Context(), w.node) })
	default:
		name, rule := queues[w.dice.IntN(len(queues))], store.QueueRule{Weight: 1}
		if w.weighted && w.dice.IntN(2) == 0 {
			rule.Weight = 1 + w.dice.IntN(3)
		}
		if w.dice.IntN(2) == 0 {
			rule.Concurrency = 1 + w.dice.IntN(6)
		}
		if w.dice.IntN(6) == 0 {
			rule.MaxPending = 5 + int64(w.dice.IntN(20))
		}
		if w.dice.IntN(3) == 0 {
			rule.Keep.MaxJobs = 1
		}
		rule.Paused = w.dice.IntN(4) == 0
		if rule.Paused && w.dice.IntN(2) == 0 {
			rule.Until = w.model.Now().Add(time.Duration(w.dice.IntN(5000)) * time.Millisecond)
		}
		w.rules[name] = rule
		w.act(func(s store.Store) error { return s.SetQueue(w.Context(), name, rule) })
	}
}

// setRules sets all rules again, after a store was opened.
func (w *pairWalk) setRules() {
	w.act(func(s store.Store) error {
		hooks := store.Hooks{Make: hooksOf, Owner: "x"}
		if w.hooked {
			hooks.On = queue.HookCompleted
		}
		err := errors.Join(s.SetMaxRunningUser(w.Context(), w.maxUser), s.SetNode(w.Context(), w.node), s.SetHooks(w.Context(), hooks))
		for _, name := range queues {
			rule, known := w.rules[name]
			if !known {
				rule = store.QueueRule{Weight: 1}
			}
			err = errors.Join(err, s.SetQueue(w.Context(), name, rule))
		}
		for next := time.Duration(0); next == 0 && err == nil; { // until all closed lanes were checked
			next, err = s.Promote(w.Context())
		}
		return err
	})
}

// demands returns random demands. Each kind of gate has few keys, so that jobs compete for them.
func (w *pairWalk) demands() (list []queue.Demand) {
	if !w.gated || w.dice.IntN(2) == 0 {
		return nil
	}
	if w.dice.IntN(6) == 0 {
		list = append(list, on([]string{"a", "b", "zone=x", "zone=y"}[w.dice.IntN(4)]))
	}
	if w.dice.IntN(3) == 0 {
		list = append(list, queue.Demand{Kind: queue.GateLock, Key: fmt.Sprint([]string{"@", ""}[w.dice.IntN(2)], "k", w.dice.IntN(3)), N: 1 + w.dice.IntN(3)})
	}
	if w.dice.IntN(3) == 0 {
		list = append(list, queue.Demand{Kind: queue.GateRate, Key: fmt.Sprint("@r", w.dice.IntN(2)), N: 1 + w.dice.IntN(4), Per: time.Duration(1+w.dice.IntN(3)) * time.Second})
	}
	// At most one resource: a job that lacks several holds back others at one of them, and which one depends
	// on when it is checked.
	if w.dice.IntN(2) == 0 {
		// Where users take turns, a job that needs several units holds back others only once a claim has
		// found it to be its user's next job. This depends on the store, so such jobs need only one unit.
		n := 1
		if w.order == byArrival {
			n += w.dice.IntN(3)
		}
		list = append(list, queue.Demand{Kind: queue.GateResource, Key: []string{"disk", "gpu"}[w.dice.IntN(2)], N: n})
	}
	return list
}

// after returns random dependencies for a draft: on stored and removed jobs, on other drafts of the request
// and, rarely, in a cycle. No parent has an expiry. The time at which an expired parent is cancelled, and so
// the arrival of its dependants, may differ between the stores.
func (w *pairWalk) after(i int, drafts []queue.Job) (list []queue.Dependency) {
	expires := func(d queue.Dependency) bool {
		if d.Draft != 0 {
			return drafts[d.Draft-1].ExpiresAt != 0
		}
		j, err := w.model.Get(w.Context(), strconv.FormatInt(d.Job, 10))
		return err == nil && j.ExpiresAt != 0
	}
	for range 1 + w.dice.IntN(3) {
		d := queue.Dependency{How: queue.ParentEnd(1 + w.dice.IntN(3))}
		switch n := w.dice.IntN(12); {
		case n < 3 && i > 0:
			d.Draft = 1 + w.dice.IntN(i)
		case n < 4 && len(drafts) > 0:
			d.Draft = 1 + w.dice.IntN(len(drafts))
		case len(w.seqs) > 0:
			d.Job = w.seqs[w.dice.IntN(len(w.seqs))]
		default:
			continue
		}
		if !slices.Contains(list, d) && !expires(d) {
			list = append(list, d)
		}
	}
	return list
}

func (w *pairWalk) enqueue() {
	w.promote() // cancels expired jobs in both stores, so that their counts are equal
	drafts := make([]queue.Job, 1+w.dice.IntN(4))
	uid := w.dice.IntN(12)
	for i := range drafts {
		j := &drafts[i]
		*j = queue.Job{UID: uid, Priority: int64(w.dice.IntN(3)), MaxAttempts: 1 + w.dice.IntN(3), ExitCode: -1, Queue: queues[w.dice.IntN(40)/13], Demands: w.demands(), Execution: queue.Execution{Command: "true"}}
		if w.dice.IntN(4) == 0 {
			j.Delay = time.Duration(w.dice.IntN(3000)) * time.Millisecond
		}
		// Only hooks on completion or failure: the stores may cancel an expired job at different times, and
		// the cancellation would create the hooks of HookEnded.
		if w.dice.IntN(6) == 0 {
			j.Hooks = queue.HookSet(w.dice.IntN(int(queue.HookDead)))
		}
		if w.dice.IntN(8) == 0 {
			j.ExpiresAt = w.model.Now().Add(time.Duration(w.dice.IntN(5000)) * time.Millisecond)
		} else if w.dice.IntN(6) == 0 {
			// Only without an expiry, because an expired job keeps its key until it is cancelled.
			j.Unique, j.OnConflict, j.UniqueFor = fmt.Sprint("u", w.dice.IntN(3)), queue.Conflict(w.dice.IntN(3)), time.Duration(w.dice.IntN(2000))*time.Millisecond
		}
	}
	for i := range drafts {
		if w.dice.IntN(4) == 0 {
			drafts[i].After, drafts[i].OtherwiseDo = w.after(i, drafts), queue.Otherwise(w.dice.IntN(3))
		}
	}
	got, want := both(w, func(s store.Store) (store.Receipt, error) {
		return s.Enqueue(w.Context(), store.Request{UID: uid, Owner: "x", Drafts: slices.Clone(drafts)})
	})
	if !reflect.DeepEqual(got, want) {
		w.Errorf("step %d: the engine gives %+v, the model %+v", w.step, got, want)
	}
	w.seqs = append(w.seqs, got.Seqs...)
}

// exchange reports random results of leases and claims more jobs.
func (w *pairWalk) exchange() {
	var engine, model store.Report
	engine.Want = w.dice.IntN(7)
	model.Want = engine.Want
	still := w.report(&engine, &model)
	if w.dice.IntN(4) == 0 { // a simulation must not change anything
		if _, err := w.engine.Store.Simulate(w.Context(), 1+w.dice.IntN(9)); err != nil {
			w.Error(err)
		}
	}
	got, want := both(w, func(s store.Store) (store.Grant, error) {
		if s == w.model {
			return s.Exchange(w.Context(), model)
		}
		return s.Exchange(w.Context(), engine)
	})
	stale := map[int64]bool{}
	for _, l := range got.Stale {
		stale[l.Seq] = true
	}
	back := slices.Clone(engine.Released)
	for _, c := range engine.Changed {
		back = append(back, c.Lease)
	}
	for _, l := range back {
		if !stale[l.Seq] { // a stale release means that the job has started and is still leased
			still = slices.DeleteFunc(still, func(seq int64) bool { return seq == l.Seq })
		}
	}
	w.held = still
	for range cutMost { // the engine may need several claims if it checks many jobs that cannot run
		if len(got.Jobs) >= len(want.Jobs) {
			break
		}
		more, err := w.engine.Store.Exchange(w.Context(), store.Report{Want: engine.Want - len(got.Jobs)})
		if err != nil {
			w.Error(err)
		}
		got.Jobs = append(got.Jobs, more.Jobs...)
	}
	w.claimed(got.Jobs, want.Jobs, engine.Want)
	// Not after the end of a job, which may allow others to start after the claim.
	if len(want.Jobs) < engine.Want && len(w.seqs) > 0 && len(engine.Ended)+len(engine.Changed) == 0 && !w.Failed() {
		w.heldBack(w.seqs[w.dice.IntN(len(w.seqs))])
	}
}

// report adds random results of the leased jobs to both reports. It returns the jobs that stay leased.
func (w *pairWalk) report(engine, model *store.Report) (still []int64) {
	for _, seq := range w.held {
		mine, ours := w.leases[seq], w.ours[seq]
		switch w.dice.IntN(6) {
		case 0:
			engine.Released, model.Released = append(engine.Released, mine), append(model.Released, ours)
			still = append(still, seq) // it stays leased only if it has started, which the answer shows
			continue
		case 5:
			if w.dice.IntN(3) > 0 {
				break
			}
			c := store.Change{Verb: []queue.Verb{queue.VerbCancel, queue.VerbHold, queue.VerbRemove, queue.VerbEdit}[w.dice.IntN(4)]}
			if c.Verb == queue.VerbEdit {
				list := w.demands()
				c.Edit = func(j *queue.Job) error { j.Demands = slices.Clone(list); return nil }
			}
			engine.Changed, model.Changed = append(engine.Changed, store.Changed{Lease: mine, Change: c}), append(model.Changed, store.Changed{Lease: ours, Change: c})
			still = append(still, seq) // likewise
			continue
		case 1:
			at := w.model.Now()
			engine.Started = append(engine.Started, store.Started{Lease: mine, At: at, Worker: "w1", PID: 1})
			model.Started = append(model.Started, store.Started{Lease: ours, At: at, Worker: "w1", PID: 1})
		case 2, 3:
			d := queue.Decision{Started: true, Counts: true, State: queue.Completed}
			if w.dice.IntN(3) == 0 {
				d.State, d.Delay = queue.Failed, time.Duration(w.dice.IntN(2))*time.Second
			}
			a := queue.Attempt{StartedAt: before(w.model.Now(), time.Duration(seq%7)*time.Second), EndedAt: w.model.Now(), Output: make([]byte, seq%3)}
			engine.Ended = append(engine.Ended, store.Settlement{Lease: mine, Attempt: a, Decision: d, Fingerprint: uint64(seq % 5)})
			model.Ended = append(model.Ended, store.Settlement{Lease: ours, Attempt: a, Decision: d, Fingerprint: uint64(seq % 5)})
			continue
		}
		still = append(still, seq)
	}
	return still
}

// heldBack checks that a waiting job has obstacles if and only if the last claim could not take it.
func (w *pairWalk) heldBack(seq int64) {
	w.what = fmt.Sprint("obstacles of ", seq)
	j, err := w.model.Get(w.Context(), strconv.FormatInt(seq, 10))
	if err != nil || j.ExpiresAt != 0 {
		return
	}
	got, want := both(w, func(s store.Store) ([]store.Obstacle, error) {
		all, err := s.Obstacles(w.Context(), []int64{seq})
		return all[seq], err
	})
	runnable := j.State.Runnable() && !slices.Contains(w.held, seq)
	timed := runnable && j.DueAt > w.model.Now() // its only obstacle may be a pause of its queue
	if ready := runnable && !timed; len(got) > 0 != (len(want) > 0) || !timed && ready != (len(got) > 0) {
		w.Errorf("step %d: job %d is %s, and what holds it back is %v to the engine, and %v to the model", w.step, seq, j.State, got, want)
	}
}

// cutMost is the number of further claims that a claim of the engine may need.
const cutMost = 20

// claimed compares the claimed jobs.
func (w *pairWalk) claimed(got, want []queue.Job, most int) {
	order := func(jobs []queue.Job) (seqs []int64) {
		for i := range jobs {
			seqs = append(seqs, jobs[i].Seq)
		}
		return seqs
	}
	if !slices.Equal(order(got), order(want)) {
		w.Errorf("step %d: of up to %d the engine claims %v, the model %v", w.step, most, order(got), order(want))
		for _, seq := range slices.Concat(order(got), order(want), w.held) {
			j, err := w.model.Get(w.Context(), strconv.FormatInt(seq, 10))
			w.Logf("%d: user %d, queue %s, priority %d, expires %d, %s, demands %v %v", seq, j.UID, j.Queue, j.Priority, j.ExpiresAt, j.State, j.Demands, err)
		}
		w.Logf("now %d; of one user %d, node %+v, queues %v", w.model.Now(), w.maxUser, w.node, w.rules)
		return
	}
	for i := range got {
		w.leases[got[i].Seq], w.ours[got[i].Seq] = got[i].Lease(), want[i].Lease()
		w.held = append(w.held, got[i].Seq)
	}
}

// promote cancels expired jobs in both stores, since a claim may have cancelled one in only one of them.
func (w *pairWalk) promote() {
	w.Helper()
	w.act(func(s store.Store) error { _, err := s.Promote(w.Context()); return err })
}

func (w *pairWalk) change() {
	w.promote()
	if len(w.seqs) == 0 {
		return
	}
	seq := w.seqs[w.dice.IntN(len(w.seqs))]
	verbs := []queue.Verb{queue.VerbCancel, queue.VerbHold, queue.VerbRelease, queue.VerbRelease, queue.VerbRetry, queue.VerbEdit, queue.VerbRemove}
	c := store.Change{Verb: verbs[w.dice.IntN(len(verbs))], Alone: w.dice.IntN(3) == 0}
	priority := int64(w.dice.IntN(4))
	if c.Verb == queue.VerbEdit {
		list, name, n := w.demands(), queues[w.dice.IntN(len(queues))], w.dice.IntN(4)
		parents := []queue.Dependency{}
		for _, d := range w.after(0, nil) {
			d.ID = strconv.FormatInt(d.Job, 10)
			parents = append(parents, d)
		}
		c.Edit = func(j *queue.Job) error {
			j.Priority = priority
			if n == 0 {
				j.Queue = name
			}
			if n <= 1 {
				j.Demands = slices.Clone(list)
			}
			if n == 2 {
				j.After = slices.Clone(parents)
			}
			return nil
		}
	}
	w.what = fmt.Sprint("change ", c.Verb, " of ", seq)
	w.act(func(s store.Store) error { return s.Change(w.Context(), seq, c) })
}

// trim repeats a step in both stores until there is nothing more to do.
func (w *pairWalk) trim(step func(store.Store) (more bool, err error)) {
	w.Helper()
	w.act(func(s store.Store) (err error) {
		for more := true; more && err == nil; {
			more, err = step(s)
		}
		return err
	})
}

// purge removes ended jobs, then reads which jobs still exist.
func (w *pairWalk) purge() {
	w.promote()
	ended := []queue.State{queue.Completed, queue.Cancelled, queue.Dead}
	// Purge all ended jobs: the stores may remove jobs that ended at the same time in different orders. The
	// bound is a day ahead, because the clock may have been set back after a job expired.
	before, most := w.model.Now().Add(24*time.Hour), store.MaxPage
	of := store.Ended{States: ended, Before: before}
	switch w.dice.IntN(4) {
	case 0:
		of.Of = new("")
	case 1:
		of.Of = &queues[w.dice.IntN(len(queues))]
	}
	switch name := queues[w.dice.IntN(len(queues))]; w.dice.IntN(6) {
	case 0:
		w.trim(func(s store.Store) (bool, error) { return s.TrimJobs(w.Context(), name, 0, most) })
	case 1:
		w.trim(func(s store.Store) (bool, error) { return s.TrimJobs(w.Context(), "", 0, most) })
	case 2:
		w.trim(func(s store.Store) (bool, error) { return s.TrimOutputsOf(w.Context(), name, 0) })
	case 3:
		w.trim(func(s store.Store) (bool, error) { return s.TrimOutputs(w.Context(), 0) })
	default:
		n, m := both(w, func(s store.Store) (int, error) { return s.Purge(w.Context(), of, most, nil) })
		if n != m {
			w.Errorf("step %d: %d were purged, want %d", w.step, n, m)
		}
	}
	keeps, want := both(w, func(s store.Store) ([]store.KeepingQueue, error) { return s.Keeping(w.Context()) })
	same(&rig{T: w.T}, fmt.Sprintf("queues with their own retention after step %d", w.step), keeps, want)
	page, _ := both(w, func(s store.Store) (store.Selected, error) {
		return s.Select(w.Context(), store.Filter{Limit: store.MaxPage})
	})
	w.seqs = w.seqs[:0]
	for _, r := range page.Refs {
		w.seqs = append(w.seqs, r.Seq)
	}
	slices.SortFunc(w.seqs, cmp.Compare[int64])
}
