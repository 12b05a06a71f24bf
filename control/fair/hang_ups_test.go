package fair

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// beginMaxUserRequests opens connections of a user, and begins as many requests as the user may have.
func beginMaxUserRequests(t *testing.T, s *ConnLimiter, uid int) (conns []*Conn) {
	t.Helper()
	for range maxUserRequests / maxConnRequests {
		c := s.NewConn(uid, neverHungUp)
		conns = append(conns, c)
		for range maxConnRequests {
			if err := c.BeginRequest(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	return conns
}

// endRequestsAndClose ends all requests of the given connections and closes the connections.
func endRequestsAndClose(conns ...*Conn) {
	for _, c := range conns {
		for range c.connRequestLimiter.InUse(c.connNumber, 0) {
			c.EndRequest(true, 0)
		}
		c.Close()
	}
}

// When a request ends, exactly one waiting request gets the freed room: the request that has waited longest.
func TestFreedRequestSlotGoesToLongestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestConnLimiter()
		busy := beginMaxUserRequests(t, s, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var got []int
		var all sync.WaitGroup
		var waiting []*Conn
		for i := range 50 {
			c := s.NewConn(1, neverHungUp)
			waiting = append(waiting, c)
			all.Go(func() {
				if c.BeginRequest(ctx) == nil {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, i)
				}
			})
			synctest.Wait()
		}
		for i := range 20 {
			busy[i%len(busy)].EndRequest(true, 0)
			synctest.Wait()
			if want := i + 1; len(got) != want {
				t.Fatalf("after the end of %d requests, %d others have begun", want, len(got))
			}
		}
		if !slices.IsSorted(got) || got[len(got)-1] != len(got)-1 {
			t.Errorf("the waiting requests began in the order %v", got)
		}
		cancel()
		all.Wait()
		endRequestsAndClose(append(busy, waiting...)...)
		wantConnLimiterIdle(t, s)
	})
}

// If a client hangs up while its connection waits for room, its request ends within two times hangUpCheckInterval, even
// if the connection began to wait during a check of other connections.
func TestRequestsOfHungUpClientsStopWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestConnLimiter()
		busy := beginMaxUserRequests(t, s, 1)
		waits := func(onLook func()) *Conn {
			ctx, cancel := context.WithCancel(t.Context())
			c := s.NewConn(1, func() bool {
				if onLook != nil {
					onLook()
				}
				cancel()
				return true
			})
			go func() { // this goroutine ends when its client has hung up
				began := time.Now()
				if err := c.BeginRequest(ctx); err == nil || time.Since(began) > 2*hangUpCheckInterval {
					t.Errorf("the request of a disconnected client ended after %v, %v", time.Since(began), err)
				}
			}()
			return c
		}
		var second *Conn
		first := waits(func() {
			second = waits(nil)
			time.Sleep(hangUpCheckInterval / 10) // wait until the second request waits for room
		})
		time.Sleep(3 * hangUpCheckInterval)
		synctest.Wait()
		endRequestsAndClose(append(busy, first, second)...)
		wantConnLimiterIdle(t, s)
	})
}
