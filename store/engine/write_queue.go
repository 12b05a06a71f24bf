package engine

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/records"
)

// Class is the priority class of an operation.
type Class uint8

const (
	Urgent  Class = iota // from the worker pool: committed first and never refused
	Prompt               // commands on stored jobs, settings and upkeep
	Normal               // new jobs and removals: refused while too many operations wait
	classes = iota
)

// op is one operation for the writer. The function run must check before it writes: if it returns a
// *queue.Error, it has changed nothing. run may be called several times.
type op struct {
	run           func(*Tx) error
	class         Class
	uid           int // the caller, or queue.NoUser for the service itself
	result        chan error
	err           error
	endedAttempts []store.Settlement // attempts that the operation will record, if known before it runs
	wantedJobs    int                // number of jobs that the operation will claim, if known before it runs
	// quota limits the bytes of each user's jobs when endedAttempts are recorded. 0 means unlimited.
	quota int64
	// wholeReserve allows the operation to use the last part of the reserve when the disk is full. It is set
	// for removals, and for cancel and Promote, because these write little and end jobs that use disk space.
	wholeReserve bool
	readOnly     bool // changes nothing; the caller may stop waiting when its context ends
}

// Do carries out an operation and waits for its commit. The end of ctx has an effect only until the operation
// is in the write queue. After that, the operation is carried out. For operations that only read, use
// readInWriter.
func (s *Engine) Do(ctx context.Context, c Class, run func(*Tx) error) error {
	return s.doOp(ctx, &op{run: run, class: c})
}

// doRemoving is like Do, for an operation that frees space.
func (s *Engine) doRemoving(ctx context.Context, c Class, run func(*Tx) error) error {
	err := s.doOp(ctx, &op{run: run, class: c, wholeReserve: true})
	if err == nil {
		s.space.OnSpaceFreed()
	}
	return err
}

// readInWriter returns the result of an operation that only reads, but needs the writer's memory. It returns
// early if ctx ends, because a disk, a server or another program may block the writer for long.
func readInWriter[T any](ctx context.Context, s *Engine, run func(*Tx) (T, error)) (T, error) {
	var found, none T // a running transaction may still write to found after readInWriter has returned an error
	err := s.doOp(ctx, &op{class: Prompt, readOnly: true, run: func(t *Tx) (err error) {
		found, err = run(t)
		return err
	}})
	if err != nil {
		return none, err
	}
	return found, nil
}

// doOp runs an operation. Its caller waits for the commit of a group of operations, or commits the group
// itself if no other caller does. See docs/decisions/0005.
func (s *Engine) doOp(ctx context.Context, o *op) error {
	o.uid, o.result = queue.UserOf(ctx), make(chan error, 1)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.addToQueue(o); err != nil {
		return err
	}
	var ended <-chan struct{}
	if o.readOnly {
		ended = ctx.Done()
	}
	for {
		select {
		case err := <-o.result:
			return err
		case <-ended:
			s.withdraw(o)
			return ctx.Err()
		// No caller is writing. This caller commits for all that wait.
		case <-s.writerToken:
			if o.readOnly {
				go s.commitOneGroup() // Close waits until this goroutine has returned the token
				continue
			}
			s.commitOneGroup()
		}
	}
}

// commitOneGroup commits one group and gives up the right to write. The caller holds that right.
func (s *Engine) commitOneGroup() {
	s.commitNextGroup()
	s.writerToken <- struct{}{}
}

// withdraw removes an operation from the write queue, unless its commit has begun.
func (s *Engine) withdraw(o *op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waitingOps[o.class] = slices.DeleteFunc(s.waitingOps[o.class], func(w *op) bool { return w == o })
}

// addToQueue adds an operation to the write queue. It returns an error if the engine is closed or overloaded.
func (s *Engine) addToQueue(o *op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.closing {
		return ErrClosed
	}
	n := 0
	for c := range s.waitingOps {
		n += len(s.waitingOps[c])
	}
	if o.class == Normal && n >= maxWaiting-promptRoom || o.class == Prompt && n >= maxWaiting {
		return queue.Errorf(queue.CodeUnavailable, "the service is overloaded: %d requests are waiting for the "+
			"disk; try again later", n)
	}
	s.waitingOps[o.class] = append(s.waitingOps[o.class], o)
	return nil
}

// BetweenTx waits until it may write, like the writer, and calls f once, outside of any transaction. It is
// never refused because of load. An error of f concerns only this caller.
func (s *Engine) BetweenTx(ctx context.Context, f func() error) error {
	select {
	case <-s.writerToken:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { s.writerToken <- struct{}{} }()
	defer s.endPanicking()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.writesStopped {
		return cmp.Or(s.Err(), error(ErrClosed))
	}
	defer s.startClock()()
	return f()
}

// AsWriter takes the right to write and calls f, even if the engine has failed or is closed.
func (s *Engine) AsWriter(f func()) {
	<-s.writerToken
	f()
	s.writerToken <- struct{}{}
}

// endPanicking ends the program if the caller that holds the right to write panics. It must be deferred.
// After a recovered panic, the engine could write an inconsistent state or report committed operations as
// refused.
func (s *Engine) endPanicking() {
	if p := recover(); p != nil {
		stack := debug.Stack()
		go panic(fmt.Sprintf("store: %v\n%s", p, stack))
		select {}
	}
}

// takeGroup removes the operations of the next commit from the write queue.
func (s *Engine) takeGroup() []*op {
	group := s.group[:0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if solo := s.nextSolo; solo != nil {
		s.nextSolo = nil
		if at := slices.Index(s.waitingOps[solo.class], solo); at >= 0 {
			s.waitingOps[solo.class] = slices.Delete(s.waitingOps[solo.class], at, at+1)
			return append(group, solo)
		}
	}
	if s.severalUsersWait() {
		s.lastSharedAt = time.Now()
		return s.takeFairGroup(group)
	}
	for c := range s.waitingOps {
		list := s.waitingOps[c]
		n := len(list)
		if Class(c) != Urgent {
			n = min(n, max(0, maxGroup-len(group)))
		}
		group = append(group, list[:n]...)
		remaining := copy(list, list[n:])
		clear(list[remaining:])
		s.waitingOps[c] = list[:remaining]
	}
	return group
}

// severalUsersWait reports whether operations of several users are waiting, not counting urgent ones. The
// caller holds mu.
func (s *Engine) severalUsersWait() bool {
	var first *op
	for c := Prompt; c < classes; c++ {
		for _, o := range s.waitingOps[c] {
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

// takeFairGroup takes a group in which users take turns, and the classes of one user take turns too. Without
// turns, a user who fills every commit with operations of the first class would block all others. The user
// who was served most recently comes last. Within one turn, users whose last operation was slow come after
// the others. The caller holds mu.
// See docs/decisions/0006.
func (s *Engine) takeFairGroup(group []*op) []*op {
	group = append(group, s.waitingOps[Urgent]...)
	clear(s.waitingOps[Urgent])
	s.waitingOps[Urgent] = s.waitingOps[Urgent][:0]
	var all []turnKey
	for c := Prompt; c < classes; c++ {
		perUser := map[int]int{}
		for _, o := range s.waitingOps[c] {
			all = append(all, turnKey{o, perUser[o.uid], s.lastServed[userClass{o.uid, c}], s.slowUsers[o.uid]})
			perUser[o.uid]++
		}
	}
	slices.SortStableFunc(all, func(a, b turnKey) int {
		return cmp.Or(a.turn-b.turn, int(records.Bit(a.slow)-records.Bit(b.slow)), cmp.Compare(a.lastServed, b.lastServed),
			int(a.op.class)-int(b.op.class))
	})
	all = all[:min(len(all), max(0, maxGroup-len(group)))]
	chosen := make(map[*op]bool, len(all))
	for _, t := range all {
		group = append(group, t.op)
		chosen[t.op] = true
	}
	for c := Prompt; c < classes; c++ {
		s.waitingOps[c] = slices.DeleteFunc(s.waitingOps[c], func(o *op) bool { return chosen[o] })
	}
	return group
}

// turnKey is an operation with its sort keys.
type turnKey struct {
	op         *op
	turn       int   // number of earlier operations of the same user and class
	lastServed int64 // when an operation of this user and class was last served, as a value of serveClock
	slow       bool  // the user's last operation was slow
}

// userClass identifies the operations of one user and class.
type userClass struct {
	uid   int
	class Class
}

// slowOp is the duration from which an operation is considered slow. The user's next operation is then
// committed alone, so that other users do not wait for it.
const slowOp = 10 * time.Millisecond

// groupTime is how long the operations in one commit may take while users share the writer, not counting
// urgent ones. An operation that reaches the limit ends the group. The limit is short because an operation
// waits for the current commit and its own, and a job needs three commits: to be stored, claimed and settled.
const groupTime = slowOp

// sharedFor is how long users are considered to share the writer after operations of several users have
// waited.
const sharedFor = time.Second

// maxServed is the maximum number of entries in lastServed, and in the set of users whose last operation was
// slow.
const maxServed = 1000

// noteServed records that an operation was carried out, and how long it took.
func (s *Engine) noteServed(o *op, d time.Duration) {
	if len(s.lastServed) >= maxServed || s.lastServed == nil {
		s.lastServed = map[userClass]int64{}
	}
	s.serveClock++
	s.lastServed[userClass{o.uid, o.class}] = s.serveClock
	switch {
	case d < slowOp && s.slowUsers[o.uid]:
		delete(s.slowUsers, o.uid)
	case d >= slowOp && len(s.slowUsers) < maxServed:
		if s.slowUsers == nil {
			s.slowUsers = map[int]bool{}
		}
		s.slowUsers[o.uid] = true
	}
}

// putBack returns operations to the write queue, before all others of their class.
func (s *Engine) putBack(ops []*op) {
	if len(ops) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.waitingOps {
		var ofClass []*op
		for _, o := range ops {
			if o.class == Class(c) {
				ofClass = append(ofClass, o)
			}
		}
		s.waitingOps[c] = append(ofClass, s.waitingOps[c]...)
	}
}

// idle reports whether no operation waits.
func (s *Engine) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waitingOps[Urgent])+len(s.waitingOps[Prompt])+len(s.waitingOps[Normal]) == 0
}
