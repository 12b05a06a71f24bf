package sqlite

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/engine"
)

var defaultJobOrder = queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByTime,
	AgingInterval: time.Minute}

// newDraft returns a new job to be enqueued, as changed by the functions in options.
func newDraft(options ...func(*queue.Job)) queue.Job {
	j := queue.Job{Queue: "default", Priority: 5, MaxAttempts: 4, State: queue.Pending, ExitCode: -1,
		ExecutionSettings: queue.ExecutionSettings{Command: "true", Shell: "/bin/sh -c", OnLost: queue.OnLostRetry}}
	for _, f := range options {
		f(&j)
	}
	return j
}

func openStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: dir, RankOrder: defaultJobOrder})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// enqueueJobs stores n jobs in one request.
func enqueueJobs(t *testing.T, s *Store, n int) store.Receipt {
	t.Helper()
	drafts := make([]queue.Job, n)
	for i := range drafts {
		drafts[i] = newDraft()
	}
	r, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// enqueueThousands enqueues n jobs, a multiple of 1,000, with 1,000 jobs per request.
func enqueueThousands(t *testing.T, s *Store, n int, setFields func(*queue.Job)) {
	t.Helper()
	for range n / 1000 {
		drafts := make([]queue.Job, 1000)
		for i := range drafts {
			drafts[i] = newDraft(setFields)
		}
		if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts}); err != nil {
			t.Fatal(err)
		}
	}
}

// completedSettlement returns the report for the store that the job j has completed.
func completedSettlement(j *queue.Job) store.Settlement {
	return store.Settlement{Lease: j.Lease(), Decision: queue.AttemptDecision{NextState: queue.Completed,
		CountsTowardMaxAttempts: true, RecordsAttempt: true}}
}

// expectNoFaults checks that VerifyData finds no faults. testStep names the step of the test in the message.
func expectNoFaults(t *testing.T, s *Store, testStep string) {
	t.Helper()
	if got := findFaults(t, s); len(got) > 0 {
		t.Errorf("%s: %q", testStep, got)
	}
}

// findFaults returns the messages of all faults that VerifyData finds in the database.
func findFaults(t *testing.T, s *Store) (messages []string) {
	t.Helper()
	list, err := s.VerifyData(t.Context(), store.OutputDirs{Dirs: []string{t.TempDir()}},
		func(int64, int64) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if f.Level != store.LevelOK {
			messages = append(messages, f.Message)
		}
	}
	return messages
}

// stageBatchJobs sends n jobs of a batch to the store, up to 1,000 per request. It does not commit the batch.
func stageBatchJobs(t *testing.T, s *Store, batchName string, n int) {
	t.Helper()
	for from := 0; from < n; from += 1000 {
		drafts := make([]queue.Job, min(1000, n-from))
		for i := range drafts {
			drafts[i] = newDraft()
		}
		if _, err := s.StageBatch(t.Context(), store.EnqueueRequest{BatchName: batchName, Drafts: drafts}); err != nil {
			t.Fatal(err)
		}
	}
}

// blockWriter starts an operation that blocks the writer, the goroutine that commits, until release is
// called.
func blockWriter(t *testing.T, s *Store) (release func()) {
	t.Helper()
	begun, gate := make(chan struct{}), make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		s.RunAndCommit(context.Background(), engine.UrgentClass, func(*engine.Tx) error {
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
