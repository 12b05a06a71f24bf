package engine

import (
	"context"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/readahead"
	"github.com/queuectl/queuectl/store/rules"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// Tests in the package engine_test open stores of both backends. This file exports the functions that these
// tests need from the engine and from the tests in package engine.
var (
	NewDraft                 = newDraft
	CompletedSettlement      = completedSettlement
	DefaultRankOrder         = defaultRankOrder
	NewFixture               = newFixture
	RunRandomWalks           = runRandomWalks
	RunMirroredRandomWalks   = runMirroredRandomWalks
	SimulateOtherNodeCommits = simulateOtherNodeCommits
	CallEveryOperation       = callEveryOperation
	CompleteOneJob           = completeOneJob
	ApplyAllDueChanges       = applyAllDueChanges
	SumStatistics            = sumStatistics
	EnqueueInTx              = enqueueInTx
)

// NewStoreForEngine returns a Store, the type that the tests in package engine use, for the engine of any store.
func NewStoreForEngine(s *Engine) *Store {
	conn, _ := s.writerConn.(*sqlitedb.Conn) // nil if the database is on a server
	return &Store{Engine: s, conn: conn}
}

// Conn returns the writer's connection to an SQLite file.
func (s *Store) Conn() *sqlitedb.Conn { return s.conn }

func (e *Engine) SetClock(now func() queue.UnixMillis) { e.clock = now }

func (e *Engine) SetPrefetchThreshold(minJobs int) { e.minJobsForPrefetch = minJobs }

// DoRemoval executes an operation that may use the whole reserve of disk space.
func (e *Engine) DoRemoval(ctx context.Context, c PriorityClass, run func(*Tx) error) error {
	return e.executeOperation(ctx, &queuedOperation{priorityClass: c, mayUseWholeDiskReserve: true, freesSpace: true,
		run: run})
}

// DoWithForecast executes an operation with a forecast: it will probably record the given ends of attempts and
// claim the given number of jobs. The operation may do something else.
func (e *Engine) DoWithForecast(ctx context.Context, settlements []store.Settlement, wantedJobs int,
	run func(*Tx) error) error {
	return e.executeOperation(ctx, &queuedOperation{priorityClass: UrgentClass,
		operationForecast: operationForecast{expectedSettlements: settlements, expectedClaimJobs: wantedJobs}, run: run})
}

func (t *Tx) Rules() *rules.Rules { return &t.rules }

// CountUnconfirmedPrewrittenJobs returns the number of rows of jobs that were written before the lock was held and that
// the rules have not confirmed yet.
func (t *Tx) CountUnconfirmedPrewrittenJobs() int { return len(t.prewrite.unconfirmedJobs) }

// HasClaimPrefetch reports whether the query for a claim was sent early and its rows can still be used.
func (t *Tx) HasClaimPrefetch() bool { return t.claimPrefetch != nil }

// ReadAheadJobsByLane returns the jobs that were read ahead, by the id of their lane. A lane holds the waiting jobs of
// one queue and user that need the same locks and other limits.
func (t *Tx) ReadAheadJobsByLane() map[int64]readahead.LaneJobs { return t.readAhead.JobsByLane() }

// HasClaimWaiter reports whether a caller of AwaitJobs waits for a job that can start.
func (e *Engine) HasClaimWaiter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.waitingClaim != nil
}

// CountWaitingOperations returns the number of operations that wait for a commit.
func (e *Engine) CountWaitingOperations() int { return e.waitingOps.Len() }

// BlockCommits prevents commits until release is called.
func (e *Engine) BlockCommits() (release func()) {
	<-e.writerToken
	return func() { e.writerToken <- struct{}{} }
}

// HasStaleClosedLanes reports whether the engine must still check again the lanes (lists of jobs) that are closed
// only on this node.
func (e *Engine) HasStaleClosedLanes() bool { return e.cache.locallyClosedLanesStale }

// CheckReloadKeepsTurnsForgotten checks that a reload of the caches brings back neither a queue that was
// removed nor a user's turn (place in the order of users) that the engine has dropped. The queue "q" must have a rule.
func (e *Engine) CheckReloadKeepsTurnsForgotten(t *testing.T) {
	t.Helper()
	err := e.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
		e.cache.lanes.FindOrAddQueue("q").LastPermanentTurn = 7
		e.cache.lanes.FindOrAddQueue("gone").LastTurnByUID = map[int]int64{1: 8}
		e.cache.lastServedQueueTurn = 5
		e.cache.lanes.FindOrAddQueue("gone").NextTurn = 5 // a queue that is created again also starts with this value
		e.cache.lanes.FindOrAddQueue("waits").NextTurn = 6
		if err := tx.reloadCache(); err != nil {
			return err
		}
		if from := e.cache.lanes.FindOrAddQueue("q").LastPermanentTurn; from != 7 {
			t.Errorf("after reload, FixedTurns is %d, want 7", from)
		}
		if e.cache.lanes.Queues["gone"] != nil {
			t.Error("reload created a queue that does not exist")
		}
		if q := e.cache.lanes.Queues["waits"]; q == nil || q.NextTurn != 6 {
			t.Errorf("reload lost the next turn of a queue: %+v", q)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// countingConn counts the round trips: the statements for whose result the caller waits.
type countingConn struct {
	database.Conn
	roundTrips int
}

func (c *countingConn) ExecRowsAffected(sql string, args ...any) (int64, error) {
	c.roundTrips++
	return c.Conn.ExecRowsAffected(sql, args...)
}

func (c *countingConn) Query(handleRow func(r database.Row) (more bool, err error), sql string, args ...any) error {
	c.roundTrips++
	return c.Conn.Query(handleRow, sql, args...)
}

func (c *countingConn) QueryAll(queries []database.Query) error {
	c.roundTrips++
	return c.Conn.QueryAll(queries)
}

func (c *countingConn) QueryNumber(sql string, args ...any) (int64, error) {
	c.roundTrips++
	return c.Conn.QueryNumber(sql, args...)
}

// CountRefreshRoundTrips reads the jobs of the queue "default" that can start again: first those of one user whose
// jobs another node has changed, then those of all users. It returns the numbers of round trips of both
// reads.
func (e *Engine) CountRefreshRoundTrips(t *testing.T, userCount int) (oneUserRoundTrips, allUsersRoundTrips int) {
	t.Helper()
	refresh := func(checkOrMarkStale func(q *lanes.Queue)) (roundTrips int) {
		err := e.RunAndCommit(t.Context(), UrgentClass, func(tx *Tx) error {
			q := e.cache.lanes.FindOrAddQueue("default")
			checkOrMarkStale(q)
			c := &countingConn{Conn: tx.Conn}
			tx.Conn = c
			if err := tx.refreshStaleQueues(); err != nil {
				t.Error(err)
			}
			tx.Conn, roundTrips = c.Conn, c.roundTrips
			if countUsersWithOpenLanes(e.cache.lanes, q) != userCount {
				t.Errorf("%d of %d users have open lanes", countUsersWithOpenLanes(e.cache.lanes, q), userCount)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return roundTrips
	}
	oneUserRoundTrips = refresh(func(q *lanes.Queue) {
		if q.AllUsersLanesStale || len(q.UIDsWithStaleLanes) != 1 {
			t.Errorf("of %d users, a node reads the lanes of %v, of all: %v; want user 1", userCount, q.UIDsWithStaleLanes,
				q.AllUsersLanesStale)
		}
	})
	return oneUserRoundTrips, refresh(e.cache.lanes.MarkQueueLanesStale)
}

// countUsersWithOpenLanes returns the number of users in a queue who have jobs that can start.
func countUsersWithOpenLanes(ls *lanes.LaneCache, q *lanes.Queue) (n int) {
	ls.EachContendingLane(q, func(*rules.Lane, int64) { n++ })
	return n
}

// enqueueInTx enqueues a job within a transaction.
func enqueueInTx(t *Tx, j queue.Job) error {
	list, err := encodeDraftTexts([]queue.Job{j})
	if err != nil {
		return err
	}
	_, err = t.enqueue(store.EnqueueRequest{Drafts: []queue.Job{j}, UID: j.UID}, list)
	return err
}
