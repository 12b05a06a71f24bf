// Package sql is the store's contract in SQL: an engine over the tables of a database, which is one
// embedded SQLite file or on a PostgreSQL server.
package sql

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// engine keeps jobs in the tables of a database. One caller at a time writes, and commits for all that wait.
// See docs/decisions/0013.
type engine struct {
	host host
	now  func() queue.Millis
	db   conn // the writer's
	read *readers
	log  *slog.Logger

	turn     chan struct{} // holds one token: the right to write
	group    []*op         // of whoever has it
	ended    bool          // nothing is written any more; whoever has the turn
	broken   chan struct{} // closed when the store has failed
	alarm    chan struct{}
	looks    bool // there is no writer: what is stored is read only
	hasInbox bool // jobs may be handed in by other ways, and their ids are taken

	watchers store.Watchers

	copying atomic.Bool // a copy is being made

	dice *rand.Rand // the writer's
	// lanesKept is how many lanes without jobs are kept for those that come: to make one costs
	// more than to keep it.
	lanesKept int64
	mem       memory // the writer's: what the tables' heads hold
	// rechecks are the rules', which an undone transaction leaves as they are; the writer's.
	rechecks rules.Memory

	readied    bool         // what another node has changed may be runnable, and was not claimed yet; the writer's
	hereStale  bool         // lanes that are shut to this node alone are to be looked at again; the writer's
	hereLooked queue.Millis // when they were
	standsIn   queue.Millis // when this node looks for another one's timers; the writer's
	leaseRoom  []int64      // for the next transaction's leases; the writer's

	served    map[served]int64 // when operations of users were carried out last, by serving; the writer's
	serving   int64
	slow      map[int]bool // users whose last operation took slowOp or longer; the writer's
	surprised bool         // the last transaction met errForeseen; the writer's
	shared    time.Time    // last time that operations of several users waited; used by the writer only
	late      *op          // a slow user's operation, which is committed next, alone; the writer's

	looked  string // the queue that was claimed from last; the writer's
	typical int    // bytes that a job takes to be claimed, of late; the writer's

	minute minuteFigures // the writer's
	usual  estimates

	node int64 // this one's number in the database, 0 of a store that has one alone
	// foreign are jobs that another node has changed, or any, of which whoever watches was not told yet; the writer's.
	foreign foreigners

	file  string // which database it is: a copy is another one
	moved bool   // it was another one when it was used last

	order   atomic.Pointer[queue.Order] // as the last commit has it
	created time.Time
	// commitStart is when the commit that is in progress started, in nanoseconds since created; 0 if none is.
	commitStart atomic.Int64
	mu          sync.Mutex
	err         error          // why the store has failed; guarded by mu
	closing     bool           // guarded by mu
	waiting     [classes][]*op // operations; guarded by mu
	counts      store.Counts
	usage       map[int]userUsage     // by uid; guarded by mu
	reserved    map[int64]reservation // by job; guarded by mu
	waiter      *waiter               // the claim that waits for a job; guarded by mu
	last        int64                 // event that is stored; guarded by mu
	// servedSeen is, by queue, queueState.served as of the last commit. The inner maps never change; guarded by mu.
	servedSeen map[string]map[int]int64
	newer      chan struct{} // closed by the next event, nil if no caller waits; guarded by mu
}

// foreigners are jobs that another node has changed, or any.
type foreigners struct {
	seqs []int64
	uids []int // users whose counts have changed with them
	any  bool
}

// newEngine is an engine that is not open yet.
func newEngine(h host, order queue.Order, log *slog.Logger) *engine {
	e := &engine{
		host: h, log: log, lanesKept: 1000, created: time.Now(),
		now:    func() queue.Millis { return queue.MillisOf(time.Now()) },
		turn:   make(chan struct{}, 1),
		broken: make(chan struct{}),
		alarm:  make(chan struct{}, 1),
		usage:  map[int]userUsage{},

		servedSeen: map[string]map[int]int64{},
	}
	if log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	var seed [32]byte
	crand.Read(seed[:]) // it cannot fail
	e.dice = rand.New(rand.NewChaCha8(seed))
	e.order.Store(&order)
	return e
}

// begin goes on with what is loaded.
func (s *engine) begin(ctx context.Context, o Options) error {
	s.turn <- struct{}{}
	s.mem.order = o.Order
	if o.OrderOf != nil {
		settings, err := s.Settings(ctx)
		if err == nil {
			s.mem.order, err = o.OrderOf(settings)
		}
		if err != nil {
			return err
		}
	}
	order := s.mem.order
	s.order.Store(&order)
	if err := s.resumeLanes(ctx); err != nil {
		return err
	}
	if err := s.resumeRanking(ctx); err != nil {
		return err
	}
	return s.endBatches(ctx)
}

// memory is what the writer keeps of the database, so that it need not ask.
type memory struct {
	commits   int64
	nextSeq   int64
	nextEvent int64
	enqueued  int64
	counts    [queue.Cancelled + 1]int64
	nextDue   queue.Millis // the earliest timer, as of the last Promote
	lanes     *lanes
	leases    map[int64]*rules.Lease
	used      map[int64]int   // units that leases hold, by gate; of rates those that are not known to have started
	turn      int64           // of the queue that was served last, while weights differ
	served    int64           // jobs that this node has claimed, which says when users have turns
	linked    bool            // some job waits for another one, or has done so
	ended     int64           // jobs whose edges are to be decided
	endedUID  int64           // whose was the last one that was looked at
	empties   int64           // lanes without jobs
	rechecked int64           // gates up to this one are looked at again, 0 if all are
	promoted  queue.Millis    // when Promote was called last
	hooks     store.Hooks     // that are made for jobs' sake
	users     map[int]user    // who have jobs that wait or are leased
	maxUser   int             // jobs of one user may be leased, 0 is any number
	listed    []int           // users who stand in meta.users; replaced as batches are
	list      string          // that is meta.users
	changed   []string        // queues that stand in meta.queues; replaced as batches are
	queues    string          // that is meta.queues
	owners    map[int]string  // by uid, of those that are not former
	disowning []disowning     // replaced, not changed, by each transaction
	batches   map[int64]batch // by number, but for forgotten ones
	committed int64           // jobs of committed batches
	order     queue.Order
	ranking   ranking
	rankedBy  string // as meta has it: the order of all ranks, "" while they are made anew
	outputs   int64  // bytes of all outputs
	kept      int64  // jobs that ended while their queue had its own retention
	gathered  bool   // leases that are not known to have started stand in meta, though each node has a place for its own
	// upto is, of hours and days, up to when the figures are made of finer ones; tidied is the hour in
	// which that was looked at last.
	upto   [store.Day + 1]queue.Millis
	tidied queue.Millis
}

// load reads it for the first time.
func (s *engine) load() error {
	if err := s.loadHeads(); err != nil {
		return err
	}
	if err := s.loadUsual(); err != nil {
		return err
	}
	s.publish()
	return nil
}

// loadHeads reads all but what the database does not tell, in two goes.
func (s *engine) loadHeads() error {
	was := &s.mem
	s.mem = memory{maxUser: was.maxUser, hooks: was.hooks, leases: map[int64]*rules.Lease{}, used: map[int64]int{}, users: map[int]user{}, owners: map[int]string{}, batches: map[int64]batch{}, lanes: &lanes{plain: map[laneName]*rules.Lane{}, of: map[int][]*rules.Lane{}, queues: map[string]*queueState{}, over: map[int64]int{}, here: map[int64]int64{}}}
	var first, second reads
	var moved movedNotes
	moved.read(&first)
	reserved, gathered, ordered := "", "", ""
	first.add(func(r row) (bool, error) {
		s.mem.nextSeq, s.mem.enqueued, s.mem.nextEvent = r.num(0), r.num(1), r.num(2)
		for i, state := range queue.States() {
			s.mem.counts[state] = r.num(3 + i)
		}
		gathered, s.mem.outputs, s.mem.rankedBy, s.mem.list, s.mem.commits, s.mem.queues = r.text(11), r.num(12), r.text(13), r.text(14), r.num(15), r.text(16)
		ordered = r.text(19)
		s.mem.upto[store.Hour], s.mem.upto[store.Day] = queue.Millis(r.num(17)), queue.Millis(r.num(18))
		return false, nil
	}, `SELECT next_seq, enqueued, next_event, blocked, held, pending, failed, processing, completed, dead, cancelled, reserved, output_bytes, ranked_by, users, commits, queues, hours_upto, days_upto, ordered_by FROM meta`)
	leased := func(r row) (bool, error) {
		j := readMoved(r, headColumns)
		s.mem.leases[j.Seq] = &rules.Lease{Job: j, Running: j.Standing == rules.Running}
		return true, nil
	}
	first.add(leased, `SELECT `+headColumns+` FROM jobs INDEXED BY jobs_running WHERE place = 3`)
	s.host.readReserved(&first, func(r row) (bool, error) {
		reserved += r.text(0)
		return true, nil
	})
	s.readUsers(&first)
	s.readQueues(&first)
	s.readOwners(&first)
	s.readEdges(&first)
	s.readBatches(&first)
	lanesTaken := s.readLanes(&first)
	if err := s.db.queries(first.list); err != nil {
		return err
	}
	if err := moved.refuse(); err != nil {
		return err
	}
	if s.mem.nextSeq < 1 || s.mem.nextEvent < 1 {
		return fmt.Errorf("the database has lost its counters: %w", damage(`the row of the table "meta" is damaged`))
	}
	s.mem.gathered = gathered != ""
	reserved += gathered
	held, err := numbers(reserved)
	if err != nil {
		return err
	}
	if len(held) > 0 {
		var list []byte
		for seq := range held {
			list = append(strconv.AppendInt(list, seq, 10), ' ')
		}
		second.add(leased, `SELECT `+headColumns+` FROM jobs WHERE `+s.db.among("seq"), strings.TrimSpace(string(list)))
		if err := s.db.queries(second.list); err != nil {
			return err
		}
	}
	nodes := fieldOf(reserved, 2)
	for seq, fence := range held {
		if l := s.mem.leases[seq]; l != nil { // else its row is lost
			l.Job.Fence, l.Job.Node = fence, nodes[seq]
		}
	}
	s.mem.order = readOrder(ordered)
	if err := s.countUsers(); err != nil {
		return err
	}
	if err := s.countQueues(); err != nil {
		return err
	}
	lanesTaken()
	s.countBatches()
	return nil
}

// Now is the store's clock.
func (s *engine) Now() queue.Millis { return s.now() }

// Broken is closed when the store has failed for good; Err says why. Whoever
// runs the store then ends the process: what it holds is on the disk.
func (s *engine) Broken() <-chan struct{} { return s.broken }

// Err is why the store has failed, or nil.
func (s *engine) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the store after what has begun.
func (s *engine) Close() error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	s.mu.Unlock()
	if !first {
		return nil
	}
	<-s.turn
	for !s.idle() {
		s.lead()
	}
	var unwritten error
	if s.Err() == nil && !s.ended { // else nothing is written any more
		// Estimates may be lost: a store that cannot write them now closes without an error.
		unwritten = s.writeUsual()
		if k := kindOf(unwritten); k == full || k == busy || errors.As(unwritten, new(serverLost)) {
			unwritten = nil
		}
	}
	s.ended = true
	s.mu.Lock()
	w := s.waiter
	s.waiter = nil
	s.mu.Unlock()
	if w != nil {
		w.done <- granted{err: errClosed}
	}
	s.turn <- struct{}{} // who comes later is refused
	return errors.Join(unwritten, s.read.close(), s.host.close())
}

// DueSooner hints that something is due earlier than the last Promote said.
func (s *engine) DueSooner() <-chan struct{} { return s.alarm }

// Watch hints at changes of some jobs.
func (s *engine) Watch(seqs []int64) *store.Watching { return s.watchers.Watch(seqs) }

// counted is what the last commit counted.
func (s *engine) counted() store.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Counts is how many jobs are in each state.
func (s *engine) Counts() store.Counts {
	c := s.counted()
	c.Bytes = s.host.bytes()
	return c
}

// LastEvent is the number of the newest event.
func (s *engine) LastEvent() (last int64, newer <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newer == nil {
		s.newer = make(chan struct{})
	}
	return s.last, s.newer
}

// publish makes the writer's counts visible to readers.
func (s *engine) publish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = s.mem.nextEvent - 1
	s.counts.States, s.counts.Enqueued, s.counts.Reranking = s.mem.counts, s.mem.enqueued, s.mem.ranking.state != 0
	s.counts.Outputs, s.counts.Kept = s.mem.outputs, s.mem.kept
	s.noteAllUsageLocked()
	s.listAllReserved()
}

var errClosed = queue.Errorf(queue.CodeUnavailable, "the service is stopping and has closed the queue; try again later")
