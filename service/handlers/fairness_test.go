package handlers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// occupyReadSlots occupies all slots for reading the store until the returned function is called.
func occupyReadSlots(t *testing.T, s *testAPI) (release func()) {
	done := make(chan struct{})
	var finished, acquired sync.WaitGroup
	for range 4 {
		acquired.Add(1)
		finished.Go(func() {
			s.UserLimits.RunInSlot(contextAsPeer(t, 0, control.RightAdmin), control.ClassOneJobRead, func() error {
				acquired.Done()
				<-done
				return nil
			})
		})
	}
	acquired.Wait()
	return func() {
		close(done)
		finished.Wait()
	}
}

// A read slot is the permission for one of a limited number of concurrent reads. Every method that reads from the store
// needs a read slot, and waits while all slots are occupied. If the context of the method ends first, the method
// returns an error.
func TestReadMethodsWaitForReadSlot(t *testing.T) {
	s := newSQLiteTestAPI(t)
	s.enqueueJobs(t, draftWithID("a"), draftWithID("b"), draftWithID("c"))
	s.endJobs(t, s.claimJobs(t, 2), queue.Dead, queue.Attempt{Output: []byte{0, 0, 1, 'x'}})
	all := control.JobSelection{States: control.TextList{"dead"}}
	for name, read := range map[string]func(context.Context) error{
		"list": func(ctx context.Context) error { _, err := s.ListJobs(ctx, control.JobListParams{}); return err },
		"dlq.list": func(ctx context.Context) error {
			_, err := s.ListDeadJobs(ctx, control.DeadJobListParams{})
			return err
		},
		"show":   func(ctx context.Context) error { _, err := s.ShowJob(ctx, control.JobShowParams{ID: "a"}); return err },
		"status": func(ctx context.Context) error { _, err := s.Status(ctx, control.NoParams{}); return err },
		"screen": func(ctx context.Context) error {
			_, err := s.ReadOverviewScreen(ctx, control.OverviewScreenParams{})
			return err
		},
		"worker.list": func(ctx context.Context) error {
			_, err := s.ListWorkers(ctx, control.NoParams{})
			return err
		},
		"cancel": func(ctx context.Context) error {
			_, err := s.CancelJobs(ctx, control.JobSelection{ID: "a"})
			return err
		},
		"cancel of many": func(ctx context.Context) error {
			_, err := s.CancelJobs(ctx, control.JobSelection{IDGlob: "none*"})
			return err
		},
		"hold, only tried": func(ctx context.Context) error {
			_, err := s.HoldJobs(ctx, control.JobSelection{ID: "c", DryRun: true})
			return err
		},
		"rm of many, only counted": func(ctx context.Context) error {
			all := all
			all.DryRun = true
			_, err := s.RemoveJobs(ctx, control.JobRemoveParams{JobSelection: all})
			return err
		},
		"dlq.retry of all": func(ctx context.Context) error {
			_, err := s.RetryDeadJobs(ctx, control.DeadJobRetryParams{AllDeadJobs: true, Cursor: "1"})
			return err
		},
		"cleanup, only counted": func(ctx context.Context) error {
			_, err := s.RemoveOldJobs(ctx, control.CleanupParams{DryRun: true}, nil)
			return err
		},
		"wait": func(ctx context.Context) error {
			_, err := s.WaitForJobs(ctx, control.JobWaitParams{ID: "a"}, func(control.JobEndNotice) error { return nil })
			return err
		},
		"logs": func(ctx context.Context) error {
			_, err := s.StreamOutput(ctx, control.JobOutputParams{ID: "a", LastLineCount: new(1)},
				func(control.OutputPiece) error { return nil })
			return err
		},
		"events": func(ctx context.Context) error {
			_, err := s.StreamEvents(ctx, control.EventsParams{}, func(control.Event) error { return nil })
			return err
		},
	} {
		release := occupyReadSlots(t, s)
		ctx, cancel := context.WithTimeout(contextAsPeer(t, ownerUID, control.RightOperate), 20*time.Millisecond)
		if err := read(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: while all slots are in use: %v", name, err)
		}
		cancel()
		release()
		if err := read(contextAsPeer(t, ownerUID, control.RightOperate)); err != nil {
			t.Errorf("%s: after the slots were freed: %v", name, err)
		}
	}
}

// An operation on many jobs, such as a cancel, stops when its context ends, even while it waits for something. The jobs
// that were already changed stay changed. Jobs are changed in the order of the request.
func TestBulkOperationStopsWithItsContext(t *testing.T) {
	s := newSQLiteTestAPI(t)
	s.enqueueJobs(t, draftsWithPrefix("j", 300)...)
	var ids control.JobIDs
	for i := range 300 {
		ids = append(ids, fmt.Sprint("j", i))
	}
	ids[150] = "none"
	v, err := s.HoldJobs(contextAsPeer(t, ownerUID, control.RightSubmit), control.JobSelection{IDs: ids})
	if err != nil || len(v.ChangedJobIDs) != 299 || v.ChangedJobIDs[0] != "j0" || v.ChangedJobIDs[298] != "j299" ||
		len(v.Refusals) != 1 ||
		v.Refusals[0].JobID != "none" || v.Refusals[0].Code != queue.CodeNotFound {
		t.Errorf("%d done, rejected %+v, %v", len(v.ChangedJobIDs), v.Refusals, err)
	}
	ctx, cancel := context.WithCancel(contextAsPeer(t, ownerUID, control.RightSubmit))
	var mu sync.Mutex
	begun := 0
	hold := func(ctx context.Context, _ *queue.Job, _ []queue.State) error {
		mu.Lock()
		if begun++; begun == 1 {
			cancel()
		}
		mu.Unlock()
		<-ctx.Done()
		return ctx.Err()
	}
	_, err = s.applyVerbToJobIDs(ctx, &bulkVerb{method: "hold", applyToJob: hold}, ids)
	if !errors.Is(err, context.Canceled) || begun == 0 || begun > maxParallelJobChanges {
		t.Errorf("%d were started, %v", begun, err)
	}
}

// All operations of one user on many jobs share a limited number of additional goroutines. Each user has a
// separate limit. Without an additional goroutine, an operation changes one job at a time.
func TestBulkOperationsShareGoroutinesPerUser(t *testing.T) {
	s := newSQLiteTestAPI(t)
	s.enqueueJobs(t, draftsWithPrefix("j", 20)...)
	ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
	var ends []func()
	for end, ok := s.UserLimits.ReserveHelperGoroutine(ctx); ok; end, ok = s.UserLimits.ReserveHelperGoroutine(ctx) {
		ends = append(ends, end)
	}
	ids := []string{"j0", "j1", "j2", "j3", "j4", "j5", "j6", "j7"}
	var mu sync.Mutex
	now, most := 0, 0
	two := make(chan struct{})
	work := func(until <-chan struct{}) *bulkVerb {
		return &bulkVerb{method: "hold", applyToJob: func(ctx context.Context, _ *queue.Job, _ []queue.State) error {
			mu.Lock()
			if now++; now == 2 && most < 2 {
				close(two)
			}
			most = max(most, now)
			mu.Unlock()
			select {
			case <-until:
			case <-ctx.Done():
			}
			mu.Lock()
			defer mu.Unlock()
			now--
			return nil
		}}
	}
	immediately := make(chan struct{})
	close(immediately)
	if v, err := s.applyVerbToJobIDs(ctx, work(immediately), ids); err != nil || len(v.ChangedJobIDs) != len(ids) ||
		most != 1 {
		t.Errorf("without helpers: %d concurrent calls, %+v, %v", most, v, err)
	}
	for _, end := range ends {
		end()
	}
	lateCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if v, err := s.applyVerbToJobIDs(lateCtx, work(two), ids); err != nil || len(v.ChangedJobIDs) != len(ids) || most < 2 {
		t.Errorf("with helpers: %d concurrent calls, %+v, %v", most, v, err)
	}
}
