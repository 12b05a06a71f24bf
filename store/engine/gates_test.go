package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/integrity"
)

// withDemands returns a function that sets the demands of a draft: the locks, rates and resources that it
// needs.
func withDemands(demands ...queue.Demand) func(*queue.Job) {
	return func(j *queue.Job) { j.Demands = demands }
}

// applyDueChangesUntilDone calls ApplyDueChanges until nothing more is due.
func applyDueChangesUntilDone(t *testing.T, s *Store) {
	t.Helper()
	for next := time.Duration(0); next == 0; {
		var err error
		if next, err = s.ApplyDueChanges(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// applyChange applies a change to a job, and checks that it is not rejected.
func applyChange(t *testing.T, s *Store, jobSeq int64, c store.JobChange) {
	t.Helper()
	if err := s.ChangeJob(t.Context(), jobSeq, c); err != nil {
		t.Fatal(err)
	}
}

// The store keeps the limit of a lock or rate while an unfinished job names it. When no unfinished job names
// it any more, the limit is removed; the limit of a rate is removed only after the rate's period.
func TestGateIsKeptWhileJobsNameIt(t *testing.T) {
	s := openStore(t, t.TempDir())
	s.maxEmptyLanes = 0
	clock := queue.UnixMillis(1_000_000)
	s.clock = func() queue.UnixMillis { return clock }
	lock := func(n int) queue.Demand { return queue.Demand{Kind: queue.GateLock, GateKey: "k", Amount: n} }
	later := enqueueForUser(t, s, 1, 1, withDemands(lock(2)), func(j *queue.Job) { j.Delay = time.Hour })[0]
	held := enqueueForUser(t, s, 1, 1, withDemands(lock(2)))[0]
	applyChange(t, s, held, store.JobChange{Verb: queue.VerbHold})
	rate := queue.Demand{Kind: queue.GateRate, GateKey: "r", Amount: 2, RatePeriod: time.Minute}
	enqueueForUser(t, s, 1, 1, withDemands(rate))
	_, jobs := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 1})
	claimJobs(t, s, store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: jobs[0].Lease(), StartedAt: clock}}})
	claimJobs(t, s, store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&jobs[0])}})
	claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 1}) // this claim finds the list of ready jobs empty
	wantGates := func(when, key string, want int64) {
		t.Helper()
		applyDueChangesUntilDone(t, s)
		if got := queryNumber(t, s, fmt.Sprintf(`SELECT count(*) FROM gates WHERE key = '%s'`, key)); got != want {
			t.Errorf("%s: %d gates of %q, want %d", when, got, key, want)
		}
		expectNoFaults(t, s, when)
	}
	wantGates("while two jobs name it", "k", 1)
	wantGates("with a start in its period", "r", 1)
	applyChange(t, s, held, store.JobChange{Verb: queue.VerbCancel})
	wantGates("while one is timed", "k", 1)
	other := []queue.Demand{{Kind: queue.GateLock, GateKey: "other", Amount: 1}}
	applyChange(t, s, later, store.JobChange{Verb: queue.VerbEdit,
		EditJob: func(j *queue.Job) error { j.Demands = other; return nil }})
	wantGates("once none does", "k", 0)
	wantGates("as that names another one", "other", 1)
	applyChange(t, s, later, store.JobChange{Verb: queue.VerbRemove})
	wantGates("once that is gone", "other", 0)
	clock += queue.UnixMillis(time.Minute.Milliseconds())
	wantGates("at the end of the period", "r", 1)
	clock += 2
	wantGates("after it", "r", 0)
	applyChange(t, s, held, store.JobChange{Verb: queue.VerbRetry})
	wantGates("as one comes back", "k", 1)
}

// If the clock is set back, however far, a rate limit that is used up allows starts again after its period,
// and waiting jobs start.
func TestRateLimitsOpenAfterClockSetBack(t *testing.T) {
	s := openStore(t, t.TempDir())
	clock := queue.UnixMillisOf(time.Now())
	s.clock = func() queue.UnixMillis { return clock }
	enqueueForUser(t, s, 1, 6, withDemands(queue.Demand{Kind: queue.GateRate, GateKey: "r", Amount: 2,
		RatePeriod: time.Second}))
	start := func(when string, want int) {
		t.Helper()
		_, jobs := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 9})
		if len(jobs) != want {
			t.Errorf("%s: %d were claimed, want %d", when, len(jobs), want)
		}
		for i := range jobs {
			claimJobs(t, s, store.LeaseReport{AttemptStarts: []store.AttemptStart{{Lease: jobs[i].Lease(), StartedAt: clock}}})
			claimJobs(t, s, store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&jobs[i])}})
		}
	}
	start("at first", 2)
	applyDueChangesUntilDone(t, s)
	clock = clock.Add(-time.Hour)
	applyDueChangesUntilDone(t, s)
	start("an hour before", 0)
	clock = clock.Add(1100 * time.Millisecond)
	applyDueChangesUntilDone(t, s)
	start("a period later", 2)
}

// A parent is a job that another job waits for. If a parent is lost because its part of a batch is damaged,
// the other job does not wait forever.
func TestLostParentDoesNotBlockDependant(t *testing.T) {
	s := openStore(t, t.TempDir())
	child := newDraft(func(j *queue.Job) {
		j.DependsOn, j.OnDependencyFailure = []queue.Dependency{{ParentDraftNumber: 1, Condition: queue.ParentCompleted}},
			queue.DependencyFailureHold
	})
	staged, err := s.StageBatch(t.Context(), store.EnqueueRequest{BatchName: "b", Drafts: []queue.Job{newDraft(), child}})
	if err != nil {
		t.Fatal(err)
	}
	damageRow(t, s, `UPDATE frames SET jobs = CAST(substr(jobs, 1, 4) || x'ff' || substr(jobs, 6) AS BLOB)`)
	committed, err := s.Enqueue(t.Context(), store.EnqueueRequest{BatchName: "b"})
	if err != nil {
		t.Fatal(err)
	}
	applyBatch(t, s, committed)
	applyDueChangesUntilDone(t, s)
	j, err := s.GetJob(t.Context(), staged.IDs[1])
	if err != nil || j.State != queue.Held || j.Reason != queue.ReasonDependency {
		t.Errorf("the job is %s, %q, error %v", j.State, j.Reason, err)
	}
}

// Jobs can form a chain, in which each depends on the one before. If a new job depends on every job of a
// chain, the check for cycles reads each job of the chain only once.
func TestCycleCheckReadsEachJobOnce(t *testing.T) {
	s := openStore(t, t.TempDir())
	const length = 300
	drafts := make([]queue.Job, length)
	for i := range drafts {
		drafts[i] = newDraft(func(j *queue.Job) {
			if i == 0 {
				j.RunAt = queue.UnixMillisOf(time.Now().Add(time.Hour))
			} else {
				j.DependsOn = []queue.Dependency{{ParentDraftNumber: i, Condition: queue.ParentCompleted}}
			}
		})
	}
	chain, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts})
	if err != nil {
		t.Fatal(err)
	}
	var after []queue.Dependency
	for _, id := range chain.IDs {
		after = append(after, queue.Dependency{ParentID: id, Condition: queue.ParentCompleted})
	}
	last := enqueueForUser(t, s, 1, 1)[0]
	applyChange(t, s, last, store.JobChange{Verb: queue.VerbEdit,
		EditJob: func(j *queue.Job) error { j.DependsOn = after; return nil }})
	inTransaction(t, s, func() error {
		queries := int64(0)
		for q := range s.conn.PreparedStmts {
			if strings.Contains(q, "SELECT parent FROM edges") {
				queries += countStatementStarts(s.conn, q)
			}
		}
		if queries < length || queries > 2*length {
			t.Errorf("%d queries for the parents of a job with a chain of %d parents", queries, length)
		}
		return nil
	})
	expectNoFaults(t, s, "at the end")
}

// A job that depends on many jobs is removed in several transactions.
func TestManyDependenciesAreRemovedInSteps(t *testing.T) {
	s := openStore(t, t.TempDir())
	const parents = 3000
	var after []queue.Dependency
	for range parents / 1000 {
		for _, seq := range enqueueForUser(t, s, 1, 1000) {
			after = append(after, queue.Dependency{ParentSeq: seq, Condition: queue.ParentCompleted})
		}
	}
	children := enqueueForUser(t, s, 1, 2, func(j *queue.Job) { j.DependsOn = after })
	most := countChangedRows(t, s)
	most() // discard the counts of the transactions before this point
	for _, seq := range children {
		applyChange(t, s, seq, store.JobChange{Verb: queue.VerbRemove})
	}
	applyDueChangesUntilDone(t, s)
	if rows, _ := most(); rows > maxRowsRemovedPerTx+100 {
		t.Errorf("one transaction changed %d rows", rows)
	}
	if n := queryNumber(t, s, `SELECT count(*) FROM edges WHERE met = 0`); n != 0 {
		t.Errorf("%d dependencies remain unresolved", n)
	}
	expectNoFaults(t, s, "at the end")
}

// Verify reports if the stored data of locks and other limits, of the first waiting jobs, or of dependencies
// contradicts the jobs. A restore corrects the counters, so that the jobs can run.
func TestVerifyComparesGatesWithJobs(t *testing.T) {
	for _, c := range []struct {
		harmful, want string
		recounted     bool // a restore corrects the damage
	}{
		{`UPDATE gates SET jobs = 7`, `gate "k" (a limit such as a lock): the stored counts are`, true},
		{`UPDATE gates SET lanes = 7`, `gate "k" (a limit such as a lock): the stored counts are`, true},
		{`DELETE FROM gates`, "which is missing in the database", true},
		{`UPDATE lanes SET head_seq = 1000, head_rank = 9223372036854775807`, "wrongly first in their lane", true},
		{`UPDATE lanes SET shut = 1000`, "a gate (a limit such as a lock) that is missing", true},
		{`DELETE FROM jobs WHERE seq = 2`, "depend on a job that does not exist", false},
	} {
		dir := t.TempDir()
		s := openStore(t, dir)
		enqueueForUser(t, s, 1, 2, withDemands(queue.Demand{Kind: queue.GateLock, GateKey: "k", Amount: 2}))
		enqueueForUser(t, s, 1, 1, func(j *queue.Job) {
			j.DependsOn = []queue.Dependency{{ParentSeq: 2,
				Condition: queue.ParentCompleted}}
		})
		expectNoFaults(t, s, "before")
		damageRow(t, s, c.harmful)
		if found := fmt.Sprint(findFaults(t, s)); !strings.Contains(found, c.want) {
			t.Errorf("after %s verify finds %s, want %q", c.harmful, found, c.want)
		}
		if !c.recounted {
			continue
		}
		if err := integrity.RepairBackup(s.conn); err != nil { // correct the counters, as a restore does
			t.Fatal(err)
		}
		s.Close()
		s = openStore(t, dir)
		expectNoFaults(t, s, "after "+c.harmful+" and a restore")
		if seqs, _ := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 9}); len(seqs) != 2 {
			t.Errorf("after %s and a restore %v were claimed", c.harmful, seqs)
		}
	}
}

func inQueue(name string) func(*queue.Job) { return func(j *queue.Job) { j.Queue = name } }

// Jobs in 900 queues, and one job in a further queue, wait for the same lock or resource. The one job starts
// after a limited number of turns, even while jobs run that do not need the lock or resource.
func TestGateServesEveryQueueInTurn(t *testing.T) {
	const queues, turns = 900, 40
	for name, c := range map[string]struct {
		running    queue.Demand // demand of the running jobs
		many       queue.Demand // demand of the jobs in many queues
		last       queue.Demand // demand of the job in one more queue
		want       int
		withOthers bool // in every round, jobs of another user run without the lock and the resource
	}{
		"lock":     {lockDemand("@k", 1), lockDemand("@k", 1), lockDemand("@k", 1), 9, false},
		"resource": {resourceDemand("gpu", 1), resourceDemand("gpu", 2), resourceDemand("gpu", 1), 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			if err := s.SetThisNodeProperties(t.Context(), store.Node{ResourceUnits: map[string]int{"gpu": 2}}); err != nil {
				t.Fatal(err)
			}
			enqueueForUser(t, s, 1, 2, withDemands(c.running))
			_, running := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 2})
			drafts := make([]queue.Job, queues)
			for i := range drafts {
				drafts[i] = newDraft(withUID(1), withDemands(c.many), inQueue(fmt.Sprintf("q%03d", i)))
			}
			for range 2 {
				if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts, UID: 1}); err != nil {
					t.Fatal(err)
				}
			}
			last := enqueueForUser(t, s, 2, 1, withDemands(c.last), inQueue("zz"),
				func(j *queue.Job) { j.Priority = 1_000_000 })[0]
			applyDueChangesUntilDone(t, s)
			if c.withOthers {
				enqueueForUser(t, s, 3, 2*turns)
			}
			running = running[:1]
			for range turns {
				var r store.LeaseReport
				for i := range running {
					r.Settlements = append(r.Settlements, completedSettlement(&running[i]))
				}
				r.MaxJobsToClaim = c.want
				_, running = claimJobs(t, s, r)
				if _, err := s.ApplyDueChanges(t.Context()); err != nil {
					t.Fatal(err)
				}
				for len(running) == 0 {
					_, running = claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: c.want})
				}
				if running[0].Seq == last {
					return
				}
			}
			t.Errorf("the job that ranks first did not start in %d turns", turns)
		})
	}
}

// lockDemand returns the demand for a lock that maxHolders jobs may hold.
func lockDemand(key string, maxHolders int) queue.Demand {
	return queue.Demand{Kind: queue.GateLock, GateKey: key, Amount: maxHolders}
}

// resourceDemand returns the demand for units of a resource.
func resourceDemand(name string, units int) queue.Demand {
	return queue.Demand{Kind: queue.GateResource, GateKey: name, Amount: units}
}

// AwaitJobs, which claims jobs or waits for one, continues past large expired jobs until it finds a job that can start.
func TestAwaitJobsSkipsLargeExpiredJobs(t *testing.T) {
	s := openStore(t, t.TempDir())
	clock := queue.UnixMillis(1_000_000)
	s.clock = func() queue.UnixMillis { return clock }
	enqueueForUser(t, s, 1, 5, func(j *queue.Job) {
		j.ExpiresAt, j.Stdin = clock+10, strings.Repeat("x", queue.MaxStdinBytes)
	})
	good := enqueueForUser(t, s, 1, 1)[0]
	clock += 20
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	jobs, err := s.AwaitJobs(ctx, 1)
	if err != nil || len(jobs) != 1 || jobs[0].Seq != good {
		t.Errorf("%d jobs, %v", len(jobs), err)
	}
}

// A claim does not read the whole rows of jobs that wait for a resource.
func TestClaimDoesNotReadJobsThatWaitForAResource(t *testing.T) {
	s := openStore(t, t.TempDir())
	gpu := resourceDemand("gpu", 1)
	if err := s.SetThisNodeProperties(t.Context(), store.Node{ResourceUnits: map[string]int{"gpu": 1}}); err != nil {
		t.Fatal(err)
	}
	enqueueForUser(t, s, 1, 1, withDemands(gpu))
	claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 1})
	for i := range 20 {
		enqueueForUser(t, s, 1, 1, withDemands(gpu), inQueue(fmt.Sprintf("q%d", i)),
			func(j *queue.Job) { j.Stdin = strings.Repeat("x", queue.MaxStdinBytes) })
	}
	applyDueChangesUntilDone(t, s)
	enqueueForUser(t, s, 2, 1, withDemands(lockDemand("k", 1)))
	most := countPagesRead(t, s.conn, func() { claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 1}) })
	if most > 500 {
		t.Errorf("%d pages were read", most)
	}
}

// A job whose demands (the locks and so on that it needs) are damaged blocks no other job, even if the
// damaged text is valid JSON.
func TestDamagedDemandsBlockOnlyTheirJob(t *testing.T) {
	for _, text := range []string{`[{"kind":9,"key":"k","n":1}]`, `[{"kind":5,"key":"gpu","n":0}]`,
		`[{"kind":3,"key":"k","n":1`, `[]`} {
		for _, delay := range []time.Duration{0, time.Hour} {
			s := openStore(t, t.TempDir())
			j := enqueueForUser(t, s, 1, 1, withDemands(lockDemand("k", 1)), func(j *queue.Job) { j.Delay = delay })[0]
			damageRow(t, s, `UPDATE jobs SET demands = ? WHERE seq = ?`, text, j)
			if delay > 0 {
				damageRow(t, s, `UPDATE jobs SET due_at = 1 WHERE seq = ?`, j)
			}
			good := enqueueForUser(t, s, 2, 1)[0]
			applyDueChangesUntilDone(t, s)
			_, jobs := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 9})
			if len(jobs) == 0 || jobs[len(jobs)-1].Seq != good {
				t.Errorf("%s: %d jobs were claimed", text, len(jobs))
			}
			for i := range jobs {
				e := completedSettlement(&jobs[i])
				e.Decision.NextState = queue.Failed
				claimJobs(t, s, store.LeaseReport{Settlements: []store.Settlement{e}})
			}
			applyChange(t, s, j, store.JobChange{Verb: queue.VerbCancel})
		}
	}
}

// If damage changes the state in a job's row, the counts of jobs by state are wrong, but the store continues
// to work.
func TestWrongStateCountsAreTolerated(t *testing.T) {
	s := openStore(t, t.TempDir())
	j := enqueueForUser(t, s, 1, 1)[0]
	damageRow(t, s, `UPDATE jobs SET state = 2 WHERE seq = ?`, j)
	applyChange(t, s, j, store.JobChange{Verb: queue.VerbCancel})
}

// A queue is unchanged after a transaction that has removed it, created it again and was then rolled back.
func TestRollbackRestoresRemovedQueue(t *testing.T) {
	s := openStore(t, t.TempDir())
	night := []func(*queue.Job){withDemands(lockDemand("k", 5)), inQueue("night")}
	enqueueForUser(t, s, 1, 1, night...)
	_, jobs := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 2})
	// This claim finds that no job waits any more.
	claimJobs(t, s, store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&jobs[0])}, MaxJobsToClaim: 2})
	s.maxEmptyLanes = 0
	s.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		if _, err := tx.removeEmptyLanes(); err != nil {
			t.Error(err)
		}
		tx.removeUnneededQueues()
		d := newDraft(append(night, withUID(1))...)
		list, err := encodeDraftTexts([]queue.Job{d})
		if err == nil {
			_, err = tx.enqueue(store.EnqueueRequest{Drafts: []queue.Job{d}, UID: 1}, list)
		}
		return errors.Join(err, errors.New("undone"))
	})
	enqueueForUser(t, s, 1, 3, night...)
	for range 2 {
		if err := s.checkMemoryMatchesTables(); err != nil {
			t.Error(err)
		}
		claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 2})
	}
}

// However many jobs depend on an ended job of one user, the jobs that depend on another user's ended job do
// not wait long.
func TestManyDependantsDelayNoOtherUser(t *testing.T) {
	s := openStore(t, t.TempDir())
	parents := append(enqueueForUser(t, s, 1, 1), enqueueForUser(t, s, 2, 1)...)
	_, jobs := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 2})
	after := func(i int) func(*queue.Job) {
		return func(j *queue.Job) {
			j.DependsOn = []queue.Dependency{{ParentSeq: parents[i], Condition: queue.ParentCompleted}}
		}
	}
	enqueueForUser(t, s, 1, 1000, after(0))
	child := enqueueForUser(t, s, 2, 1, after(1))[0]
	claimJobs(t, s, store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&jobs[0]),
		completedSettlement(&jobs[1])}})
	for range 3 {
		if _, err := s.ApplyDueChanges(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := queryNumber(t, s, fmt.Sprintf(`SELECT count(*) FROM edges WHERE met = 0 AND child = %d`, child)); n != 0 {
		t.Error("the other's dependant is not decided")
	}
}

// When jobs end, the engine decides which jobs that depend on them may run. Users take turns in this, so a
// user with many ended jobs does not delay another user.
func TestUsersTakeTurnsResolvingDependants(t *testing.T) {
	s := openStore(t, t.TempDir())
	const many = 400
	child := int64(0) // the dependant of user 2
	for uid, n := range map[int]int{1: many, 2: 1, 3: many} {
		parents, i := enqueueForUser(t, s, uid, n), 0
		children := enqueueForUser(t, s, uid, n, func(j *queue.Job) {
			j.DependsOn = []queue.Dependency{{ParentSeq: parents[i], Condition: queue.ParentCompleted}}
			i++
		})
		if uid == 2 {
			child = children[0]
		}
	}
	var jobs []queue.Job
	for range 2*many + 1 { // claim repeatedly, because each claim takes a bounded number of jobs
		_, more := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 2*many + 1 - len(jobs)})
		jobs = append(jobs, more...)
	}
	// Let the job of user 2 end last.
	slices.SortStableFunc(jobs, func(a, b queue.Job) int { return (b.UID & 1) - (a.UID & 1) })
	var ends []store.Settlement
	for i := range jobs {
		ends = append(ends, completedSettlement(&jobs[i]))
	}
	claimJobs(t, s, store.LeaseReport{Settlements: ends})
	if n := queryNumber(t, s, fmt.Sprintf(`SELECT count(*) FROM edges WHERE met = 0 AND child = %d`, child)); n != 0 {
		t.Error("the dependant of the second user waits for those of the others")
	}
	if n := queryNumber(t, s, `SELECT count(*) FROM edges WHERE met = 0`); n < many {
		t.Errorf("only %d dependencies are unresolved, so this test proves nothing", n)
	}
	for more := true; more; {
		wait, err := s.ApplyDueChanges(t.Context())
		if more = wait == 0; err != nil {
			t.Fatal(err)
		}
	}
	if n := queryNumber(t, s, `SELECT count(*) FROM edges WHERE met = 0`) +
		queryNumber(t, s, `SELECT count(*) FROM ended`); n != 0 {
		t.Errorf("%d are not decided in the end", n)
	}
}
