package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// addUnstartableJobs fills a store with about 990*scale jobs that cannot start. Some of them need a lock
// that another job holds, or a rate limit that is used up. Some need free locks, but their user already has
// the maximum number of running jobs. Some are in a paused queue. The others wait for a job that has not
// ended.
func addUnstartableJobs(t testing.TB, s *Store, scale int) {
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	enqueue := func(n int, set func(i int, j *queue.Job)) []int64 {
		t.Helper()
		var seqs []int64
		for first := 0; first < n; first += 1000 {
			drafts := make([]queue.Job, min(1000, n-first))
			for i := range drafts {
				drafts[i] = newDraft(func(j *queue.Job) { j.Queue = queue.DefaultQueue; set(first+i, j) })
			}
			r, err := s.Enqueue(ctx, store.EnqueueRequest{Drafts: drafts})
			must(err)
			seqs = append(seqs, r.Seqs...)
		}
		return seqs
	}
	claim := func(n int) (jobs []queue.Job) {
		t.Helper()
		for len(jobs) < n {
			g, err := s.ReportAndClaim(ctx, store.LeaseReport{MaxJobsToClaim: n - len(jobs)})
			must(err)
			jobs = append(jobs, g.ClaimedJobs...)
		}
		return jobs
	}
	must(s.SetMaxRunningPerUser(ctx, 50))
	must(s.SetQueue(ctx, "paused", store.QueueRule{Weight: 1, Paused: true}))
	lock := []queue.Demand{{Kind: queue.GateLock, GateKey: "one", Amount: 1}}
	enqueue(1, func(_ int, j *queue.Job) { j.UID, j.Demands = 1, lock })
	claim(1)
	enqueue(300*scale, func(_ int, j *queue.Job) { j.UID, j.Demands = 1, lock })
	parent := enqueue(1, func(_ int, j *queue.Job) { j.UID = 2 })
	claim(1)
	enqueue(10*scale, func(_ int, j *queue.Job) {
		j.UID, j.DependsOn = 2, []queue.Dependency{{ParentSeq: parent[0], Condition: queue.ParentCompleted}}
	})
	enqueue(50, func(_ int, j *queue.Job) { j.UID = 3 })
	claim(50)
	enqueue(280*scale, func(i int, j *queue.Job) {
		j.UID, j.Demands = 3, []queue.Demand{{Kind: queue.GateLock, GateKey: fmt.Sprint("k", i%(100*scale)), Amount: 1}}
	})
	rate := func(i int, j *queue.Job) {
		key := i % scale
		j.UID, j.Demands = 100+key%50, []queue.Demand{{Kind: queue.GateRate, GateKey: fmt.Sprint("r", key), Amount: 1,
			RatePeriod: 24 * time.Hour}}
	}
	enqueue(scale, rate)
	for left := scale; left > 0; {
		jobs := claim(min(left, 200))
		left -= len(jobs)
		var r store.LeaseReport
		for i := range jobs {
			e := completedSettlement(&jobs[i])
			e.Attempt.StartedAt = s.clock()
			r.Settlements = append(r.Settlements, e)
		}
		_, err := s.ReportAndClaim(ctx, r)
		must(err)
	}
	enqueue(100*scale, rate)
	enqueue(300*scale, func(_ int, j *queue.Job) { j.UID, j.Queue = 4, "paused" })
	for next := time.Duration(0); next == 0; {
		var err error
		next, err = s.ApplyDueChanges(ctx)
		must(err)
	}
	if g, err := s.ReportAndClaim(ctx, store.LeaseReport{MaxJobsToClaim: 9}); err != nil || len(g.ClaimedJobs) > 0 {
		t.Fatalf("claimed %d jobs that cannot start, %v", len(g.ClaimedJobs), err)
	}
}

// enqueueAndEndJobs repeats n times: one user enqueues 8 jobs, which are claimed and end.
func enqueueAndEndJobs(t testing.TB, s *Store, n int) {
	for range n {
		drafts := make([]queue.Job, 8)
		for i := range drafts {
			drafts[i] = newDraft(func(j *queue.Job) { j.UID, j.Queue = 9, queue.DefaultQueue })
		}
		if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts}); err != nil {
			t.Fatal(err)
		}
		g, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 8})
		if err != nil || len(g.ClaimedJobs) != 8 {
			t.Fatalf("claimed %d jobs, %v", len(g.ClaimedJobs), err)
		}
		var r store.LeaseReport
		for i := range g.ClaimedJobs {
			r.Settlements = append(r.Settlements, completedSettlement(&g.ClaimedJobs[i]))
		}
		if _, err := s.ReportAndClaim(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

// A user's claims need about the same number of statements, however many jobs of other users cannot start,
// and for whatever reason.
func TestUnstartableJobsDoNotSlowClaims(t *testing.T) {
	statements := func(s *Store) (n int64) {
		enqueueAndEndJobs(t, s, 20) // execute all statements once, so that they are prepared
		all := func() (n int64) {
			inTransaction(t, s, func() error {
				for q := range s.conn.PreparedStmts {
					n += countStatementStarts(s.conn, q)
				}
				return nil
			})
			return n
		}
		before := all()
		enqueueAndEndJobs(t, s, 100)
		return all() - before
	}
	empty := openStore(t, t.TempDir())
	s := openStore(t, t.TempDir())
	addUnstartableJobs(t, s, 10)
	without, with := statements(empty), statements(s)
	// Allow one more statement per ended job, which finds the jobs that depend on it, and the statements at
	// the beginning of a new minute of statistics.
	if with > without+100*8+50 {
		t.Errorf("%d statements with 9,900 jobs that cannot start, %d without them", with, without)
	}
	expectNoFaults(t, s, "at the end")
}

// addJobsOverQuota fills a store with n jobs of a user with the maximum number of leased jobs.
func addJobsOverQuota(t testing.TB, s *Store, n int) {
	if err := s.SetMaxRunningPerUser(t.Context(), 8); err != nil {
		t.Fatal(err)
	}
	for left := n; left > 0; left -= 1000 {
		drafts := make([]queue.Job, 1000)
		for i := range drafts {
			drafts[i] = newDraft(func(j *queue.Job) { j.UID, j.Queue = 3, queue.DefaultQueue })
		}
		if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts}); err != nil {
			t.Fatal(err)
		}
	}
	if g, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 20}); err != nil ||
		len(g.ClaimedJobs) != 8 {
		t.Fatalf("claimed %d, %v", len(g.ClaimedJobs), err)
	}
}

// BenchmarkClaimsAmongUnstartableJobs measures how long it takes to enqueue, claim and end 8 jobs. It does so in an
// empty store, in a store with 990,000 jobs that cannot start, and in a store with a million jobs of a user
// with the maximum number of running jobs.
func BenchmarkClaimsAmongUnstartableJobs(b *testing.B) {
	for _, c := range []struct {
		name string
		fill func(*Store)
	}{{"empty", func(*Store) {}}, {"barred", func(s *Store) { addUnstartableJobs(b, s, 1000) }},
		{"quota", func(s *Store) { addJobsOverQuota(b, s, 1_000_000) }}} {
		b.Run(c.name, func(b *testing.B) {
			s, err := Open(b.Context(), Options{Dir: b.TempDir(), RankOrder: defaultRankOrder})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			c.fill(s)
			enqueueAndEndJobs(b, s, 100)
			b.ResetTimer()
			enqueueAndEndJobs(b, s, b.N)
		})
	}
}

// BenchmarkEnqueueDuringDependencyResolution measures how long the enqueues of one client take: alone, and while the
// engine decides which of 100,000 jobs that depend on another client's job may run.
func BenchmarkEnqueueDuringDependencyResolution(b *testing.B) {
	for name, children := range map[string]int{"alone": 0, "during 100,000": 100_000} {
		b.Run(name, func(b *testing.B) {
			s, err := Open(b.Context(), Options{Dir: b.TempDir(), RankOrder: defaultRankOrder})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			enqueue := func(n int, after ...queue.Dependency) int64 {
				drafts := make([]queue.Job, n)
				for i := range drafts {
					drafts[i] = newDraft(func(j *queue.Job) { j.Queue, j.DependsOn = queue.DefaultQueue, after })
				}
				r, err := s.Enqueue(b.Context(), store.EnqueueRequest{Drafts: drafts})
				if err != nil {
					b.Fatal(err)
				}
				return r.Seqs[0]
			}
			parent := enqueue(1)
			for n := 0; n < children; n += 1000 {
				enqueue(1000, queue.Dependency{ParentSeq: parent, Condition: queue.ParentCompleted})
			}
			g, err := s.ReportAndClaim(b.Context(), store.LeaseReport{MaxJobsToClaim: 1})
			if err != nil || len(g.ClaimedJobs) != 1 {
				b.Fatal(len(g.ClaimedJobs), err)
			}
			report := store.LeaseReport{Settlements: []store.Settlement{completedSettlement(&g.ClaimedJobs[0])}}
			if _, err := s.ReportAndClaim(b.Context(), report); err != nil {
				b.Fatal(err)
			}
			decided := make(chan struct{})
			go func() {
				defer close(decided)
				for next := time.Duration(0); next == 0; {
					if next, err = s.ApplyDueChanges(b.Context()); err != nil {
						b.Error(err)
						return
					}
				}
			}()
			var durations []time.Duration
			b.ResetTimer()
			for n, deciding := 0, true; deciding || n < max(b.N, 1000); n++ {
				begun := time.Now()
				enqueue(1)
				durations = append(durations, time.Since(begun))
				select {
				case <-decided:
					deciding = false
				default:
				}
			}
			slices.Sort(durations)
			b.ReportMetric(float64(durations[len(durations)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(durations[len(durations)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}
