package sqlstore

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
)

// Limits of the writer.
const (
	maxWaiting    = 4096    // operations that wait, but for urgent ones
	promptRoom    = 256     // of these, kept for what people ask of stored jobs
	maxGroup      = 512     // operations a commit, but for urgent ones
	maxGroupBytes = 1 << 20 // of what they write and read: the one that reaches it is a commit's last
	maxRetries    = 3       // of a group, when another program holds the database
)

// class says which operations go before others.
type class uint8

const (
	urgent  class = iota // what running jobs need: all goes first, and is never refused
	prompt               // what people ask of stored jobs, and duties
	normal               // new jobs and removals: refused while too many operations wait
	classes = iota
)

// op is one operation of the writer's. run checks before it writes: if it
// returns an *queue.Error it has changed nothing. It may be run again.
type op struct {
	run   func(*tx) error
	class class
	done  chan error
	err   error
}

// tx is the transaction of one group. It begins with its first statement: what
// the writer's memory can say needs none.
type tx struct {
	*conn
	begun   bool
	s       *Store
	now     queue.Millis // read once
	undo    []func()     // puts the writer's memory back
	then    []func()     // after the commit
	readied bool         // a job became runnable
	due     queue.Millis // the earliest timer set, 0 if none
	touched []int64      // jobs that changed
	before  memory       // as it was, without leases
	users   map[int]user // those that changed, as they were
	moved   int          // jobs that were kept back, or are so no more
	removed int          // attempts
	uncut   *waiter      // who waits still, though its claim was cut short
	read    int          // bytes of jobs that were read, or will be moved by SQLite
	bound   int64        // what the connection had bound when it began
	leased  bool         // leases changed, so that
	// reserved is what meta.reserved gets.
	reserved string
}

// do has an operation carried out and waits for its commit. The context
// ends the wait only before the operation is queued: what is queued happens.
func (s *Store) do(ctx context.Context, c class, run func(*tx) error) error {
	o := &op{run: run, class: c, done: make(chan error, 1)}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.queue(o); err != nil {
		return err
	}
	for {
		select {
		case err := <-o.done:
			return err
		case <-s.turn: // nobody writes: this caller does, for all who wait
			s.lead()
			s.turn <- struct{}{}
		}
	}
}

// queue has an operation wait for its commit, unless it is refused.
func (s *Store) queue(o *op) error {
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
		return queue.Errorf(queue.CodeUnavailable, "overloaded: %d requests wait for the disk; try again later", n)
	}
	s.waiting[o.class] = append(s.waiting[o.class], o)
	return nil
}

// aside runs f in the writer's turn, outside of any transaction, once. It waits for the
// turn alone, whatever else waits. Its error is the caller's alone.
func (s *Store) aside(ctx context.Context, f func() error) error {
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

// endPanicking ends the program at a panic of whoever has the turn, whoever would
// recover it: what was committed by then must not be refused, and nobody may write after
// it. It is deferred.
func (s *Store) endPanicking() {
	if p := recover(); p != nil {
		stack := debug.Stack()
		go panic(fmt.Sprintf("sqlstore: %v\n%s", p, stack))
		select {}
	}
}

// lead commits what waits, or the first part of it, in one transaction and answers. The
// caller has the turn to write.
func (s *Store) lead() {
	defer s.endPanicking()
	group := s.takeGroup()
	switch {
	case len(group) == 0:
	case s.ended:
		s.refuse(group, cmp.Or(s.Err(), error(errClosed)))
	default:
		rest, err := s.commit(group)
		if err != nil {
			s.fail(err, group)
		}
		s.putBack(rest)
	}
	clear(group)
	s.group = group
}

// takeGroup takes the operations of the next commit from those that wait.
func (s *Store) takeGroup() []*op {
	group := s.group[:0]
	s.mu.Lock()
	defer s.mu.Unlock()
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

// putBack has operations that were taken wait again, before all others of their class.
func (s *Store) putBack(rest []*op) {
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
func (s *Store) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting[urgent])+len(s.waiting[prompt])+len(s.waiting[normal]) == 0
}

// fail stops the store for good. Whether the group holds is not known.
func (s *Store) fail(err error, group []*op) {
	unknown := queue.Errorf(queue.CodeOutcomeUnknown, "the database failed during the commit, so whether it holds is not known; repeat it with the same key once the service runs again (%v)", err)
	os.WriteFile(filepath.Join(s.dir, doubtName), nil, 0o600) // if it cannot be written the next start finds out by itself
	s.mu.Lock()
	s.err = unknown
	w := s.waiter
	s.waiter = nil
	s.mu.Unlock()
	close(s.broken)
	s.ended = true
	s.refuse(group, unknown)
	if w != nil {
		w.done <- granted{err: unknown}
	}
}

// commit carries out a group in one transaction and answers each operation; those that
// are left for the next one are the rest. An error means that the database is broken.
func (s *Store) commit(group []*op) (rest []*op, err error) {
	wal, err := s.sameFiles()
	if err != nil {
		return nil, err
	}
	s.tendWAL(wal)
	busyTries, fullTries := 0, 0
	for len(group) > 0 {
		n, grant, culprit, err := s.try(group)
		if err == nil {
			s.answer(group[:n], grant)
			return group[n:], nil
		}
		switch k := kindOf(err); {
		case k == full && fullTries == 0 && s.releaseReserve():
			fullTries++
		case k == full:
			s.refuse(group, queue.Errorf(queue.CodeNoSpace, "no space on the disk of %s; free some and try again", s.dir))
			return nil, nil
		case k == busy && busyTries < maxRetries:
			busyTries++
		case k == busy:
			s.refuse(group, queue.Errorf(queue.CodeUnavailable, "another program holds the database %s; end it and try again", filepath.Join(s.dir, fileName)))
			return nil, nil
		case k == mistake && culprit != nil:
			culprit.done <- queue.Errorf(queue.CodeInternal, "the database refused: %v", err)
			group = without(group, culprit)
		default:
			return nil, err
		}
	}
	return nil, nil
}

func (s *Store) refuse(group []*op, err error) {
	for _, o := range group {
		o.done <- err
	}
}

func (s *Store) answer(group []*op, grant *granted) {
	for _, o := range group {
		o.done <- o.err
	}
	if grant == nil {
		return
	}
	grant.to.done <- *grant
}

// try runs the transaction of a group, or of its first n operations if these are large,
// once. On an error nothing of it holds, unless the error is a breakage; culprit is the
// operation that met it, if it was one.
func (s *Store) try(group []*op) (n int, grant *granted, culprit *op, err error) {
	t := &tx{conn: s.db, s: s, now: s.now(), before: s.mem, bound: s.db.bound}
	defer func() {
		if err != nil {
			t.rollback()
		}
	}()
	for n < len(group) && t.size() < maxGroupBytes {
		o := group[n]
		n++
		o.err = o.run(t)
		if o.err != nil && kindOf(o.err) != refusal {
			return n, nil, o, o.err
		}
	}
	if grant, err = t.serveWaiter(); err != nil {
		return n, nil, nil, err
	}
	if err := t.writeHeads(); err != nil {
		return n, nil, nil, err
	}
	if t.begun {
		if _, err := t.exec(`COMMIT`); err != nil {
			if kindOf(err) == mistake {
				err = fmt.Errorf("commit: %w", err)
			}
			return n, nil, nil, err
		}
		failpoint.Hit("commit")
	}
	t.publish(grant)
	return n, grant, nil, nil
}

// size is how many bytes the transaction has carried so far.
func (t *tx) size() int { return int(t.conn.bound-t.bound) + t.read }

func (t *tx) beginOnce() (err error) {
	if !t.begun {
		_, err = t.conn.exec(`BEGIN IMMEDIATE`)
		t.begun = err == nil
	}
	return err
}

func (t *tx) exec(sql string, args ...any) (int64, error) {
	if err := t.beginOnce(); err != nil {
		return 0, err
	}
	return t.conn.exec(sql, args...)
}

func (t *tx) query(each func(r row) (more bool, err error), sql string, args ...any) error {
	if err := t.beginOnce(); err != nil {
		return err
	}
	return t.conn.query(each, sql, args...)
}

func (t *tx) number(sql string, args ...any) (int64, error) {
	if err := t.beginOnce(); err != nil {
		return 0, err
	}
	return t.conn.number(sql, args...)
}

func (t *tx) rollback() {
	if t.begun {
		t.exec(`ROLLBACK`) // SQLite may have done so itself
	}
	leases := t.s.mem.leases
	for i := len(t.undo) - 1; i >= 0; i-- {
		t.undo[i]()
	}
	t.s.mem = t.before
	t.s.mem.leases = leases
	for uid, u := range t.users {
		t.s.mem.put(uid, u)
	}
}

// writeHeads writes what the transaction changed of the counts and numbers.
func (t *tx) writeHeads() error {
	if err := t.listUsers(); err != nil {
		return err
	}
	m, b := &t.s.mem, &t.before
	if !t.leased && m.counts == b.counts && m.nextSeq == b.nextSeq && m.enqueued == b.enqueued && m.nextEvent == b.nextEvent && m.outputs == b.outputs && m.list == b.list {
		return nil
	}
	if t.leased {
		t.reserved = t.reservations()
	}
	c := &m.counts
	_, err := t.exec(`UPDATE meta SET reserved = iif(?, ?, reserved), next_seq = ?, enqueued = ?, next_event = ?, users = ?, blocked = ?, held = ?,
		pending = ?, failed = ?, processing = ?, completed = ?, dead = ?, cancelled = ?, output_bytes = ?`, bit(t.leased), t.reserved, m.nextSeq, m.enqueued, m.nextEvent, m.list, c[queue.Blocked], c[queue.Held],
		c[queue.Pending], c[queue.Failed], c[queue.Processing], c[queue.Completed], c[queue.Dead], c[queue.Cancelled], m.outputs)
	return err
}

// reservations lists the leases that are not known to have started.
func (t *tx) reservations() string {
	list := make([]byte, 0, 1024)
	for seq, l := range t.s.mem.leases {
		if !l.running {
			list = appendNumbers(list, seq, l.fence)
		}
	}
	return string(list)
}

// publish tells, after the commit, whoever watches.
func (t *tx) publish(grant *granted) {
	s := t.s
	if t.due != 0 && (s.mem.nextDue == 0 || t.due < s.mem.nextDue) {
		s.mem.nextDue = t.due
		poke(s.alarm)
	}
	for _, f := range t.then {
		f()
	}
	defer s.watchers.Tell(t.touched...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if grant != nil && s.waiter == grant.to {
		s.waiter = nil
	}
	if t.uncut != nil {
		poke(t.uncut.again)
	}
	s.counts.States, s.counts.Enqueued, s.counts.Reranking = s.mem.counts, s.mem.enqueued, s.mem.ranking.state != 0
	s.counts.Outputs = s.mem.outputs
	if order := s.mem.order; order != *s.order.Load() {
		s.order.Store(&order)
	}
	if last := s.mem.nextEvent - 1; last != s.last {
		s.last = last
		if s.newer != nil {
			close(s.newer)
			s.newer = nil
		}
	}
	if t.leased {
		s.reserved = t.reserved
	}
}

func poke(bell chan<- struct{}) {
	select {
	case bell <- struct{}{}:
	default: // it is rung already
	}
}

// move counts a move of a user's job from one state to another; 0 is outside.
func (t *tx) move(seq int64, uid int, from, to queue.State) {
	t.s.mem.counts[from]--
	t.s.mem.counts[to]++
	t.s.mem.counts[0] = 0
	if from.Waiting() != to.Waiting() {
		t.waits(uid, bit(to.Waiting())-bit(from.Waiting()))
	}
	t.touched = append(t.touched, seq)
}

func (t *tx) setLease(seq int64, l lease) {
	t.leased = true
	old, had := t.s.mem.leases[seq]
	t.s.mem.leases[seq] = l
	if !had {
		t.leases(l.uid, 1)
	}
	t.undo = append(t.undo, func() {
		if had {
			t.s.mem.leases[seq] = old
		} else {
			delete(t.s.mem.leases, seq)
		}
	})
}

func (t *tx) dropLease(seq int64) {
	old := t.s.mem.leases[seq]
	t.leased = t.leased || !old.running
	delete(t.s.mem.leases, seq)
	t.leases(old.uid, -1)
	t.undo = append(t.undo, func() { t.s.mem.leases[seq] = old })
}

// ready notes that a job became runnable.
func (t *tx) ready(p place) {
	t.readied, t.s.mem.dry = true, false
	if !p.after(t.s.mem.head) {
		t.s.mem.head = nowhere
	}
}

// wakeAt notes a timer.
func (t *tx) wakeAt(at queue.Millis) {
	if at != 0 && (t.due == 0 || at < t.due) {
		t.due = at
	}
}

// event writes one row of the event sequence.
func (t *tx) event(kind queue.EventKind, seq int64, id string, state queue.State, detail []byte) error {
	n := t.s.mem.nextEvent
	t.s.mem.nextEvent++
	_, err := t.exec(`INSERT INTO events (seq, at, kind, job, id, state, detail) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		n, int64(t.now), string(kind), seq, id, int64(state), string(detail))
	return err
}

func uidDetail(uid int) []byte {
	return append(strconv.AppendInt([]byte(`{"uid":`), int64(uid), 10), '}')
}

func without(group []*op, o *op) []*op {
	rest := make([]*op, 0, len(group))
	for _, g := range group {
		if g != o {
			rest = append(rest, g)
		}
	}
	return rest
}
