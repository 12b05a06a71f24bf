package memstore

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/storetest"
)

// The store in memory passes all tests of the interface store.Store.
func TestMemoryStoreMeetsStoreContract(t *testing.T) {
	storetest.RunContractTests(t, func(t *testing.T, order queue.RankPolicy) storetest.Fixture {
		var clock atomic.Int64
		clock.Store(1_800_000_000_000)
		s := New(order)
		s.now = func() queue.UnixMillis { return queue.UnixMillis(clock.Load()) }
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Errorf("close: got error %v, want none", err)
			}
		})
		return storetest.Fixture{Store: s, AdvanceClock: func(d time.Duration) { clock.Add(d.Milliseconds()) }}
	})
}

// AwaitJobs returns a job when the job is due, even if ApplyDueChanges is not called. A transaction that makes a job
// runnable gives the job to a waiting call of AwaitJobs.
func TestAwaitReturnsJobWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByTime,
			AgingInterval: time.Minute})
		served := make(chan time.Duration)
		begin := time.Now()
		go func() {
			defer close(served)
			for range 3 {
				jobs, err := s.AwaitJobs(t.Context(), 1)
				if err != nil || len(jobs) != 1 {
					t.Errorf("got %d jobs and error %v, want one job", len(jobs), err)
				}
				served <- time.Since(begin)
			}
		}()
		enqueueAfter := func(delay time.Duration) {
			t.Helper()
			if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: []queue.Job{{Delay: delay}}}); err != nil {
				t.Fatalf("enqueue: got error %v, want none", err)
			}
		}
		synctest.Wait() // returns when AwaitJobs waits
		enqueueAfter(3 * time.Hour)
		synctest.Wait()
		enqueueAfter(time.Second)
		for _, want := range []time.Duration{time.Second, 3 * time.Hour} {
			if got := <-served; got != want {
				t.Errorf("Await returned after %v, want %v", got, want)
			}
		}
		synctest.Wait()
		enqueueAfter(0)
		session, err := s.PreviousSession(context.Background())
		if err != nil || len(session.LeasedJobs) != 3 {
			t.Errorf("got %d leased jobs and error %v, want all 3", len(session.LeasedJobs), err)
		}
		<-served
	})
}

// Close ends a call of AwaitJobs that is waiting.
func TestCloseEndsWaitingAwaitCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(queue.RankPolicy{})
		ended := make(chan error)
		go func() {
			_, err := s.AwaitJobs(t.Context(), 1)
			ended <- err
		}()
		synctest.Wait() // returns when AwaitJobs waits
		if err := s.Close(); err != nil {
			t.Errorf("close: got error %v, want none", err)
		}
		if err := <-ended; !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("await: got error %v, want ErrUnavailable", err)
		}
	})
}

// A caller that changes a job from the store does not change the stored job.
func TestCopyJobSharesNoReferences(t *testing.T) {
	var j queue.Job
	fillNilReferences(reflect.ValueOf(&j).Elem())
	c := copyJob(j)
	if !reflect.DeepEqual(c, j) {
		t.Errorf("got %+v, want %+v", c, j)
	}
	checkNoSharedReferences(t, "job", reflect.ValueOf(c), reflect.ValueOf(j))
}

// fillNilReferences sets every pointer, slice and map in v to a new value that is not nil.
func fillNilReferences(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fillNilReferences(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	}
}

// checkNoSharedReferences checks that two values share no pointer, slice or map.
func checkNoSharedReferences(t *testing.T, name string, a, b reflect.Value) {
	t.Helper()
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			checkNoSharedReferences(t, name+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
		}
	case reflect.Pointer, reflect.Slice, reflect.Map:
		if a.Pointer() == b.Pointer() {
			t.Errorf("%s is shared", name)
		}
	}
}

// TrimOutputs and TrimQueueOutputs return even if the output size recorded for a job differs from the sizes
// of its attempts.
func TestTrimOutputsEndsDespiteWrongRecordedSizes(t *testing.T) {
	s := New(queue.RankPolicy{})
	s.jobs[1] = &job{Job: queue.Job{Seq: 1, UID: 1, Queue: "own", OutputBytes: 5, UsesQueueRetention: true}}
	s.jobs[2] = &job{Job: queue.Job{Seq: 2, UID: 2}, attempts: []queue.Attempt{{OutputBytes: 3}}}
	for range 2 {
		if _, err := s.TrimQueueOutputs(t.Context(), "own", 0); err != nil {
			t.Error(err)
		}
		if _, err := s.TrimOutputs(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
}
