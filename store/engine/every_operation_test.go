package engine

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// useEveryGateKind runs jobs that need each kind of gate (a lock, a rate or a resource), until the store
// contains no gate.
func useEveryGateKind(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	now := s.now()
	clock := s.now
	s.now = func() queue.Millis { return now }
	defer func() { s.now = clock }()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.SetQueue(ctx, "q", store.QueueRule{Weight: 2, Concurrency: 5}))
	must(s.SetNode(ctx, store.Node{Resources: map[string]int{"gpu": 1}}))
	for _, n := range []int{1, 0} {
		must(s.SetGate(ctx, queue.Demand{Kind: queue.GateRate, Key: "@r", Amount: n, Period: time.Second}))
		_, err := s.Gates(ctx, 0, store.GateState{})
		must(err)
	}
	want := func(d ...queue.Demand) queue.Job {
		return draft(func(j *queue.Job) { j.Demands, j.Queue = d, "q" })
	}
	rate := queue.Demand{Kind: queue.GateRate, Key: "r", Amount: 1, Period: time.Second}
	lock := queue.Demand{Kind: queue.GateLock, Key: "l", Amount: 1}
	gpu := queue.Demand{Kind: queue.GateResource, Key: "gpu", Amount: 1}
	for _, d := range []queue.Demand{rate, lock, gpu, {Kind: queue.GateLock, Key: "l", Amount: 2}} {
		_, err := s.Enqueue(ctx, store.Request{Drafts: []queue.Job{want(d), want(d)}})
		must(err)
	}
	_, err := s.Enqueue(ctx, store.Request{Drafts: []queue.Job{draft(func(j *queue.Job) { j.Queue = "once" })}})
	must(err)
	must(s.Do(ctx, Urgent, func(tx *Tx) error { // read a user's lanes again, as after the rollback of a change
		s.mem.lanes.MarkStaleUser(s.mem.lanes.Queue("q"), 0)
		return tx.refreshStaleQueues()
	}))
	grant, err := s.Exchange(ctx, store.Report{WantedJobs: 9})
	must(err)
	report := store.Report{WantedJobs: 9}
	for i := range grant.Jobs {
		report.Settlements = append(report.Settlements, store.Settlement{Lease: grant.Jobs[i].Lease(),
			Attempt: queue.Attempt{StartedAt: now}, Decision: queue.Decision{State: queue.Completed, UsesAttempt: true,
				RecordsAttempt: true}})
	}
	grant, err = s.Exchange(ctx, report)
	must(err)
	useQueuesAndDependencies(t, s)
	must(s.SetMaxRunningPerUser(ctx, 3))
	must(s.SetMaxRunningPerUser(ctx, 0))
	_, err = s.Promote(ctx)
	must(err)
	now += 2000
	promoteAll(t, s)
	more, err := s.Exchange(ctx, store.Report{WantedJobs: 9})
	must(err)
	report = store.Report{}
	for _, j := range append(grant.Jobs, more.Jobs...) {
		report.Settlements = append(report.Settlements, store.Settlement{Lease: j.Lease(),
			Attempt:  queue.Attempt{StartedAt: now},
			Decision: queue.Decision{State: queue.Completed, UsesAttempt: true, RecordsAttempt: true}})
	}
	_, err = s.Exchange(ctx, report)
	must(err)
	now += 2000
	promoteAll(t, s)
	if grant, err = s.Exchange(ctx, store.Report{WantedJobs: 9}); err != nil || len(grant.Jobs) > 0 {
		t.Errorf("claimed %v, %v; want nothing, because no job remains", grant.Jobs, err)
	}
	now += 2000
	kept := s.maxEmptyLanes
	s.maxEmptyLanes = 0
	promoteAll(t, s)
	promoteAll(t, s) // removes queues that have no jobs any more
	s.maxEmptyLanes = kept
	if n := queryNumber(
		t, s, `SELECT (SELECT count(*) FROM lanes WHERE demands <> '') + (SELECT count(*) FROM gates) + (SELECT count(*) FROM starts)`); n != 0 {
		t.Errorf("%d unused lanes, gates and starts remain", n)
	}
	if s.mem.lanes.Queues["once"] != nil {
		t.Error("the cache still contains a queue without jobs and lanes")
	}
}

// useQueuesAndDependencies creates and removes queues and dependencies.
func useQueuesAndDependencies(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	after := func(id string) func(*queue.Job) {
		return func(j *queue.Job) { j.DependsOn = []queue.Dependency{{ID: id, Condition: queue.ParentEnded}} }
	}
	_, err := s.StageBatch(ctx, store.Request{Batch: "e", Drafts: []queue.Job{draft(func(j *queue.Job) { j.ID = "pp" })}})
	if err == nil {
		_, err = s.StageBatch(ctx, store.Request{Batch: "e", Drafts: []queue.Job{draft(after("pp"))}})
	}
	if err == nil {
		err = s.AbortBatch(ctx, 0, "e")
	}
	var waits store.Receipt
	if err == nil {
		_, err = s.Enqueue(ctx, store.Request{Drafts: []queue.Job{draft(func(j *queue.Job) {
			j.ID, j.Delay = "par",
				time.Hour
		}), draft(func(j *queue.Job) { j.ID, j.Delay = "two", time.Hour })}})
	}
	if err == nil {
		waits, err = s.Enqueue(ctx, store.Request{Drafts: []queue.Job{draft(after("par"))}})
	}
	if err == nil {
		_, err = s.Get(ctx, waits.IDs[0])
	}
	if err == nil {
		_, _, err = s.DependencyLinks(ctx, waits.Seqs[0], 9)
	}
	if err == nil {
		_, err = s.Parents(ctx, waits.Seqs[0])
	}
	if err == nil {
		if _, none := s.Parents(ctx, 1<<40); !errors.Is(none, queue.ErrNotFound) {
			err = fmt.Errorf("parents of no job: %w", none)
		}
	}
	if err == nil {
		err = s.Change(ctx, waits.Seqs[0], store.Change{Verb: queue.VerbEdit, Edit: func(j *queue.Job) error {
			j.DependsOn = []queue.Dependency{{ID: "two", Condition: queue.ParentEnded}}
			return nil
		}})
	}
	for _, id := range []string{"par", "two"} {
		j, found := s.Get(ctx, id)
		if err = errors.Join(err, found); err == nil {
			err = errors.Join(s.Change(ctx, j.Seq, store.Change{Verb: queue.VerbCancel}),
				s.Change(ctx, j.Seq, store.Change{Verb: queue.VerbRetry}),
				s.Change(ctx, j.Seq, store.Change{Verb: queue.VerbRemove}))
		}
	}
	if err == nil {
		err = s.Change(ctx, waits.Seqs[0], store.Change{Verb: queue.VerbRemove})
	}
	for i := range 2 * maxListedEntries {
		if err == nil {
			_, err = s.Enqueue(ctx, store.Request{Drafts: []queue.Job{draft(func(j *queue.Job) {
				j.Queue,
					j.Delay = fmt.Sprint("many", i), time.Hour
			})}})
		}
	}
	if err == nil {
		_, err = s.Queues(ctx)
	}
	page, listed := s.List(ctx, store.Filter{States: []queue.State{queue.Pending}, Limit: store.MaxPageRows})
	for i := range page.Jobs {
		if j := &page.Jobs[i]; strings.HasPrefix(j.Queue, "many") {
			err = errors.Join(err, s.Change(ctx, j.Seq, store.Change{Verb: queue.VerbRemove}))
		}
	}
	if err = errors.Join(err, listed); err != nil {
		t.Fatal(err)
	}
}

// callEveryScheduleOperation calls every operation of the store on schedules.
func callEveryScheduleOperation(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	kept, err := s.PutSchedule(ctx, store.SchedulePut{Schedule: store.Schedule{Name: "n", Draft: draft(),
		Overlap: store.OverlapReplace, NextAt: 1, DueAt: 1}})
	must(err)
	for i := range 2 { // the second run replaces the job of the first
		fired, err := s.RunOccurrences(ctx, store.OccurrenceRequest{Name: "n", Generation: kept.Generation,
			RequestedBy: new(0),
			Occurrences: []queue.Millis{1}, CandidateID: func(queue.Millis, int) string { return fmt.Sprint("run ", i) }})
		must(err)
		if !fired.CarriedOut {
			t.Fatal("the occurrence created no job")
		}
	}
	for _, boot := range []string{"", "b"} {
		_, _, err = s.DueSchedules(ctx, boot, 9)
		must(err)
	}
	must(s.PauseSchedule(ctx, store.SchedulePause{Name: "n", Generation: kept.Generation, Pause: true}))
	must(s.PauseSchedule(ctx, store.SchedulePause{Name: "n", Generation: kept.Generation}))
	_, err = s.RunOccurrences(ctx, store.OccurrenceRequest{Name: "n", Generation: kept.Generation,
		MissedOccurrences: []queue.Millis{2}})
	must(err)
	_, err = s.Schedules(ctx, "", 9)
	must(err)
	_, _, err = s.Schedule(ctx, "n")
	must(err)
	must(s.RemoveSchedule(ctx, "n", kept.Generation, 0))
}

// callEveryOperation calls every operation of the store at least once.
func callEveryOperation(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	past := func(j *queue.Job) { j.ExpiresAt = 1 }
	first, err := s.Enqueue(ctx, store.Request{IdempotencyKey: "k",
		Drafts: []queue.Job{draft(past), draft(), draft(), draft(), draft(), draft(func(j *queue.Job) { j.ID = "named" })}})
	must(err)
	must(s.SetMaxRunningPerUser(ctx, 9))
	_, err = s.Screen(ctx, store.ScreenFilter{Rows: 5}) // read the screen while a quota is set
	must(errors.Join(err, s.SetMaxRunningPerUser(ctx, 0)))
	_, err = s.BestWaitingPriority(ctx, 0)
	must(err)
	_, err = s.StageBatch(ctx, store.Request{Batch: "b",
		Drafts: []queue.Job{draft(func(j *queue.Job) { j.ID = "staged" })}})
	must(err)
	// The id is a number, so Enqueue must check whether a job in a batch has this number as its seq.
	_, err = s.Enqueue(
		ctx, store.Request{Drafts: []queue.Job{draft(func(j *queue.Job) { j.ID = fmt.Sprint(first.Seqs[5]) })}})
	must(err)
	_, err = s.StageBatch(ctx, store.Request{Batch: "c", Drafts: []queue.Job{draft()}})
	must(err)
	must(s.AbortBatch(ctx, 0, "c"))
	_, err = s.StageBatch(ctx, store.Request{Batch: "d", Drafts: []queue.Job{draft()}})
	must(err)
	must(s.Do(ctx, Urgent, func(t *Tx) error {
		b, _ := t.engine.mem.findOpenBatch(0, "d")
		t.discardBatch(b)
		return nil
	}))
	batch, err := s.Enqueue(ctx, store.Request{Batch: "b"})
	must(err)
	for more := true; more; {
		more, err = s.ApplyBatch(ctx, batch.Batch)
		must(err)
	}
	grant, err := s.Exchange(ctx, store.Report{WantedJobs: 4})
	must(err)
	large := func(j *queue.Job) { j.Stdin = strings.Repeat("x", records.MaxInlineInputBytes+1) }
	apart, err := s.Enqueue(ctx, store.Request{Drafts: []queue.Job{draft(large,
		func(j *queue.Job) { j.Delay = time.Hour })}})
	must(err)
	for _, edit := range []func(*queue.Job){func(j *queue.Job) { j.Stdin = "" }, large} {
		must(s.Change(ctx, apart.Seqs[0], store.Change{Verb: queue.VerbEdit,
			Edit: func(j *queue.Job) error { edit(j); return nil }}))
	}
	for _, verb := range []queue.Verb{queue.VerbHold, queue.VerbCancel, queue.VerbRetry, queue.VerbRemove} {
		must(s.Change(ctx, apart.Seqs[0], store.Change{Verb: verb, Timeout: new(time.Second)}))
	}
	l := func(i int) queue.Lease { return grant.Jobs[i].Lease() }
	dead := queue.Decision{State: queue.Dead, UsesAttempt: true, RecordsAttempt: true}
	_, err = s.Exchange(ctx, store.Report{
		Starts: []store.AttemptStart{{Lease: l(0), StartedAt: 1}}, Progress: []store.Progress{{Lease: l(0)}},
		Releases: []queue.Lease{l(2)}, Changes: []store.LeasedChange{{Lease: l(3),
			Change: store.Change{Verb: queue.VerbCancel}}},
		Settlements: []store.Settlement{{Lease: l(0), Attempt: queue.Attempt{OutputRef: "1-1", OutputBytes: 9,
			Result: []byte("1")},
			Decision: dead, DeletableOutput: "9-9"}, {Lease: l(1), Decision: queue.Decision{State: queue.Pending}}},
	})
	must(err)
	seq := l(0).Seq
	_, err = s.Parents(ctx, enqueueFor(t, s, 0, 1, func(j *queue.Job) {
		j.DependsOn, j.Delay = []queue.Dependency{{JobSeq: seq, Condition: queue.ParentEnded}}, time.Hour
	})[0])
	must(err)
	_, err = s.History(ctx, seq, 0, 1)
	must(err)
	_, err = s.Attempt(ctx, seq, 1)
	must(err)
	_, err = s.Attempt(ctx, seq, 0)
	must(err)
	s.History(ctx, first.Seqs[0], 0, 1) // a job without attempts
	_, err = s.CountEnded(ctx, store.EndedFilter{States: []queue.State{queue.Dead}, Cutoff: 1})
	must(err)
	own := "q"
	_, err = s.Purge(ctx, store.EndedFilter{States: []queue.State{queue.Completed}, Cutoff: 1}, 1, nil)
	must(err)
	_, err = s.Purge(ctx, store.EndedFilter{States: []queue.State{queue.Completed}, Cutoff: 1, RetentionQueue: &own}, 1,
		nil)
	must(err)
	_, err = s.CountEnded(ctx, store.EndedFilter{States: []queue.State{queue.Completed}, Cutoff: 1, RetentionQueue: &own})
	must(err)
	_, err = s.OwnRetentionQueues(ctx)
	must(err)
	_, err = s.TrimJobs(ctx, "", 1<<40, 1)
	must(err)
	_, err = s.RemovableBytes(ctx, 0, math.MaxInt64)
	must(err)
	_, err = s.TrimUserData(ctx, 0, s.UserBytes(0)-1) // remove one output
	must(err)
	_, err = s.TrimQueueOutputs(ctx, own, -1)
	must(err)
	replaceOldestAttempt(t, s)
	cancelled, err := s.Enqueue(
		ctx, store.Request{Drafts: []queue.Job{draft(func(j *queue.Job) {
			j.Stdin = strings.Repeat("x",
				2*store.MaxKeptInputBytes)
		})}})
	must(err)
	must(s.Change(ctx, cancelled.Seqs[0], store.Change{Verb: queue.VerbCancel, UID: 0}))
	_, err = s.TrimUserData(ctx, 0, -1)
	must(err)
	must(s.Change(ctx, cancelled.Seqs[0], store.Change{Verb: queue.VerbRemove, UID: 0}))
	must(s.Do(ctx, Urgent, func(t *Tx) error { t.writeUser(1<<30, user{}); return nil })) // a user without jobs has no row
	other, err := s.Enqueue(ctx, store.Request{Drafts: []queue.Job{draft(func(j *queue.Job) { j.ID = "other" })}})
	must(err)
	for _, id := range []string{"missing", fmt.Sprint(other.Seqs[0])} {
		if _, err := s.Get(ctx, id); !errors.Is(err, queue.ErrNotFound) {
			t.Fatalf("job %s: %v, want %v", id, err, queue.ErrNotFound)
		}
	}
	_, err = s.TrimEvents(ctx, s.now()+1, 1)
	must(err)
	must(s.Change(ctx, seq, store.Change{Verb: queue.VerbRetry}))
	must(s.Change(ctx, seq, store.Change{Verb: queue.VerbCancel, UID: 0}))
	must(s.Change(ctx, seq, store.Change{Verb: queue.VerbRemove, UID: 0}))
	_, err = s.Await(ctx, 1)
	must(err)
	_, err = s.PreviousSession(ctx)
	must(err)
	_, err = s.NextEpoch(ctx)
	must(err)
	must(s.StoreRunnerDirs(ctx, nil))
	must(s.Audit(ctx, store.Audit{Verb: "backup"}))
	must(errors.Join(s.SetSetting(ctx, store.Setting{Key: "a", Value: "b"}), s.SetSetting(ctx, store.Setting{Key: "a"})))
	_, err = s.Settings(ctx)
	must(err)
	for next := time.Duration(0); next == 0; {
		next, err = s.Promote(ctx)
		must(err)
	}
	must(s.SetOrder(ctx, queue.Order{Scheduling: queue.ByPriority}))
	for more := true; more; {
		more, err = s.Rerank(ctx)
		must(err)
	}
	must(s.SetMaxRunningPerUser(ctx, 1))
	for uid := range maxListedEntries + 1 { // more users than the list meta.users can contain
		kept := draft(func(j *queue.Job) { j.UID, j.ID = uid, fmt.Sprint("of ", uid) })
		r, err := s.Enqueue(ctx, store.Request{Drafts: []queue.Job{kept, draft(func(j *queue.Job) { j.UID = uid })},
			MaxPendingPerUser: 1000})
		must(err)
		must(s.Change(ctx, r.Seqs[1], store.Change{Verb: queue.VerbCancel}))
		if uid > 0 {
			must(s.Change(ctx, r.Seqs[0], store.Change{Verb: queue.VerbCancel}))
		}
	}
	must(s.SetMaxRunningPerUser(ctx, 0))
	enqueue(t, s, 3)
	must(s.SetMaxRunningPerUser(ctx, 1))
	_, err = s.Exchange(ctx, store.Report{WantedJobs: 9}) // leave jobs that exceed the quota
	must(err)
	must(s.SetMaxRunningPerUser(ctx, 0))
	_, err = s.Exchange(ctx, store.Report{WantedJobs: 9})
	must(err)
	_, err = s.Enqueue(ctx, store.Request{UID: 77, Owner: "alice",
		Drafts: []queue.Job{draft(func(j *queue.Job) { j.UID, j.HookEvents, j.HookUID = 77, queue.IsHook, 77 }),
			draft(func(j *queue.Job) { j.UID = 77 })}})
	must(err)
	must(s.Change(ctx, s.mem.nextSeq-1, store.Change{Verb: queue.VerbHold}))
	_, err = s.StageBatch(ctx, store.Request{UID: 77, Batch: "g", Drafts: []queue.Job{draft()}})
	must(err)
	must(s.Do(ctx, Urgent, func(tx *Tx) error { tx.beginDisowning(77); return tx.err }))
	_, err = s.Enqueue(ctx, store.Request{UID: 77, IdempotencyKey: "k", Drafts: []queue.Job{draft()}})
	must(err)
	for more := true; more; {
		more, err = s.Disown(ctx, 77, "alice")
		must(err)
	}
	long := enqueueFor(t, s, 0, 1)[0]
	damageRow(t, s, `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 201)
		INSERT INTO attempts (seq, n, fence, worker, node, pid, started_at, ended_at, exit_code, signal, reason, counted, cpu_us, peak_rss, leftovers, dropped, error)
		SELECT ?, i, i, '', '', 1, 1, 1, 0, 0, '', 0, 0, 0, 0, 0, '' FROM n`, long)
	must(s.Change(ctx, long, store.Change{Verb: queue.VerbRemove}))
	promoteAll(t, s)
	useEveryGateKind(t, s)
	recordStatistics(t, s)
	callEveryScheduleOperation(t, s)
	parent := enqueueFor(t, s, 0, 1)[0]
	waits := func(j *queue.Job) { j.DependsOn = []queue.Dependency{{JobSeq: parent, Condition: queue.ParentEnded}} }
	must(s.Change(ctx, enqueueFor(t, s, 0, 2, waits)[1], store.Change{Verb: queue.VerbRemove}))
	must(s.Change(ctx, parent, store.Change{Verb: queue.VerbCancel}))
	parent = enqueueFor(t, s, 0, 1)[0]
	enqueueFor(t, s, 0, 120, func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{JobSeq: parent,
			Condition: queue.ParentCompleted}}
	})
	must(s.Change(ctx, parent, store.Change{Verb: queue.VerbCancel})) // leaves a note, because the dependants are many
	for range 2 * rules.MaxParentChanges {
		must(s.Change(ctx, parent, store.Change{Verb: queue.VerbRetry}))
		must(s.Change(ctx, parent, store.Change{Verb: queue.VerbCancel}))
	}
	promoteAll(t, s)
	_, _, err = s.Owners(ctx)
	must(err)
	_, err = s.MarkUnownedOutputs(ctx, []string{"9999-1"})
	must(err)
	refs, err := s.DeletableOutputs(ctx, 9)
	must(err)
	must(s.ForgetDeletedOutputs(ctx, refs))
	_, err = s.Get(ctx, "named")
	must(err)
	_, err = s.GetFull(ctx, "named")
	must(err)
	_, err = s.List(ctx, store.Filter{Limit: 5})
	must(err)
	_, err = s.List(ctx, store.Filter{Limit: 5, States: []queue.State{queue.Dead, queue.Pending},
		Labels: map[string]string{"a": "b"}, Since: 1})
	must(err)
	_, err = s.OldestReadySince(ctx)
	must(err)
	_, err = s.Screen(ctx, store.ScreenFilter{Rows: 5})
	must(err)
	_, err = s.Screen(ctx, store.ScreenFilter{Rows: 5, DetailsForUID: new(1)})
	must(err)
	_, err = s.Events(ctx, 0, 9)
	must(err)
}
