package handlers

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// pendingWait is a call of WaitForJobs that runs in its own goroutine.
type pendingWait struct {
	reportedJobIDs chan string // ids of the reported jobs
	result         control.JobWaitResult
	err            error
	done           chan struct{} // closed when the call has returned; result and err are set then
}

// startWait starts a call of WaitForJobs in a new goroutine.
func (s *testAPI) startWait(ctx context.Context, p control.JobWaitParams) *pendingWait {
	w := &pendingWait{reportedJobIDs: make(chan string, 2*control.MaxWaitOrFollowJobIDs), done: make(chan struct{})}
	go func() { // this goroutine ends when the wait ends
		defer close(w.done)
		w.result,
			w.err = s.WaitForJobs(ctx, p, func(e control.JobEndNotice) error { w.reportedJobIDs <- e.Job.ID; return nil })
		close(w.reportedJobIDs)
	}()
	return w
}

// awaitReportedIDs returns the ids of the reported jobs once the wait has ended.
func (w *pendingWait) awaitReportedIDs() (ids []string) {
	<-w.done
	for id := range w.reportedJobIDs {
		ids = append(ids, id)
	}
	return ids
}

// A wait reports each job when it ends, and misses none. Jobs that had ended before are reported first, in
// the order of the request. A wait uses one goroutine, however many jobs it names.
func TestWaitReportsEndedJobs(t *testing.T) {
	s := newSQLiteTestAPI(t)
	s.enqueueJobs(t, draftsWithPrefix("j", control.MaxWaitOrFollowJobIDs)...)
	jobs := s.claimJobs(t, control.MaxWaitOrFollowJobIDs)
	s.endJobs(t, jobs[:10], queue.Completed, queue.Attempt{})
	var ids []string
	for i := range jobs {
		ids = append(ids, jobs[len(jobs)-1-i].ID)
	}
	before := runtime.NumGoroutine()
	w := s.startWait(contextAsPeer(t, ownerUID, control.RightRead), control.JobWaitParams{IDs: ids})
	var first []string
	for range 10 {
		first = append(first, <-w.reportedJobIDs)
	}
	if want := ids[len(ids)-10:]; !slices.Equal(first, want) {
		t.Errorf("first reported %q, want %q", first, want)
	}
	if n := runtime.NumGoroutine() - before; n > 10 {
		t.Errorf("%d goroutines wait for %d jobs", n, len(ids))
	}
	var ending sync.WaitGroup
	for i := 10; i < len(jobs); i += 90 {
		ending.Go(func() { s.endJobs(t, jobs[i:i+90], queue.Dead, queue.Attempt{}) })
	}
	ending.Wait()
	rest := w.awaitReportedIDs()
	slices.Sort(rest)
	if rest = slices.Compact(rest); len(rest) != len(jobs)-10 || w.err != nil || len(w.result.UnfinishedJobIDs) > 0 ||
		w.result.TimedOut {
		t.Errorf("then of %d jobs, %+v, %v", len(rest), w.result, w.err)
	}
}

// A wait for any job ends once one job has ended, and reports the first such job in the order of the request. A
// wait that times out reports the ended jobs and returns the ids of the other jobs.
func TestWaitEndsAtFirstJobOrTimeout(t *testing.T) {
	s := newSQLiteTestAPI(t)
	s.enqueueJobs(t, draftsWithPrefix("j", 5)...)
	jobs := s.claimJobs(t, 4)
	ctx := contextAsPeer(t, ownerUID, control.RightRead)
	s.endJobs(t, jobs[1:3], queue.Completed, queue.Attempt{})
	w := s.startWait(ctx, control.JobWaitParams{IDs: control.JobIDs{"j4", "j2", "j1", "j2"}, ReturnAfterFirst: true})
	if got := w.awaitReportedIDs(); !slices.Equal(got, []string{"j2"}) ||
		fmt.Sprint(w.result.UnfinishedJobIDs) != "[j4 j1 j2]" ||
		w.err != nil {
		t.Errorf("any: %q, %+v, %v", got, w.result, w.err)
	}
	w = s.startWait(ctx, control.JobWaitParams{ID: "j0", IDs: control.JobIDs{"j1", "j4"},
		MaxWait: control.Duration(time.Nanosecond)})
	if got := w.awaitReportedIDs(); !slices.Equal(got, []string{"j1"}) ||
		fmt.Sprint(w.result.UnfinishedJobIDs) != "[j0 j4]" ||
		!w.result.TimedOut {
		t.Errorf("with a timeout: %q, %+v, %v", got, w.result, w.err)
	}
	w = s.startWait(ctx, control.JobWaitParams{IDs: control.JobIDs{"j0", "j1"}})
	<-w.reportedJobIDs
	s.endJobs(t, jobs[:1], queue.Completed, queue.Attempt{})
	if got := w.awaitReportedIDs(); !slices.Equal(got, []string{"j0"}) || w.err != nil || w.result.TimedOut ||
		len(w.result.UnfinishedJobIDs) > 0 {
		t.Errorf("all: %q, %+v, %v", got, w.result, w.err)
	}
	w = s.startWait(ctx, control.JobWaitParams{IDs: control.JobIDs{"j1", "none"}})
	if got := w.awaitReportedIDs(); len(got) > 0 || !errors.Is(w.err, queue.ErrNotFound) {
		t.Errorf("a missing job: %q, %v", got, w.err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	w = s.startWait(cancelled, control.JobWaitParams{IDs: control.JobIDs{"j1", "j3"}})
	<-w.reportedJobIDs
	cancel()
	if w.awaitReportedIDs(); !errors.Is(w.err, context.Canceled) {
		t.Errorf("a cancelled request: %v", w.err)
	}
	w = s.startWait(ctx, control.JobWaitParams{IDs: control.JobIDs{"j4"}})
	if v, err := s.RemoveJobs(contextAsPeer(t, ownerUID, control.RightSubmit),
		control.JobRemoveParams{JobSelection: control.JobSelection{ID: "j4"}}); err != nil || len(v.ChangedJobIDs) != 1 {
		t.Fatalf("%+v, %v", v, err)
	}
	if w.awaitReportedIDs(); !errors.Is(w.err, queue.ErrNotFound) {
		t.Errorf("a job that is removed: %v", w.err)
	}
}
