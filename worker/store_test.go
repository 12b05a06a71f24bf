package worker_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/faultstore"
	"github.com/queuectl/queuectl/store/memstore"
)

// hub is a store that records its exchanges and can delay and refuse them.
type hub struct {
	*faultstore.Store
	t *testing.T

	mu     sync.Mutex
	turns  []store.Report // exchanges that were stored
	await  int            // number of jobs that the Await in progress wants; 0 if none is in progress
	refuse func(store.Report) error
	gate   chan struct{} // an exchange with a settlement waits until it is closed
	inside bool          // an exchange waits for gate

	parents chan struct{} // if not nil, reads of dependencies wait until it is closed
	reading chan struct{} // receives a value when such a read begins
}

func newStore(t *testing.T) *hub { return newStoreBy(t, queue.Order{Scheduling: queue.ByPriority}) }

// newStoreBy returns a store that ranks jobs by an order.
func newStoreBy(t *testing.T, by queue.Order) *hub {
	s := &hub{Store: faultstore.New(memstore.New(by)), t: t}
	s.On(s.meets)
	t.Cleanup(func() { s.Close() })
	return s
}

// meets delays, refuses and records exchanges.
func (s *hub) meets(ctx context.Context, c faultstore.Call) error {
	if c.Method == "Parents" && !c.After && s.parents != nil {
		s.reading <- struct{}{}
		select {
		case <-s.parents:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	switch arg := c.Arg.(type) {
	case store.Report:
		if c.After {
			s.mu.Lock()
			defer s.mu.Unlock()
			arg.Ended = slices.Clone(arg.Ended) // the pool reuses the slice
			s.turns = append(s.turns, arg)
			return nil
		}
		return s.meetsTurn(arg)
	case int:
		if c.Method == "Await" {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.await = arg
		}
	}
	return nil
}

func (s *hub) meetsTurn(turn store.Report) error {
	s.mu.Lock()
	gate, refuse := s.gate, s.refuse
	if gate != nil && len(turn.Ended) > 0 {
		s.inside = true
		s.mu.Unlock()
		<-gate
		s.mu.Lock()
	}
	s.mu.Unlock()
	if refuse != nil {
		return refuse(turn)
	}
	return nil
}

// Await implements store.Session.
func (s *hub) Await(ctx context.Context, want int) ([]queue.Job, error) {
	defer func() { // also after an error
		s.mu.Lock()
		defer s.mu.Unlock()
		s.await = 0
	}()
	return s.Store.Await(ctx, want)
}

// awaited returns how many jobs the Await in progress wants; 0 if none is in progress.
func (s *hub) awaited() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.await
}

// refuses sets a function whose errors refuse exchanges.
func (s *hub) refuses(refuse func(store.Report) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// holdUp delays exchanges with a settlement until release is called.
func (s *hub) holdUp() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gate := make(chan struct{})
	s.gate = gate
	release = sync.OnceFunc(func() {
		s.mu.Lock()
		s.gate = nil
		s.mu.Unlock()
		close(gate)
	})
	s.t.Cleanup(release) // a test that fails must not hang
	return release
}

func (s *hub) holdsOne() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inside
}

// endings returns how often an end, a release and a cancellation of a job were reported.
func (s *hub) endings(seq int64) (ended, released, cancelled int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, turn := range s.turns {
		for _, e := range turn.Ended {
			if e.Lease.Seq == seq {
				ended++
			}
		}
		for _, l := range turn.Released {
			if l.Seq == seq {
				released++
			}
		}
		for _, c := range turn.Changed {
			if c.Lease.Seq == seq && c.Verb == queue.VerbCancel {
				cancelled++
			}
		}
	}
	return ended, released, cancelled
}

// put enqueues one job for each priority in one request. Job numbers start at 1.
func (s *hub) put(priorities ...int64) {
	s.t.Helper()
	s.putOf(0, priorities...)
}

// putOf enqueues jobs of a user, one for each priority.
func (s *hub) putOf(uid int, priorities ...int64) {
	s.t.Helper()
	var drafts []queue.Job
	for _, p := range priorities {
		drafts = append(drafts, queue.Job{
			UID: uid, Priority: p, MaxAttempts: 1, ExitCode: -1,
			Execution: queue.Execution{Argv: []string{"true"}, KillAfter: 3 * time.Second},
		})
	}
	if _, err := s.Enqueue(context.Background(), store.Request{Drafts: drafts}); err != nil {
		s.t.Fatal(err)
	}
}

// job returns a job from the store.
func (s *hub) job(seq int64) queue.Job {
	s.t.Helper()
	j, err := s.Get(context.Background(), fmt.Sprint(seq))
	if err != nil {
		s.t.Fatal(err)
	}
	return j
}

// is checks the state and reason of a job.
func (s *hub) is(seq int64, state queue.State, reason queue.Reason) {
	s.t.Helper()
	if j := s.job(seq); j.State != state || j.Reason != reason {
		s.t.Errorf("job %d: got %s, reason %q, want %s, reason %q", seq, j.State, j.Reason, state, reason)
	}
}

// becomes waits until a job is in a state.
func (s *hub) becomes(seq int64, state queue.State) {
	s.t.Helper()
	until(s.t, fmt.Sprintf("job %d was %s", seq, state), func() bool { return s.job(seq).State == state })
}

// endedBy checks which user ended an attempt of a job, and with which action.
func (s *hub) endedBy(seq int64, uid int, verb string) {
	s.t.Helper()
	events, err := s.Events(context.Background(), 0, 100)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range events {
		if d := e.Detail; e.Kind == queue.EventEnded && e.Job == seq && (d.UID == nil || *d.UID != uid || d.Verb != verb) {
			s.t.Errorf("the end of job %d: %+v, want it by %s of uid %d", seq, d, verb, uid)
		}
	}
}

// leased returns the numbers of the leased jobs.
func (s *hub) leased() (seqs []int64) {
	s.t.Helper()
	left, err := s.Left(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, j := range left.Leased {
		seqs = append(seqs, j.Seq)
	}
	return seqs
}
