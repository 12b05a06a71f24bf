package storetest

import (
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

// Engine is a store that a random walk compares with a model: a store of package memstore, with the same clock.
type Engine struct {
	Store store.Store
	// Reopen closes the store, opens it again and returns it.
	Reopen func() store.Store
	// Undo performs n random operations in one transaction and then rolls the transaction back.
	Undo func(n int, rng *rand.Rand)
	// Check compares the engine's caches with its tables. It is nil for an engine without caches.
	Check func() error
}

// These environment variables change what Walks does: the number of walks, or the seed of the only walk.
const (
	walkCountVariable = "QUEUECTL_WALKS"
	seedVariable      = "QUEUECTL_WALK"
)

// Walks performs random walks. Each step makes the same calls to the engine and the model and compares their
// results. open creates both stores and returns a function that advances their clock. A failed walk logs its
// seed. Short mode takes a quarter of the steps.
func Walks(t *testing.T, walkCount, steps int, open func(t *testing.T, o queue.Order) (engine Engine, model store.Store,
	advance func(time.Duration))) {
	if n, err := strconv.Atoi(os.Getenv(walkCountVariable)); err == nil {
		walkCount = n
	}
	first := 0
	if n, err := strconv.Atoi(os.Getenv(seedVariable)); err == nil {
		first, walkCount = n, 1
	}
	for seed := first; seed < first+walkCount; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := &pairWalk{T: t, rng: rand.New(rand.NewPCG(uint64(seed), 17))}
			w.orders = orders
			if seed%4 == 1 {
				w.orders = []queue.Order{arrivalOrder}
			}
			w.order = w.orders[w.rng.IntN(len(w.orders))]
			w.withGates, w.withWeights, w.withHooks = seed%4 != 0, seed%3 == 0, seed%5 == 0
			w.engine, w.model, w.advance = open(t, w.order)
			w.leases, w.modelLeases = map[int64]queue.Lease{}, map[int64]queue.Lease{}
			w.rules = map[string]store.QueueRule{}
			w.node = store.Node{Name: "a", Labels: map[string]string{"zone": "x"},
				Resources: map[string]int{"gpu": 4, "disk": 2}}
			w.setRules()
			for w.step = range walkSteps(steps) {
				w.doRandomOperation()
				if len(w.seqs) > 0 {
					w.compareJob(w.seqs[w.rng.IntN(len(w.seqs))])
				}
				if t.Failed() {
					t.Fatalf("the walk failed in step %d; repeat it with %s=%d", w.step, seedVariable, seed)
				}
			}
		})
	}
}

// orders contains the scheduling settings with which users take turns.
var orders = []queue.Order{
	{Scheduling: queue.ByPriority},
	{Scheduling: queue.ByAging, AgingUnit: queue.AgingByTime, AgingInterval: time.Minute},
	{Scheduling: queue.ByAging, AgingUnit: queue.AgingByEnqueues, AgingInterval: time.Minute},
}

// pairWalk is one walk: the same random operations on an engine and on the model, whose results it compares.
type pairWalk struct {
	*testing.T
	engine      Engine
	model       store.Store
	advance     func(time.Duration)
	rng         *rand.Rand
	order       queue.Order
	orders      []queue.Order         // scheduling settings between which the walk may switch
	withGates   bool                  // jobs have random demands for locks, rates, resources and nodes
	withWeights bool                  // queues may have different weights
	withHooks   bool                  // each completed job gets a hook
	step        int                   // number of the current step
	operation   string                // the current operation, for messages
	seqs        []int64               // numbers (seqs) of the jobs that may exist
	leasedSeqs  []int64               // numbers (seqs) of the leased jobs
	leases      map[int64]queue.Lease // leases of the engine; their fences are random, so they differ from the model's
	modelLeases map[int64]queue.Lease // leases of the model

	maxUID int
	rules  map[string]store.QueueRule
	node   store.Node
}

// askBoth executes call with both stores. Both calls must succeed, or return errors with the same code.
func askBoth[T any](w *pairWalk, call func(s store.Store) (T, error)) (engine, model T) {
	w.Helper()
	engine, err := call(w.engine.Store)
	model, wanted := call(w.model)
	if codeOf(err) != codeOf(wanted) {
		w.Errorf("step %d, %s: the engine returns the error %v, the model %v", w.step, w.operation, err, wanted)
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

// compareJob compares a job in both stores, except for the fence (lease number), which is random in the engine.
func (w *pairWalk) compareJob(seq int64) {
	w.Helper()
	w.operation = "get"
	got, want := askBoth(w, func(s store.Store) (queue.Job,
		error) {
		return s.Get(w.Context(), strconv.FormatInt(seq, 10))
	})
	if want.ExpiresAt != 0 && want.ExpiresAt <= w.model.Now() {
		// The job has expired. A claim in one store may already have cancelled it, so the states may differ.
		return
	}
	if got.Fence, want.Fence = 0, 0; !reflect.DeepEqual(got, want) {
		w.Errorf("step %d: the engine stores %+v, the model %+v", w.step, got, want)
	}
}

// doBoth performs an operation on both stores and checks that both succeed or fail alike.
func (w *pairWalk) doBoth(operation func(s store.Store) error) {
	w.Helper()
	askBoth(w, func(s store.Store) (struct{}, error) { return struct{}{}, operation(s) })
}

func (w *pairWalk) doRandomOperation() {
	switch n := w.rng.IntN(100); {
	case n < 22:
		w.operation = "enqueue"
		w.enqueueRandomJobs()
	case n < 70:
		w.operation = "exchange"
		w.exchange()
	case n < 84:
		w.operation = "change"
		w.changeRandomJob()
	case n < 92:
		w.operation = "time"
		w.advance(time.Duration(w.rng.IntN(4000)) * time.Millisecond)
		if w.step%20 == 0 { // sometimes the clock advances by hours or days
			w.advance(time.Duration(w.step%9) * time.Hour)
		}
		w.promote()
		w.compareStats()
	case n < 96:
		w.operation = "rule"
		w.changeRule()
	case n < 97:
		w.operation = "order"
		w.order = w.orders[w.rng.IntN(len(w.orders))]
		w.doBoth(func(s store.Store) error {
			err := s.SetOrder(w.Context(), w.order)
			for more := true; more && err == nil; {
				more, err = s.Rerank(w.Context())
			}
			return err
		})
	case n < 98 && w.rng.IntN(4) == 0:
		w.operation = "disown"
		uid := w.rng.IntN(12)
		w.doBoth(func(s store.Store) (err error) {
			for more := true; more && err == nil; {
				more, err = s.Disown(w.Context(), uid, "x")
			}
			return err
		})
	case n < 98 && w.rng.IntN(3) > 0:
		w.operation = "undo"
		w.engine.Undo(1+w.rng.IntN(9), w.rng)
	case n < 98:
		w.operation = "reopen"
		w.engine.Store = w.engine.Reopen()
		w.setRules()
	default:
		w.operation = "purge"
		w.purge()
	}
	if w.Failed() || w.engine.Check == nil {
		return
	}
	if err := w.engine.Check(); err != nil {
		w.Errorf("step %d, after %s: %v", w.step, w.operation, err)
	}
	// Only after the operation "time", which calls Promote last, have both stores cancelled all expired jobs.
	// After another operation, a claim may have cancelled a job in only one store.
	if w.operation != "time" {
		return
	}
	engine, model := w.engine.Store.Counts(), w.model.Counts()
	checkEqual(&rig{T: w.T}, fmt.Sprintf("counts after step %d, %s", w.step, w.operation), engine.States, model.States)
	checkEqual(&rig{T: w.T}, fmt.Sprintf("size of outputs after step %d, %s", w.step, w.operation), engine.OutputBytes,
		model.OutputBytes)
}

var queues = []string{"default", "night", "bulk", "rare", queue.HookQueue} // the queues of the random jobs

// changeRule changes a random setting of both stores, such as a limit or the weight of a queue.
func (w *pairWalk) changeRule() {
	switch w.rng.IntN(5) {
	case 4:
		d := queue.Demand{Kind: queue.GateLock, Key: fmt.Sprint("@k", w.rng.IntN(3)), Amount: w.rng.IntN(4)}
		if w.rng.IntN(3) == 0 {
			d = queue.Demand{Kind: queue.GateRate, Key: fmt.Sprint("@r", w.rng.IntN(2)), Amount: w.rng.IntN(4),
				Period: time.Duration(1+w.rng.IntN(3)) * time.Second}
		}
		w.doBoth(func(s store.Store) error { return s.SetGate(w.Context(), d) })
	case 0:
		w.maxUID = w.rng.IntN(5)
		w.doBoth(func(s store.Store) error { return s.SetMaxRunningPerUser(w.Context(), w.maxUID) })
	case 1:
		w.node = store.Node{Name: []string{"a", "b"}[w.rng.IntN(2)],
			Labels:    map[string]string{"zone": []string{"x", "y"}[w.rng.IntN(2)]},
			Resources: map[string]int{"gpu": w.rng.IntN(6), "disk": w.rng.IntN(4)}}
		if w.rng.IntN(3) == 0 {
			w.node.UnknownUIDs = map[int]bool{1 + w.rng.IntN(3): true}
		}
		w.doBoth(func(s store.Store) error { return s.SetNode(w.Context(), w.node) })
	default:
		name, rule := queues[w.rng.IntN(len(queues))], store.QueueRule{Weight: 1}
		if w.withWeights && w.rng.IntN(2) == 0 {
			rule.Weight = 1 + w.rng.IntN(3)
		}
		if w.rng.IntN(2) == 0 {
			rule.Concurrency = 1 + w.rng.IntN(6)
		}
		if w.rng.IntN(6) == 0 {
			rule.MaxPending = 5 + int64(w.rng.IntN(20))
		}
		if w.rng.IntN(3) == 0 {
			rule.Retention.MaxJobs = 1
		}
		rule.Paused = w.rng.IntN(4) == 0
		if rule.Paused && w.rng.IntN(2) == 0 {
			rule.PausedUntil = w.model.Now().Add(time.Duration(w.rng.IntN(5000)) * time.Millisecond)
		}
		w.rules[name] = rule
		w.doBoth(func(s store.Store) error { return s.SetQueue(w.Context(), name, rule) })
	}
}

// setRules sets all rules in both stores again, because a reopened store has lost some of them.
func (w *pairWalk) setRules() {
	w.doBoth(func(s store.Store) error {
		hooks := store.Hooks{MakeHooks: hooksOf, Owner: "x"}
		if w.withHooks {
			hooks.Triggers = queue.HookCompleted
		}
		err := errors.Join(s.SetMaxRunningPerUser(w.Context(), w.maxUID), s.SetNode(w.Context(), w.node),
			s.SetHooks(w.Context(), hooks))
		for _, name := range queues {
			rule, known := w.rules[name]
			if !known {
				rule = store.QueueRule{Weight: 1}
			}
			err = errors.Join(err, s.SetQueue(w.Context(), name, rule))
		}
		for next := time.Duration(0); next == 0 && err == nil; { // Promote must check all jobs that limits hold back
			next, err = s.Promote(w.Context())
		}
		return err
	})
}

// randomDemands returns random demands of a job. They have few different keys, so that jobs compete for them.
func (w *pairWalk) randomDemands() (list []queue.Demand) {
	if !w.withGates || w.rng.IntN(2) == 0 {
		return nil
	}
	if w.rng.IntN(6) == 0 {
		list = append(list, nodeDemand([]string{"a", "b", "zone=x", "zone=y"}[w.rng.IntN(4)]))
	}
	if w.rng.IntN(3) == 0 {
		list = append(list, queue.Demand{Kind: queue.GateLock,
			Key: fmt.Sprint([]string{"@", ""}[w.rng.IntN(2)], "k", w.rng.IntN(3)), Amount: 1 + w.rng.IntN(3)})
	}
	if w.rng.IntN(3) == 0 {
		list = append(list, queue.Demand{Kind: queue.GateRate, Key: fmt.Sprint("@r", w.rng.IntN(2)), Amount: 1 +
			w.rng.IntN(4),
			Period: time.Duration(1+w.rng.IntN(3)) * time.Second})
	}
	// Add at most one resource. A job that lacks several resources holds back other jobs at only one of them, and
	// each store may choose another one.
	if w.rng.IntN(2) == 0 {
		// If users take turns, demand only one unit. The stores may notice at different times that a job lacks
		// several units and must hold back others.
		n := 1
		if w.order == arrivalOrder {
			n += w.rng.IntN(3)
		}
		list = append(list, queue.Demand{Kind: queue.GateResource, Key: []string{"disk", "gpu"}[w.rng.IntN(2)], Amount: n})
	}
	return list
}

// randomDependencies returns random dependencies of draft i: on stored and removed jobs, on other drafts of the
// request and, rarely, in a cycle. No parent has an expiry: the stores may cancel expired parents at different
// times, and the dependants would then get different arrival numbers.
func (w *pairWalk) randomDependencies(i int, drafts []queue.Job) (list []queue.Dependency) {
	expires := func(d queue.Dependency) bool {
		if d.DraftNumber != 0 {
			return drafts[d.DraftNumber-1].ExpiresAt != 0
		}
		j, err := w.model.Get(w.Context(), strconv.FormatInt(d.JobSeq, 10))
		return err == nil && j.ExpiresAt != 0
	}
	for range 1 + w.rng.IntN(3) {
		d := queue.Dependency{Condition: queue.DependencyCondition(1 + w.rng.IntN(3))}
		switch n := w.rng.IntN(12); {
		case n < 3 && i > 0:
			d.DraftNumber = 1 + w.rng.IntN(i)
		case n < 4 && len(drafts) > 0:
			d.DraftNumber = 1 + w.rng.IntN(len(drafts))
		case len(w.seqs) > 0:
			d.JobSeq = w.seqs[w.rng.IntN(len(w.seqs))]
		default:
			continue
		}
		if !slices.Contains(list, d) && !expires(d) {
			list = append(list, d)
		}
	}
	return list
}

func (w *pairWalk) enqueueRandomJobs() {
	w.promote() // this cancels the expired jobs in both stores, so that their counts are equal
	drafts := make([]queue.Job, 1+w.rng.IntN(4))
	uid := w.rng.IntN(12)
	for i := range drafts {
		j := &drafts[i]
		*j = queue.Job{UID: uid, Priority: int64(w.rng.IntN(3)), MaxAttempts: 1 + w.rng.IntN(3), ExitCode: -1,
			Queue: queues[w.rng.IntN(40)/13], Demands: w.randomDemands(), Execution: queue.Execution{Command: "true"}}
		if w.rng.IntN(4) == 0 {
			j.Delay = time.Duration(w.rng.IntN(3000)) * time.Millisecond
		}
		// Request hooks only for completion and failure. The stores may cancel expired jobs, and so create hooks for
		// HookEnded, at different times.
		if w.rng.IntN(6) == 0 {
			j.HookEvents = queue.HookEvents(w.rng.IntN(int(queue.HookDead)))
		}
		if w.rng.IntN(8) == 0 {
			j.ExpiresAt = w.model.Now().Add(time.Duration(w.rng.IntN(5000)) * time.Millisecond)
		} else if w.rng.IntN(6) == 0 {
			// A job with a unique key must not expire, because the stores may free the key at different times.
			j.Unique, j.OnConflict, j.UniqueFor = fmt.Sprint("u", w.rng.IntN(3)), queue.ConflictAction(w.rng.IntN(3)),
				time.Duration(w.rng.IntN(2000))*time.Millisecond
		}
	}
	for i := range drafts {
		if w.rng.IntN(4) == 0 {
			drafts[i].DependsOn, drafts[i].OnDependencyFailure = w.randomDependencies(i, drafts),
				queue.OnDependencyFailure(w.rng.IntN(3))
		}
	}
	got, want := askBoth(w, func(s store.Store) (store.Receipt, error) {
		return s.Enqueue(w.Context(), store.Request{UID: uid, Owner: "x", Drafts: slices.Clone(drafts)})
	})
	if !reflect.DeepEqual(got, want) {
		w.Errorf("step %d: the engine returns %+v, the model %+v", w.step, got, want)
	}
	w.seqs = append(w.seqs, got.Seqs...)
}

// exchange reports random results of leased jobs and claims more jobs.
func (w *pairWalk) exchange() {
	var engine, model store.Report
	engine.WantedJobs = w.rng.IntN(7)
	model.WantedJobs = engine.WantedJobs
	stillLeased := w.addRandomResults(&engine, &model)
	if w.rng.IntN(4) == 0 { // the result is not compared, but a simulation must change nothing
		if _, err := w.engine.Store.Simulate(w.Context(), 1+w.rng.IntN(9)); err != nil {
			w.Error(err)
		}
	}
	got, want := askBoth(w, func(s store.Store) (store.Grant, error) {
		if s == w.model {
			return s.Exchange(w.Context(), model)
		}
		return s.Exchange(w.Context(), engine)
	})
	stale := map[int64]bool{}
	for _, l := range got.StaleLeases {
		stale[l.Seq] = true
	}
	givenBack := slices.Clone(engine.Releases)
	for _, c := range engine.Changes {
		givenBack = append(givenBack, c.Lease)
	}
	for _, l := range givenBack {
		if !stale[l.Seq] { // a stale release means that the job has started and is still leased
			stillLeased = slices.DeleteFunc(stillLeased, func(seq int64) bool { return seq == l.Seq })
		}
	}
	w.leasedSeqs = stillLeased
	for range maxExtraClaims { // an engine may need several claims if many jobs cannot start
		if len(got.Jobs) >= len(want.Jobs) {
			break
		}
		more, err := w.engine.Store.Exchange(w.Context(), store.Report{WantedJobs: engine.WantedJobs - len(got.Jobs)})
		if err != nil {
			w.Error(err)
		}
		got.Jobs = append(got.Jobs, more.Jobs...)
	}
	w.compareClaims(got.Jobs, want.Jobs, engine.WantedJobs)
	// Do not check wait reasons after a job has ended or changed, because other jobs may then be able to start.
	if len(want.Jobs) < engine.WantedJobs && len(w.seqs) > 0 && len(engine.Settlements)+len(engine.Changes) == 0 &&
		!w.Failed() {
		w.checkWaitReasons(w.seqs[w.rng.IntN(len(w.seqs))])
	}
}

// addRandomResults adds the same random results to both reports. It returns the jobs that may stay leased.
func (w *pairWalk) addRandomResults(engine, model *store.Report) (stillLeased []int64) {
	for _, seq := range w.leasedSeqs {
		engineLease, modelLease := w.leases[seq], w.modelLeases[seq]
		switch w.rng.IntN(6) {
		case 0:
			engine.Releases, model.Releases = append(engine.Releases, engineLease), append(model.Releases, modelLease)
			// If the job has started, the store ignores the release. Only its reply says so.
			stillLeased = append(stillLeased, seq)
			continue
		case 5:
			if w.rng.IntN(3) > 0 {
				break
			}
			c := store.Change{Verb: []queue.Verb{queue.VerbCancel, queue.VerbHold, queue.VerbRemove,
				queue.VerbEdit}[w.rng.IntN(4)]}
			if c.Verb == queue.VerbEdit {
				list := w.randomDemands()
				c.Edit = func(j *queue.Job) error { j.Demands = slices.Clone(list); return nil }
			}
			engine.Changes, model.Changes = append(engine.Changes, store.LeasedChange{Lease: engineLease, Change: c}),
				append(model.Changes, store.LeasedChange{Lease: modelLease, Change: c})
			// If the job has started, the store ignores the change. Only its reply says so.
			stillLeased = append(stillLeased, seq)
			continue
		case 1:
			at := w.model.Now()
			engine.Starts = append(engine.Starts, store.AttemptStart{Lease: engineLease, StartedAt: at, Worker: "w1", PID: 1})
			model.Starts = append(model.Starts, store.AttemptStart{Lease: modelLease, StartedAt: at, Worker: "w1", PID: 1})
		case 2, 3:
			d := queue.Decision{RecordsAttempt: true, UsesAttempt: true, State: queue.Completed}
			if w.rng.IntN(3) == 0 {
				d.State, d.Delay = queue.Failed, time.Duration(w.rng.IntN(2))*time.Second
			}
			a := queue.Attempt{StartedAt: timeBefore(w.model.Now(), time.Duration(seq%7)*time.Second), EndedAt: w.model.Now(),
				Output: make([]byte, seq%3)}
			engine.Settlements = append(engine.Settlements, store.Settlement{Lease: engineLease, Attempt: a, Decision: d,
				Fingerprint: uint64(seq % 5)})
			model.Settlements = append(model.Settlements, store.Settlement{Lease: modelLease, Attempt: a, Decision: d,
				Fingerprint: uint64(seq % 5)})
			continue
		}
		stillLeased = append(stillLeased, seq)
	}
	return stillLeased
}

// checkWaitReasons checks that a job has wait reasons exactly if it waits and the last claim did not take it.
func (w *pairWalk) checkWaitReasons(seq int64) {
	w.operation = fmt.Sprint("obstacles of ", seq)
	j, err := w.model.Get(w.Context(), strconv.FormatInt(seq, 10))
	if err != nil || j.ExpiresAt != 0 {
		return
	}
	got, want := askBoth(w, func(s store.Store) ([]store.WaitReason, error) {
		all, err := s.WaitReasons(w.Context(), []int64{seq})
		return all[seq], err
	})
	runnable := j.State.Runnable() && !slices.Contains(w.leasedSeqs, seq)
	// A job that is not due has a wait reason only if its queue is paused.
	timed := runnable && j.DueAt > w.model.Now()
	if ready := runnable && !timed; len(got) > 0 != (len(want) > 0) || !timed && ready != (len(got) > 0) {
		w.Errorf("step %d: job %d is %s; its obstacles are %v in the engine and %v in the model", w.step, seq,
			j.State, got, want)
	}
}

// maxExtraClaims limits the additional claims in which an engine may claim the jobs that the model claims at
// once. One claim is not always enough for an engine that has to check many jobs that cannot start.
const maxExtraClaims = 20

// compareClaims checks that both stores have claimed the same jobs in the same order.
func (w *pairWalk) compareClaims(got, want []queue.Job, limit int) {
	order := func(jobs []queue.Job) (seqs []int64) {
		for i := range jobs {
			seqs = append(seqs, jobs[i].Seq)
		}
		return seqs
	}
	if !slices.Equal(order(got), order(want)) {
		w.Errorf("step %d: with a limit of %d, the engine claims the jobs %v, the model %v", w.step, limit,
			order(got), order(want))
		for _, seq := range slices.Concat(order(got), order(want), w.leasedSeqs) {
			j, err := w.model.Get(w.Context(), strconv.FormatInt(seq, 10))
			w.Logf("%d: user %d, queue %s, priority %d, expires %d, %s, demands %v %v", seq, j.UID, j.Queue, j.Priority,
				j.ExpiresAt, j.State, j.Demands, err)
		}
		w.Logf("now %d, limit per user %d, node %+v, queues %v", w.model.Now(), w.maxUID, w.node, w.rules)
		return
	}
	for i := range got {
		w.leases[got[i].Seq], w.modelLeases[got[i].Seq] = got[i].Lease(), want[i].Lease()
		w.leasedSeqs = append(w.leasedSeqs, got[i].Seq)
	}
}

// promote calls Promote in both stores, so that both have cancelled the same expired jobs.
func (w *pairWalk) promote() {
	w.Helper()
	w.doBoth(func(s store.Store) error { _, err := s.Promote(w.Context()); return err })
}

func (w *pairWalk) changeRandomJob() {
	w.promote()
	if len(w.seqs) == 0 {
		return
	}
	seq := w.seqs[w.rng.IntN(len(w.seqs))]
	verbs := []queue.Verb{queue.VerbCancel, queue.VerbHold, queue.VerbRelease, queue.VerbRelease, queue.VerbRetry,
		queue.VerbEdit, queue.VerbRemove}
	c := store.Change{Verb: verbs[w.rng.IntN(len(verbs))], KeepDependants: w.rng.IntN(3) == 0}
	priority := int64(w.rng.IntN(4))
	if c.Verb == queue.VerbEdit {
		list, name, n := w.randomDemands(), queues[w.rng.IntN(len(queues))], w.rng.IntN(4)
		parents := []queue.Dependency{}
		for _, d := range w.randomDependencies(0, nil) {
			d.ID = strconv.FormatInt(d.JobSeq, 10)
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
				j.DependsOn = slices.Clone(parents)
			}
			return nil
		}
	}
	w.operation = fmt.Sprint("change ", c.Verb, " of ", seq)
	w.doBoth(func(s store.Store) error { return s.Change(w.Context(), seq, c) })
}
