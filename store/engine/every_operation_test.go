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
	now := s.clock()
	clock := s.clock
	s.clock = func() queue.UnixMillis { return now }
	defer func() { s.clock = clock }()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.SetQueue(ctx, "q", store.QueueRule{Weight: 2, Concurrency: 5}))
	must(s.SetThisNodeProperties(ctx, store.Node{ResourceUnits: map[string]int{"gpu": 1}}))
	for _, n := range []int{1, 0} {
		must(s.SetGateRule(ctx, queue.Demand{Kind: queue.GateRate, GateKey: "@r", Amount: n, RatePeriod: time.Second}))
		_, err := s.Gates(ctx, 0, store.GateState{})
		must(err)
	}
	want := func(d ...queue.Demand) queue.Job {
		return newDraft(func(j *queue.Job) { j.Demands, j.Queue = d, "q" })
	}
	rate := queue.Demand{Kind: queue.GateRate, GateKey: "r", Amount: 1, RatePeriod: time.Second}
	lock := queue.Demand{Kind: queue.GateLock, GateKey: "l", Amount: 1}
	gpu := queue.Demand{Kind: queue.GateResource, GateKey: "gpu", Amount: 1}
	for _, d := range []queue.Demand{rate, lock, gpu, {Kind: queue.GateLock, GateKey: "l", Amount: 2}} {
		_, err := s.Enqueue(ctx, store.EnqueueRequest{Drafts: []queue.Job{want(d), want(d)}})
		must(err)
	}
	_, err := s.Enqueue(ctx, store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.Queue = "once" })}})
	must(err)
	// read a user's lanes again, as after the rollback of a change
	must(s.RunAndCommit(ctx, UrgentClass, func(tx *Tx) error {
		s.cache.lanes.MarkUserLanesStale(s.cache.lanes.FindOrAddQueue("q"), 0)
		return tx.refreshStaleQueues()
	}))
	grant, err := s.ReportAndClaim(ctx, store.LeaseReport{MaxJobsToClaim: 9})
	must(err)
	report := store.LeaseReport{MaxJobsToClaim: 9}
	for i := range grant.ClaimedJobs {
		report.Settlements = append(report.Settlements, store.Settlement{Lease: grant.ClaimedJobs[i].Lease(),
			Attempt: queue.Attempt{StartedAt: now}, Decision: queue.AttemptDecision{NextState: queue.Completed,
				CountsTowardMaxAttempts: true, RecordsAttempt: true}})
	}
	grant, err = s.ReportAndClaim(ctx, report)
	must(err)
	useQueuesAndDependencies(t, s)
	must(s.SetMaxRunningPerUser(ctx, 3))
	must(s.SetMaxRunningPerUser(ctx, 0))
	_, err = s.ApplyDueChanges(ctx)
	must(err)
	now += 2000
	applyAllDueChanges(t, s)
	more, err := s.ReportAndClaim(ctx, store.LeaseReport{MaxJobsToClaim: 9})
	must(err)
	report = store.LeaseReport{}
	for _, j := range append(grant.ClaimedJobs, more.ClaimedJobs...) {
		report.Settlements = append(report.Settlements, store.Settlement{Lease: j.Lease(),
			Attempt:  queue.Attempt{StartedAt: now},
			Decision: queue.AttemptDecision{NextState: queue.Completed, CountsTowardMaxAttempts: true, RecordsAttempt: true}})
	}
	_, err = s.ReportAndClaim(ctx, report)
	must(err)
	now += 2000
	applyAllDueChanges(t, s)
	if grant, err = s.ReportAndClaim(ctx, store.LeaseReport{MaxJobsToClaim: 9}); err != nil || len(grant.ClaimedJobs) > 0 {
		t.Errorf("claimed %v, %v; want nothing, because no job remains", grant.ClaimedJobs, err)
	}
	now += 2000
	kept := s.maxEmptyLanes
	s.maxEmptyLanes = 0
	applyAllDueChanges(t, s)
	applyAllDueChanges(t, s) // removes queues that have no jobs any more
	s.maxEmptyLanes = kept
	if n := queryNumber(
		t, s,
		`SELECT (SELECT count(*) FROM lanes WHERE demands <> '') + (SELECT count(*) FROM gates) + (SELECT count(*) FROM starts)`); n != 0 {
		t.Errorf("%d unused lanes, gates and starts remain", n)
	}
	if s.cache.lanes.Queues["once"] != nil {
		t.Error("the cache still contains a queue without jobs and lanes")
	}
}

// useQueuesAndDependencies creates and removes queues and dependencies.
func useQueuesAndDependencies(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	after := func(id string) func(*queue.Job) {
		return func(j *queue.Job) { j.DependsOn = []queue.Dependency{{ParentID: id, Condition: queue.ParentEnded}} }
	}
	_, err := s.StageBatch(ctx, store.EnqueueRequest{BatchName: "e",
		Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.ID = "pp" })}})
	if err == nil {
		_, err = s.StageBatch(ctx, store.EnqueueRequest{BatchName: "e", Drafts: []queue.Job{newDraft(after("pp"))}})
	}
	if err == nil {
		taken := newDraft(func(j *queue.Job) { j.ID = "pp" })
		if _, rejected := s.Enqueue(ctx, store.EnqueueRequest{Drafts: []queue.Job{taken}}); !errors.Is(rejected,
			queue.ErrExists) {
			err = fmt.Errorf("enqueue with the id of a batch: %w", rejected)
		}
	}
	if err == nil {
		err = s.AbortBatch(ctx, 0, "e")
	}
	var waits store.Receipt
	if err == nil {
		_, err = s.Enqueue(ctx, store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) {
			j.ID, j.Delay = "par",
				time.Hour
		}), newDraft(func(j *queue.Job) { j.ID, j.Delay = "two", time.Hour })}})
	}
	if err == nil {
		waits, err = s.Enqueue(ctx, store.EnqueueRequest{Drafts: []queue.Job{newDraft(after("par"))}})
	}
	if err == nil {
		_, err = s.GetJob(ctx, waits.IDs[0])
	}
	if err == nil {
		_, _, err = s.DependencyLinks(ctx, waits.Seqs[0], 9)
	}
	if err == nil {
		_, err = s.ParentJobs(ctx, waits.Seqs[0])
	}
	if err == nil {
		if _, none := s.ParentJobs(ctx, 1<<40); !errors.Is(none, queue.ErrNotFound) {
			err = fmt.Errorf("parents of no job: %w", none)
		}
	}
	if err == nil {
		err = s.ChangeJob(ctx, waits.Seqs[0], store.JobChange{Verb: queue.VerbEdit, EditJob: func(j *queue.Job) error {
			j.DependsOn = []queue.Dependency{{ParentID: "two", Condition: queue.ParentEnded}}
			return nil
		}})
	}
	for _, id := range []string{"par", "two"} {
		j, found := s.GetJob(ctx, id)
		if err = errors.Join(err, found); err == nil {
			err = errors.Join(s.ChangeJob(ctx, j.Seq, store.JobChange{Verb: queue.VerbCancel}),
				s.ChangeJob(ctx, j.Seq, store.JobChange{Verb: queue.VerbRetry}),
				s.ChangeJob(ctx, j.Seq, store.JobChange{Verb: queue.VerbRemove}))
		}
	}
	if err == nil {
		err = s.ChangeJob(ctx, waits.Seqs[0], store.JobChange{Verb: queue.VerbRemove})
	}
	for i := range 2 * maxMetaListEntries {
		if err == nil {
			_, err = s.Enqueue(ctx, store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) {
				j.Queue,
					j.Delay = fmt.Sprint("many", i), time.Hour
			})}})
		}
	}
	if err == nil {
		_, err = s.Queues(ctx)
	}
	page, listed := s.ListJobs(ctx, store.JobFilter{States: []queue.State{queue.Pending}, Limit: store.MaxPageRows})
	for i := range page.Jobs {
		if j := &page.Jobs[i]; strings.HasPrefix(j.Queue, "many") {
			err = errors.Join(err, s.ChangeJob(ctx, j.Seq, store.JobChange{Verb: queue.VerbRemove}))
		}
	}
	if err = errors.Join(err, listed); err != nil {
		t.Fatal(err)
	}
}

func callEveryScheduleOperation(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	kept, err := s.PutSchedule(ctx, store.SchedulePutRequest{Schedule: store.Schedule{Name: "n", JobDraft: newDraft(),
		Overlap: store.OverlapReplace, NextOccurrenceAt: 1, NextDueAt: 1}})
	must(err)
	for i := range 2 { // the second run replaces the job of the first
		fired, err := s.RunOccurrences(ctx, store.OccurrenceRequest{ScheduleName: "n", Generation: kept.Generation,
			RequestedByUID:   new(0),
			OccurrencesToRun: []queue.UnixMillis{1}, CandidateJobID: func(queue.UnixMillis,
				int) string {
				return fmt.Sprint("run ", i)
			}})
		must(err)
		if !fired.RequestCarriedOut {
			t.Fatal("the occurrence created no job")
		}
	}
	for _, boot := range []string{"", "b"} {
		_, _, err = s.DueSchedules(ctx, boot, 9)
		must(err)
	}
	must(s.PauseSchedule(ctx, store.SchedulePauseRequest{ScheduleName: "n", Generation: kept.Generation, Paused: true}))
	must(s.PauseSchedule(ctx, store.SchedulePauseRequest{ScheduleName: "n", Generation: kept.Generation}))
	_, err = s.RunOccurrences(ctx, store.OccurrenceRequest{ScheduleName: "n", Generation: kept.Generation,
		MissedOccurrences: []queue.UnixMillis{2}})
	must(err)
	_, err = s.ListSchedules(ctx, "", 9)
	must(err)
	_, _, err = s.GetSchedule(ctx, "n")
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
	first, err := s.Enqueue(ctx, store.EnqueueRequest{IdempotencyKey: "k",
		Drafts: []queue.Job{newDraft(past), newDraft(), newDraft(), newDraft(), newDraft(),
			newDraft(func(j *queue.Job) { j.ID = "named" })}})
	must(err)
	must(s.SetMaxRunningPerUser(ctx, 9))
	_, err = s.ReadScreen(ctx, store.ScreenFilter{RowsPerPart: 5}) // read the screen while a quota is set
	must(errors.Join(err, s.SetMaxRunningPerUser(ctx, 0)))
	_, err = s.BestWaitingPriority(ctx, 0)
	must(err)
	_, err = s.StageBatch(ctx, store.EnqueueRequest{BatchName: "b",
		Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.ID = "staged" })}})
	must(err)
	// The id is a number, so Enqueue must check whether a job in a batch has this number as its seq.
	_, err = s.Enqueue(
		ctx, store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.ID = fmt.Sprint(first.Seqs[5]) })}})
	must(err)
	_, err = s.StageBatch(ctx, store.EnqueueRequest{BatchName: "c", Drafts: []queue.Job{newDraft()}})
	must(err)
	must(s.AbortBatch(ctx, 0, "c"))
	_, err = s.StageBatch(ctx, store.EnqueueRequest{BatchName: "d", Drafts: []queue.Job{newDraft()}})
	must(err)
	must(s.RunAndCommit(ctx, UrgentClass, func(t *Tx) error {
		b, _ := t.findOpenBatch(0, "d")
		t.discardBatch(b)
		return nil
	}))
	batch, err := s.Enqueue(ctx, store.EnqueueRequest{BatchName: "b"})
	must(err)
	for more := true; more; {
		more, err = s.ApplyBatch(ctx, batch.Batch)
		must(err)
	}
	grant, err := s.ReportAndClaim(ctx, store.LeaseReport{MaxJobsToClaim: 4})
	must(err)
	large := func(j *queue.Job) { j.Stdin = strings.Repeat("x", records.MaxInlineInputBytes+1) }
	apart, err := s.Enqueue(ctx, store.EnqueueRequest{Drafts: []queue.Job{newDraft(large,
		func(j *queue.Job) { j.Delay = time.Hour })}})
	must(err)
	for _, edit := range []func(*queue.Job){func(j *queue.Job) { j.Stdin = "" }, large} {
		must(s.ChangeJob(ctx, apart.Seqs[0], store.JobChange{Verb: queue.VerbEdit,
			EditJob: func(j *queue.Job) error { edit(j); return nil }}))
	}
	for _, verb := range []queue.Verb{queue.VerbHold, queue.VerbCancel, queue.VerbRetry, queue.VerbRemove} {
		must(s.ChangeJob(ctx, apart.Seqs[0], store.JobChange{Verb: verb, NewTimeout: new(time.Second)}))
	}
	l := func(i int) queue.Lease { return grant.ClaimedJobs[i].Lease() }
	dead := queue.AttemptDecision{NextState: queue.Dead, CountsTowardMaxAttempts: true, RecordsAttempt: true}
	_, err = s.ReportAndClaim(ctx, store.LeaseReport{
		AttemptStarts:   []store.AttemptStart{{Lease: l(0), StartedAt: 1}},
		ProgressReports: []store.AttemptProgress{{Lease: l(0)}},
		ReleasedLeases:  []queue.Lease{l(2)}, LeasedJobChanges: []store.LeasedJobChange{{Lease: l(3),
			JobChange: store.JobChange{Verb: queue.VerbCancel}}},
		Settlements: []store.Settlement{{Lease: l(0), Attempt: queue.Attempt{OutputFileRef: "1-1", OutputBytes: 9,
			Result: []byte("1")},
			Decision: dead, DeletableOutputFile: "9-9"}, {Lease: l(1),
			Decision: queue.AttemptDecision{NextState: queue.Pending}}},
	})
	must(err)
	seq := l(0).Seq
	_, err = s.ParentJobs(ctx, enqueueForUser(t, s, 0, 1, func(j *queue.Job) {
		j.DependsOn, j.Delay = []queue.Dependency{{ParentSeq: seq, Condition: queue.ParentEnded}}, time.Hour
	})[0])
	must(err)
	_, err = s.AttemptHistory(ctx, seq, 0, 1)
	must(err)
	_, err = s.Attempt(ctx, seq, 1)
	must(err)
	_, err = s.Attempt(ctx, seq, 0)
	must(err)
	s.AttemptHistory(ctx, first.Seqs[0], 0, 1) // a job without attempts
	_, err = s.CountEndedJobs(ctx, store.EndedJobFilter{States: []queue.State{queue.Dead}, EndedBefore: 1})
	must(err)
	own := "q"
	_, err = s.PurgeEndedJobs(ctx, store.EndedJobFilter{States: []queue.State{queue.Completed}, EndedBefore: 1}, 1, nil)
	must(err)
	_, err = s.PurgeEndedJobs(ctx, store.EndedJobFilter{States: []queue.State{queue.Completed}, EndedBefore: 1,
		RetentionQueue: &own}, 1,
		nil)
	must(err)
	_, err = s.CountEndedJobs(ctx, store.EndedJobFilter{States: []queue.State{queue.Completed}, EndedBefore: 1,
		RetentionQueue: &own})
	must(err)
	_, err = s.QueuesWithOwnRetention(ctx)
	must(err)
	_, err = s.TrimEndedJobs(ctx, "", 1<<40, 1)
	must(err)
	_, err = s.RemovableUserBytes(ctx, 0, math.MaxInt64)
	must(err)
	_, err = s.TrimUserData(ctx, 0, s.StoredBytesOfUser(0)-1) // remove one output
	must(err)
	_, err = s.TrimQueueOutputs(ctx, own, -1)
	must(err)
	replaceOldestAttempt(t, s)
	cancelled, err := s.Enqueue(
		ctx, store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) {
			j.Stdin = strings.Repeat("x",
				2*store.MaxKeptInputBytes)
		})}})
	must(err)
	must(s.ChangeJob(ctx, cancelled.Seqs[0], store.JobChange{Verb: queue.VerbCancel, UID: 0}))
	_, err = s.TrimUserData(ctx, 0, -1)
	must(err)
	must(s.ChangeJob(ctx, cancelled.Seqs[0], store.JobChange{Verb: queue.VerbRemove, UID: 0}))
	// a user without jobs has no row
	must(s.RunAndCommit(ctx, UrgentClass, func(t *Tx) error { t.writeUserRow(1<<30, userCounts{}); return nil }))
	other, err := s.Enqueue(ctx,
		store.EnqueueRequest{Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.ID = "other" })}})
	must(err)
	for _, id := range []string{"missing", fmt.Sprint(other.Seqs[0])} {
		if _, err := s.GetJob(ctx, id); !errors.Is(err, queue.ErrNotFound) {
			t.Fatalf("job %s: %v, want %v", id, err, queue.ErrNotFound)
		}
	}
	_, err = s.TrimEvents(ctx, s.clock()+1, 1)
	must(err)
	must(s.ChangeJob(ctx, seq, store.JobChange{Verb: queue.VerbRetry}))
	must(s.ChangeJob(ctx, seq, store.JobChange{Verb: queue.VerbCancel, UID: 0}))
	must(s.ChangeJob(ctx, seq, store.JobChange{Verb: queue.VerbRemove, UID: 0}))
	_, err = s.AwaitJobs(ctx, 1)
	must(err)
	_, err = s.PreviousSession(ctx)
	must(err)
	_, err = s.AdvanceEpoch(ctx)
	must(err)
	must(s.StoreRunnerDirs(ctx, nil))
	must(s.RecordAudit(ctx, store.AuditRecord{Verb: "backup"}))
	must(errors.Join(s.SetSetting(ctx, store.Setting{Key: "a", Value: "b"}), s.SetSetting(ctx, store.Setting{Key: "a"})))
	_, err = s.Settings(ctx)
	must(err)
	for next := time.Duration(0); next == 0; {
		next, err = s.ApplyDueChanges(ctx)
		must(err)
	}
	must(s.SetRankOrder(ctx, queue.RankPolicy{Scheduling: queue.SchedulingByPriority}))
	for more := true; more; {
		more, err = s.RerankWaitingJobs(ctx)
		must(err)
	}
	must(s.SetMaxRunningPerUser(ctx, 1))
	for uid := range maxMetaListEntries + 1 { // more users than the list meta.users can contain
		kept := newDraft(func(j *queue.Job) { j.UID, j.ID = uid, fmt.Sprint("of ", uid) })
		r, err := s.Enqueue(ctx, store.EnqueueRequest{Drafts: []queue.Job{kept, newDraft(func(j *queue.Job) { j.UID = uid })},
			MaxPendingJobsPerUser: 1000})
		must(err)
		must(s.ChangeJob(ctx, r.Seqs[1], store.JobChange{Verb: queue.VerbCancel}))
		if uid > 0 {
			must(s.ChangeJob(ctx, r.Seqs[0], store.JobChange{Verb: queue.VerbCancel}))
		}
	}
	must(s.SetMaxRunningPerUser(ctx, 0))
	enqueue(t, s, 3)
	must(s.SetMaxRunningPerUser(ctx, 1))
	_, err = s.ReportAndClaim(ctx, store.LeaseReport{MaxJobsToClaim: 9}) // leave jobs that exceed the quota
	must(err)
	must(s.SetMaxRunningPerUser(ctx, 0))
	_, err = s.ReportAndClaim(ctx, store.LeaseReport{MaxJobsToClaim: 9})
	must(err)
	_, err = s.Enqueue(ctx, store.EnqueueRequest{UID: 77, OwnerName: "alice",
		Drafts: []queue.Job{newDraft(func(j *queue.Job) { j.UID, j.HookEvents, j.HookUID = 77, queue.HookJobFlag, 77 }),
			newDraft(func(j *queue.Job) { j.UID = 77 })}})
	must(err)
	must(s.ChangeJob(ctx, s.cache.NextJobSeq-1, store.JobChange{Verb: queue.VerbHold}))
	_, err = s.StageBatch(ctx, store.EnqueueRequest{UID: 77, BatchName: "g", Drafts: []queue.Job{newDraft()}})
	must(err)
	must(s.RunAndCommit(ctx, UrgentClass, func(tx *Tx) error { tx.beginDisownment(77); return tx.statementErr }))
	_, err = s.Enqueue(ctx, store.EnqueueRequest{UID: 77, IdempotencyKey: "k", Drafts: []queue.Job{newDraft()}})
	must(err)
	for more := true; more; {
		more, err = s.DisownJobs(ctx, 77, "alice")
		must(err)
	}
	long := enqueueForUser(t, s, 0, 1)[0]
	damageRow(t, s, `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 201)
		INSERT INTO attempts (seq, n, fence, worker, node, pid, started_at, ended_at, exit_code, signal, reason, counted, cpu_us, peak_rss, leftovers, dropped, error)
		SELECT ?, i, i, '', '', 1, 1, 1, 0, 0, '', 0, 0, 0, 0, 0, '' FROM n`, long)
	must(s.ChangeJob(ctx, long, store.JobChange{Verb: queue.VerbRemove}))
	applyAllDueChanges(t, s)
	useEveryGateKind(t, s)
	recordStatistics(t, s)
	callEveryScheduleOperation(t, s)
	parent := enqueueForUser(t, s, 0, 1)[0]
	waits := func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{ParentSeq: parent, Condition: queue.ParentEnded}}
	}
	must(s.ChangeJob(ctx, enqueueForUser(t, s, 0, 2, waits)[1], store.JobChange{Verb: queue.VerbRemove}))
	must(s.ChangeJob(ctx, parent, store.JobChange{Verb: queue.VerbCancel}))
	parent = enqueueForUser(t, s, 0, 1)[0]
	enqueueForUser(t, s, 0, 120, func(j *queue.Job) {
		j.DependsOn = []queue.Dependency{{ParentSeq: parent,
			Condition: queue.ParentCompleted}}
	})
	// leaves a note, because the dependants are many
	must(s.ChangeJob(ctx, parent, store.JobChange{Verb: queue.VerbCancel}))
	for range 2 * rules.MaxStateChangesPerParent {
		must(s.ChangeJob(ctx, parent, store.JobChange{Verb: queue.VerbRetry}))
		must(s.ChangeJob(ctx, parent, store.JobChange{Verb: queue.VerbCancel}))
	}
	applyAllDueChanges(t, s)
	_, _, err = s.Owners(ctx)
	must(err)
	_, err = s.MarkUnownedOutputs(ctx, []string{"9999-1"})
	must(err)
	refs, err := s.DeletableOutputs(ctx, 9)
	must(err)
	must(s.ForgetDeletedOutputs(ctx, refs))
	_, err = s.GetJob(ctx, "named")
	must(err)
	_, err = s.GetWithEnvAndStdin(ctx, "named")
	must(err)
	_, err = s.ListJobs(ctx, store.JobFilter{Limit: 5})
	must(err)
	_, err = s.ListJobs(ctx, store.JobFilter{Limit: 5, States: []queue.State{queue.Dead, queue.Pending},
		Labels: map[string]string{"a": "b"}, Since: 1})
	must(err)
	_, err = s.OldestReadySince(ctx)
	must(err)
	_, err = s.ReadScreen(ctx, store.ScreenFilter{RowsPerPart: 5})
	must(err)
	_, err = s.ReadScreen(ctx, store.ScreenFilter{RowsPerPart: 5, DetailsForUID: new(1)})
	must(err)
	_, err = s.Events(ctx, 0, 9)
	must(err)
}
