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

// The model keeps every promise of the contract.
func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T, order queue.Order) storetest.Fixture {
		var clock atomic.Int64
		clock.Store(1_800_000_000_000)
		s := New(order)
		s.now = func() queue.Millis { return queue.Millis(clock.Load()) }
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Errorf("close: got error %v, want none", err)
			}
		})
		return storetest.Fixture{Store: s, Advance: func(d time.Duration) { clock.Add(d.Milliseconds()) }}
	})
}

// An Await is served by time passing alone, with nobody to promote, and the
// transaction that makes a job runnable is the one that claims it.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(queue.Order{Scheduling: queue.ByAging, Aging: queue.AgingTime, Interval: time.Minute})
		served := make(chan time.Duration)
		begin := time.Now()
		go func() {
			defer close(served)
			for range 3 {
				jobs, err := s.Await(t.Context(), 1)
				if err != nil || len(jobs) != 1 {
					t.Errorf("got %d jobs and error %v, want one job", len(jobs), err)
				}
				served <- time.Since(begin)
			}
		}()
		put := func(delay time.Duration) {
			t.Helper()
			if _, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{{Delay: delay}}}); err != nil {
				t.Fatalf("enqueue: got error %v, want none", err)
			}
		}
		synctest.Wait() // the Await waits
		put(3 * time.Hour)
		synctest.Wait()
		put(time.Second)
		for _, want := range []time.Duration{time.Second, 3 * time.Hour} {
			if got := <-served; got != want {
				t.Errorf("served after %v, want %v", got, want)
			}
		}
		synctest.Wait()
		put(0)
		left, err := s.Left(context.Background())
		if err != nil || len(left.Leased) != 3 {
			t.Errorf("got %d leased jobs and error %v, want all 3", len(left.Leased), err)
		}
		<-served
	})
}

// Close ends an Await that surely waits.
func TestCloseEndsAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(queue.Order{})
		ended := make(chan error)
		go func() {
			_, err := s.Await(t.Context(), 1)
			ended <- err
		}()
		synctest.Wait() // the Await waits
		if err := s.Close(); err != nil {
			t.Errorf("close: got error %v, want none", err)
		}
		if err := <-ended; !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("await: got error %v, want ErrUnavailable", err)
		}
	})
}

// Nobody who has a copy of a job can change what is stored.
func TestACopySharesNothing(t *testing.T) {
	var j queue.Job
	fill(reflect.ValueOf(&j).Elem())
	c := copyJob(j)
	if !reflect.DeepEqual(c, j) {
		t.Errorf("got %+v, want %+v", c, j)
	}
	apart(t, "job", reflect.ValueOf(c), reflect.ValueOf(j))
}

// fill gives all that refers to something something to refer to.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	}
}

// apart checks that two values refer to nothing in common.
func apart(t *testing.T, name string, a, b reflect.Value) {
	t.Helper()
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			apart(t, name+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
		}
	case reflect.Pointer, reflect.Slice, reflect.Map:
		if a.Pointer() == b.Pointer() {
			t.Errorf("%s is shared", name)
		}
	}
}

// Sums that disagree with the outputs do not keep the trims from returning.
func TestTrimOutputsEndsWithWrongSums(t *testing.T) {
	s := New(queue.Order{})
	s.jobs[1] = &job{Job: queue.Job{Seq: 1, UID: 1, Queue: "own", Outputs: 5, Kept: true}}
	s.jobs[2] = &job{Job: queue.Job{Seq: 2, UID: 2}, attempts: []queue.Attempt{{OutputBytes: 3}}}
	for range 2 {
		if _, err := s.TrimOutputsOf(t.Context(), "own", 0); err != nil {
			t.Error(err)
		}
		if _, err := s.TrimOutputs(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
}
