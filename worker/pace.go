package worker

import (
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// mayStart reports whether jobs may be sent to runners now: not during a stop, a drain, a pause of the queue or a recall,
// and not after the node lease has ended. The caller holds mu.
func (l *loop) mayStart() bool {
	return !l.stopping && !l.draining && !l.frozen && !l.lapsed() && !l.leases.recalling()
}

// capacity is how many jobs may be claimed now. The caller holds mu.
func (l *loop) capacity() int {
	if time.Now().Before(l.paused) {
		return 0
	}
	l.paused = time.Time{}
	workers := l.fit()
	if !l.mayStart() {
		return 0
	}
	if workers == 0 || l.runners.current() == nil {
		return 0
	}
	block := 0
	if l.mean > 0 {
		block = min(maxBlock, int(blockWork*time.Duration(workers)/max(l.mean, time.Microsecond)))
		if block < workers {
			block = 0 // jobs longer than the block is worth: exactly the free workers
		}
	}
	if failpoint.On("ahead") {
		block = maxBlock
	}
	return max(0, workers+block-l.leases.open())
}

// taken is how many workers are taken by what outlives SIGKILL. The caller holds mu.
func (p *Pool) taken() (n int) {
	for _, conn := range p.runners.clients {
		n += p.takenBy(conn)
	}
	return n
}

// takenBy is how many of them a runner has. An account may have its runner say anything: of
// one that new jobs do not go to none counts, and of the others one worker at least is left.
// The caller holds mu.
func (p *Pool) takenBy(conn *runnerConn) int {
	switch {
	case !runner.OfAnAccount(conn.Dir):
		return len(conn.stuck)
	case filepath.Dir(conn.Dir) != p.cfg.Runners.Root():
		return 0
	}
	return min(len(conn.stuck), max(p.target-1, 0))
}

// fit is how many of the wanted workers can run jobs. The caller holds mu.
func (p *Pool) fit() int {
	least := 0
	if p.cfg.Runners.As != "" {
		least = min(p.target, 1)
	}
	return max(least, p.target-p.taken())
}

// learn draws from a result what holds for claims: whether the machine has resources,
// how long jobs run, and whose starts hang. The caller holds mu.
func (l *loop) learn(h *leaseState, r *wire.Result) {
	switch {
	case r.Shortage:
		l.cfg.Log.Warn("a job could not be started", "job", h.job.ID, "error", r.Error)
		if r.Cause != int64(queue.HungStart) && l.short.met(h.job.Seq, time.Now()) { // what does not answer is not the machine
			l.slowDown(r.Error)
		}
	case r.Cause == int64(queue.HungStart):
		l.startHung(&h.job)
	default:
		l.short = shortage{pause: pauseFirst}
		l.measure(r)
	}
}

// shortage is what is known of the machine's resources. One job that cannot be started is
// put off alone; only when several cannot is less claimed.
type shortage struct {
	seq   int64     // of the job that met one last
	at    time.Time // when
	pause time.Duration
}

// shortWithin is how near shortages of two jobs are to be one of the machine.
const shortWithin = 5 * time.Second

// met notes that a job could not be started, and reports whether that is the machine's
// fault rather than the job's.
func (s *shortage) met(seq int64, now time.Time) bool {
	machine := s.seq != 0 && s.seq != seq && now.Sub(s.at) < shortWithin
	s.seq, s.at = seq, now
	return machine
}

// maxStartErr is the maximum length of an error in Paused, in bytes of JSON.
const maxStartErr = 400

// slowDown stops claims for a while because of the error with which a job did not start. The delay grows while jobs
// cannot start. The caller holds mu.
func (l *loop) slowDown(startErr string) {
	l.startErr = queue.ClipJSON(startErr, maxStartErr)
	if now := time.Now(); now.After(l.paused) { // of many that meet one shortage the first counts
		l.paused = now.Add(l.short.pause)
		l.short.pause = min(2*l.short.pause, pauseLast)
	}
}

// measure follows the mean of recent run times, each new one weighing a quarter.
func (l *loop) measure(r *wire.Result) {
	run := time.Duration(r.EndedAt-r.StartedAt) * time.Millisecond
	run = max(run, time.Millisecond/2)
	if l.mean == 0 {
		l.mean = run
	}
	l.mean += (run - l.mean) / 4
}

// Throughput is how many attempts were recorded as ended in the last minute.
func (p *Pool) Throughput() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rate.sum(time.Now())
}

// Throughputs are the same of each queue in which any has.
func (p *Pool) Throughputs() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rates.sums(time.Now())
}

// queueRates are the rates of queues, by name: of those alone that have had an end in the last minute, or a
// little longer.
type queueRates struct {
	of    map[string]*rate
	swept int64 // the second of the last look for those of which nothing has ended
}

// ratesKept is how many queues have a rate at most, at 500 bytes each; that of others is not known.
const ratesKept = 4096

// add counts one end.
func (q *queueRates) add(name string, now time.Time) {
	r := q.of[name]
	if r == nil {
		if q.of == nil {
			q.of = map[string]*rate{}
		}
		if len(q.of) >= ratesKept && q.swept != now.Unix() {
			q.swept = now.Unix()
			q.sums(now)
		}
		if len(q.of) >= ratesKept {
			return
		}
		r = &rate{}
		q.of[name] = r
	}
	r.add(now, 1)
}

// sums are how many have ended in the minute before now of each queue, and forgets those of which none has.
func (q *queueRates) sums(now time.Time) map[string]int {
	sums := map[string]int{}
	for name, r := range q.of {
		if n := r.sum(now); n > 0 {
			sums[name] = n
		} else {
			delete(q.of, name)
		}
	}
	return sums
}

// rate counts what happens, for a minute.
type rate struct {
	counts [60]int // by second
	last   int64   // the newest second
}

func (r *rate) add(now time.Time, n int) {
	r.forget(now)
	r.counts[r.last%60] += n
}

// sum is how much has happened in the minute before now.
func (r *rate) sum(now time.Time) (n int) {
	r.forget(now)
	for _, c := range r.counts {
		n += c
	}
	return n
}

// forget drops what is a minute old.
func (r *rate) forget(now time.Time) {
	second := max(r.last, now.Unix())
	for s := max(r.last, second-60) + 1; s <= second; s++ {
		r.counts[s%60] = 0
	}
	r.last = second
}
