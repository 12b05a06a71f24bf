package fair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// wantLimiterIdle checks that nothing is in use and no request waits.
func wantLimiterIdle(t *testing.T, l *Limiter) {
	t.Helper()
	if len(l.users) > 0 || len(l.waitingUsers) > 0 || slices.Max(l.totalInUseByBound) != 0 ||
		slices.Min(l.totalInUseByBound) != 0 {
		t.Errorf("%d users are still counted, %d of them waiting, and %v is in use", len(l.users), len(l.waitingUsers),
			l.totalInUseByBound)
	}
}

// grantRecorder records the names of requests in the order in which they got room.
type grantRecorder struct {
	mu           sync.Mutex
	requestNames []string // guarded by mu
}

func (g *grantRecorder) add(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requestNames = append(g.requestNames, name)
}

func (g *grantRecorder) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.requestNames, " ")
}

// startRequestsInOrder starts the named requests, one after another. The digit in a name is the number of the user.
// Each request frees its room a second after it got the room.
func startRequestsInOrder(t *testing.T, l *Limiter, granted *grantRecorder, wg *sync.WaitGroup,
	requestByName map[string]Request, requestNames ...string) {
	for _, name := range requestNames {
		wg.Go(func() {
			r := requestByName[name]
			if err := l.Acquire(t.Context(), r); err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			granted.add(name)
			time.Sleep(time.Second)
			l.Release(r)
		})
		synctest.Wait()
	}
}

// requestsByName returns a request for each of the given names. The digit in a name is the number of the user.
func requestsByName(requestNames ...string) map[string]Request {
	requests := map[string]Request{}
	for _, name := range requestNames {
		requests[name] = Request{UserID: int(name[0] - '0')}
	}
	return requests
}

// Waiting users are served round robin. The requests of one user are served in the order of their arrival.
func TestWaitingUsersAreServedRoundRobin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Bound{MaxAmount: 1, SharedByAllUsers: true})
		var got grantRecorder
		var wait sync.WaitGroup
		names := []string{"1a", "1b", "1c", "1d", "2a", "2b", "3a"}
		startRequestsInOrder(t, l, &got, &wait, requestsByName(names...), names...)
		wait.Wait()
		if want := "1a 1b 2a 3a 1c 2b 1d"; got.String() != want {
			t.Errorf("users were served in the order %v, want %v", &got, want)
		}
		wantLimiterIdle(t, l)
	})
}

// A bound that is not shared applies to each user separately. A request that reaches the bound exactly gets its
// room, and one that exceeds it does not.
func TestUnsharedBoundAppliesPerUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Bound{MaxAmount: 3})
		for _, c := range []struct {
			user   int
			amount int64
			want   bool
		}{{1, 2, true}, {1, 2, false}, {1, 1, true}, {1, 1, false}, {2, 4, false}, {2, 3, true}, {2, 0, false}} {
			if got := l.TryAcquire(Request{UserID: c.user, Amount: c.amount}); got != c.want {
				t.Errorf("user %d gets room for %d: %t, want %t", c.user, c.amount, got, c.want)
			}
		}
		if n := l.InUse(1, 0); n != 3 {
			t.Errorf("user 1 uses %d, want 3", n)
		}
		l.Release(Request{UserID: 1, Amount: 3})
		l.Release(Request{UserID: 2, Amount: 3})
		wantLimiterIdle(t, l)
	})
}

// A request gets room only if it fits within all its bounds. While it waits, it takes no room at all, and does
// not delay requests of another kind.
func TestRequestMustFitAllItsBounds(t *testing.T) {
	const total, lists, ownLists = 0, 1, 2
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Bound{MaxAmount: 3, SharedByAllUsers: true}, Bound{MaxAmount: 2, SharedByAllUsers: true},
			Bound{MaxAmount: 1})
		list := func(user int) Request { return Request{UserID: user, BoundIndexes: []int{total, lists, ownLists}} }
		read := func(user int) Request { return Request{UserID: user, BoundIndexes: []int{total}, WaitQueueKind: 1} }
		var got grantRecorder
		var wait sync.WaitGroup
		startRequestsInOrder(t, l, &got, &wait, map[string]Request{"1 list": list(1), "1 list again": list(1),
			"1 read": read(1),
			"2 list": list(2), "3 list": list(3), "3 read": read(3)},
			"1 list", "1 list again", "1 read", "2 list", "3 list", "3 read")
		if want := "1 list 1 read 2 list"; got.String() != want {
			t.Errorf("got room at first: %v, want %v", &got, want)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got, want := len(got.requestNames), 6; got != want {
			t.Errorf("%d requests got room after the first ended, want %d", got, want)
		}
		wait.Wait()
		wantLimiterIdle(t, l)
	})
}

// A request stops waiting at its deadline or when its context ends, whichever comes first.
func TestRequestStopsWaitingAtDeadlineOrCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Bound{MaxAmount: 1})
		if err := l.Acquire(t.Context(), Request{}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			deadline, cancelled time.Duration
			want                error
		}{{5 * time.Second, time.Minute, ErrWaitDeadline}, {5 * time.Second, time.Second, context.DeadlineExceeded},
			{0, time.Hour, context.DeadlineExceeded}} {
			r := Request{}
			if c.deadline > 0 {
				r.Deadline = time.Now().Add(c.deadline)
			}
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), c.cancelled)
			err := l.Acquire(ctx, r)
			cancel()
			want := c.cancelled
			if errors.Is(c.want, ErrWaitDeadline) {
				want = c.deadline
			}
			if took := time.Since(began); !errors.Is(err, c.want) || took != want {
				t.Errorf("%+v: %v after %v", c, err, took)
			}
		}
		if n := l.WaitingCount(0); n != 0 {
			t.Errorf("%d requests still wait", n)
		}
		l.Release(Request{})
		wantLimiterIdle(t, l)
	})
}

// A request may stop waiting at the moment at which it gets room. In this case the room is freed again.
func TestCancelledRequestReleasesGrantedAmount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Bound{MaxAmount: 2})
		var wait sync.WaitGroup
		for range 100 {
			wait.Go(func() {
				r := Request{Deadline: time.Now().Add(5 * time.Second)}
				if l.Acquire(t.Context(), r) == nil {
					time.Sleep(time.Second)
					l.Release(r)
				}
			})
		}
		wait.Wait()
		wantLimiterIdle(t, l)
	})
}

// A request whose GrantCondition is false waits until DispatchWaiting is called. The waiting request delays no request
// of another kind or user.
func TestFalseGrantConditionDelaysOnlySameKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Bound{MaxAmount: 1, SharedByAllUsers: true})
		var ready atomic.Bool
		var got grantRecorder
		var wait sync.WaitGroup
		requests := requestsByName("1b", "2a")
		requests["1a"] = Request{UserID: 1, WaitQueueKind: 1, GrantCondition: ready.Load}
		startRequestsInOrder(t, l, &got, &wait, requests, "1a", "1b", "2a")
		time.Sleep(time.Minute)
		ready.Store(true)
		l.DispatchWaiting()
		wait.Wait()
		if want := "1b 2a 1a"; got.String() != want {
			t.Errorf("served in the order %v, want %v", &got, want)
		}
		wantLimiterIdle(t, l)
	})
}

// A request waits behind earlier requests of its user and kind, even if it needs less room than the earlier requests.
// If the earlier request stops waiting, the later one gets its room.
func TestRequestsOfOneKindKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Bound{MaxAmount: 10})
		if !l.TryAcquire(Request{Amount: 6}) {
			t.Fatal("no room for 6 of 10")
		}
		var wait sync.WaitGroup
		wait.Go(func() {
			large := Request{Amount: 8, Deadline: time.Now().Add(time.Minute)}
			if err := l.Acquire(t.Context(), large); !errors.Is(err, ErrWaitDeadline) {
				t.Errorf("the large request: %v", err)
			}
		})
		synctest.Wait()
		began := time.Now()
		if err := l.Acquire(t.Context(), Request{Amount: 4}); err != nil || time.Since(began) != time.Minute {
			t.Errorf("the small request got room after %v, %v, want after the large one gave up", time.Since(began), err)
		}
		wait.Wait()
		l.Release(Request{Amount: 10})
		wantLimiterIdle(t, l)
	})
}

// If several requests of one user fit, the oldest is served first, whatever their kinds are.
func TestRequestKindsAreServedByArrivalOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Bound{MaxAmount: 1})
		var got grantRecorder
		var wait sync.WaitGroup
		requests := map[string]Request{"first": {}, "a": {WaitQueueKind: 1}, "b": {WaitQueueKind: 0}, "c": {WaitQueueKind: 2},
			"d": {WaitQueueKind: 1}}
		startRequestsInOrder(t, l, &got, &wait, requests, "first", "a", "b", "c", "d")
		wait.Wait()
		if want := "first a b c d"; got.String() != want {
			t.Errorf("served in the order %v, want %v", &got, want)
		}
		wantLimiterIdle(t, l)
	})
}

// ForceAcquire may exceed a bound. While the bound is exceeded, requests wait.
func TestForceAcquireExceedsBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Bound{MaxAmount: 10})
		l.ForceAcquire(Request{UserID: 1, Amount: 25})
		var wait sync.WaitGroup
		began := time.Now()
		wait.Go(func() {
			if err := l.Acquire(t.Context(), Request{UserID: 1, Amount: 5}); err != nil || time.Since(began) != 2*time.Second {
				t.Errorf("got room after %v, %v, want 2s", time.Since(began), err)
			}
		})
		for _, freed := range []int64{19, 1} {
			time.Sleep(time.Second)
			l.ForceAcquire(Request{UserID: 1, Amount: -freed})
		}
		wait.Wait()
		l.Release(Request{UserID: 1, Amount: 10})
		wantLimiterIdle(t, l)
	})
}

// AcquireAsync calls its function when there is room. It needs no goroutine that waits. If the context ends before
// there is room, the function is not called.
func TestAcquireAsyncNeedsNoWaitingGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(Bound{MaxAmount: 1})
		var got grantRecorder
		contexts := map[string]context.CancelFunc{}
		for i := range 4 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			name := fmt.Sprint(i)
			contexts[name] = cancel
			l.AcquireAsync(ctx, Request{}, func() { got.add(name) })
		}
		contexts["1"]()
		synctest.Wait()
		if n := l.WaitingCount(0); n != 2 {
			t.Errorf("%d requests wait, want 2", n)
		}
		for range 3 {
			l.Release(Request{})
		}
		if want := "0 2 3"; got.String() != want {
			t.Errorf("started: %v, want %v", &got, want)
		}
		wantLimiterIdle(t, l)
	})
}
