package engine

import (
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/reads"
)

// BestWaitingPriority reads the same number of rows, however many jobs, queues and locks the user and other
// users have. For a user without waiting jobs, it reads nothing.
func TestBestWaitingPriorityReadsConstantRows(t *testing.T) {
	const some, many = 1000, 10_000
	s := openStore(t, t.TempDir())
	const idle, own, others = 1, 2, 3
	read := func(uid int, want int64) int64 {
		t.Helper()
		countSQLiteInstructions(t, s)
		got, err := s.BestWaitingPriority(t.Context(), uid)
		if err != nil || got != (store.WaitingPriority{Priority: want, JobFound: want != 0}) {
			t.Fatalf("user %d: got %+v, error %v; want priority %d", uid, got, err, want)
		}
		return countSQLiteInstructions(t, s)
	}
	add := func(uid, n int, set func(i int, j *queue.Job)) {
		t.Helper()
		for from := 0; from < n; from += queue.MaxJobsPerRequest {
			drafts := make([]queue.Job, min(n-from, queue.MaxJobsPerRequest))
			for i := range drafts {
				drafts[i] = newDraft(withUID(uid), func(j *queue.Job) { set(from+i, j) })
			}
			if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts, UID: uid}); err != nil {
				t.Fatal(err)
			}
		}
	}
	scattered := func(i int, j *queue.Job) {
		j.Queue, j.Priority = fmt.Sprintf("q%d", i%50), int64(i%7)
		j.Demands = []queue.Demand{{Kind: queue.GateLock, GateKey: fmt.Sprint("k", i), Amount: 1}}
	}
	now := s.clock()
	s.clock = func() queue.UnixMillis { return now }
	none := read(idle, 0)
	add(own, some, scattered)
	few := read(own, 6)
	add(own, many, scattered)
	add(others, many, func(_ int, j *queue.Job) { j.Priority = 9 })
	if took := read(idle, 0); took > none {
		t.Errorf("%d steps for a user without jobs, and %d in an empty store", took, none)
	}
	if took := read(own, 6); took > few+few/5 {
		t.Errorf("%d steps with %d jobs, and %d with %d", took, some+2*many, few, some)
	}
	for _, seq := range enqueueForUser(t, s, idle, 3) { // these jobs are held, so they cannot start
		if err := s.ChangeJob(t.Context(), seq, store.JobChange{Verb: queue.VerbHold, UID: idle}); err != nil {
			t.Fatal(err)
		}
	}
	if took := read(idle, 0); took > none+few {
		t.Errorf("%d steps for a user whose jobs are held, and %d without jobs", took, none)
	}
}

// BestWaitingPriority reads only a limited number of lanes (a lane holds the jobs of one queue and user that
// need the same locks). If the user has more lanes, the result is an upper bound. This holds even if the
// stored best ranks of the lanes are better than those of all their jobs.
func TestBestWaitingPriorityIsUpperBoundAtLimit(t *testing.T) {
	for _, order := range []queue.RankPolicy{defaultRankOrder, {Scheduling: queue.SchedulingByPriority}} {
		for _, c := range []struct {
			many  int
			bound bool
		}{{reads.MaxLanesSearchedForBest - 100, false}, {reads.MaxLanesSearchedForBest + 100, true}} {
			s := openStore(t, t.TempDir())
			if err := s.SetRankOrder(t.Context(), order); err != nil {
				t.Fatal(err)
			}
			clock := s.clock()
			s.clock = func() queue.UnixMillis { return clock }
			enqueueForLocks(t, s, 1, c.many)
			lower := order.Rank(-5, 0, 0) - order.Rank(15, 0, 0)
			err := s.RunAndCommit(t.Context(), UrgentClass, func(t *Tx) error {
				return t.Exec(`UPDATE jobs SET priority = -5, rank = rank + ? WHERE priority = 15`, lower)
			})
			if err != nil {
				t.Fatal(err)
			}
			enqueueForUser(t, s, 1, 1, func(j *queue.Job) {
				j.Priority, j.Demands = 9,
					[]queue.Demand{{Kind: queue.GateLock, GateKey: "z", Amount: 1}}
			})
			want := store.WaitingPriority{Priority: 9, JobFound: true}
			if c.bound {
				want.Priority, want.IsUpperBound = 15, true
			}
			got, err := s.BestWaitingPriority(t.Context(), 1)
			if got != want || err != nil {
				t.Errorf("%v, %d lanes: got %+v, %v; want %+v", order, c.many, got, err, want)
			}
		}
	}
}

// If a user has jobs in more queues than the search reads, BestWaitingPriority returns an upper bound.
func TestBestWaitingPriorityIsUpperBoundWithManyQueues(t *testing.T) {
	s := openStore(t, t.TempDir())
	for i := range reads.MaxLanesSearchedForBest + 1 {
		if err := s.SetQueue(t.Context(), fmt.Sprint("q", i), store.QueueRule{Weight: 2}); err != nil {
			t.Fatal(err)
		}
	}
	for from := 0; from <= reads.MaxLanesSearchedForBest; from += queue.MaxJobsPerRequest {
		enqueueForUser(t, s, 1, min(queue.MaxJobsPerRequest, reads.MaxLanesSearchedForBest+1-from), func() func(*queue.Job) {
			i := from
			return func(j *queue.Job) { j.Queue = fmt.Sprint("q", i); i++ }
		}())
	}
	got, err := s.BestWaitingPriority(t.Context(), 1)
	if !got.JobFound || !got.IsUpperBound || got.Priority < queue.MaxPriority || err != nil {
		t.Errorf("got %+v, %v; want a bound that is at least the highest priority", got, err)
	}
}
