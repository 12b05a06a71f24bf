package faultstore

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/memstore"
)

var priorityRankOrder = queue.RankPolicy{Scheduling: queue.SchedulingByPriority}

// The hook can make each method that takes a context fail before the store executes it. The
// store then changes nothing.
func TestHookCanFailEveryStoreCall(t *testing.T) {
	s := New(memstore.New(priorityRankOrder))
	broken := errors.New("on purpose")
	contract, takesContext := reflect.TypeFor[store.Store](), reflect.TypeFor[context.Context]()
	n := 0
	for i := range contract.NumMethod() {
		m := contract.Method(i)
		if m.Type.NumIn() == 0 || m.Type.In(0) != takesContext {
			continue
		}
		n++
		args := []reflect.Value{reflect.ValueOf(t.Context())}
		for j := 1; j < m.Type.NumIn(); j++ {
			args = append(args, reflect.Zero(m.Type.In(j)))
		}
		calls := 0
		s.SetHook(func(_ context.Context, c Call) error {
			if calls++; c.MethodName != m.Name || c.HasSucceeded || (c.FirstArg == nil) != (len(args) == 1) {
				t.Errorf("the hook for %s received the call %+v", m.Name, c)
			}
			return broken
		})
		out := reflect.ValueOf(s).MethodByName(m.Name).Call(args)
		if err, _ := out[len(out)-1].Interface().(error); err != broken || calls != 1 {
			t.Errorf("%s: got error %v and %d calls of the hook, want %v and 1 call", m.Name, err, calls, broken)
		}
	}
	if n < 30 {
		t.Errorf("only %d methods can fail", n)
	}
}

// If the hook returns an error after the store has executed a call, the caller gets that error, although the call has
// had its effect.
func TestHookErrorAfterCallHidesResult(t *testing.T) {
	s := New(memstore.New(priorityRankOrder))
	var calls []Call
	s.SetHook(func(_ context.Context, c Call) error {
		if calls = append(calls, c); c.HasSucceeded {
			return queue.ErrOutcomeUnknown
		}
		return nil
	})
	request := store.EnqueueRequest{UID: 7, Drafts: []queue.Job{{ID: "a", MaxAttempts: 1}}}
	if _, err := s.Enqueue(t.Context(), request); !errors.Is(err, queue.ErrOutcomeUnknown) {
		t.Errorf("got %v", err)
	}
	s.SetHook(nil)
	if j, err := s.GetJob(t.Context(), "a"); err != nil || j.ID != "a" {
		t.Errorf("got %+v, %v", j, err)
	}
	if len(calls) != 2 || calls[1].FirstArg.(store.EnqueueRequest).UID != 7 {
		t.Errorf("the hook received the calls %+v", calls)
	}
}

// A hook that blocks delays only its own call. Other calls continue.
func TestBlockedCallDelaysNoOtherCall(t *testing.T) {
	s := New(memstore.New(priorityRankOrder))
	gate, inside := make(chan struct{}), make(chan struct{})
	s.SetHook(func(_ context.Context, c Call) error {
		if c.MethodName == "Settings" && !c.HasSucceeded {
			close(inside)
			<-gate
		}
		return nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := s.Settings(t.Context())
		done <- err
	}()
	<-inside
	if _, err := s.AdvanceEpoch(t.Context()); err != nil {
		t.Error(err)
	}
	close(gate)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the call still waits after its hook has returned")
	}
}
