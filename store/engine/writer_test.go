package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/sqlitedb"
	"github.com/queuectl/queuectl/store/writequeue"
	sqlite3 "modernc.org/sqlite/lib"
	"runtime"
	"sync/atomic"
)

// occupyWriter starts an operation whose transaction runs until release is called.
func occupyWriter(t *testing.T, s *Store) (release func()) {
	t.Helper()
	begun, gate := make(chan struct{}), make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		s.RunAndCommit(context.Background(), UrgentClass, func(*Tx) error {
			close(begun)
			<-gate
			return nil
		})
	})
	<-begun
	release = sync.OnceFunc(func() { close(gate); writer.Wait() })
	t.Cleanup(release)
	return release
}

// awaitWaitingOperations returns once n operations are waiting.
func awaitWaitingOperations(t *testing.T, s *Store, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		got := s.waitingOps.Len()
		if got == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d operations wait, want %d", got, n)
		}
		time.Sleep(time.Millisecond)
	}
}

// countTransactions counts the transactions of a store. The returned function reports how many there were since
// its last call.
func countTransactions(t *testing.T, s *Store) (count func() int) {
	t.Helper()
	n := 0
	clock := s.clock
	s.RunAndCommit(t.Context(), UrgentClass,
		func(*Tx) error { s.clock = func() queue.UnixMillis { n++; return clock() }; return nil })
	return func() int {
		s.RunAndCommit(t.Context(), UrgentClass, func(*Tx) error { return nil })
		got := n - 1 // do not count this transaction
		n = 0
		return got
	}
}

// A function passed to RunBetweenTransactions runs once, even while the engine tries a group of operations again. It
// does not wait behind the operations in the write queue.
func TestRunBetweenTransactionsRunsFunctionOnce(t *testing.T) {
	s := openStore(t, t.TempDir())
	release := occupyWriter(t, s)
	var all sync.WaitGroup
	all.Go(func() {
		s.RunAndCommit(context.Background(), NormalClass, func(t *Tx) error {
			err := t.Exec(`INSERT INTO jobs (seq) VALUES ('no number')`)
			return err
		})
	})
	awaitWaitingOperations(t, s, 1)
	n := 0
	for range 5 {
		all.Go(func() {
			if err := s.RunBetweenTransactions(t.Context(), func() error { n++; return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	release()
	all.Wait()
	if n != 5 {
		t.Errorf("5 were done %d times", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.RunBetweenTransactions(ctx, func() error { n++; return nil }); !errors.Is(err, context.Canceled) ||
		n != 5 {
		t.Errorf("a function whose caller gave up was called; %v", err)
	}
}

// A commit takes a limited number of operations and bytes. The operation that reaches a limit is the last one
// in its commit. Urgent operations come before all others.
func TestCommitGroupsAreBounded(t *testing.T) {
	s := openStore(t, t.TempDir())
	for name, c := range map[string]struct {
		ops   int // number of operations, in addition to four small ones
		bytes int
		want  int // expected number of transactions
	}{
		"few and small":    {10, 100, 1},
		"a group":          {writequeue.MaxGroupOps - 4, 1, 1},
		"one too many":     {writequeue.MaxGroupOps - 3, 1, 2},
		"large ones":       {10, 300_000, 3}, // three commits, of four, four and two operations
		"a very large one": {3, maxCommitGroupBytes, 3},
	} {
		t.Run(name, func(t *testing.T) {
			count := countTransactions(t, s)
			release := occupyWriter(t, s)
			var mu sync.Mutex
			var order []string
			var all sync.WaitGroup
			add := func(k PriorityClass, n, bytes int) {
				for range n {
					all.Go(func() {
						err := s.RunAndCommit(context.Background(), k, func(t *Tx) error {
							mu.Lock()
							order = append(order, fmt.Sprint(k))
							mu.Unlock()
							err := t.Exec(`UPDATE meta SET ranked_by = ? WHERE one = 2`, strings.Repeat("x", bytes))
							return err
						})
						if err != nil {
							t.Error(err)
						}
					})
				}
			}
			add(NormalClass, c.ops, c.bytes)
			awaitWaitingOperations(t, s, c.ops)
			add(PromptClass, 2, 1)
			add(UrgentClass, 2, 1)
			awaitWaitingOperations(t, s, c.ops+4)
			release()
			all.Wait()
			if got := count() - 1; got != c.want { // do not count the transaction of occupyWriter
				t.Errorf("%d transactions, want %d", got, c.want)
			}
			if first := order[:4]; !slices.Equal(first, []string{"0", "0", "1", "1"}) {
				t.Errorf("the first were of the classes %v", first)
			}
		})
	}
}

// An operation on many large jobs is spread over several commits, so that other callers do not wait long.
func TestOperationsOnLargeJobsAreSplit(t *testing.T) {
	const many = 12
	s := openStore(t, t.TempDir())
	var seqs []int64
	for range many {
		seqs = append(seqs, enqueueForUser(t, s, 1, 1, withLargeArgs)...)
	}
	for _, verb := range []queue.Verb{queue.VerbHold, queue.VerbRelease, queue.VerbCancel, queue.VerbRetry,
		queue.VerbRemove} {
		count := countTransactions(t, s)
		release := occupyWriter(t, s)
		var all sync.WaitGroup
		for _, seq := range seqs {
			all.Go(func() {
				if err := s.ChangeJob(context.Background(), seq, store.JobChange{Verb: verb}); err != nil {
					t.Errorf("%s: %v", verb, err)
				}
			})
		}
		awaitWaitingOperations(t, s, many)
		release()
		all.Wait()
		if n := count() - 1; n != many/3 { // each job has 500 KB, so three jobs fill a commit
			t.Errorf("%s of %d large jobs took %d transactions, want %d", verb, many, n, many/3)
		}
	}
}

// A claim that has read the maximum number of bytes takes no more jobs. The next claim takes the others.
func TestClaimOfLargeJobsIsBounded(t *testing.T) {
	s := openStore(t, t.TempDir())
	for range 5 {
		enqueueForUser(t, s, 1, 1, withLargeInput)
	}
	enqueueForUser(t, s, 1, 3)
	var got []int
	for range 4 {
		seqs, _ := claimJobs(t, s, store.LeaseReport{MaxJobsToClaim: 20})
		got = append(got, len(seqs))
	}
	if !slices.Equal(got, []int{2, 2, 4, 0}) {
		t.Errorf("claimed %v, want two large ones twice, and then the rest", got)
	}
	enqueueForUser(t, s, 1, 3, withLargeInput)
	jobs, err := s.AwaitJobs(t.Context(), 3)
	if err != nil || len(jobs) != 2 {
		t.Errorf("awaited %d jobs, %v", len(jobs), err)
	}
}

// The counts include an event before readers can see it. Otherwise a client could read the event and then an
// old count, and wait for an event that has already happened.
func TestCountsIncludeEventBeforeItIsReadable(t *testing.T) {
	s := openStore(t, t.TempDir())
	ctx := t.Context()
	looked := false
	look := func() {
		looked = true
		list, err := s.Events(ctx, 0, 10)
		last, _ := s.LastEventSeq()
		if err != nil || int64(len(list)) != last {
			t.Errorf("%d events are read while %d are counted: %v", len(list), last, err)
		}
	}
	err := s.RunAndCommit(ctx, PromptClass, func(tx *Tx) error {
		tx.afterCommitFuncs = append(tx.afterCommitFuncs, look) // runs after the commit, before its counts are published
		return tx.AddEvent(queue.EventAudit, nil, 0, []byte("{}"))
	})
	if err != nil || !looked {
		t.Fatalf("%v, %v", looked, err)
	}
	look()
	if last, _ := s.LastEventSeq(); last != 1 {
		t.Errorf("the last event is %d", last)
	}
}

// Concurrent requests share commits.
func TestConcurrentRequestsShareCommits(t *testing.T) {
	s := openStore(t, t.TempDir())
	var commits atomic.Int64
	// the clock is read once per transaction
	s.clock = func() queue.UnixMillis { commits.Add(1); return 1_800_000_000_000 }
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range 8 {
				if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{newDraft()}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := s.Counts().JobsEverEnqueued; got != 64*8 {
		t.Errorf("got %d jobs, want %d", got, 64*8)
	}
	if n := commits.Load(); n > 64*8/4 {
		t.Errorf("%d requests took %d commits, want a quarter at most", 64*8, n)
	}
}

// A claim that fails because the disk is full returns no jobs, even if it has already chosen some. Their
// leases are not stored, so another claim could take the same jobs.
func TestClaimOnFullDiskReturnsNoJobs(t *testing.T) {
	s := openStore(t, t.TempDir())
	enqueue(t, s, 3)
	<-s.writerToken // take the right to write, which prevents commits
	type claim struct {
		jobs []queue.Job
		err  error
	}
	claimed, other := make(chan claim, 1), make(chan error, 1)
	go func() { // ends when the claim below gets its reply
		jobs, err := s.AwaitJobs(t.Context(), 2)
		claimed <- claim{jobs, err}
	}()
	for s.waitingOps.Len() == 0 {
		runtime.Gosched() // wait until the operation is in the queue
	}
	go func() { // ends when the operation below gets its reply
		other <- s.RunAndCommit(t.Context(), UrgentClass,
			func(*Tx) error { return &sqlitedb.Error{Code: sqlite3.SQLITE_FULL} })
	}()
	for s.waitingOps.Len() < 2 {
		runtime.Gosched()
	}
	s.writerToken <- struct{}{}
	if err := <-other; !errors.Is(err, queue.ErrNoSpace) {
		t.Fatalf("got %v, want %v", err, queue.ErrNoSpace)
	}
	if c := <-claimed; len(c.jobs) > 0 || !errors.Is(c.err, queue.ErrNoSpace) {
		t.Errorf("got %d jobs and %v, want none and %v", len(c.jobs), c.err, queue.ErrNoSpace)
	}
}
