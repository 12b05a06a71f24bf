package fair

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// These are the bounds of the ConnLimiter in these tests.
const (
	maxUserRequests        = 256
	maxConnRequests        = 64
	maxUserListRequests    = 4
	maxUserStreams         = 64
	maxUserBytesInProgress = 8 << 20
	uncountedBytesPerConn  = 16 << 10
	maxRequestWait         = 5 * time.Second
)

func newTestConnLimiter() *ConnLimiter {
	return NewConnLimiter(ConnBounds{MaxUserRequests: maxUserRequests, MaxConnRequests: maxConnRequests,
		MaxUserListRequests: maxUserListRequests,
		MaxUserStreams:      maxUserStreams, MaxUserBytesInProgress: maxUserBytesInProgress,
		UncountedBytesPerConn: uncountedBytesPerConn,
		MaxRequestWait:        maxRequestWait}, func() {})
}

// wantConnLimiterIdle checks that nothing is in use and no request waits.
func wantConnLimiterIdle(t *testing.T, s *ConnLimiter) {
	t.Helper()
	for _, l := range []*Limiter{s.requestLimiter, s.connRequestLimiter, s.byteLimiter, s.incompleteLineLimiter} {
		wantLimiterIdle(t, l)
	}
}

// wantTimeout checks that a call fails after exactly maxRequestWait, with an error that contains wantErrorText.
func wantTimeout(t *testing.T, description string, request func() error, wantErrorText string) {
	t.Helper()
	began := time.Now()
	err := request()
	if took := time.Since(began); !errors.Is(err, queue.ErrUnavailable) || took != maxRequestWait ||
		!strings.Contains(err.Error(), wantErrorText) {
		t.Errorf("%s: after %v: %v, want %v and unavailable: …%s…", description, took, err, maxRequestWait, wantErrorText)
	}
}

// wantImmediateSuccess checks that a call succeeds immediately.
func wantImmediateSuccess(t *testing.T, description string, request func() error) {
	t.Helper()
	began := time.Now()
	if err := request(); err != nil || time.Since(began) > 0 {
		t.Errorf("%s: after %v: %v", description, time.Since(began), err)
	}
}

// A connection may have 64 requests in progress, and a user 256. Further requests wait and fail after 5 s.
// Requests of other users are not delayed.
func TestRequestsPerUserAndConnAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestConnLimiter()
		begin := func(c *Conn) func() error { return func() error { return c.BeginRequest(t.Context()) } }
		var conns []*Conn
		for range maxUserRequests / maxConnRequests {
			c := s.NewConn(1, neverHungUp)
			conns = append(conns, c)
			for range maxConnRequests {
				wantImmediateSuccess(t, "a request", begin(c))
			}
			if len(conns) == 1 {
				wantTimeout(t, "one more request of the connection", begin(c), "64 per connection")
			}
		}
		spare, other := s.NewConn(1, neverHungUp), s.NewConn(2, neverHungUp)
		wantTimeout(t, "one more request of the user", begin(spare), "256 per user")
		wantImmediateSuccess(t, "a request of another user", begin(other))
		var waiting sync.WaitGroup
		waiting.Go(func() {
			began := time.Now()
			if err := spare.BeginRequest(t.Context()); err != nil || time.Since(began) != time.Second {
				t.Errorf("a request that waits for room: after %v: %v", time.Since(began), err)
			}
		})
		time.Sleep(time.Second)
		conns[0].EndRequest(true, 0)
		waiting.Wait()
		ctx, gone := context.WithTimeout(t.Context(), time.Second)
		defer gone()
		began := time.Now()
		if err := spare.BeginRequest(ctx); err == nil || time.Since(began) != time.Second {
			t.Errorf("a request whose client disconnects: after %v: %v", time.Since(began), err)
		}
		endRequestsAndClose(append(conns, spare, other)...)
		wantConnLimiterIdle(t, s)
	})
}

// A user may have 64 streams; the server refuses one more stream immediately. A user may have 4 requests that list or
// change many jobs; one more of these requests waits.
func TestStreamsAndListRequestsPerUserAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestConnLimiter()
		a, b, other := s.NewConn(1, neverHungUp), s.NewConn(1, neverHungUp), s.NewConn(2, neverHungUp)
		var ends []func()
		for i := range maxUserStreams {
			end, err := []*Conn{a, b}[i%2].OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
		}
		began := time.Now()
		if _, err := b.OpenStream(); !errors.Is(err, queue.ErrUnavailable) ||
			!strings.Contains(err.Error(), "64 open streams") || time.Since(began) > 0 {
			t.Errorf("one more stream: after %v: %v", time.Since(began), err)
		}
		if _, err := other.OpenStream(); err != nil {
			t.Errorf("a stream of another user: %v", err)
		}
		ends[0]()
		if _, err := b.OpenStream(); err != nil {
			t.Errorf("after a stream has ended: %v", err)
		}
		ends = nil
		list := func(c *Conn) func() error {
			return func() error {
				end, err := c.BeginListRequest(t.Context())
				ends = append(ends, end)
				return err
			}
		}
		for range maxUserListRequests {
			wantImmediateSuccess(t, "a list", list(a))
		}
		wantTimeout(t, "one more list", list(b), "4 of your requests that list")
		wantImmediateSuccess(t, "a list of another user", list(other))
		ends[0]()
		wantImmediateSuccess(t, "after a list was answered", list(b))
	})
}

// The bytes of all connections of a user together are limited, except the first uncountedBytesPerConn of each
// connection. A line of the maximum length fits if the user has nothing else in progress. Only one incomplete line of a
// user at a time may exceed the free bytes of its connection.
func TestRequestBytesPerUserAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestConnLimiter()
		room := func(c *Conn, n int64) func() error {
			return func() error { return c.AcquireLineBytes(t.Context(), n, false) }
		}
		var conns []*Conn
		for range 256 {
			c := s.NewConn(1, neverHungUp)
			conns = append(conns, c)
			wantImmediateSuccess(t, "as many bytes as are free", room(c, uncountedBytesPerConn))
		}
		first, second, other := conns[0], conns[1], s.NewConn(2, neverHungUp)
		wantImmediateSuccess(t, "the first line that grows", room(first, 1))
		wantTimeout(t, "a second line that grows", room(second, 1), "8388608 bytes")
		wantImmediateSuccess(t, "a line of another user", room(other, maxUserBytesInProgress))
		wantImmediateSuccess(t, "a whole line of another connection", func() error {
			return second.AcquireLineBytes(t.Context(), 1, true)
		})
		second.ForceAddBytes(-1)
		wantImmediateSuccess(t, "the first line, up to the maximum length", room(first, maxUserBytesInProgress-1))
		if got := s.byteLimiter.InUse(1, 0); got != maxUserBytesInProgress {
			t.Errorf("%d bytes are counted, want %d", got, maxUserBytesInProgress)
		}
		wantTimeout(t, "the first line, one byte longer", room(first, 1), "8388608 bytes")
		first.EndRequestLine()
		wantTimeout(t, "a second line while the first request is in progress", room(second, 1), "8388608 bytes")
		first.ForceAddBytes(-maxUserBytesInProgress)
		wantImmediateSuccess(t, "a second line after the first request was answered", room(second, maxUserBytesInProgress))
		second.ForceAddBytes(maxUserBytesInProgress) // the bytes of an answer count even if there is no room for them
		second.EndRequestLine()
		wantTimeout(t, "a line while the user's bytes are in use", room(first, 1), "8388608 bytes")
		wantImmediateSuccess(t, "a line within the free bytes of another connection", func() error {
			c := s.NewConn(1, neverHungUp)
			defer c.Close()
			return c.AcquireLineBytes(t.Context(), uncountedBytesPerConn, false)
		})
		second.Close()
		wantImmediateSuccess(t, "after the second connection was closed", room(first, maxUserBytesInProgress))
		third := conns[2]
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if err := third.AcquireLineBytes(t.Context(), 1, false); err != nil {
				t.Errorf("a line that waits while its connection ends: %v", err)
			}
		})
		synctest.Wait()
		first.Close()
		waiting.Wait()
		other.Close()
		for _, c := range conns[2:] {
			c.Close()
		}
		wantConnLimiterIdle(t, s)
	})
}

// neverHungUp is a function for Conn.cancelIfHungUp, for a client that has not hung up.
func neverHungUp() bool { return false }
