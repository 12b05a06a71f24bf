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

// EngineUnderTest is a store that a random walk compares with a model. The model is a store of package memstore and has
// the same clock as the engine.
type EngineUnderTest struct {
	Store store.Store
	// Reopen closes the store, opens it again and returns it.
	Reopen func() store.Store
	// RollBackRandomOperations performs n random operations in one transaction and then rolls the transaction back.
	RollBackRandomOperations func(n int, rng *rand.Rand)
	// CheckCaches compares the engine's caches with its tables. It is nil for an engine without caches.
	CheckCaches func() error
}

// These environment variables configure RunComparisonWalks: QUEUECTL_WALKS sets the number of walks;
// QUEUECTL_WALK sets the seed of a single walk.
const (
	walkCountEnvVar = "QUEUECTL_WALKS"
	walkSeedEnvVar  = "QUEUECTL_WALK"
)

// RunComparisonWalks performs random walks. In each step, a walk makes the same calls to the engine and to the model,
// and compares the results. openStores creates both stores and returns a function that advances their clock. A failed
// walk logs its seed. In short mode, a walk has a quarter of the steps.
func RunComparisonWalks(t *testing.T, walkCount, stepsPerWalk int,
	openStores func(t *testing.T, o queue.RankPolicy) (engine EngineUnderTest, model store.Store,
		advance func(time.Duration))) {
	if n, err := strconv.Atoi(os.Getenv(walkCountEnvVar)); err == nil {
		walkCount = n
	}
	first := 0
	if n, err := strconv.Atoi(os.Getenv(walkSeedEnvVar)); err == nil {
		first, walkCount = n, 1
	}
	for seed := first; seed < first+walkCount; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := &comparisonWalk{T: t, rng: rand.New(rand.NewPCG(uint64(seed), 17))}
			w.rankOrderChoices = userTurnRankOrders
			if seed%4 == 1 {
				w.rankOrderChoices = []queue.RankPolicy{arrivalRankOrder}
			}
			w.rankOrder = w.rankOrderChoices[w.rng.IntN(len(w.rankOrderChoices))]
			w.usesGates, w.usesWeights, w.usesHooks = seed%4 != 0, seed%3 == 0, seed%5 == 0
			w.engine, w.modelStore, w.advanceClock = openStores(t, w.rankOrder)
			w.engineLeases, w.modelLeases = map[int64]queue.Lease{}, map[int64]queue.Lease{}
			w.queueRules = map[string]store.QueueRule{}
			w.node = store.Node{Name: "a", Labels: map[string]string{"zone": "x"},
				ResourceUnits: map[string]int{"gpu": 4, "disk": 2}}
			w.reapplyAllRules()
			for w.step = range walkSteps(stepsPerWalk) {
				w.doRandomOperation()
				if len(w.jobSeqs) > 0 {
					w.compareJob(w.jobSeqs[w.rng.IntN(len(w.jobSeqs))])
				}
				if t.Failed() {
					t.Fatalf("the walk failed in step %d; repeat it with %s=%d", w.step, walkSeedEnvVar, seed)
				}
			}
		})
	}
}

// userTurnRankOrders contains the rank orders with which the users' jobs start in turn (round robin).
var userTurnRankOrders = []queue.RankPolicy{
	{Scheduling: queue.SchedulingByPriority},
	{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByTime, AgingInterval: time.Minute},
	{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByEnqueues, AgingInterval: time.Minute},
}

// comparisonWalk is one walk: it performs the same random operations on an engine and on the model, and compares the
// results.
type comparisonWalk struct {
	*testing.T
	engine           EngineUnderTest
	modelStore       store.Store
	advanceClock     func(time.Duration)
	rng              *rand.Rand
	rankOrder        queue.RankPolicy
	rankOrderChoices []queue.RankPolicy    // rank orders between which the walk may switch
	usesGates        bool                  // jobs have random demands for locks, rates, resources and nodes
	usesWeights      bool                  // queues may have different weights
	usesHooks        bool                  // each completed job gets a hook
	step             int                   // number of the current step
	operationName    string                // the current operation, for messages
	jobSeqs          []int64               // numbers (seqs) of the jobs that may exist
	leasedSeqs       []int64               // numbers (seqs) of the leased jobs
	engineLeases     map[int64]queue.Lease // leases of the engine, by seq; unlike in the model, their fences are random
	modelLeases      map[int64]queue.Lease // leases of the model, by seq

	maxUID     int
	queueRules map[string]store.QueueRule
	node       store.Node
}

// callBothStores executes call with both stores. Both calls must succeed, or return errors with the same code.
func callBothStores[T any](w *comparisonWalk, call func(s store.Store) (T, error)) (engineResult, modelResult T) {
	w.Helper()
	engineResult, err := call(w.engine.Store)
	modelResult, wanted := call(w.modelStore)
	if errorCodeOf(err) != errorCodeOf(wanted) {
		w.Errorf("step %d, %s: the engine returns the error %v, the model %v", w.step, w.operationName, err, wanted)
	}
	return engineResult, modelResult
}

// compareJob compares a job in both stores, except for the fence (lease number), which is random in the engine.
func (w *comparisonWalk) compareJob(seq int64) {
	w.Helper()
	w.operationName = "get"
	got, want := callBothStores(w, func(s store.Store) (queue.Job, error) {
		return s.GetJob(w.Context(), strconv.FormatInt(seq, 10))
	})
	if want.ExpiresAt != 0 && want.ExpiresAt <= w.modelStore.Now() {
		// The job is past its expiry time. In one of the stores, a claim may already have cancelled it, so the states may
		// differ.
		return
	}
	if got.Fence, want.Fence = 0, 0; !reflect.DeepEqual(got, want) {
		w.Errorf("step %d: the engine stores %+v, the model %+v", w.step, got, want)
	}
}

// applyToBothStores performs an operation on both stores and checks that both succeed or both return errors with the
// same code.
func (w *comparisonWalk) applyToBothStores(operation func(s store.Store) error) {
	w.Helper()
	callBothStores(w, func(s store.Store) (struct{}, error) { return struct{}{}, operation(s) })
}

func (w *comparisonWalk) doRandomOperation() {
	switch n := w.rng.IntN(100); {
	case n < 22:
		w.operationName = "enqueue"
		w.enqueueRandomJobs()
	case n < 70:
		w.operationName = "exchange"
		w.reportAndClaim()
	case n < 84:
		w.operationName = "change"
		w.changeRandomJob()
	case n < 92:
		w.operationName = "time"
		w.advanceClock(time.Duration(w.rng.IntN(4000)) * time.Millisecond)
		if w.step%20 == 0 { // sometimes the clock advances by hours or days
			w.advanceClock(time.Duration(w.step%9) * time.Hour)
		}
		w.applyDueChangesInBoth()
		w.compareStats()
	case n < 96:
		w.operationName = "rule"
		w.changeRandomRule()
	case n < 97:
		w.operationName = "order"
		w.rankOrder = w.rankOrderChoices[w.rng.IntN(len(w.rankOrderChoices))]
		w.applyToBothStores(func(s store.Store) error {
			err := s.SetRankOrder(w.Context(), w.rankOrder)
			for more := true; more && err == nil; {
				more, err = s.RerankWaitingJobs(w.Context())
			}
			return err
		})
	case n < 98 && w.rng.IntN(4) == 0:
		w.operationName = "disown"
		uid := w.rng.IntN(12)
		w.applyToBothStores(func(s store.Store) (err error) {
			for more := true; more && err == nil; {
				more, err = s.DisownJobs(w.Context(), uid, "x")
			}
			return err
		})
	case n < 98 && w.rng.IntN(3) > 0:
		w.operationName = "undo"
		w.engine.RollBackRandomOperations(1+w.rng.IntN(9), w.rng)
	case n < 98:
		w.operationName = "reopen"
		w.engine.Store = w.engine.Reopen()
		w.reapplyAllRules()
	default:
		w.operationName = "purge"
		w.purgeBothStores()
	}
	if w.Failed() || w.engine.CheckCaches == nil {
		return
	}
	if err := w.engine.CheckCaches(); err != nil {
		w.Errorf("step %d, after %s: %v", w.step, w.operationName, err)
	}
	// After operations other than "time", a claim may have cancelled an expired job in only one of the stores.
	if w.operationName != "time" {
		return
	}
	engine, model := w.engine.Store.Counts(), w.modelStore.Counts()
	checkEqual(&storeTest{T: w.T}, fmt.Sprintf("counts after step %d, %s", w.step, w.operationName), engine.JobsByState,
		model.JobsByState)
	checkEqual(&storeTest{T: w.T}, fmt.Sprintf("size of outputs after step %d, %s", w.step, w.operationName),
		engine.OutputBytes, model.OutputBytes)
}

var walkQueueNames = []string{"default", "night", "bulk", "rare", queue.HookQueue} // the queues of the random jobs

// changeRandomRule changes a random setting of both stores, such as a limit or the weight of a queue.
func (w *comparisonWalk) changeRandomRule() {
	switch w.rng.IntN(5) {
	case 4:
		d := queue.Demand{Kind: queue.GateLock, GateKey: fmt.Sprint("@k", w.rng.IntN(3)), Amount: w.rng.IntN(4)}
		if w.rng.IntN(3) == 0 {
			d = queue.Demand{Kind: queue.GateRate, GateKey: fmt.Sprint("@r", w.rng.IntN(2)), Amount: w.rng.IntN(4),
				RatePeriod: time.Duration(1+w.rng.IntN(3)) * time.Second}
		}
		w.applyToBothStores(func(s store.Store) error { return s.SetGateRule(w.Context(), d) })
	case 0:
		w.maxUID = w.rng.IntN(5)
		w.applyToBothStores(func(s store.Store) error { return s.SetMaxRunningPerUser(w.Context(), w.maxUID) })
	case 1:
		w.node = store.Node{Name: []string{"a", "b"}[w.rng.IntN(2)],
			Labels:        map[string]string{"zone": []string{"x", "y"}[w.rng.IntN(2)]},
			ResourceUnits: map[string]int{"gpu": w.rng.IntN(6), "disk": w.rng.IntN(4)}}
		if w.rng.IntN(3) == 0 {
			w.node.UIDsWithoutAccount = map[int]bool{1 + w.rng.IntN(3): true}
		}
		w.applyToBothStores(func(s store.Store) error { return s.SetThisNodeProperties(w.Context(), w.node) })
	default:
		name, rule := walkQueueNames[w.rng.IntN(len(walkQueueNames))], store.QueueRule{Weight: 1}
		if w.usesWeights && w.rng.IntN(2) == 0 {
			rule.Weight = 1 + w.rng.IntN(3)
		}
		if w.rng.IntN(2) == 0 {
			rule.Concurrency = 1 + w.rng.IntN(6)
		}
		if w.rng.IntN(6) == 0 {
			rule.MaxPendingJobs = 5 + int64(w.rng.IntN(20))
		}
		if w.rng.IntN(3) == 0 {
			rule.Retention.MaxJobs = 1
		}
		rule.Paused = w.rng.IntN(4) == 0
		if rule.Paused && w.rng.IntN(2) == 0 {
			rule.PausedUntil = w.modelStore.Now().Add(time.Duration(w.rng.IntN(5000)) * time.Millisecond)
		}
		w.queueRules[name] = rule
		w.applyToBothStores(func(s store.Store) error { return s.SetQueue(w.Context(), name, rule) })
	}
}

// reapplyAllRules sets all rules in both stores again, because a reopened store has lost some of them.
func (w *comparisonWalk) reapplyAllRules() {
	w.applyToBothStores(func(s store.Store) error {
		hooks := store.HookSettings{MakeHookDrafts: createHookDrafts, OwnerName: "x"}
		if w.usesHooks {
			hooks.TriggerEvents = queue.HookCompleted
		}
		err := errors.Join(s.SetMaxRunningPerUser(w.Context(), w.maxUID), s.SetThisNodeProperties(w.Context(), w.node),
			s.SetHooks(w.Context(), hooks))
		for _, name := range walkQueueNames {
			rule, known := w.queueRules[name]
			if !known {
				rule = store.QueueRule{Weight: 1}
			}
			err = errors.Join(err, s.SetQueue(w.Context(), name, rule))
		}
		for next := time.Duration(0); next == 0 && err == nil; { // ApplyDueChanges must check all jobs that limits hold back
			next, err = s.ApplyDueChanges(w.Context())
		}
		return err
	})
}

// randomDemands returns random demands of a job. They have few different keys, so that jobs compete for them.
func (w *comparisonWalk) randomDemands() (demands []queue.Demand) {
	if !w.usesGates || w.rng.IntN(2) == 0 {
		return nil
	}
	if w.rng.IntN(6) == 0 {
		demands = append(demands, nodeDemand([]string{"a", "b", "zone=x", "zone=y"}[w.rng.IntN(4)]))
	}
	if w.rng.IntN(3) == 0 {
		demands = append(demands, queue.Demand{Kind: queue.GateLock,
			GateKey: fmt.Sprint([]string{"@", ""}[w.rng.IntN(2)], "k", w.rng.IntN(3)), Amount: 1 + w.rng.IntN(3)})
	}
	if w.rng.IntN(3) == 0 {
		demands = append(demands, queue.Demand{Kind: queue.GateRate, GateKey: fmt.Sprint("@r", w.rng.IntN(2)),
			Amount: 1 + w.rng.IntN(4), RatePeriod: time.Duration(1+w.rng.IntN(3)) * time.Second})
	}
	// Add at most one resource. If a job lacks several resources, only one of them makes the job hold back other jobs. The
	// two stores may choose different resources.
	if w.rng.IntN(2) == 0 {
		// If users take turns, demand only one unit. A job that lacks several units must hold back other jobs that need the
		// resource, and the two stores may notice this at different times.
		n := 1
		if w.rankOrder == arrivalRankOrder {
			n += w.rng.IntN(3)
		}
		demands = append(demands, queue.Demand{Kind: queue.GateResource, GateKey: []string{"disk", "gpu"}[w.rng.IntN(2)],
			Amount: n})
	}
	return demands
}

// randomDependencies returns random dependencies of the draft with index draftIndex: on stored and removed jobs, on
// other drafts of the request and, rarely, in a cycle. A job with an expiry is never a parent, because the stores may
// cancel expired parents at different times, and its dependants would then get different arrival numbers.
func (w *comparisonWalk) randomDependencies(draftIndex int, drafts []queue.Job) (dependencies []queue.Dependency) {
	expires := func(d queue.Dependency) bool {
		if d.ParentDraftNumber != 0 {
			return drafts[d.ParentDraftNumber-1].ExpiresAt != 0
		}
		j, err := w.modelStore.GetJob(w.Context(), strconv.FormatInt(d.ParentSeq, 10))
		return err == nil && j.ExpiresAt != 0
	}
	for range 1 + w.rng.IntN(3) {
		d := queue.Dependency{Condition: queue.DependencyCondition(1 + w.rng.IntN(3))}
		switch n := w.rng.IntN(12); {
		case n < 3 && draftIndex > 0:
			d.ParentDraftNumber = 1 + w.rng.IntN(draftIndex)
		case n < 4 && len(drafts) > 0:
			d.ParentDraftNumber = 1 + w.rng.IntN(len(drafts))
		case len(w.jobSeqs) > 0:
			d.ParentSeq = w.jobSeqs[w.rng.IntN(len(w.jobSeqs))]
		default:
			continue
		}
		if !slices.Contains(dependencies, d) && !expires(d) {
			dependencies = append(dependencies, d)
		}
	}
	return dependencies
}

func (w *comparisonWalk) enqueueRandomJobs() {
	w.applyDueChangesInBoth() // cancels the expired jobs in both stores, so that their counts are equal
	drafts := make([]queue.Job, 1+w.rng.IntN(4))
	uid := w.rng.IntN(12)
	for i := range drafts {
		j := &drafts[i]
		*j = queue.Job{UID: uid, Priority: int64(w.rng.IntN(3)), MaxAttempts: 1 + w.rng.IntN(3), ExitCode: -1,
			Queue: walkQueueNames[w.rng.IntN(40)/13], Demands: w.randomDemands(),
			ExecutionSettings: queue.ExecutionSettings{Command: "true"}}
		if w.rng.IntN(4) == 0 {
			j.Delay = time.Duration(w.rng.IntN(3000)) * time.Millisecond
		}
		// Request hooks only for completion and failure. The stores may cancel expired jobs, and so create hooks for
		// HookEnded, at different times.
		if w.rng.IntN(6) == 0 {
			j.HookEvents = queue.HookEvents(w.rng.IntN(int(queue.HookDead)))
		}
		if w.rng.IntN(8) == 0 {
			j.ExpiresAt = w.modelStore.Now().Add(time.Duration(w.rng.IntN(5000)) * time.Millisecond)
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
	got, want := callBothStores(w, func(s store.Store) (store.Receipt, error) {
		return s.Enqueue(w.Context(), store.EnqueueRequest{UID: uid, OwnerName: "x", Drafts: slices.Clone(drafts)})
	})
	if !reflect.DeepEqual(got, want) {
		w.Errorf("step %d: the engine returns %+v, the model %+v", w.step, got, want)
	}
	w.jobSeqs = append(w.jobSeqs, got.Seqs...)
}

// reportAndClaim reports random results of leased jobs and claims more jobs.
func (w *comparisonWalk) reportAndClaim() {
	var engine, model store.LeaseReport
	engine.MaxJobsToClaim = w.rng.IntN(7)
	model.MaxJobsToClaim = engine.MaxJobsToClaim
	stillLeased := w.addRandomResults(&engine, &model)
	if w.rng.IntN(4) == 0 { // a simulation must change nothing; its result is not compared
		if _, err := w.engine.Store.SimulateClaims(w.Context(), 1+w.rng.IntN(9)); err != nil {
			w.Error(err)
		}
	}
	got, want := callBothStores(w, func(s store.Store) (store.ReportAndClaimResult, error) {
		if s == w.modelStore {
			return s.ReportAndClaim(w.Context(), model)
		}
		return s.ReportAndClaim(w.Context(), engine)
	})
	stale := map[int64]bool{}
	for _, l := range got.StaleLeases {
		stale[l.Seq] = true
	}
	givenBack := slices.Clone(engine.ReleasedLeases)
	for _, c := range engine.LeasedJobChanges {
		givenBack = append(givenBack, c.Lease)
	}
	for _, l := range givenBack {
		if !stale[l.Seq] { // if the release was rejected as stale, the job has started and is still leased
			stillLeased = slices.DeleteFunc(stillLeased, func(seq int64) bool { return seq == l.Seq })
		}
	}
	w.leasedSeqs = stillLeased
	// an engine may need several claims to take the same jobs, if many other jobs cannot start
	for range maxAdditionalClaimCalls {
		if len(got.ClaimedJobs) >= len(want.ClaimedJobs) {
			break
		}
		more, err := w.engine.Store.ReportAndClaim(w.Context(),
			store.LeaseReport{MaxJobsToClaim: engine.MaxJobsToClaim - len(got.ClaimedJobs)})
		if err != nil {
			w.Error(err)
		}
		got.ClaimedJobs = append(got.ClaimedJobs, more.ClaimedJobs...)
	}
	w.compareClaims(got.ClaimedJobs, want.ClaimedJobs, engine.MaxJobsToClaim)
	// Check wait reasons only if this report has ended or changed no job; such a report may let more jobs start.
	if len(want.ClaimedJobs) < engine.MaxJobsToClaim && len(w.jobSeqs) > 0 &&
		len(engine.Settlements)+len(engine.LeasedJobChanges) == 0 && !w.Failed() {
		w.checkWaitReasons(w.jobSeqs[w.rng.IntN(len(w.jobSeqs))])
	}
}

// addRandomResults adds the same random results to both reports. It returns the jobs that may stay leased.
func (w *comparisonWalk) addRandomResults(engineReport, modelReport *store.LeaseReport) (stillLeasedSeqs []int64) {
	for _, seq := range w.leasedSeqs {
		engineLease, modelLease := w.engineLeases[seq], w.modelLeases[seq]
		switch w.rng.IntN(6) {
		case 0:
			engineReport.ReleasedLeases, modelReport.ReleasedLeases = append(engineReport.ReleasedLeases, engineLease),
				append(modelReport.ReleasedLeases, modelLease)
			// If the job has started, the store ignores the release. Only the reply of the store shows whether it did.
			stillLeasedSeqs = append(stillLeasedSeqs, seq)
			continue
		case 5:
			if w.rng.IntN(3) > 0 {
				break
			}
			c := store.JobChange{Verb: []queue.Verb{queue.VerbCancel, queue.VerbHold, queue.VerbRemove,
				queue.VerbEdit}[w.rng.IntN(4)]}
			if c.Verb == queue.VerbEdit {
				list := w.randomDemands()
				c.EditJob = func(j *queue.Job) error { j.Demands = slices.Clone(list); return nil }
			}
			engineReport.LeasedJobChanges, modelReport.LeasedJobChanges = append(engineReport.LeasedJobChanges,
				store.LeasedJobChange{Lease: engineLease, JobChange: c}),
				append(modelReport.LeasedJobChanges, store.LeasedJobChange{Lease: modelLease, JobChange: c})
			// If the job has started, the store ignores the change. Only the reply of the store shows whether it did.
			stillLeasedSeqs = append(stillLeasedSeqs, seq)
			continue
		case 1:
			at := w.modelStore.Now()
			engineReport.AttemptStarts = append(engineReport.AttemptStarts, store.AttemptStart{Lease: engineLease, StartedAt: at,
				WorkerID: "w1", PID: 1})
			modelReport.AttemptStarts = append(modelReport.AttemptStarts,
				store.AttemptStart{Lease: modelLease, StartedAt: at, WorkerID: "w1", PID: 1})
		case 2, 3:
			d := queue.AttemptDecision{RecordsAttempt: true, CountsTowardMaxAttempts: true, NextState: queue.Completed}
			if w.rng.IntN(3) == 0 {
				d.NextState, d.StartDelay = queue.Failed, time.Duration(w.rng.IntN(2))*time.Second
			}
			a := queue.Attempt{StartedAt: timeBefore(w.modelStore.Now(), time.Duration(seq%7)*time.Second),
				EndedAt: w.modelStore.Now(), Output: make([]byte, seq%3)}
			engineReport.Settlements = append(engineReport.Settlements, store.Settlement{Lease: engineLease,
				Attempt: a, Decision: d, CommandFingerprint: uint64(seq % 5)})
			modelReport.Settlements = append(modelReport.Settlements, store.Settlement{Lease: modelLease,
				Attempt: a, Decision: d, CommandFingerprint: uint64(seq % 5)})
			continue
		}
		stillLeasedSeqs = append(stillLeasedSeqs, seq)
	}
	return stillLeasedSeqs
}

// checkWaitReasons checks that a job has wait reasons if it is waiting and the last claim could not take it, and
// otherwise has none.
func (w *comparisonWalk) checkWaitReasons(seq int64) {
	w.operationName = fmt.Sprint("obstacles of ", seq)
	j, err := w.modelStore.GetJob(w.Context(), strconv.FormatInt(seq, 10))
	if err != nil || j.ExpiresAt != 0 {
		return
	}
	got, want := callBothStores(w, func(s store.Store) ([]store.WaitReason, error) {
		all, err := s.WaitReasons(w.Context(), []int64{seq})
		return all[seq], err
	})
	runnable := j.State.IsRunnable() && !slices.Contains(w.leasedSeqs, seq)
	// A job that is not due has a wait reason only if its queue is paused.
	timed := runnable && j.DueAt > w.modelStore.Now()
	if ready := runnable && !timed; len(got) > 0 != (len(want) > 0) || !timed && ready != (len(got) > 0) {
		w.Errorf("step %d: job %d is %s; its obstacles are %v in the engine and %v in the model", w.step, seq,
			j.State, got, want)
	}
}

// The model claims all jobs in one call. An engine may need several calls, because each call checks only a limited
// number of jobs that cannot start. maxAdditionalClaimCalls limits the additional calls.
const maxAdditionalClaimCalls = 20

// compareClaims checks that both stores have claimed the same jobs in the same order.
func (w *comparisonWalk) compareClaims(got, want []queue.Job, maxJobs int) {
	order := func(jobs []queue.Job) (seqs []int64) {
		for i := range jobs {
			seqs = append(seqs, jobs[i].Seq)
		}
		return seqs
	}
	if !slices.Equal(order(got), order(want)) {
		w.Errorf("step %d: with a limit of %d, the engine claims the jobs %v, the model %v", w.step, maxJobs,
			order(got), order(want))
		for _, seq := range slices.Concat(order(got), order(want), w.leasedSeqs) {
			j, err := w.modelStore.GetJob(w.Context(), strconv.FormatInt(seq, 10))
			w.Logf("%d: user %d, queue %s, priority %d, expires %d, %s, demands %v %v", seq, j.UID, j.Queue, j.Priority,
				j.ExpiresAt, j.State, j.Demands, err)
		}
		w.Logf("now %d, limit per user %d, node %+v, queues %v", w.modelStore.Now(), w.maxUID, w.node, w.queueRules)
		return
	}
	for i := range got {
		w.engineLeases[got[i].Seq], w.modelLeases[got[i].Seq] = got[i].Lease(), want[i].Lease()
		w.leasedSeqs = append(w.leasedSeqs, got[i].Seq)
	}
}

// applyDueChangesInBoth calls ApplyDueChanges in both stores. Afterwards, both have cancelled all expired jobs.
func (w *comparisonWalk) applyDueChangesInBoth() {
	w.Helper()
	w.applyToBothStores(func(s store.Store) error { _, err := s.ApplyDueChanges(w.Context()); return err })
}

func (w *comparisonWalk) changeRandomJob() {
	w.applyDueChangesInBoth()
	if len(w.jobSeqs) == 0 {
		return
	}
	seq := w.jobSeqs[w.rng.IntN(len(w.jobSeqs))]
	verbs := []queue.Verb{queue.VerbCancel, queue.VerbHold, queue.VerbRelease, queue.VerbRelease, queue.VerbRetry,
		queue.VerbEdit, queue.VerbRemove}
	c := store.JobChange{Verb: verbs[w.rng.IntN(len(verbs))], KeepDependantsCancelled: w.rng.IntN(3) == 0}
	priority := int64(w.rng.IntN(4))
	if c.Verb == queue.VerbEdit {
		list, name, n := w.randomDemands(), walkQueueNames[w.rng.IntN(len(walkQueueNames))], w.rng.IntN(4)
		parents := []queue.Dependency{}
		for _, d := range w.randomDependencies(0, nil) {
			d.ParentID = strconv.FormatInt(d.ParentSeq, 10)
			parents = append(parents, d)
		}
		c.EditJob = func(j *queue.Job) error {
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
	w.operationName = fmt.Sprint("change ", c.Verb, " of ", seq)
	w.applyToBothStores(func(s store.Store) error { return s.ChangeJob(w.Context(), seq, c) })
}
