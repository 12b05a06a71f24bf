package control

import (
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Class is a kind of heavy work, of which only so much is done at once.
// See docs/decisions/0071.
type Class int

// The classes. The last two are the server's own.
const (
	One      Class = iota // a read about one job
	Many                  // a read about many jobs (lists, selections, events, counts) or of output
	decoding              // the reading of a request of more than connBytes
	large                 // a request of more than largeRequest bytes
	classes
)

// How many places there are. Ordinary users are those who are no admins.
const (
	readPlaces     = 4 // for One and Many, as the store has connections; one is kept for One, and one for admins
	manyPlaces     = 2 // of these, for Many of ordinary users, each of whom has one at most
	decodingPlaces = 2 // each user has one at most
	largePlaces    = 2 // each user has one at most
)

// placeWait is how long a place is waited for.
const placeWait = 10 * time.Second

// places are those that are taken, and who waits for one. Shares.mu guards them.
type places struct {
	waiting  []*share // users with waiters, the next one first
	next     int64    // the number of the next waiter
	taken    [classes]int
	ordinary [classes]int // of taken, those of users who are no admins
}

// waiter waits for a place, or holds one.
type waiter struct {
	user    *share
	class   Class
	admin   bool
	answers bool  // it makes an answer or a piece of one, which needs room in the user's share
	own     int64 // bytes of its own request
	number  int64
	granted chan struct{} // closed once it has its place
}

// free reports whether there is a place for a waiter now. The caller holds mu.
func (s *Shares) free(w *waiter) bool {
	p, u := &s.places, w.user
	if w.answers && !s.unbound && (u.answering > 0 || u.bytes-w.own >= userBytes) {
		return false // so that there is one answer more than fits, at most
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

// count adds n to the places that are taken, by w. The caller holds mu.
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

// grant gives a waiter its place. The caller holds mu.
func (s *Shares) grant(w *waiter) {
	s.count(w, 1)
	close(w.granted)
}

// leave gives a place back.
func (s *Shares) leave(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(w, -1)
	s.dispatch()
	s.forget(w.user)
}

// dispatch grants free places: one to each waiting user, then to the first one again. The
// caller holds mu.
func (s *Shares) dispatch() {
	p := &s.places
	for i := 0; i < len(p.waiting); {
		u := p.waiting[i]
		w := s.first(u)
		if w == nil {
			i++ // grants to others free no place for this user
			continue
		}
		s.grant(w)
		p.waiting = slices.Delete(p.waiting, i, i+1)
		if s.drop(w); u.waits() {
			p.waiting = append(p.waiting, u)
		}
	}
}

// first is the user's oldest waiter that there is a place for, nil if there is none. The
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

func (u *share) waits() bool {
	for c := range classes {
		if len(u.waiting[c][0])+len(u.waiting[c][1]) > 0 {
			return true
		}
	}
	return false
}

// queue is the queue of a waiter. Waiters that need room have queues of their own, so that
// they hold up no others.
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

// enter takes a place for w, which leave gives back.
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

// giveUp ends a wait for a place. err is why, nil if it took too long.
func (s *Shares) giveUp(w *waiter, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.granted: // in this moment
		return nil
	default:
	}
	s.drop(w)
	if !w.user.waits() {
		s.places.waiting = slices.DeleteFunc(s.places.waiting, func(u *share) bool { return u == w.user })
	}
	full := w.answers && !s.unbound && w.user.bytes-w.own >= userBytes
	s.dispatch() // it may have stood before another one
	s.forget(w.user)
	switch {
	case err != nil:
		return err
	case full:
		return queue.Errorf(queue.CodeUnavailable, "your requests and answers in progress take %d bytes, the maximum per user; read the answers first", userBytes)
	}
	return queue.Errorf(queue.CodeUnavailable, "the service has been busy with other users' reads for %v; try again later", placeWait)
}

// Do calls f while it holds a place of a class for the caller's user. f is short: one read
// of the store, or at most 256 KiB of output. It waits for nothing but the disk, and does
// not call Do.
func (s *Shares) Do(ctx context.Context, c Class, f func() error) error {
	w := &waiter{class: c}
	if err := s.enter(ctx, w); err != nil {
		return err
	}
	defer s.leave(w)
	return f()
}

// Step is Do for a step of a stream. What f tells is sent after the place is given back. A
// step begins once there is room in the user's share, one of a user at a time.
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

// Answer is Do for the answer of a request: f's result is also marshalled under the place.
// It begins as a Step does.
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
