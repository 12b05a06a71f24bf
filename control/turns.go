package control

import (
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// This file schedules heavy work fairly among users. Each class of work has a fixed number of slots
// (called places in the code). Users that wait for a slot are served round robin.
//
// For example, user A has 100 list requests waiting and user B sends one. When a slot becomes free,
// A and B alternate, so B waits for one request of A and not for 100.
//
// Each user has queues of waiters, in the order of their arrival. The slots have one queue of
// users. A user whose waiter gets a slot moves to the end of that queue.

// Class is a kind of heavy work. The number of concurrent operations of each class is limited.
// See docs/decisions/0071.
type Class int

// The classes of heavy work. The server itself uses the last two.
const (
	One      Class = iota // a read about one job
	Many                  // a read about many jobs (lists, selections, events, counts), or of output
	decoding              // decoding a request of more than connBytes
	large                 // processing a request of more than largeRequest bytes
	classes
)

// Numbers of slots. Ordinary users are those who are not admins.
const (
	// readPlaces is for One and Many together, as many as the store has read connections. One of
	// the slots is reserved for One, and one for admins.
	readPlaces = 4
	// manyPlaces is how many of the readPlaces ordinary users may use for Many, at most one for
	// each user.
	manyPlaces     = 2
	decodingPlaces = 2 // at most one for each user
	largePlaces    = 2 // at most one for each user
)

// placeWait is the longest time that a request waits for a slot.
const placeWait = 10 * time.Second

// places holds the slots in use and the users that wait for one. Shares.mu guards it.
type places struct {
	waiting []*share // users with waiters, in the order in which they are served
	next    int64    // number of the newest waiter
	// taken and ordinary count the slots in use: all of them, and those of ordinary users.
	taken    [classes]int
	ordinary [classes]int
}

// waiter waits for a slot or holds one.
type waiter struct {
	user    *share
	class   Class
	admin   bool
	answers bool  // the work produces an answer or a stream piece, which needs room in the user's share
	own     int64 // bytes that the waiter's own request has charged to the user's share
	// number rises with the order of arrival.
	number  int64
	granted chan struct{} // closed once the waiter has its slot
}

// free reports whether a waiter could get a slot now. The caller holds mu.
func (s *Shares) free(w *waiter) bool {
	p, u := &s.places, w.user
	if w.answers && !s.unbound && (u.answering > 0 || u.bytes-w.own >= userBytes) {
		return false // at most one answer at a time may exceed userBytes
	}
	reads, ordinary := p.taken[One]+p.taken[Many], p.ordinary[One]+p.ordinary[Many]
	switch w.class {
	case One:
		return reads < readPlaces && (w.admin || ordinary < readPlaces-1)
	case Many:
		return reads < readPlaces && p.taken[Many] < readPlaces-1 &&
			(w.admin || ordinary < readPlaces-1 && p.ordinary[Many] < manyPlaces && u.taken[Many] == 0)
	case decoding:
		return p.taken[decoding] < decodingPlaces && u.taken[decoding] == 0
	}
	return p.taken[large] < largePlaces && u.taken[large] == 0
}

// count adds n to the numbers of slots that w uses. The caller holds mu.
func (s *Shares) count(w *waiter, n int) {
	s.places.taken[w.class] += n
	w.user.taken[w.class] += n
	if !w.admin {
		s.places.ordinary[w.class] += n
	}
	if w.answers {
		w.user.answering += n
	}
}

// grant gives a waiter its slot. The caller holds mu.
func (s *Shares) grant(w *waiter) {
	s.count(w, 1)
	close(w.granted)
}

// leave releases the slot of a waiter.
func (s *Shares) leave(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(w, -1)
	s.dispatch()
	s.forget(w.user)
}

// dispatch grants free slots to waiting users round robin. The caller holds mu.
func (s *Shares) dispatch() {
	p := &s.places
	for i := 0; i < len(p.waiting); {
		u := p.waiting[i]
		w := s.first(u)
		if w == nil {
			i++ // slots granted to others cannot free one for this user
			continue
		}
		s.grant(w)
		p.waiting = slices.Delete(p.waiting, i, i+1)
		if s.drop(w); u.waits() {
			p.waiting = append(p.waiting, u)
		}
	}
}

// first returns the user's oldest waiter that could get a slot now, nil if there is none. The
// caller holds mu.
func (s *Shares) first(u *share) (first *waiter) {
	for c := range classes {
		for _, q := range u.waiting[c] {
			if len(q) > 0 && (first == nil || q[0].number < first.number) && s.free(q[0]) {
				first = q[0]
			}
		}
	}
	return first
}

// waits reports whether the user has waiters.
func (u *share) waits() bool {
	for c := range classes {
		if len(u.waiting[c][0])+len(u.waiting[c][1]) > 0 {
			return true
		}
	}
	return false
}

// queue returns the queue of a waiter. Waiters that need room for an answer have separate queues,
// so that they do not delay the others.
func (w *waiter) queue() *[]*waiter {
	if w.answers {
		return &w.user.waiting[w.class][1]
	}
	return &w.user.waiting[w.class][0]
}

// drop removes a waiter from its queue. The caller holds mu.
func (s *Shares) drop(w *waiter) {
	q := w.queue()
	if i := slices.Index(*q, w); i >= 0 {
		*q = slices.Delete(*q, i, i+1)
	}
}

// enter waits for a slot for w. The caller must release it with leave.
func (s *Shares) enter(ctx context.Context, w *waiter) error {
	peer := PeerFrom(ctx)
	w.admin, w.granted = peer.Right.Covers(Admin), make(chan struct{})
	s.mu.Lock()
	w.user = s.of(peer.UID)
	q := w.queue()
	if len(*q) == 0 && s.free(w) {
		s.grant(w)
		s.mu.Unlock()
		return nil
	}
	if !w.user.waits() {
		s.places.waiting = append(s.places.waiting, w.user)
	}
	s.places.next++
	w.number = s.places.next
	*q = append(*q, w)
	s.mu.Unlock()
	late := time.NewTimer(placeWait)
	defer late.Stop()
	var err error
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-late.C:
	}
	return s.giveUp(w, err)
}

// giveUp stops waiting for a slot. err is the reason, nil if the wait took too long. giveUp returns
// nil if the waiter has got its slot in the meantime.
func (s *Shares) giveUp(w *waiter, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.granted: // granted just now
		return nil
	default:
	}
	s.drop(w)
	if !w.user.waits() {
		s.places.waiting = slices.DeleteFunc(s.places.waiting, func(u *share) bool { return u == w.user })
	}
	full := w.answers && !s.unbound && w.user.bytes-w.own >= userBytes
	s.dispatch() // w may have been first in a queue and kept later waiters from their slots
	s.forget(w.user)
	switch {
	case err != nil:
		return err
	case full:
		return queue.Errorf(queue.CodeUnavailable, "your requests and answers in progress take %d bytes, the maximum per user; read the answers first", userBytes)
	}
	return queue.Errorf(queue.CodeUnavailable, "the service has been busy with other users' reads for %v; try again later", placeWait)
}

// Do calls f while it holds a slot of class c for the user of ctx. f must be short: one read of the
// store, or at most 256 KiB of output. It may wait only for the disk, and must not call Do.
func (s *Shares) Do(ctx context.Context, c Class, f func() error) error {
	w := &waiter{class: c}
	if err := s.enter(ctx, w); err != nil {
		return err
	}
	defer s.leave(w)
	return f()
}

// Step calls f like Do, for one step of a stream. Pieces that f sends are written to the client
// after the slot is released. A step starts only when the user's share has room for its output, and
// each user has at most one step in progress.
func (s *Shares) Step(ctx context.Context, c Class, f func() error) error {
	t := taskOf(ctx)
	w := &waiter{class: c, answers: true}
	if t != nil {
		w.own = t.bytes
	}
	if err := s.enter(ctx, w); err != nil {
		return err
	}
	err := func() error {
		defer s.leave(w)
		if t != nil {
			t.stepping = true
			defer func() { t.stepping = false }()
		}
		return f()
	}()
	if t == nil {
		return err
	}
	if failed := t.flush(); err == nil {
		err = failed
	}
	return err
}

// Answer calls f like Step, for the answer of a request. It also encodes the result of f as JSON
// while it holds the slot.
func Answer[R any](ctx context.Context, s *Shares, c Class, f func() (R, error)) (r R, err error) {
	err = s.Step(ctx, c, func() error {
		var err error
		if r, err = f(); err != nil {
			return err
		}
		if t := taskOf(ctx); t != nil {
			t.answered(answerLine(t.id, r, nil))
		}
		return nil
	})
	return r, err
}
