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
	"github.com/queuectl/queuectl/store/memstore"
	"github.com/queuectl/queuectl/store/storetest/faultstore"
)

// recordingStore is a store that records its exchanges: the calls of ReportAndClaim, with which the pool reports events
// and claims jobs. It can also delay and refuse exchanges.
type recordingStore struct {
	*faultstore.Store
	t *testing.T

	mu            sync.Mutex
	storedReports []store.LeaseReport // reports of the exchanges that were stored
	// number of jobs that the call of AwaitJobs in progress requests; 0 if no call is in progress
	requestedJobCount        int
	refuseReport             func(store.LeaseReport) error // see setReportRefusal; may be nil
	unblockSettlementsSignal chan struct{}                 // see blockSettlements; may be nil
	hasBlockedSettlement     bool                          // an exchange waits until unblockSettlementsSignal is closed

	// if not nil, reads of dependencies wait until unblockParentReadsSignal is closed
	unblockParentReadsSignal chan struct{}
	parentReadStartedSignal  chan struct{} // receives a value when a read of dependencies begins
}

// newStore returns a store that sorts jobs by priority.
func newStore(t *testing.T) *recordingStore {
	return newStoreWithOrder(t, queue.RankPolicy{Scheduling: queue.SchedulingByPriority})
}

// newStoreWithOrder returns a store that sorts jobs by the given order.
func newStoreWithOrder(t *testing.T, order queue.RankPolicy) *recordingStore {
	s := &recordingStore{Store: faultstore.New(memstore.New(order)), t: t}
	s.SetHook(s.interceptCall)
	t.Cleanup(func() { s.Close() })
	return s
}

// interceptCall delays, refuses and records exchanges (calls of ReportAndClaim). It also delays reads of dependencies.
func (s *recordingStore) interceptCall(ctx context.Context, c faultstore.Call) error {
	if c.MethodName == "ParentJobs" && !c.HasSucceeded && s.unblockParentReadsSignal != nil {
		s.parentReadStartedSignal <- struct{}{}
		select {
		case <-s.unblockParentReadsSignal:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	switch arg := c.FirstArg.(type) {
	case store.LeaseReport:
		if c.HasSucceeded {
			s.mu.Lock()
			defer s.mu.Unlock()
			arg.Settlements = slices.Clone(arg.Settlements) // the pool reuses the slice
			s.storedReports = append(s.storedReports, arg)
			return nil
		}
		return s.interceptReport(arg)
	case int:
		if c.MethodName == "AwaitJobs" {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.requestedJobCount = arg
		}
	}
	return nil
}

// interceptReport may delay or refuse an exchange (a call of ReportAndClaim).
func (s *recordingStore) interceptReport(report store.LeaseReport) error {
	s.mu.Lock()
	unblock, refuse := s.unblockSettlementsSignal, s.refuseReport
	if unblock != nil && len(report.Settlements) > 0 {
		s.hasBlockedSettlement = true
		s.mu.Unlock()
		<-unblock
		s.mu.Lock()
	}
	s.mu.Unlock()
	if refuse != nil {
		return refuse(report)
	}
	return nil
}

// AwaitJobs implements store.Session.
func (s *recordingStore) AwaitJobs(ctx context.Context, maxJobs int) ([]queue.Job, error) {
	defer func() { // this also runs if AwaitJobs returns an error
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requestedJobCount = 0
	}()
	return s.Store.AwaitJobs(ctx, maxJobs)
}

// awaitedJobCount returns how many jobs the call of AwaitJobs in progress requests; 0 if no call is in progress.
func (s *recordingStore) awaitedJobCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requestedJobCount
}

// setReportRefusal sets a function that is called before each exchange (call of ReportAndClaim). If the function
// returns an error, the exchange fails with this error.
func (s *recordingStore) setReportRefusal(refuse func(store.LeaseReport) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuseReport = refuse
}

// blockSettlements delays exchanges (calls of ReportAndClaim) that record the end of an attempt, until the returned
// function is called.
func (s *recordingStore) blockSettlements() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	unblock := make(chan struct{})
	s.unblockSettlementsSignal = unblock
	release = sync.OnceFunc(func() {
		s.mu.Lock()
		s.unblockSettlementsSignal = nil
		s.mu.Unlock()
		close(unblock)
	})
	s.t.Cleanup(release) // release it in any case, since a test that fails must not hang
	return release
}

// isSettlementBlocked reports whether an exchange (a call of ReportAndClaim) is delayed by blockSettlements.
func (s *recordingStore) isSettlementBlocked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasBlockedSettlement
}

// reportedEndCounts returns three numbers for a job: how often the pool has reported to the store that the job ended,
// that the job returned to the queue, and that the job was cancelled.
func (s *recordingStore) reportedEndCounts(jobSeq int64) (ended, released, cancelled int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, exchange := range s.storedReports {
		for _, e := range exchange.Settlements {
			if e.Lease.Seq == jobSeq {
				ended++
			}
		}
		for _, l := range exchange.ReleasedLeases {
			if l.Seq == jobSeq {
				released++
			}
		}
		for _, c := range exchange.LeasedJobChanges {
			if c.Lease.Seq == jobSeq && c.Verb == queue.VerbCancel {
				cancelled++
			}
		}
	}
	return ended, released, cancelled
}

// enqueueJobs enqueues one job for each priority in one request. Job numbers start at 1.
func (s *recordingStore) enqueueJobs(priorities ...int64) {
	s.t.Helper()
	s.enqueueForUser(0, priorities...)
}

// enqueueForUser enqueues jobs of a user, one for each priority.
func (s *recordingStore) enqueueForUser(uid int, priorities ...int64) {
	s.t.Helper()
	var drafts []queue.Job
	for _, p := range priorities {
		drafts = append(drafts, queue.Job{
			UID: uid, Priority: p, MaxAttempts: 1, ExitCode: -1,
			ExecutionSettings: queue.ExecutionSettings{Argv: []string{"true"}, KillAfter: 3 * time.Second},
		})
	}
	if _, err := s.Enqueue(context.Background(), store.EnqueueRequest{Drafts: drafts}); err != nil {
		s.t.Fatal(err)
	}
}

// readJob returns a job from the store.
func (s *recordingStore) readJob(jobSeq int64) queue.Job {
	s.t.Helper()
	j, err := s.GetJob(context.Background(), fmt.Sprint(jobSeq))
	if err != nil {
		s.t.Fatal(err)
	}
	return j
}

// checkJobState checks the state and reason of a job.
func (s *recordingStore) checkJobState(jobSeq int64, state queue.State, reason queue.Reason) {
	s.t.Helper()
	if j := s.readJob(jobSeq); j.State != state || j.Reason != reason {
		s.t.Errorf("job %d: got %s, reason %q, want %s, reason %q", jobSeq, j.State, j.Reason, state, reason)
	}
}

// awaitJobState waits until a job is in a state.
func (s *recordingStore) awaitJobState(jobSeq int64, state queue.State) {
	s.t.Helper()
	waitUntil(s.t, fmt.Sprintf("job %d was %s", jobSeq, state), func() bool { return s.readJob(jobSeq).State == state })
}

// checkAttemptEndedBy checks which user ended an attempt of a job, and with which action.
func (s *recordingStore) checkAttemptEndedBy(jobSeq int64, uid int, verb string) {
	s.t.Helper()
	events, err := s.Events(context.Background(), 0, 100)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range events {
		if d := e.Detail; e.Kind == queue.EventEnded && e.JobSeq == jobSeq &&
			(d.CausedByUID == nil || *d.CausedByUID != uid || d.Verb != verb) {
			s.t.Errorf("the end of job %d is %+v, want it caused by %s of uid %d", jobSeq, d, verb, uid)
		}
	}
}

// leasedJobSeqs returns the numbers of the leased jobs.
func (s *recordingStore) leasedJobSeqs() (seqs []int64) {
	s.t.Helper()
	previous, err := s.PreviousSession(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, j := range previous.LeasedJobs {
		seqs = append(seqs, j.Seq)
	}
	return seqs
}
