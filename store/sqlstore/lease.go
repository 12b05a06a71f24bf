package sqlstore

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// waiter is a claim that waits for the first job to become runnable.
type waiter struct {
	want   int
	done   chan granted  // buffered: the writer never waits for it
	again  chan struct{} // poked when its claim was cut short
	left   bool          // nobody waits any more, but for done; guarded by the store's mu
	served bool          // done has its answer; guarded by the store's mu
}

// granted is what a waiter got.
type granted struct {
	to   *waiter
	jobs []queue.Job
	err  error
}

// Exchange records what happened to leases and claims more, in one commit.
func (s *Store) Exchange(ctx context.Context, turn store.Report) (store.Grant, error) {
	var turned store.Grant
	err := s.do(ctx, urgent, func(t *tx) (err error) {
		turned = store.Grant{}
		stale := func(l queue.Lease) { turned.Stale = append(turned.Stale, l) }
		for i := range turn.Started {
			if err := t.started(&turn.Started[i], stale); err != nil {
				return err
			}
		}
		for i := range turn.Ended {
			if err := t.ended(&turn.Ended[i], stale); err != nil {
				return err
			}
		}
		for _, l := range turn.Released {
			if err := t.release(l, stale); err != nil {
				return err
			}
		}
		for _, c := range turn.Changed {
			l, ok := t.lease(c.Lease)
			if err := t.release(c.Lease, stale); err != nil {
				return err
			}
			if !ok || l.running {
				continue
			}
			var refused *queue.Error
			switch err := t.change(c.Seq, c.Change); {
			case errors.As(err, &refused), errors.Is(err, store.ErrMoved):
				if turned.Refused == nil {
					turned.Refused = map[queue.Lease]error{}
				}
				turned.Refused[c.Lease] = err
			case err != nil:
				return err
			}
		}
		if turn.Want > 0 {
			turned.Jobs, _, err = t.claim(turn.Want)
		}
		return err
	})
	if err != nil {
		return store.Grant{}, err
	}
	return turned, nil
}

// lease is what is known of a lease, if it still holds.
func (t *tx) lease(l queue.Lease) (lease, bool) {
	known, ok := t.s.mem.leases[l.Seq]
	return known, ok && known.fence == l.Fence
}

func (t *tx) started(st *store.Started, stale func(queue.Lease)) error {
	l, ok := t.lease(st.Lease)
	if !ok || l.running {
		if !ok {
			stale(st.Lease)
		}
		return nil
	}
	_, err := t.exec(`UPDATE jobs SET state = 5, place = 3, fence = ?, started_at = ?, ended_at = 0, updated_at = ?, worker = ?, pid = ? WHERE seq = ?`,
		st.Fence, int64(st.At), int64(t.now), st.Worker, int64(st.PID), st.Seq)
	if err != nil {
		return err
	}
	t.move(st.Seq, l.uid, l.state, queue.Processing)
	was := l
	l.state, l.running = queue.Processing, true
	t.setLease(st.Seq, l)
	detail := strconv.AppendInt([]byte(`{"attempt":`), int64(was.runs+1), 10)
	detail = strconv.AppendInt(append(detail, `,"started_at":`...), int64(st.At), 10)
	return t.event(queue.EventStarted, st.Seq, l.id, queue.Processing, append(detail, '}'))
}

func (t *tx) ended(e *store.Settlement, stale func(queue.Lease)) error {
	l, ok := t.lease(e.Lease)
	if !ok {
		stale(e.Lease)
		return nil
	}
	if e.DeletableOutput != "" {
		if _, err := t.exec(`INSERT OR IGNORE INTO garbage (ref) VALUES (?)`, e.DeletableOutput); err != nil {
			return err
		}
	}
	d, a := &e.Decision, &e.Attempt
	place, due, ended := placeNone, int64(0), int64(0)
	switch {
	case d.State.Runnable() && d.Delay > 0:
		due = int64(t.now.Add(d.Delay))
		place = placeTimed
		t.wakeAt(queue.Millis(due))
	case d.State.Runnable():
		due, place = int64(t.now), placeReady
		t.ready(l.at(e.Seq))
	case d.State.Ended():
		ended = max(int64(a.EndedAt), 0)
		if ended == 0 {
			ended = int64(t.now)
		}
	}
	if !d.Started {
		return t.giveBack(e, l, place, due)
	}
	n := l.runs + 1
	_, err := t.exec(`UPDATE jobs SET state = ?, place = ?, fence = ?, reason = ?, error = ?, exit_code = ?, signal = ?, attempts = attempts + ?,
		deferred = deferred + ?, refunds = 0, suspect = ?, crashes = crashes + ?, runs = ?, due_at = iif(?, ?, due_at), started_at = ?, ended_at = ?, updated_at = ?, worker = '', pid = 0 WHERE seq = ?`,
		int64(d.State), int64(place), e.Fence, string(d.Reason), d.Error, a.ExitCode, int64(a.Signal), bit(d.Counts),
		bit(d.Defers), bit(d.Suspect), bit(d.Crashed), int64(n), due, due, int64(a.StartedAt), ended, int64(t.now), e.Seq)
	if err != nil {
		return err
	}
	kept := a.OutputBytes
	if a.OutputRef == "" {
		kept = int64(len(a.Output))
	}
	t.s.mem.outputs += kept
	_, err = t.exec(`INSERT INTO attempts (seq, n, fence, worker, node, pid, started_at, ended_at, exit_code, signal, reason, error,
		counted, cpu_us, peak_rss, leftovers, dropped, output, output_ref, output_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		e.Seq, int64(n), e.Fence, a.Worker, a.Node, int64(a.PID), int64(a.StartedAt), int64(a.EndedAt), a.ExitCode, int64(a.Signal),
		string(d.Reason), d.Error, bit(d.Counts), a.CPU.Microseconds(), a.PeakRSS, int64(a.Leftovers), a.Dropped, blob(a.Output), text(a.OutputRef), kept)
	if err != nil {
		return err
	}
	t.move(e.Seq, l.uid, l.state, d.State)
	t.dropLease(e.Seq)
	if err := t.event(queue.EventEnded, e.Seq, l.id, d.State, endedDetail(n, a, e)); err != nil {
		return err
	}
	return t.returned(e.Seq, l, d.State)
}

// giveBack undoes a claim that led to no attempt: what is known of the last one stays.
func (t *tx) giveBack(e *store.Settlement, l lease, place int, due int64) error {
	_, err := t.exec(`UPDATE jobs SET state = ?, place = ?, fence = ?, reason = ?, error = coalesce(?, error), refunds = refunds + ?, due_at = iif(?, ?, due_at), updated_at = ?, worker = '', pid = 0 WHERE seq = ?`,
		int64(e.Decision.State), int64(place), e.Fence, string(e.Decision.Reason), text(e.Decision.Error), bit(e.Decision.Refunds), due, due, int64(t.now), e.Seq)
	if err != nil {
		return err
	}
	t.move(e.Seq, l.uid, l.state, e.Decision.State)
	t.dropLease(e.Seq)
	if e.Decision.State == queue.Held {
		if err := t.event(queue.EventHeld, e.Seq, l.id, queue.Held, disownedDetail); err != nil {
			return err
		}
	}
	return t.returned(e.Seq, l, e.Decision.State)
}

// release gives back a lease that was never started. Its fence is kept, so that
// no later claim has it again.
func (t *tx) release(lr queue.Lease, stale func(queue.Lease)) error {
	l, ok := t.lease(lr)
	if !ok || l.running {
		stale(lr)
		return nil
	}
	if _, err := t.exec(`UPDATE jobs SET fence = ? WHERE seq = ?`, lr.Fence, lr.Seq); err != nil {
		return err
	}
	t.touched = append(t.touched, lr.Seq)
	t.dropLease(lr.Seq)
	t.ready(l.at(lr.Seq))
	return t.returned(lr.Seq, l, l.state)
}

// at is where a lease's job stands in the ready index, or stood.
func (l lease) at(seq int64) place { return place{l.rank, seq} }

func endedDetail(n int, a *queue.Attempt, e *store.Settlement) []byte {
	b := strconv.AppendInt([]byte(`{"attempt":`), int64(n), 10)
	b = strconv.AppendInt(append(b, `,"started_at":`...), int64(a.StartedAt), 10)
	if a.ExitCode >= 0 {
		b = strconv.AppendInt(append(b, `,"exit_code":`...), a.ExitCode, 10)
	}
	if a.Signal != 0 {
		b = strconv.AppendInt(append(b, `,"signal":`...), int64(a.Signal), 10)
	}
	if e.Decision.Reason != "" {
		b = strconv.AppendQuote(append(b, `,"reason":`...), string(e.Decision.Reason))
	}
	if e.By != nil {
		b = strconv.AppendInt(append(b, `,"uid":`...), int64(*e.By), 10)
		b = strconv.AppendQuote(append(b, `,"verb":`...), e.Verb)
	}
	if len(a.Output) > 0 || a.OutputRef != "" {
		b = append(b, `,"output":true`...)
	}
	return append(b, '}')
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func blob(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// claim leases the head of the ready index, up to want jobs or maxClaimBytes. If it gets
// none and says that there is more, another transaction is to go on.
func (t *tx) claim(want int) (jobs []queue.Job, more bool, err error) {
	bytes := 0
	for len(jobs) < want && !more && bytes < maxClaimBytes {
		if more, err = t.feed(want - len(jobs)); err != nil {
			return nil, false, err
		}
		if more || t.s.mem.dry {
			break
		}
		h := head{at: t.s.mem.head, want: want - len(jobs), bytes: bytes}
		if err := t.look(&h); err != nil {
			return nil, false, err
		}
		if jobs == nil {
			jobs = h.jobs[:0]
		}
		for i := range h.jobs {
			late, err := t.take(&h.jobs[i], h.ranks[i])
			if err != nil {
				return nil, false, err
			}
			if !late {
				jobs = append(jobs, h.jobs[i]) // into the place of an earlier one, or its own
			}
		}
		bytes, more = h.bytes, h.more || t.moved >= parkStep
		t.s.mem.head = h.at
		t.s.mem.dry = h.end
	}
	t.read += bytes
	return jobs, more && len(jobs) == 0, nil
}

// head is what one look at the head of the ready index finds.
type head struct {
	at    place // up to which it has been looked
	want  int   // jobs
	bytes int   // that jobs take, with those found before
	jobs  []queue.Job
	ranks []int64 // of jobs
	more  bool    // enough was passed over for one transaction
	end   bool    // nothing stands after it
}

// look finds the next jobs of the ready index that may be leased. What cannot be read is
// held, and what has no room is kept back.
func (t *tx) look(h *head) error {
	var damaged []queue.Job
	var kept keptBack
	h.end = true
	err := t.query(func(r row) (bool, error) {
		h.at = place{r.num(width(wholeColumns)), r.num(0)}
		if _, leased := t.s.mem.leases[h.at.seq]; leased {
			return true, nil
		}
		if t.s.mem.maxUser != 0 && t.full(int(r.num(uidColumn)), kept.taken) {
			kept.rows = append(kept.rows, ofUser{h.at.seq, int(r.num(uidColumn))})
			h.more = t.moved+len(kept.rows) >= parkStep
			h.end = !h.more
			return h.end, nil
		}
		j, err := readJob(r, wholeColumns)
		if err != nil {
			damaged = append(damaged, j)
			return true, nil
		}
		if h.jobs == nil {
			h.jobs = make([]queue.Job, 0, min(h.want, usualBlock))
		}
		if t.s.mem.maxUser != 0 {
			kept.take(j.UID)
		}
		h.jobs, h.ranks = append(h.jobs, j), append(h.ranks, h.at.rank)
		h.bytes += weight(&j)
		h.end = len(h.jobs) < h.want && h.bytes < maxClaimBytes
		return h.end, nil
	}, `SELECT `+wholeColumns+`, rank FROM jobs INDEXED BY jobs_ready WHERE place = 1 AND (rank, seq) > (?, ?) ORDER BY rank, seq`, h.at.rank, h.at.seq)
	if err == nil {
		err = t.park(kept.rows)
	}
	for i := range damaged {
		if err == nil {
			err = t.holdDamaged(&damaged[i])
		}
	}
	return err
}

// take leases a job, or cancels it if it is too late for that.
func (t *tx) take(j *queue.Job, rank int64) (late bool, err error) {
	if j.ExpiresAt != 0 && j.ExpiresAt <= t.now {
		t.moved++
		return true, t.cancel(j, queue.ReasonExpired, queue.EventExpired, expiredDetail)
	}
	j.Fence += 1 + t.s.dice.Int64N(fenceStep)
	if t.s.mem.ranking.state != 0 {
		rank = t.s.mem.order.Rank(j.Priority, j.Since, j.Arrival)
		if _, err := t.exec(`UPDATE jobs SET rank = ? WHERE seq = ?`, rank, j.Seq); err != nil {
			return false, err
		}
	}
	t.setLease(j.Seq, lease{id: j.ID, uid: j.UID, fence: j.Fence, runs: j.Runs, state: j.State, rank: rank})
	return false, nil
}

// fenceStep bounds how far a claim raises a fence. How far it does is random, so that
// nobody can say before an attempt by which name it, its output and its processes go;
// the numbers last for a hundred million claims of one job.
const fenceStep = 1 << 36

// maxClaimBytes is how much of jobs, in bytes, a claim reads: with the job that reaches
// it, it has enough.
const maxClaimBytes = 1 << 20

// weight is about how many bytes a job takes to be read.
func weight(j *queue.Job) int {
	n := len(j.Command) + len(j.Stdin)
	for _, list := range [][]string{j.Argv, j.Env} {
		for _, text := range list {
			n += len(text)
		}
	}
	return n
}

// usualBlock is how many jobs a claim makes room for at once.
const usualBlock = 64

// holdDamaged holds a job that cannot be read: it would stop all others.
func (t *tx) holdDamaged(j *queue.Job) error {
	if _, err := t.exec(`UPDATE jobs SET state = 2, place = 0, error = ?, updated_at = ? WHERE seq = ?`, j.Error, int64(t.now), j.Seq); err != nil {
		return err
	}
	t.moved++
	t.invalidate(j.UID)
	t.move(j.Seq, j.UID, j.State, queue.Held)
	return t.event(queue.EventHeld, j.Seq, j.ID, queue.Held, []byte(`{}`))
}

// Await claims at least one job, waiting for the first to become runnable.
func (s *Store) Await(ctx context.Context, want int) ([]queue.Job, error) {
	w := &waiter{want: want, done: make(chan granted, 1), again: make(chan struct{}, 1)}
	var jobs []queue.Job
	for more := true; more; {
		err := s.do(ctx, urgent, func(t *tx) (err error) {
			if jobs, more, err = t.claim(want); err != nil || len(jobs) > 0 || more {
				return err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.waiter = w
			t.undo = append(t.undo, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.waiter = nil
			})
			return nil
		})
		switch {
		case err != nil:
			return nil, err // what was claimed was undone
		case len(jobs) > 0:
			return jobs, nil
		}
	}
	var gone error
	for gone == nil {
		select {
		case g := <-w.done:
			return g.jobs, g.err
		case <-w.again:
			gone = s.do(ctx, urgent, func(t *tx) error { t.readied = true; return nil })
		case <-ctx.Done():
			gone = ctx.Err()
		}
	}
	s.mu.Lock()
	if s.waiter == w {
		s.waiter = nil
		s.mu.Unlock()
		select {
		case g := <-w.done: // served between the two
			return g.jobs, g.err
		default:
			return nil, gone
		}
	}
	w.left = true
	s.mu.Unlock()
	g := <-w.done // being served: its leases must not be lost
	if g.err == nil && len(g.jobs) == 0 {
		g.err = gone
	}
	return g.jobs, g.err
}

// waitOn has a waiter wait again that could not be served after all. The caller holds
// mu.
func (s *Store) waitOn(w *waiter) {
	if w.left {
		w.done <- granted{to: w}
		return
	}
	s.waiter = w
}

// serveWaiter claims for whoever waits, in the transaction that made a job
// runnable.
func (t *tx) serveWaiter() (*granted, error) {
	if !t.readied {
		return nil, nil
	}
	t.s.mu.Lock()
	w := t.s.waiter
	if w != nil {
		t.s.waiter = nil // it is being served: a cancelled Await waits for the answer
		t.undo = append(t.undo, func() {
			t.s.mu.Lock()
			defer t.s.mu.Unlock()
			if t.s.waiter == nil && !w.served {
				t.s.waitOn(w)
			}
		})
	}
	t.s.mu.Unlock()
	if w == nil {
		return nil, nil
	}
	jobs, more, err := t.claim(w.want)
	if err != nil {
		return nil, err
	}
	if len(jobs) == 0 {
		if more {
			t.uncut = w
		}
		t.s.mu.Lock()
		t.s.waitOn(w)
		w.served = w.left // its answer is given
		t.s.mu.Unlock()
		return nil, nil
	}
	return &granted{to: w, jobs: jobs}, nil
}

// Leased lists every leased job.
func (s *Store) Leased(ctx context.Context) (jobs []queue.Job, err error) {
	err = s.do(ctx, urgent, func(t *tx) error {
		jobs = nil
		for _, seq := range slices.Sorted(maps.Keys(s.mem.leases)) {
			j, err := t.one(seq, wholeColumns)
			if err != nil && !errors.Is(err, errDamaged) {
				return err
			}
			j.Fence = s.mem.leases[seq].fence
			jobs = append(jobs, j)
		}
		return nil
	})
	return jobs, err
}

// LastSeq is the highest number that a job has had.
func (s *Store) LastSeq(ctx context.Context) (seq int64, err error) {
	err = s.do(ctx, urgent, func(t *tx) error {
		seq = s.mem.nextSeq - 1
		return nil
	})
	return seq, err
}

// NextEpoch raises and returns the service's epoch.
func (s *Store) NextEpoch(ctx context.Context) (epoch int64, err error) {
	err = s.do(ctx, urgent, func(t *tx) error {
		if _, err := t.exec(`UPDATE meta SET epoch = epoch + 1`); err != nil {
			return err
		}
		epoch, err = t.number(`SELECT epoch FROM meta`)
		return err
	})
	return epoch, err
}
