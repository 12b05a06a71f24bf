package worker

import (
	"cmp"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// leases holds the leases of this service. Callers of its methods, and of methods of leaseState,
// hold the pool's mu.
type leases struct {
	all     map[queue.Lease]*leaseState
	held    int64                 // number of leases ever added
	bySeq   map[int64]*leaseState // the same leases by job number
	watched map[int64]int         // watchers by job number; results of these jobs are sent immediately
	ended   chan struct{}         // closed and replaced when a lease ends
}

// leaseState is one lease of this service. A lease passes through these steps; some may be skipped:
//
//  1. waiting: the job waits for a separate runner or, with reading, for its dependencies' results.
//  2. conn is set: the job was sent to a runner, which may or may not start it. A Drop takes it back.
//  3. begun: the runner has recorded the attempt and may have started it.
//  4. running: the attempt is known to have started.
//  5. over: the result, or the job's return to the queue, is in session.pending.
//  6. done is closed: the store has recorded that, and the lease is gone.
//
// If the connection of the runner ends, conn is nil until the pool has reconnected to the runner or
// recovered it.
type leaseState struct {
	job      queue.Job
	number   int64       // position of the lease in the order of claims
	conn     *runnerConn // the runner's connection; nil while not connected or not known
	dir      string      // directory of the runner; "" if not known
	waiting  bool        // waits for a separate runner or for reading; not sent to any runner
	reading  bool        // waits for the results of its dependencies
	sent     time.Time   // when the job was sent to the runner, or claimed
	dropSent bool        // a Drop was sent and not answered yet
	recalled bool        // the Drop is part of a recall, so it returns the job unchanged
	heard    time.Time   // last message of the runner, while it is disconnected
	running  bool        // the attempt is known to have started
	// begun is set if a Drop came too late: the runner has recorded the attempt and may have
	// started it.
	begun    bool
	launched bool // the runner's files name the process or hold the result
	worker   string
	pid      int
	at       queue.Millis
	// progress is the last reported progress; nil if none was reported.
	progress *queue.Progress
	// told is when progress was last recorded, or skipped because the attempt was not known to run.
	told   time.Time
	end    *queue.End // how the service ends the attempt; nil if it does not
	grace  time.Duration
	by     *int   // uid of the user who ended the attempt; nil if no user did
	verb   string // action with which it was ended, such as "cancel"
	paused bool   // the store has recorded the job as paused
	woken  bool   // resumed although all jobs are paused
	// pausing is closed when the caller that pauses or resumes the job has finished; nil if no
	// caller does.
	pausing  chan struct{}
	over     bool             // the end or return of the lease is in session.pending
	returned bool             // the job was returned unchanged, or its attempt was stopped
	asks     []*pendingChange // changes that callers wait for while the job has not started, oldest first
	carried  *pendingChange   // the change that is in session.pending
	started  chan struct{}    // closed when the attempt is known to have started
	done     chan struct{}    // closed when the lease has ended and that is recorded
}

// pendingChange is a change of a leased job that a caller waits for.
type pendingChange struct {
	store.Change
	release bool       // only return the lease; change nothing
	answer  chan error // has a buffer of one
}

func newLeases() leases {
	return leases{all: map[queue.Lease]*leaseState{}, bySeq: map[int64]*leaseState{}, watched: map[int64]int{}, ended: make(chan struct{})}
}

// hold adds the lease of a claimed job.
func (s *leases) hold(j *queue.Job) *leaseState {
	now := time.Now()
	s.held++
	h := &leaseState{job: *j, number: s.held, paused: j.PausedAt != 0, sent: now, heard: now, started: make(chan struct{}), done: make(chan struct{})}
	s.all[j.Lease()], s.bySeq[j.Seq] = h, h
	return h
}

// forget removes a lease that has ended and wakes all callers that wait for it.
func (s *leases) forget(lease queue.Lease) {
	h := s.all[lease]
	if h == nil {
		return
	}
	delete(s.all, lease)
	if s.bySeq[lease.Seq] == h {
		delete(s.bySeq, lease.Seq)
	}
	close(h.done)
	s.wake()
}

// wake wakes the callers that wait for leases to end.
func (s *leases) wake() {
	close(s.ended)
	s.ended = make(chan struct{})
}

// open returns how many leases remain after the pending events are recorded.
func (s *leases) open() (n int) {
	for _, h := range s.all {
		if !h.over {
			n++
		}
	}
	return n
}

// startable returns the leases whose jobs may still start, in the order of their claims. These are
// the jobs that are not known to have started or ended.
func (s *leases) startable() (list []*leaseState) {
	for _, h := range s.all {
		if !h.running && !h.launched && !h.over {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b *leaseState) int { return cmp.Compare(a.number, b.number) })
	return list
}

// byAge returns all leases, the oldest first. The clock may be too coarse to distinguish leases of
// one claim, so job numbers break ties.
func (s *leases) byAge() []*leaseState {
	list := make([]*leaseState, 0, len(s.all))
	for _, h := range s.all {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b *leaseState) int {
		return cmp.Or(a.sent.Compare(b.sent), cmp.Compare(a.job.Seq, b.job.Seq))
	})
	return list
}

// busy reports whether a runner holds any lease.
func (s *leases) busy(conn *runnerConn) bool {
	for _, h := range s.all {
		if h.conn == conn {
			return true
		}
	}
	return false
}

// orphans returns the leases that a dead runner may hold, and those of them that are known to have
// been sent to it. Leases in list alone may belong to a living runner, which may run their
// processes.
func (s *leases) orphans(dir string) (list, sent []wire.Attempt) {
	for _, h := range s.all {
		known := h.orphan(dir)
		if !known && !h.orphan("") {
			continue
		}
		a := wire.Attempt{Lease: h.lease(), PID: int64(h.pid), StartedAt: int64(h.at)}
		list = append(list, a)
		if known {
			sent = append(sent, a)
		}
	}
	return list, sent
}

// unsettled reports whether a disconnected runner with one of these directories may hold a lease.
func (s *leases) unsettled(dirs []string) bool {
	for _, h := range s.all {
		if h.conn == nil && !h.waiting && (h.dir == "" || slices.Contains(dirs, h.dir)) {
			return true
		}
	}
	return false
}

// waiting returns the leases of jobs that wait for a separate runner and are not being returned to
// the queue.
func (s *leases) waiting(of func(*queue.Job) bool) (list []*leaseState) {
	for _, h := range s.all {
		if h.waiting && !h.reading && !h.over && of(&h.job) {
			list = append(list, h)
		}
	}
	return list
}

// notServed ends the waiting leases whose runner could not be started, and returns their jobs.
func (s *leases) notServed(of func(*queue.Job) bool) (jobs []queue.Job) {
	for _, h := range s.waiting(of) {
		h.over = true
		jobs = append(jobs, h.job)
	}
	return jobs
}

func (h *leaseState) lease() wire.Lease { return wire.Lease(h.job.Lease()) }

// orphan reports whether the lease is open and belongs to the disconnected runner with directory
// dir. With dir "", it reports whether the runner of the lease is unknown.
func (h *leaseState) orphan(dir string) bool {
	return h.conn == nil && !h.over && !h.waiting && h.dir == dir
}

// sentTo assigns the lease to a connection. Pending requests (end, asks) are kept.
func (h *leaseState) sentTo(conn *runnerConn) {
	h.conn, h.dir, h.sent = conn, conn.Dir, time.Now()
	h.dropSent, h.recalled, h.waiting = false, false, false
}

// runs records that the attempt has started.
func (h *leaseState) runs() {
	if !h.running {
		h.running = true
		close(h.started)
	}
}

// blame records in the settlement which user ended the attempt.
func (h *leaseState) blame(s *store.Settlement) {
	if why := s.Decision.Reason; h.by != nil && (why == queue.ReasonCancelled || why == queue.ReasonStopped) {
		s.By, s.Verb = h.by, h.verb
	}
}
