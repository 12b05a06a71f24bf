package control

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/queue"
)

// contextWithPeer returns the context of a request of a user.
func contextWithPeer(ctx context.Context, uid int, right Right) context.Context {
	return WithPeer(ctx, Peer{UID: uid, Right: right})
}

// wantNoUserLimitUsage checks that no user has anything in progress and that no request waits.
func wantNoUserLimitUsage(t *testing.T, s *UserLimits) {
	t.Helper()
	for _, l := range []*fair.Limiter{s.heavyWorkSlots, s.helperGoroutines} {
		if n := reflect.ValueOf(l).Elem().FieldByName("users").Len(); n > 0 {
			t.Errorf("%d users are still counted", n)
		}
	}
	for _, name := range []string{
		"requestLimiter", "listRequestLimiter", "streamLimiter", "connRequestLimiter", "byteLimiter", "incompleteLineLimiter",
	} {
		l := reflect.ValueOf(s.connLimiter).Elem().FieldByName(name)
		if n := l.Elem().FieldByName("users").Len(); n > 0 {
			t.Errorf("%s: %d users are still counted", name, n)
		}
	}
}

// Even if a user has very many reads waiting, a read of another user waits only until one of the running reads has
// ended.
func TestReadsAreServedRoundRobin(t *testing.T) {
	const lasts = 10 * time.Millisecond
	for _, c := range []struct {
		theirs, mine HeavyWorkClass
		places       int // number of slots for reads of the class theirs
	}{{ClassOneJobRead, ClassOneJobRead, readSlots - 1}, {ClassOneJobRead, ClassManyJobsRead, readSlots - 1},
		{ClassManyJobsRead, ClassOneJobRead, 1},
		{ClassManyJobsRead, ClassManyJobsRead, 1}, {classLargeRequest, classLargeRequest, 1},
		{classLongRequestDecoding, classLongRequestDecoding, 1}} {
		synctest.Test(t, func(t *testing.T) {
			s := NewUserLimits()
			var mu sync.Mutex
			reading, most := 0, 0 // guarded by mu
			var all sync.WaitGroup
			ctx, stop := context.WithCancel(t.Context())
			for range 10_000 {
				all.Go(func() {
					s.RunInSlot(contextWithPeer(ctx, 1, RightSubmit), c.theirs, func() error {
						mu.Lock()
						reading++
						most = max(most, reading)
						mu.Unlock()
						time.Sleep(lasts)
						mu.Lock()
						reading--
						mu.Unlock()
						return nil
					})
				})
			}
			for uid := 2; uid < 12; uid++ {
				time.Sleep(lasts / 3)
				began := time.Now()
				err := s.RunInSlot(contextWithPeer(t.Context(), uid, RightSubmit), c.mine,
					func() error { time.Sleep(lasts); return nil })
				if waited := time.Since(began) - lasts; err != nil || waited > lasts {
					t.Errorf("%d after %d: user %d waited for %v, %v, want at most %v", c.mine, c.theirs, uid, waited, err, lasts)
				}
			}
			stop()
			all.Wait()
			if most != c.places {
				t.Errorf("class %d: %d concurrent reads, want %d", c.theirs, most, c.places)
			}
			wantNoUserLimitUsage(t, s)
		})
	}
}

// Ten users with different numbers of waiting reads get about the same number of slots each.
func TestUsersGetEqualSlotShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewUserLimits()
		var mu sync.Mutex
		got := map[int]int{}
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for uid := 1; uid <= 10; uid++ {
			for n := range uid * 50 {
				all.Go(func() {
					for ctx.Err() == nil {
						s.RunInSlot(contextWithPeer(ctx, uid, RightSubmit), HeavyWorkClass(n%2), func() error {
							mu.Lock()
							got[uid]++
							mu.Unlock()
							time.Sleep(time.Millisecond)
							return nil
						})
					}
				})
			}
		}
		time.Sleep(4 * time.Second)
		stop()
		all.Wait()
		least, most := got[1], got[1]
		for _, n := range got {
			least, most = min(least, n), max(most, n)
		}
		if least == 0 || most > least+least/5 {
			t.Errorf("requests served by user: %v", got)
		}
		wantNoUserLimitUsage(t, s)
	})
}

// One slot is reserved for reads of one job, and one for admins. Of the other slots, ordinary users together may use
// two for ClassManyJobsRead, and each ordinary user may use one.
func TestSlotsAreReservedForOneJobReadsAndAdmins(t *testing.T) {
	type asks struct {
		uid   int
		right Right
		class HeavyWorkClass
		gets  bool
	}
	for name, list := range map[string][]asks{
		"lists of ordinary users": {
			{1, RightSubmit, ClassManyJobsRead, true}, {1, RightSubmit, ClassManyJobsRead, false},
			{2, RightRead, ClassManyJobsRead, true},
			{3, RightOperate, ClassManyJobsRead, false},
			{1, RightSubmit, ClassOneJobRead, true}, {3, RightSubmit, ClassOneJobRead, false},
			{0, RightAdmin, ClassOneJobRead, true}, {0, RightAdmin, ClassOneJobRead, false},
		},
		"lists of admins": {
			{0, RightAdmin, ClassManyJobsRead, true}, {0, RightAdmin, ClassManyJobsRead, true},
			{9, RightAdmin, ClassManyJobsRead, true}, {0, RightAdmin, ClassManyJobsRead, false},
			{1, RightSubmit, ClassManyJobsRead, false}, {1, RightSubmit, ClassOneJobRead, true},
			{0, RightAdmin, ClassOneJobRead, false},
		},
		"reads of one job": {
			{1, RightSubmit, ClassOneJobRead, true}, {1, RightSubmit, ClassOneJobRead, true},
			{2, RightSubmit, ClassOneJobRead, true}, {3, RightSubmit, ClassOneJobRead, false},
			{3, RightSubmit, ClassManyJobsRead, false}, {0, RightAdmin, ClassManyJobsRead, true},
			{0, RightAdmin, ClassOneJobRead, false},
		},
		"large requests": {{1, RightSubmit, classLargeRequest, true}, {1, RightSubmit, classLargeRequest, false},
			{0, RightAdmin, classLargeRequest, true},
			{2, RightSubmit, classLargeRequest, false}, {1, RightSubmit, ClassOneJobRead, true},
			{1, RightSubmit, classLongRequestDecoding, true}},
		"requests to be read": {{1, RightSubmit, classLongRequestDecoding, true},
			{1, RightSubmit, classLongRequestDecoding, false}, {0, RightAdmin, classLongRequestDecoding, true},
			{2, RightSubmit, classLongRequestDecoding, false}},
		"one user's own lists": {{1, RightSubmit, ClassManyJobsRead, true}, {1, RightSubmit, ClassManyJobsRead, false},
			{1, RightSubmit, ClassOneJobRead, true},
			{1, RightSubmit, ClassOneJobRead, true}, {1, RightSubmit, ClassOneJobRead, false}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := NewUserLimits()
			ctx, stop := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for i, a := range list {
				got := false
				all.Go(func() {
					s.RunInSlot(contextWithPeer(ctx, a.uid, a.right), a.class, func() error {
						got = true
						<-ctx.Done()
						return nil
					})
				})
				synctest.Wait()
				if got != a.gets {
					t.Errorf("%s, %d (%+v): gets a slot: %t", name, i+1, a, got)
				}
			}
			stop()
			all.Wait()
			wantNoUserLimitUsage(t, s)
		})
	}
}

// A request fails after it has waited ten seconds for a slot, or earlier if its client hangs up.
func TestWaitingForASlotTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewUserLimits()
		hold, release := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range readSlots {
			all.Go(func() {
				s.RunInSlot(contextWithPeer(t.Context(), 0, RightAdmin), ClassOneJobRead,
					func() error { <-hold.Done(); return nil })
			})
		}
		synctest.Wait()
		began := time.Now()
		err := s.RunInSlot(contextWithPeer(t.Context(), 1, RightSubmit), ClassOneJobRead,
			func() error { return errors.New("got a slot") })
		if took := time.Since(began); !errors.Is(err, queue.ErrUnavailable) || took != maxSlotWait ||
			!strings.Contains(err.Error(), "try again") {
			t.Errorf("after %v: %v", took, err)
		}
		ctx, cancel := context.WithTimeout(contextWithPeer(t.Context(), 1, RightSubmit), time.Second)
		defer cancel()
		if err := s.RunInSlot(ctx, ClassOneJobRead, func() error { return errors.New("got a slot") }); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("a caller whose context ended: %v", err)
		}
		release()
		all.Wait()
		if err := s.RunInSlot(contextWithPeer(t.Context(), 1, RightSubmit), ClassOneJobRead,
			func() error { return nil }); err != nil {
			t.Errorf("after a slot was freed: %v", err)
		}
		wantNoUserLimitUsage(t, s)
	})
}

// A slot is released even if the operation returns an error or panics.
func TestSlotsAreReleasedAfterErrorsAndPanics(t *testing.T) {
	s := NewUserLimits()
	for range 2 * readSlots {
		if err := s.RunInSlot(contextWithPeer(t.Context(), 0, RightAdmin), ClassOneJobRead,
			func() error { return queue.ErrNotFound }); !errors.Is(err, queue.ErrNotFound) {
			t.Error(err)
		}
		func() {
			defer func() { recover() }()
			s.RunInSlot(contextWithPeer(t.Context(), 0, RightAdmin), ClassOneJobRead,
				func() error { panic("as a mistake would") })
		}()
	}
	wantNoUserLimitUsage(t, s)
}

// A stream step waits until the user has fewer than maxBytesInProgressPerUser bytes in progress. While the step waits,
// it delays neither other users nor other reads of the same user.
func TestStreamStepsWaitForUserByteLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewUserLimits()
		c := s.connLimiter.NewConn(1, func() bool { return false })
		c.ForceAddBytes(uncountedBytesPerConn + maxBytesInProgressPerUser)
		var order []string
		var all sync.WaitGroup
		all.Go(func() {
			if err := s.RunStreamStep(contextWithPeer(t.Context(), 1, RightSubmit), ClassManyJobsRead,
				func() error { order = append(order, "answer"); return nil }); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		for _, uid := range []int{1, 2} {
			if err := s.RunInSlot(contextWithPeer(t.Context(), uid, RightSubmit), ClassManyJobsRead,
				func() error { order = append(order, fmt.Sprint("read of ", uid)); return nil }); err != nil {
				t.Error(err)
			}
		}
		if err := s.RunStreamStep(contextWithPeer(t.Context(), 2, RightSubmit), ClassManyJobsRead,
			func() error { order = append(order, "answer of 2"); return nil }); err != nil {
			t.Error(err)
		}
		c.ForceAddBytes(-1)
		all.Wait()
		if want := []string{"read of 1", "read of 2", "answer of 2", "answer"}; !slices.Equal(order, want) {
			t.Errorf("got %q, want %q", order, want)
		}
		c.ForceAddBytes(1)
		if err := s.RunStreamStep(contextWithPeer(t.Context(), 1, RightSubmit), ClassOneJobRead,
			func() error { return nil }); !errors.Is(err,
			queue.ErrUnavailable) || !strings.Contains(err.Error(), "8388608 bytes") {
			t.Errorf("with all bytes of the user in use: %v", err)
		}
		own := context.WithValue(contextWithPeer(t.Context(), 1, RightSubmit), activeRequestKey{},
			&activeRequest{bytesChargedToUser: 1})
		if err := s.RunStreamStep(own, ClassOneJobRead, func() error { return nil }); err != nil {
			t.Errorf("a request that already holds a byte: %v", err)
		}
		s.connLimiter.SetUnlimitedBytes(true)
		if err := s.RunStreamStep(contextWithPeer(t.Context(), 1, RightSubmit), ClassOneJobRead,
			func() error { return nil }); err != nil {
			t.Errorf("without limits: %v", err)
		}
		c.Close()
		wantNoUserLimitUsage(t, s)
	})
}

// At most one answer of each user is being built at a time. So a user exceeds maxBytesInProgressPerUser by at most one
// answer.
func TestEachUserBuildsOneAnswerAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewUserLimits()
		now, most := map[int]int{}, map[int]int{}
		var mu sync.Mutex
		var all sync.WaitGroup
		for uid := range 3 {
			for range 20 {
				all.Go(func() {
					err := s.RunStreamStep(contextWithPeer(t.Context(), uid, RightAdmin), ClassOneJobRead, func() error {
						mu.Lock()
						now[uid]++
						most[uid] = max(most[uid], now[uid])
						mu.Unlock()
						time.Sleep(time.Millisecond)
						mu.Lock()
						defer mu.Unlock()
						now[uid]--
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
		began := time.Now()
		all.Wait()
		if took := time.Since(began); most[0] != 1 || most[1] != 1 || most[2] != 1 || took != 20*time.Millisecond {
			t.Errorf("concurrent steps by user: %v, in %v; want 1 each, in 20ms", most, took)
		}
		wantNoUserLimitUsage(t, s)
	})
}
