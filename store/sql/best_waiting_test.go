package sql

import (
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// The read costs the same however many jobs, queues and locks the user and others have, and nothing for a user without
// waiting jobs.
func TestBestWaitingReadsOneJobHoweverManyWait(t *testing.T) {
	const some, many = 1000, 10_000
	s := openStore(t, t.TempDir())
	const idle, own, others = 1, 2, 3
	read := func(uid int, want int64) int64 {
		t.Helper()
		steps(t, s)
		priority, found, err := s.BestWaiting(t.Context(), uid)
		if err != nil || found != (want != 0) || priority != want {
			t.Fatalf("user %d: got priority %d, found %t, error %v; want %d", uid, priority, found, err, want)
		}
		return steps(t, s)
	}
	add := func(uid, n int, set func(i int, j *queue.Job)) {
		t.Helper()
		for from := 0; from < n; from += queue.MaxBatch {
			drafts := make([]queue.Job, min(n-from, queue.MaxBatch))
			for i := range drafts {
				drafts[i] = draft(of(uid), func(j *queue.Job) { set(from+i, j) })
			}
			if _, err := s.Enqueue(t.Context(), store.Request{Drafts: drafts, UID: uid}); err != nil {
				t.Fatal(err)
			}
		}
	}
	scattered := func(i int, j *queue.Job) {
		j.Queue, j.Priority = fmt.Sprintf("q%d", i%50), int64(i%7)
		j.Demands = []queue.Demand{{Kind: queue.GateLock, Key: fmt.Sprint("k", i), N: 1}}
	}
	now := s.now()
	s.now = func() queue.Millis { return now }
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
	for _, seq := range put(t, s, idle, 3) { // waiting, but not runnable
		if err := s.Change(t.Context(), seq, store.Change{Verb: queue.VerbHold, UID: idle}); err != nil {
			t.Fatal(err)
		}
	}
	if took := read(idle, 0); took > none+few {
		t.Errorf("%d steps for a user whose jobs are held, and %d without jobs", took, none)
	}
}
