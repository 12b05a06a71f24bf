// Package sqlite is the store's contract in SQL, over one embedded SQLite
// database in WAL mode, written by one caller at a time, who commits for all that wait.
package sqlite

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// Names of files in the state folder.
const (
	fileName  = "queuectl.db"
	markName  = "initialized" // a database has existed here, and came so far: see mark
	doubtName = "check"       // an I/O error was met: check before use
	reserve   = "reserve"     // given up when the disk is full
	longRead  = 2 * time.Second
)

// Store is a store.Store over SQLite. Make it with Open.
type Store struct {
	dir  string
	now  func() queue.Millis
	free func() (int64, error)
	db   *conn // the writer's
	read *readers

	turn   chan struct{} // holds one token: the right to write
	group  []*op         // of whoever has it
	ended  bool          // nothing is written any more; whoever has the turn
	broken chan struct{} // closed when the store has failed
	alarm  chan struct{}
	files  [2]os.FileInfo // database and WAL, as opened
	frozen files          // as they were when they were opened to be read only; else zero
	seen   fileSizes      // theirs after the last commit; the writer's
	space  spaceCheck     // the writer's
	wal    walCheck       // the writer's
	log    *slog.Logger

	watchers store.Watchers

	starved atomic.Pointer[string] // why the WAL cannot be emptied

	copying atomic.Bool // a copy is being made
	backup  uintptr     // the writer's: SQLite's part of it, 0 if there is none

	dice *rand.Rand // the writer's
	// lanesKept is how many lanes without jobs are kept for those that come: to make one costs
	// more than to keep it.
	lanesKept int64
	mem       memory // the writer's: what the tables' heads hold
	// rechecks are the rules', which an undone transaction leaves as they are; the writer's.
	rechecks rules.Memory

	minute minuteFigures // the writer's
	usual  estimates

	mark  mark   // the writer's
	file  string // which the database is
	moved bool   // it was another one when it was used last

	order    atomic.Pointer[queue.Order] // as the last commit has it
	quota    atomic.Int64                // memory's maxUser
	mu       sync.Mutex
	err      error          // why the store has failed; guarded by mu
	closing  bool           // guarded by mu
	waiting  [classes][]*op // operations; guarded by mu
	counts   store.Counts
	reserved string        // as meta has it; guarded by mu
	waiter   *waiter       // the claim that waits for a job; guarded by mu
	last     int64         // event that is stored; guarded by mu
	newer    chan struct{} // closed by the next one, nil if nobody waits; guarded by mu
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
	linked    bool            // some job waits for another one, or has done so
	ended     int64           // jobs whose edges are to be decided
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
	// upto is, of hours and days, up to when the figures are made of finer ones; tidied is the hour in
	// which that was looked at last.
	upto   [store.Day + 1]queue.Millis
	tidied queue.Millis
}

// Options are what Open needs to know.
type Options struct {
	Dir string // the state folder, which exists
	// Order is how ranks are made; OrderOf, if set, says it by the stored settings.
	Order   queue.Order
	OrderOf func([]store.Setting) (queue.Order, error)
	Log     *slog.Logger // nil is none
}

// Open opens the database in a folder and brings its schema up to date. It
// makes a new one only where none has ever been. The caller makes sure that no
// other process uses the folder. It gives up when ctx ends; the next one goes on, as with a
// large batch that was committed and is being taken in.
func Open(ctx context.Context, o Options) (*Store, error) {
	path := filepath.Join(o.Dir, fileName)
	system, err := fileSystemOf(o.Dir)
	if err == nil {
		err = system.refuse(o.Dir)
	}
	if err == nil {
		err = checkFolder(o.Dir, path)
	}
	if err == nil {
		err = checkFileLimit(path)
	}
	if err != nil {
		return nil, err
	}
	if err := checkVersion(sqlite3.SQLITE_VERSION_NUMBER); err != nil {
		return nil, err
	}
	s := &Store{
		dir:  o.Dir,
		log:  o.Log,
		wal:  walCheck{keep: walKeep, alarm: walAlarm},
		now:  func() queue.Millis { return queue.MillisOf(time.Now()) },
		free: func() (int64, error) { return freeBytes(o.Dir) },

		lanesKept: 1000,
		turn:      make(chan struct{}, 1),
		broken:    make(chan struct{}),
		alarm:     make(chan struct{}, 1),
	}
	var seed [32]byte
	crand.Read(seed[:]) // it cannot fail
	s.dice = rand.New(rand.NewChaCha8(seed))
	s.order.Store(&o.Order)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if failpoint.On("smallwal") {
		s.wal = walCheck{keep: 1 << 20, alarm: 4 << 20}
	}
	if err := s.open(path); err != nil {
		return nil, explain(path, err)
	}
	s.turn <- struct{}{}
	s.mem.order = o.Order
	if o.OrderOf != nil {
		var settings []store.Setting
		if settings, err = s.Settings(ctx); err == nil {
			s.mem.order, err = o.OrderOf(settings)
		}
	}
	order := s.mem.order
	s.order.Store(&order)
	if err == nil {
		err = s.resumeLanes(ctx)
	}
	if err == nil {
		err = s.resumeRanking(ctx)
	}
	if err == nil {
		err = s.endBatches(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Store) open(path string) (err error) {
	if s.db, err = openConn(path, writerPragmas()...); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.db.close()
			s.mark.close()
		}
	}()
	if err = s.checkDoubt(); err != nil {
		return err
	}
	if err = checkMark(s.db, s.dir); err != nil {
		return err
	}
	if err = migrate(s.db, migrations); err != nil {
		return err
	}
	if s.mark, err = openMark(s.dir); err != nil {
		return err
	}
	sweepCopies(s.dir)
	sweepRestoring(filepath.Join(s.dir, restoring))
	if err = s.load(); err != nil {
		return err
	}
	if err = s.loadFile(); err != nil {
		return err
	}
	if s.files, err = statFiles(path); err != nil {
		return err
	}
	s.seen = sizesOf(s.files)
	s.keepReserve()
	s.read = newReaders(path, readWrite)
	return nil
}

const busyTimeout = `busy_timeout = 5000` // ms, the writer's

// writerPragmas are those of the connection that writes. Its cache is small: a
// commit that has moved pages of a tree walks through all of it.
func writerPragmas() []string {
	synchronous := "FULL"
	switch {
	case failpoint.On("nosync"):
		synchronous = "OFF"
	case failpoint.On("normalsync"):
		synchronous = "NORMAL"
	}
	return []string{
		busyTimeout, `journal_mode = wal`, `synchronous = ` + synchronous, `wal_autocheckpoint = 1000`,
		`journal_size_limit = ` + strconv.Itoa(walKeep), `cache_size = -2048`, `temp_store = memory`, `foreign_keys = 1`, `trusted_schema = 0`,
	}
}

// checkFolder refuses to make a database where one has been lost, and files
// that are not ours to trust.
func checkFolder(dir, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if _, err := os.Stat(filepath.Join(dir, markName)); err == nil {
			return fmt.Errorf("the database %s is missing, but one has been here: put it back, or remove %s to begin with an empty queue", path, filepath.Join(dir, markName))
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return fmt.Errorf("make the database: %w", err)
		}
		return f.Close() // nobody has locked it yet
	case err != nil:
		return fmt.Errorf("open the database: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("the database %s is not a regular file", path)
	case info.Size() == 0:
		if _, err := os.Stat(filepath.Join(dir, markName)); err == nil {
			return fmt.Errorf("the database %s is empty, but it has held jobs: put a copy back, or remove %s to begin with an empty queue", path, filepath.Join(dir, markName))
		}
	}
	if err := checkPrivate(path, info); err != nil {
		return fmt.Errorf("the database %w", err)
	}
	return nil
}

// explain adds to an error of opening what a person can do.
func explain(path string, err error) error {
	var e *sqliteError
	if !errors.As(err, &e) {
		return err
	}
	switch e.code {
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_IN_PAGE: // SQLite does not keep the system's word for it
		if free, failed := freeBytes(filepath.Dir(path)); failed == nil && free < sharedBytes {
			return noSpaceFor(path, err)
		}
	}
	switch e.code & 0xff {
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return fmt.Errorf("the database %s is damaged (%w): it was left as it is; keep a copy, then put a backup in its place", path, err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN:
		return fmt.Errorf("the database %s cannot be written (%w): check that its folder is writable by this user", path, err)
	case sqlite3.SQLITE_FULL:
		return noSpaceFor(path, err)
	case sqlite3.SQLITE_BUSY:
		return fmt.Errorf("the database %s is locked by another program: end that program and start again (%w)", path, err)
	}
	return fmt.Errorf("open %s: %w", path, err)
}

// sharedBytes is the least that SQLite's files beside the database take.
const sharedBytes = 64 << 10

// noSpaceFor is the error of a database that cannot be opened until there is space.
func noSpaceFor(path string, err error) error {
	return queue.Errorf(queue.CodeNoSpace, "no space on the disk for the database %s: free some (%v)", path, err)
}

// checkDoubt runs SQLite's quick check if the last service met an I/O error.
func (s *Store) checkDoubt() error {
	doubt := filepath.Join(s.dir, doubtName)
	if _, err := os.Stat(doubt); err != nil {
		return nil
	}
	verdict := ""
	err := s.db.query(func(r row) (bool, error) {
		verdict = r.text(0)
		return false, nil
	}, `PRAGMA quick_check(1)`)
	if err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("the database in %s is damaged (%s): it was left as it is; keep a copy, then put a backup in its place", s.dir, verdict)
	}
	return os.Remove(doubt)
}

func (s *Store) load() error {
	s.mem = memory{leases: map[int64]*rules.Lease{}, used: map[int64]int{}, users: map[int]user{}, owners: map[int]string{}, batches: map[int64]batch{}, lanes: &lanes{plain: map[laneName]*rules.Lane{}, of: map[int][]*rules.Lane{}, queues: map[string]*queueState{}, over: map[int64]int{}}}
	reserved := ""
	err := s.db.query(func(r row) (bool, error) {
		s.mem.nextSeq, s.mem.enqueued, s.mem.nextEvent = r.num(0), r.num(1), r.num(2)
		for i, state := range queue.States() {
			s.mem.counts[state] = r.num(3 + i)
		}
		reserved, s.mem.outputs, s.mem.rankedBy, s.mem.list, s.mem.commits, s.mem.queues = r.text(11), r.num(12), r.text(13), r.text(14), r.num(15), r.text(16)
		s.mem.upto[store.Hour], s.mem.upto[store.Day] = queue.Millis(r.num(17)), queue.Millis(r.num(18))
		return false, nil
	}, `SELECT next_seq, enqueued, next_event, blocked, held, pending, failed, processing, completed, dead, cancelled, reserved, output_bytes, ranked_by, users, commits, queues, hours_upto, days_upto FROM meta`)
	if err != nil {
		return err
	}
	if s.mem.nextSeq < 1 || s.mem.nextEvent < 1 {
		return fmt.Errorf("its numbers are lost: %w", &sqliteError{sqlite3.SQLITE_CORRUPT, "damaged meta row"})
	}
	leased := func(r row) (bool, error) {
		j := readMoved(r, headColumns)
		s.mem.leases[j.Seq] = &rules.Lease{Job: j, Running: j.Standing == rules.Running}
		return true, nil
	}
	if err := s.db.query(leased, `SELECT `+headColumns+` FROM jobs INDEXED BY jobs_running WHERE place = 3`); err != nil {
		return err
	}
	held, err := numbers(reserved)
	if err != nil {
		return err
	}
	for seq, fence := range held {
		if err := s.db.query(leased, `SELECT `+headColumns+` FROM jobs WHERE seq = ?`, seq); err != nil {
			return err
		}
		if l := s.mem.leases[seq]; l != nil { // else its row is lost
			l.Job.Fence = fence
		}
	}
	s.reserved = reserved
	if err := s.loadUsers(); err != nil {
		return err
	}
	if err := s.loadOwners(); err != nil {
		return err
	}
	if err := s.loadEdges(); err != nil {
		return err
	}
	if err := s.loadUsual(); err != nil {
		return err
	}
	s.publish()
	return s.loadBatches()
}

// Now is the store's clock.
func (s *Store) Now() queue.Millis { return s.now() }

// Broken is closed when the store has failed for good; Err says why. Whoever
// runs the store then ends the process: what it holds is on the disk.
func (s *Store) Broken() <-chan struct{} { return s.broken }

// Err is why the store has failed, or nil.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the store after what has begun.
func (s *Store) Close() error {
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
		unwritten = s.writeUsual()
	}
	s.ended = true
	s.endBackup()
	s.mu.Lock()
	w := s.waiter
	s.waiter = nil
	s.mu.Unlock()
	if w != nil {
		w.done <- granted{err: errClosed}
	}
	s.turn <- struct{}{} // who comes later is refused
	return errors.Join(unwritten, s.read.close(), s.db.close(), s.mark.close())
}

// DueSooner hints that something is due earlier than the last Promote said.
func (s *Store) DueSooner() <-chan struct{} { return s.alarm }

// Watch hints at changes of some jobs.
func (s *Store) Watch(seqs []int64) *store.Watching { return s.watchers.Watch(seqs) }

// counted is what the last commit counted.
func (s *Store) counted() store.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Counts is how many jobs are in each state.
func (s *Store) Counts() store.Counts {
	c := s.counted()
	if s.frozen != (files{}) {
		c.Bytes = s.frozen[0].size + max(0, s.frozen[1].size)
		return c
	}
	if files, err := statFiles(filepath.Join(s.dir, fileName)); err == nil {
		c.Bytes = files[0].Size() + files[1].Size()
	}
	return c
}

// LastEvent is the number of the newest event.
func (s *Store) LastEvent() (last int64, newer <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newer == nil {
		s.newer = make(chan struct{})
	}
	return s.last, s.newer
}

// publish makes the writer's counts visible to readers.
func (s *Store) publish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = s.mem.nextEvent - 1
	s.counts.States, s.counts.Enqueued, s.counts.Reranking = s.mem.counts, s.mem.enqueued, s.mem.ranking.state != 0
	s.counts.Outputs = s.mem.outputs
}

var (
	_ store.Store      = (*Store)(nil)
	_ store.Maintainer = (*Store)(nil)
)

var errClosed = queue.Errorf(queue.CodeUnavailable, "the queue is closed; try again later")
