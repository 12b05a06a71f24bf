package control

import (
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// This file schedules heavy work fairly among users. Each class of work has a fixed number of
// slots. Users that wait for a slot are served round robin.
//
// For example, user A has 100 list requests waiting and user B sends one. When a slot is freed,
// A and B alternate, so B waits for one request of A and not for 100.
//
// Each user has queues of waiters, in the order of their arrival. The slots have one queue of
// users. A user whose waiter gets a slot moves to the end of that queue.

// Class is a kind of heavy work. The number of concurrent operations of each class is limited.
// See docs/decisions/0071.
type Class int

// The classes of heavy work. The server itself uses the last two.
const (
	ClassOne  Class = iota // a read about one job
	ClassMany              // a read about many jobs (lists, selections, events, counts), or of output
	decoding               // decoding a request of more than connBytes
	large                  // processing a request of more than largeRequest bytes
	classes
)

// Numbers of slots. Ordinary users are those who are not admins.
const (
	// readSlots is the number of slots for ClassOne and ClassMany together. The store has as many read
	// connections. One of the slots is reserved for ClassOne, and one for admins.
	readSlots = 4
	// manySlots is the number of readSlots that all ordinary users together may use for ClassMany. Each
	// of them may use at most one.
	manySlots     = 2
	decodingSlots = 2 // number of slots; each user may hold at most one
	largeSlots    = 2 // number of slots; each user may hold at most one
)

// maxSlotWait is the longest time that a request waits for a slot.
const maxSlotWait = 10 * time.Second

// slotTable holds the slots in use and the users that wait for one. Shares.mu guards it.
type slotTable struct {
	waiting []*userShare // users with waiters, in the order in which they are served
	lastSeq int64        // number of the newest waiter
	// inUse is the number of slots in use. ordinaryInUse is the number of these that ordinary users
	// hold.
	inUse         [classes]int
	ordinaryInUse [classes]int
}

// waiter waits for a slot or holds one.
type waiter struct {
	user            *userShare
	class           Class
	admin           bool
	needsAnswerRoom bool  // the work produces an answer or a stream piece, which needs room in the user's share
	ownBytes        int64 // bytes that the waiter's own request has charged to the user's share
	// seq is higher than that of every waiter that arrived earlier.
	seq     int64
	granted chan struct{} // closed once the waiter has its slot
}

// slotFreeLocked reports whether a waiter could get a slot now.
func (s *UserLimits) slotFreeLocked(w *waiter) bool {
	p, u := &s.slots, w.user
	if w.needsAnswerRoom && !s.unlimitedBytes && (u.answerSlots > 0 || u.bytes-w.ownBytes >= userBytes) {
		return false // at most one answer at a time may exceed userBytes
	}
	reads, ordinary := p.inUse[ClassOne]+p.inUse[ClassMany], p.ordinaryInUse[ClassOne]+p.ordinaryInUse[ClassMany]
	switch w.class {
	case ClassOne:
		return reads < readSlots && (w.admin || ordinary < readSlots-1)
	case ClassMany:
		return reads < readSlots && p.inUse[ClassMany] < readSlots-1 &&
			(w.admin || ordinary < readSlots-1 && p.ordinaryInUse[ClassMany] < manySlots && u.slotsInUse[ClassMany] == 0)
	case decoding:
		return p.inUse[decoding] < decodingSlots && u.slotsInUse[decoding] == 0
	}
	return p.inUse[large] < largeSlots && u.slotsInUse[large] == 0
}

// countSlotsLocked adds n to the numbers of slots that w uses.
func (s *UserLimits) countSlotsLocked(w *waiter, n int) {
	s.slots.inUse[w.class] += n
	w.user.slotsInUse[w.class] += n
	if !w.admin {
		s.slots.ordinaryInUse[w.class] += n
	}
	if w.needsAnswerRoom {
		w.user.answerSlots += n
	}
}

// grantSlotLocked gives a waiter its slot.
func (s *UserLimits) grantSlotLocked(w *waiter) {
	s.countSlotsLocked(w, 1)
	close(w.granted)
}

// releaseSlot releases the slot of a waiter.
func (s *UserLimits) releaseSlot(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.countSlotsLocked(w, -1)
	s.dispatchLocked()
	s.forgetIfIdleLocked(w.user)
}

// dispatchLocked grants free slots to waiting users round robin.
func (s *UserLimits) dispatchLocked() {
	p := &s.slots
	for i := 0; i < len(p.waiting); {
		u := p.waiting[i]
		w := s.oldestReadyLocked(u)
		if w == nil {
			i++ // granting slots to other users does not free one for this user
			continue
		}
		s.grantSlotLocked(w)
		p.waiting = slices.Delete(p.waiting, i, i+1)
		if s.dequeueLocked(w); u.hasWaiters() {
			p.waiting = append(p.waiting, u)
		}
	}
}

// oldestReadyLocked returns the user's oldest waiter that could get a slot now, nil if there is
// none.
func (s *UserLimits) oldestReadyLocked(u *userShare) (first *waiter) {
	for c := range classes {
		for _, q := range u.waiting[c] {
			if len(q) > 0 && (first == nil || q[0].seq < first.seq) && s.slotFreeLocked(q[0]) {
				first = q[0]
			}
		}
	}
	return first
}

// hasWaiters reports whether the user has waiters.
func (u *userShare) hasWaiters() bool {
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
	if w.needsAnswerRoom {
		return &w.user.waiting[w.class][1]
	}
	return &w.user.waiting[w.class][0]
}

// dequeueLocked removes a waiter from its queue.
func (s *UserLimits) dequeueLocked(w *waiter) {
	q := w.queue()
	if i := slices.Index(*q, w); i >= 0 {
		*q = slices.Delete(*q, i, i+1)
	}
}

// acquireSlot waits for a slot for w. The caller must release it with releaseSlot.
func (s *UserLimits) acquireSlot(ctx context.Context, w *waiter) error {
	peer := PeerFrom(ctx)
	w.admin, w.granted = peer.Right.Covers(Admin), make(chan struct{})
	s.mu.Lock()
	w.user = s.shareLocked(peer.UID)
	q := w.queue()
	if len(*q) == 0 && s.slotFreeLocked(w) {
		s.grantSlotLocked(w)
		s.mu.Unlock()
		return nil
	}
	if !w.user.hasWaiters() {
		s.slots.waiting = append(s.slots.waiting, w.user)
	}
	s.slots.lastSeq++
	w.seq = s.slots.lastSeq
	*q = append(*q, w)
	s.mu.Unlock()
	timer := time.NewTimer(maxSlotWait)
	defer timer.Stop()
	var err error
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
	}
	return s.stopWaiting(w, err)
}

// stopWaiting stops waiting for a slot. err is the reason, nil if the wait took too long.
// stopWaiting returns nil if the waiter has got its slot in the meantime.
func (s *UserLimits) stopWaiting(w *waiter, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.granted: // the waiter got its slot in the meantime
		return nil
	default:
	}
	s.dequeueLocked(w)
	if !w.user.hasWaiters() {
		s.slots.waiting = slices.DeleteFunc(s.slots.waiting, func(u *userShare) bool { return u == w.user })
	}
	full := w.needsAnswerRoom && !s.unlimitedBytes && w.user.bytes-w.ownBytes >= userBytes
	s.dispatchLocked() // w may have been first in a queue and kept later waiters from their slots
	s.forgetIfIdleLocked(w.user)
	switch {
	case err != nil:
		return err
	case full:
		return queue.Errorf(queue.CodeUnavailable, "your requests and answers in progress take %d bytes, the maximum per "+
			"user; try again when your other commands have received their answers", userBytes)
	}
	return queue.Errorf(queue.CodeUnavailable, "the service has been busy with other users' reads for %v; try again later",
		maxSlotWait)
}

// Do calls f while it holds a slot of class c for the user of ctx. f must be short: one read of the
// store, or at most 256 KiB of output. It may wait only for the disk, and must not call Do.
func (s *UserLimits) Do(ctx context.Context, c Class, f func() error) error {
	w := &waiter{class: c}
	if err := s.acquireSlot(ctx, w); err != nil {
		return err
	}
	defer s.releaseSlot(w)
	return f()
}

// Step calls f like Do, for one step of a stream. Pieces that f sends are written to the client
// after the slot is released. A step starts only when the user's share has room for its output, and
// each user has at most one step in progress.
func (s *UserLimits) Step(ctx context.Context, c Class, f func() error) error {
	t := activeRequestOf(ctx)
	w := &waiter{class: c, needsAnswerRoom: true}
	if t != nil {
		w.ownBytes = t.bytes
	}
	if err := s.acquireSlot(ctx, w); err != nil {
		return err
	}
	err := func() error {
		defer s.releaseSlot(w)
		if t != nil {
			t.inStep = true
			defer func() { t.inStep = false }()
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
func Answer[R any](ctx context.Context, s *UserLimits, c Class, f func() (R, error)) (r R, err error) {
	err = s.Step(ctx, c, func() error {
		var err error
		if r, err = f(); err != nil {
			return err
		}
		if t := activeRequestOf(ctx); t != nil {
			t.setAnswer(answerLine(t.id, r, nil))
		}
		return nil
	})
	return r, err
}
