// Package memstore is the executable model of store.Store: in memory, and
// obviously correct before it is fast.
package memstore

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Store is a store.Store that forgets everything when the process ends. It
// walks all its jobs wherever that is the plainest way to say what is meant.
type Store struct {
	order   queue.Order
	maxUser int // jobs of one user may be leased, 0 is any number; guarded by mu
	now     func() queue.Millis
	alarm   chan struct{}
	decided []end // that those who wait for them have yet to hear of; guarded by mu

	queues map[string]store.QueueRule // guarded by mu, as are the next ones
	makers map[string]int             // who enqueued a queue's first job
	passes map[string]int64           // of queues: when it is their turn, while weights differ
	turn   int64                      // of the queue that was served last
	served map[user]int64             // by claims: the claim that served a user in a queue last
	claims int64                      // of one job each, ever
	fresh  map[string]int64           // by queue: claims up to this one are forgotten
	node   store.Node
	hooks  store.Hooks
	rules  map[gate]queue.Demand   // the newest word on each lock and rate
	starts map[gate][]queue.Millis // of each rate
	kept   map[gate]bool           // whose rule no job changes

	mu       sync.Mutex
	closed   bool                     // these and all below are guarded by mu
	jobs     map[int64]*job           // by seq
	seq      int64                    // the last one given
	enqueued int64                    // jobs, ever
	epoch    int64                    // of the service
	events   []queue.Event            // event n is at n-1-trimmed
	trimmed  int64                    // events that are forgotten
	begun    int64                    // batches, ever
	batches  []*batch                 // that are not wholly in the queue
	forgot   map[key]queue.Millis     // batches that were forgotten, by their names
	keys     map[key]memory           // of requests
	settings map[string]store.Setting // by their keys
	owners   map[int]string           // by uid, those below 0 are former ones
	garbage  []string                 // output files whose attempts are gone
	examined int                      // outputs and inputs that the current update read to make room
	runners  []string                 // folders that were noted
	promised queue.Millis             // the last Promote said that nothing is due before
	newer    chan struct{}            // closed by the next event, nil if nobody waits
	waiters  []*waiter                // the Awaits under way
	watchers store.Watchers

	samples []sample // starts and ends of attempts, ever; guarded by mu, as are the next ones
	usual   []usual  // how long what completed runs, the last one last

	schedules map[string]*schedule // by name; guarded by mu, as is the next one
	gens      int64                // definitions of schedules, ever
}

var _ store.Store = (*Store)(nil)

// job is a stored job with what the contract does not show of it.
type job struct {
	queue.Job
	rank   int64
	leased bool
	claim  int64 // by which it was leased last; see Store.claims
	// servedBefore is the claim that had served its user before that.
	servedBefore int64
	former       int           // whose it is once it is given back, if not 0
	moment       queue.HookSet // that has come, and whose hooks are yet to be made
	asleep       bool          // not due yet for the first time
	links        []link        // that it waits for, or has waited for
	otherwise    queue.Otherwise
	attempts     []queue.Attempt
	records      int64 // bytes that its attempts' records count for
}

// link is a job that another one waits for, or has waited for.
type link struct {
	queue.Dependency
	met store.Met
}

// waits reports whether one of a job's links has come to this.
func (j *job) waits(met store.Met) bool {
	return slices.ContainsFunc(j.links, func(l link) bool { return l.met == met })
}

// key names a request, and memory is what is remembered of it.
type key struct {
	uid  int
	text string
}

type memory struct {
	at      queue.Millis
	sum     [32]byte
	receipt store.Receipt
}

// New makes an empty store that ranks its jobs by order.
func New(order queue.Order) *Store {
	return NewAt(order, func() queue.Millis { return queue.MillisOf(time.Now()) })
}

// NewAt is New with a clock, which may stand still.
func NewAt(order queue.Order, now func() queue.Millis) *Store {
	return &Store{
		order:    order,
		now:      now,
		alarm:    make(chan struct{}, 1),
		jobs:     map[int64]*job{},
		keys:     map[key]memory{},
		forgot:   map[key]queue.Millis{},
		settings: map[string]store.Setting{},
		owners:   map[int]string{},
		queues:   map[string]store.QueueRule{},
		makers:   map[string]int{},
		passes:   map[string]int64{},
		served:   map[user]int64{},
		fresh:    map[string]int64{},
		rules:    map[gate]queue.Demand{},
		starts:   map[gate][]queue.Millis{},
		kept:     map[gate]bool{},
		promised: math.MaxInt64,

		schedules: map[string]*schedule{},
	}
}

// Now is the store's clock.
func (s *Store) Now() queue.Millis { return s.now() }

// Order is how ranks are made.
func (s *Store) Order() queue.Order {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.order
}

// Broken is never closed: memory does not fail.
func (s *Store) Broken() <-chan struct{} { return nil }

// Err is always nil.
func (s *Store) Err() error { return nil }

// Close ends the store. An Await under way fails with ErrUnavailable, as do all
// methods called later.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, w := range s.waiters {
		close(w.served)
	}
	s.waiters = nil
	return nil
}

// read runs a transaction that changes nothing.
func (s *Store) read(ctx context.Context, look func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return queue.ErrUnavailable
	}
	return look()
}

// update runs a transaction at one instant, serves who waits with what it made
// runnable, and rings the alarm if something is due earlier than was promised.
// A change that fails must fail before it changes anything.
func (s *Store) update(ctx context.Context, change func(now queue.Millis) error) error {
	return s.read(ctx, func() error {
		now := s.now()
		s.wake(now)
		s.examined = 0
		if err := change(now); err != nil {
			return err
		}
		s.decide(now)
		s.serve(now)
		if next, found := s.due(now); found && next < s.promised {
			hint(s.alarm)
		}
		return nil
	})
}

// wake has jobs whose first time has come earn points from now on.
func (s *Store) wake(now queue.Millis) {
	for _, j := range s.jobs {
		if j.asleep && j.DueAt <= now {
			j.asleep = false
			if j.State == queue.Pending {
				s.place(j, j.Since, s.enqueued)
			}
		}
	}
}

// move takes a job along the state table, and to nowhere else but where it is.
func (s *Store) move(j *job, to queue.State, now queue.Millis) {
	if to != j.State && !j.State.May(to) {
		panic("memstore: " + j.State.String() + " may not become " + to.String())
	}
	ends := to.Ended() && !j.State.Ended()
	j.State = to
	if to != queue.Processing {
		j.PausedAt, j.PausedBy = 0, 0
	}
	j.Kept = (to == queue.Completed || to == queue.Cancelled) && s.rule(j.Queue).Keep != store.Retention{}
	j.UpdatedAt = now
	j.EndedAt = 0
	if to.Ended() {
		j.EndedAt = now
	}
	s.watchers.Tell(j.Seq)
	if ends {
		s.decided = append(s.decided, end{seq: j.Seq, state: to})
		j.moment = queue.HooksAt(to)
	}
}

// end is a job that has ended so, or is gone if the state is 0, or that is to run anew.
type end struct {
	seq   int64
	state queue.State
	anew  bool
}

// decide decides what waits for jobs that have ended since, and for those that end by that.
func (s *Store) decide(now queue.Millis) {
	for ; len(s.decided) > 0; s.decided = s.decided[1:] {
		e := s.decided[0]
		for _, j := range s.all() {
			for i := range j.links {
				l := &j.links[i]
				switch {
				case l.Job != e.seq:
				case e.anew:
					if l.met == store.Failed {
						l.met = store.Open
						s.reopen(j, now)
					}
				case l.met == store.Open:
					met := l.How.Met(e.state) || j.otherwise == queue.OtherwiseRun
					if l.met = store.Well; !met {
						l.met = store.Failed
					}
					s.decideOne(j, met, now)
				}
			}
		}
	}
}

// reopen has a job wait again that was cancelled for the sake of those that it waits for, if none of
// them has failed, it still has its input, and no other job has its key.
func (s *Store) reopen(j *job, now queue.Millis) {
	if j.State != queue.Cancelled || j.Reason != queue.ReasonDependency || j.InputRemoved != 0 || j.waits(store.Failed) {
		return
	}
	if other := s.holder(j.UID, j.Unique); other != nil && !other.State.Ended() {
		return
	}
	s.wait(j, now)
	s.word(j, nil, now)
	j.Reason = ""
	s.move(j, queue.Blocked, now)
	s.tell(j, queue.EventRetried, queue.EventDetail{Reason: queue.ReasonDependency}, now)
	s.decided = append(s.decided, end{seq: j.Seq, anew: true})
}

// decideOne has a job go on after one that it waited for, if that was the last one and ended as
// asked; if not, what was asked for becomes of it.
func (s *Store) decideOne(j *job, met bool, now queue.Millis) {
	detail := queue.EventDetail{Reason: queue.ReasonDependency}
	switch {
	case j.State != queue.Blocked && j.State != queue.Held:
	case met && (j.State == queue.Held || j.waits(store.Open)):
	case met:
		s.wait(j, max(now, j.RunAt))
		s.move(j, queue.Pending, now)
		j.Reason = ""
		s.tell(j, queue.EventReleased, detail, now)
	case j.otherwise == queue.OtherwiseCancel:
		s.move(j, queue.Cancelled, now)
		j.Reason = queue.ReasonDependency
		s.tell(j, queue.EventCancelled, detail, now)
	case j.State != queue.Held:
		s.move(j, queue.Held, now)
		j.Reason = queue.ReasonDependency
		s.tell(j, queue.EventHeld, detail, now)
	}
}

// tell adds an event of a job as it is now.
func (s *Store) tell(j *job, kind queue.EventKind, d queue.EventDetail, now queue.Millis) {
	if s.newer != nil {
		close(s.newer)
		s.newer = nil
	}
	s.events = append(s.events, queue.Event{
		Seq: s.trimmed + int64(len(s.events)) + 1, At: now, Kind: kind, Job: j.Seq, ID: j.ID, State: j.State, Detail: d, Private: j.Private(),
	})
	if on := j.moment; on != 0 {
		j.moment = 0
		s.hook(j, on, now)
	}
}

// place gives a job its place in the queue, from where it begins to earn points.
func (s *Store) place(j *job, since queue.Millis, arrival int64) {
	j.Since, j.Arrival = since, arrival
	j.rank = s.order.Rank(j.Priority, since, arrival)
}

// expired reports whether a job must be cancelled instead of being run.
func (j *job) expired(now queue.Millis) bool {
	return j.State.Waiting() && !j.leased && j.ExpiresAt != 0 && j.ExpiresAt <= now
}

func (s *Store) expire(j *job, now queue.Millis) {
	s.move(j, queue.Cancelled, now)
	j.Reason = queue.ReasonExpired
	s.tell(j, queue.EventExpired, queue.EventDetail{Reason: queue.ReasonExpired}, now)
}

// all lists the stored jobs in order of seq.
func (s *Store) all() []*job {
	seqs := slices.Sorted(maps.Keys(s.jobs))
	jobs := make([]*job, len(seqs))
	for i, seq := range seqs {
		jobs[i] = s.jobs[seq]
	}
	return jobs
}

// copyJob is a job that shares nothing with j.
func copyJob(j queue.Job) queue.Job {
	j.Demands = slices.Clone(j.Demands)
	j.After = slices.Clone(j.After)
	j.Deps = slices.Clone(j.Deps)
	j.Argv = slices.Clone(j.Argv)
	j.Env = slices.Clone(j.Env)
	j.Secrets = slices.Clone(j.Secrets)
	j.OkCodes = slices.Clone(j.OkCodes)
	j.NoRetryCodes = slices.Clone(j.NoRetryCodes)
	j.DeferCodes = slices.Clone(j.DeferCodes)
	j.Labels = maps.Clone(j.Labels)
	if j.Backoff.Jitter != nil {
		jitter := *j.Backoff.Jitter
		j.Backoff.Jitter = &jitter
	}
	if j.Progress != nil {
		told := *j.Progress
		j.Progress = &told
	}
	if j.AsUID != nil {
		uid := *j.AsUID
		j.AsUID = &uid
	}
	return j
}

// hint wakes who listens to c. A hint that nobody has taken yet stands for both.
func hint(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
