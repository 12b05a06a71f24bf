package sql

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// class says which operations go before others.
type class uint8

const (
	urgent  class = iota // of the worker pool: all of them go first, and none is refused
	prompt               // verbs on stored jobs, settings and upkeep
	normal               // new jobs and removals: refused while too many operations wait
	classes = iota
)

// op is one operation of the writer's. run checks before it writes: if it
// returns an *queue.Error it has changed nothing. It may be run again.
type op struct {
	run   func(*tx) error
	class class
	uid   int // who asks, queue.NoUser if that is the service
	done  chan error
	err   error
	ended []store.Settlement // that it tells of, if these are known before it is carried out
	wants int                // jobs that it claims, as far as is known then
	quota int64              // limit on the bytes of each user's jobs when ended is recorded; 0 means unlimited
	// wholeReserve allows the operation to use the last part of the reserve when the disk is full. Removals have it,
	// and so have cancel and Promote, which write little and let jobs end that use disk space.
	wholeReserve bool
	reads        bool // it changes nothing: its caller waits no longer than its context lasts
}

// do carries an operation out and waits for its commit. The context ends the wait only until
// the operation is queued: after that it happens. See ask for operations that only read.
func (s *engine) do(ctx context.Context, c class, run func(*tx) error) error {
	return s.doOp(ctx, &op{run: run, class: c})
}

// doRemoving is do for an operation that makes room.
func (s *engine) doRemoving(ctx context.Context, c class, run func(*tx) error) error {
	err := s.doOp(ctx, &op{run: run, class: c, wholeReserve: true})
	if err == nil {
		s.host.freed()
	}
	return err
}

// ask returns what an operation finds that only reads, but needs what the writer alone knows. It waits no longer than
// ctx lasts: a disk, a server or another program may hold the writer up for long.
func ask[T any](ctx context.Context, s *engine, run func(*tx) (T, error)) (T, error) {
	var found, none T // a transaction that is under way may still write to found when this returns an error
	err := s.doOp(ctx, &op{class: prompt, reads: true, run: func(t *tx) (err error) {
		found, err = run(t)
		return err
	}})
	if err != nil {
		return none, err
	}
	return found, nil
}

// doOp runs an operation. Its caller waits for the commit of a group of operations, or commits the group itself if no
// other caller does. See docs/decisions/0005.
func (s *engine) doOp(ctx context.Context, o *op) error {
	o.uid, o.done = queue.UserOf(ctx), make(chan error, 1)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.queue(o); err != nil {
		return err
	}
	var ended <-chan struct{}
	if o.reads {
		ended = ctx.Done()
	}
	for {
		select {
		case err := <-o.done:
			return err
		case <-ended:
			s.withdraw(o)
			return ctx.Err()
		case <-s.turn: // no caller writes now: this one does, for all that wait
			if o.reads {
				go s.leadOnce() // Close waits for the turn
				continue
			}
			s.leadOnce()
		}
	}
}

// leadOnce commits one group and gives the turn back. The caller has the turn to write.
func (s *engine) leadOnce() {
	s.lead()
	s.turn <- struct{}{}
}

// withdraw takes an operation out of the write queue, unless its commit is under way.
func (s *engine) withdraw(o *op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[o.class] = slices.DeleteFunc(s.waiting[o.class], func(w *op) bool { return w == o })
}

// queue has an operation wait for its commit, unless it is refused.
func (s *engine) queue(o *op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.closing {
		return errClosed
	}
	n := 0
	for c := range s.waiting {
		n += len(s.waiting[c])
	}
	if o.class == normal && n >= maxWaiting-promptRoom || o.class == prompt && n >= maxWaiting {
		return queue.Errorf(queue.CodeUnavailable, "the service is overloaded: %d requests are waiting for the disk; try again later", n)
	}
	s.waiting[o.class] = append(s.waiting[o.class], o)
	return nil
}

// betweenTx takes the writer's turn and calls f once, outside of any transaction. It is never
// refused for load. The error concerns no other caller.
func (s *engine) betweenTx(ctx context.Context, f func() error) error {
	select {
	case <-s.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { s.turn <- struct{}{} }()
	defer s.endPanicking()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.ended {
		return cmp.Or(s.Err(), error(errClosed))
	}
	return f()
}

// endPanicking ends the program if the caller that has the turn panics, even where a
// connection's handler would recover: operations that were committed by then must not be
// refused, and nothing may be written after it. It is deferred.
func (s *engine) endPanicking() {
	if p := recover(); p != nil {
		stack := debug.Stack()
		go panic(fmt.Sprintf("store: %v\n%s", p, stack))
		select {}
	}
}

// takeGroup takes the operations of the next commit from those that wait.
func (s *engine) takeGroup() []*op {
	group := s.group[:0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if late := s.late; late != nil {
		s.late = nil
		if at := slices.Index(s.waiting[late.class], late); at >= 0 {
			s.waiting[late.class] = slices.Delete(s.waiting[late.class], at, at+1)
			return append(group, late)
		}
	}
	if s.several() {
		s.shared = time.Now()
		return s.takeTurns(group)
	}
	for c := range s.waiting {
		list := s.waiting[c]
		n := len(list)
		if class(c) != urgent {
			n = min(n, max(0, maxGroup-len(group)))
		}
		group = append(group, list[:n]...)
		left := copy(list, list[n:])
		clear(list[left:])
		s.waiting[c] = list[:left]
	}
	return group
}

// several reports whether operations of several users wait that are not urgent. The caller holds mu.
func (s *engine) several() bool {
	var first *op
	for c := prompt; c < classes; c++ {
		for _, o := range s.waiting[c] {
			if first == nil {
				first = o
			}
			if o.uid != first.uid {
				return true
			}
		}
	}
	return false
}

// takeTurns takes a group in which users take turns, and each user's classes: else whoever has a commit filled by what goes first would
// keep all else waiting. Who was served last comes last, and a user whose last operation took long after the others of a turn. The
// caller holds mu.
// See docs/decisions/0006.
func (s *engine) takeTurns(group []*op) []*op {
	group = append(group, s.waiting[urgent]...)
	clear(s.waiting[urgent])
	s.waiting[urgent] = s.waiting[urgent][:0]
	var all []turnOf
	for c := prompt; c < classes; c++ {
		taken := map[int]int{}
		for _, o := range s.waiting[c] {
			all = append(all, turnOf{o, taken[o.uid], s.served[served{o.uid, c}], s.slow[o.uid]})
			taken[o.uid]++
		}
	}
	slices.SortStableFunc(all, func(a, b turnOf) int {
		return cmp.Or(a.turn-b.turn, int(bit(a.slow)-bit(b.slow)), cmp.Compare(a.last, b.last), int(a.op.class)-int(b.op.class))
	})
	all = all[:min(len(all), max(0, maxGroup-len(group)))]
	chosen := make(map[*op]bool, len(all))
	for _, t := range all {
		group = append(group, t.op)
		chosen[t.op] = true
	}
	for c := prompt; c < classes; c++ {
		s.waiting[c] = slices.DeleteFunc(s.waiting[c], func(o *op) bool { return chosen[o] })
	}
	return group
}

// turnOf is an operation, and which of its user's and class it is.
type turnOf struct {
	op   *op
	turn int
	last int64 // when such a one was served
	slow bool
}

// served is whose operations were.
type served struct {
	uid   int
	class class
}

// slowOp is how long an operation took at least for its user's next one to be committed alone: others would wait for it.
const slowOp = 10 * time.Millisecond

// groupTime is how long the operations in one commit may take while users share the writer, not counting urgent ones.
// The operation that reaches it is the last. A user waits for the current commit and for the user's own. A job needs
// three commits: to be stored, to be claimed and to be settled.
const groupTime = slowOp

// sharedFor is how long users are considered to share the writer after operations of several users have waited.
const sharedFor = time.Second

// maxServed bounds of how many it is known when they were served, and of whom that their last operation took long.
const maxServed = 1000

// took notes that an operation was carried out, and how long it took.
func (s *engine) took(o *op, d time.Duration) {
	if len(s.served) >= maxServed || s.served == nil {
		s.served = map[served]int64{}
	}
	s.serving++
	s.served[served{o.uid, o.class}] = s.serving
	switch {
	case d < slowOp && s.slow[o.uid]:
		delete(s.slow, o.uid)
	case d >= slowOp && len(s.slow) < maxServed:
		if s.slow == nil {
			s.slow = map[int]bool{}
		}
		s.slow[o.uid] = true
	}
}

// putBack has operations that were taken wait again, before all others of their class.
func (s *engine) putBack(rest []*op) {
	if len(rest) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.waiting {
		var own []*op
		for _, o := range rest {
			if o.class == class(c) {
				own = append(own, o)
			}
		}
		s.waiting[c] = append(own, s.waiting[c]...)
	}
}

// idle reports whether no operation waits.
func (s *engine) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting[urgent])+len(s.waiting[prompt])+len(s.waiting[normal]) == 0
}
