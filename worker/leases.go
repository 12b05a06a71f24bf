package worker

import (
	"cmp"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// leases is the set of this service's leases. The caller of its methods, and of a lease's,
// holds the pool's mu.
type leases struct {
	all     map[queue.Lease]*leaseState
	held    int64                 // leases that were added, ever
	bySeq   map[int64]*leaseState // the same
	watched map[int64]int         // seqs whose end somebody waits for
	ended   chan struct{}         // closed, and made anew, when a lease comes to its end
}

// leaseState is a lease of this service.
type leaseState struct {
	job      queue.Job
	number   int64       // of the leases in the order in which they were claimed
	conn     *runnerConn // nil while its runner is not connected, or not known
	dir      string      // the runner's folder, "" if not known
	waiting  bool        // for a runner of its own, which is being started: it was sent to none
	reading  bool        // waiting, but for what it is told of others
	sent     time.Time   // to the runner
	dropSent bool        // a DROP is under way
	recalled bool        // the DROP is to return the job as it is
	heard    time.Time   // its runner, last, while that is not connected
	running  bool        // STARTED was heard, or the runner said so
	begun    bool        // a DROP came too late: the runner has noted the attempt, and may have started it
	launched bool        // the runner's notes name the process, or hold the result
	worker   string
	pid      int
	at       queue.Millis
	progress *queue.Progress // as it was told last, nil if none was
	told     time.Time       // when that was recorded last, or was to be
	end      *queue.End      // why we end it, if we do
	grace    time.Duration
	by       *int             // who had us end it, nil if nobody did
	verb     string           // and how
	paused   bool             // as recorded
	woken    bool             // it goes on though everything is paused
	pausing  chan struct{}    // closed once whoever pauses or resumes it has; nil if nobody does
	over     bool             // its end, or return, is in pending
	returned bool             // it was given back as it was, or its attempt was stopped
	asks     []*pendingChange // what is asked of it, if it has not started; the first goes first
	carried  *pendingChange   // which of them is in pending
	started  chan struct{}    // closed once it is known to run
	done     chan struct{}    // closed once it is settled or given back
}

// pendingChange is a change that somebody waits for.
type pendingChange struct {
	store.Change
	release bool       // it changes nothing: the lease is to be given back
	answer  chan error // has room for one
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

// forget drops a lease that has come to its end.
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

// wake has whoever waits for ends look again.
func (s *leases) wake() {
	close(s.ended)
	s.ended = make(chan struct{})
}

// open is how many are left once what is pending is recorded.
func (s *leases) open() (n int) {
	for _, h := range s.all {
		if !h.over {
			n++
		}
	}
	return n
}

// startable lists the leases whose jobs may still start, in the order in which they were claimed. Those are the jobs
// that are not known to have started or ended.
func (s *leases) startable() (list []*leaseState) {
	for _, h := range s.all {
		if !h.running && !h.launched && !h.over {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b *leaseState) int { return cmp.Compare(a.number, b.number) })
	return list
}

// byAge lists all leases, the oldest first; a clock may be too coarse to tell those of one
// claim apart.
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

// busy reports whether a runner has any lease.
func (s *leases) busy(conn *runnerConn) bool {
	for _, h := range s.all {
		if h.conn == conn {
			return true
		}
	}
	return false
}

// orphans lists the leases that may be a dead runner's, and those of them that are known to
// have been sent to it: of others a living runner may run the trees.
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

// unsettled reports whether some lease may be of a runner of these folders.
func (s *leases) unsettled(dirs []string) bool {
	for _, h := range s.all {
		if h.conn == nil && !h.waiting && (h.dir == "" || slices.Contains(dirs, h.dir)) {
			return true
		}
	}
	return false
}

// waiting lists the leases of jobs that wait for a runner and are not given back.
func (s *leases) waiting(of func(*queue.Job) bool) (list []*leaseState) {
	for _, h := range s.all {
		if h.waiting && !h.reading && !h.over && of(&h.job) {
			list = append(list, h)
		}
	}
	return list
}

// notServed ends those of them whose runner could not be started, and lists their jobs.
func (s *leases) notServed(of func(*queue.Job) bool) (jobs []queue.Job) {
	for _, h := range s.waiting(of) {
		h.over = true
		jobs = append(jobs, h.job)
	}
	return jobs
}

func (h *leaseState) lease() wire.Lease { return wire.Lease(h.job.Lease()) }

// orphan reports whether a lease is open and its runner, of a folder, is not connected; with
// "" nobody knows which runner has it.
func (h *leaseState) orphan(dir string) bool {
	return h.conn == nil && !h.over && !h.waiting && h.dir == dir
}

// sentTo holds a lease by a connection; what is asked of it stays asked.
func (h *leaseState) sentTo(conn *runnerConn) {
	h.conn, h.dir, h.sent = conn, conn.Dir, time.Now()
	h.dropSent, h.recalled, h.waiting = false, false, false
}

// runs notes that the attempt has begun.
func (h *leaseState) runs() {
	if !h.running {
		h.running = true
		close(h.started)
	}
}

// blame notes who had an attempt end.
func (h *leaseState) blame(s *store.Settlement) {
	if why := s.Decision.Reason; h.by != nil && (why == queue.ReasonCancelled || why == queue.ReasonStopped) {
		s.By, s.Verb = h.by, h.verb
	}
}
