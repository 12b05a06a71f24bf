package sql

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// reload reads the writer's memory from the tables again, because another node has changed them. It keeps
// state that exists only in this node's memory. It fails with errPrewrite if this transaction wrote rows
// before it held the writer lock, because it would read these provisional rows as final ones.
func (t *tx) reload() error {
	if t.prewrite != nil {
		return errPrewrite
	}
	s, old := t.s, t.s.mem
	err := s.loadHeads()
	if err == nil && s.mem.lanes.hasGates {
		err = t.setNeedsOfLeases(old.leases)
	}
	if err != nil {
		s.mem = old
		return err
	}
	m := &s.mem
	for seq, l := range m.leases {
		if old := old.leases[seq]; old != nil && old.Job.Fence == l.Job.Fence {
			m.leases[seq] = &rules.Lease{Job: l.Job, Running: l.Running, Needs: l.Needs, Turn: old.Turn}
		}
	}
	m.nextDue, m.lastPromote, m.recheckedUpTo, m.statisticsTidied = old.nextDue, old.lastPromote, old.recheckedUpTo,
		old.statisticsTidied
	m.lanes.node, m.lanes.closedHere = old.lanes.node, old.lanes.closedHere
	m.lastPass, m.turnCount, m.lastDecidedUID = old.lastPass, old.turnCount, old.lastDecidedUID
	for name, q := range old.lanes.queues {
		if q.Pass > old.lastPass { // keep only a higher Pass; a queue with a lower one is treated like a new queue
			m.lanes.state(name).Pass = q.Pass
		}
		if reloaded := m.lanes.queues[name]; reloaded != nil {
			reloaded.lastTurns, reloaded.fixedTurns = q.lastTurns, q.fixedTurns
		}
	}
	s.mu.Lock()
	maps.DeleteFunc(s.publishedTurns, func(name string, _ map[int]int64) bool { return m.lanes.queues[name] == nil })
	s.mu.Unlock()
	for n, b := range m.batches {
		if known, found := old.batches[n]; found {
			b.lastFrameAt, b.perQueue = known.lastFrameAt, known.perQueue
			if !b.committed {
				u := m.users[b.uid]
				u.names += known.givenIDs - b.givenIDs
				m.putUser(b.uid, u)
			}
			b.givenIDs = known.givenIDs
			m.batches[n] = b
		}
	}
	s.minute = minuteStatistics{}
	t.undo, t.users, t.queues, t.leased, t.leases, t.leasedBy = nil, nil, nil, false, nil, nil
	s.closedHereStale = true
	t.memoryAtStart, s.foreignChanges.any, s.jobsReadied = *m, true, true
	s.watchForeignTimer(t.now, t.now) // watch for timers of other nodes that the tables may now contain
	return nil
}

// errExpelled stops the store of a node whose lease has expired. Other nodes have taken over its jobs.
var errExpelled = database.Damage("this node did not renew its lease in time, so other nodes have taken over its jobs")

// beginTx implements backend. If the server rejects a row written before the writer lock was held, another
// node may have taken over that job. In this case, beginTx returns errPrewrite, and the transaction is
// retried without such rows.
func (s *Server) beginTx(t *tx) error {
	err := s.takeWriterLock(t)
	if err != nil && t.prewrite != nil && database.KindOf(err) == database.Mistake {
		return errPrewrite
	}
	return err
}

// takeWriterLock begins a transaction and takes the writer lock, which is the lock on the row of the table
// meta. It then applies the changes of other nodes.
// See docs/decisions/0026.
func (s *Server) takeWriterLock(t *tx) error {
	s.reservedText = nil
	if err := t.beginOnce(); err != nil {
		return err
	}
	if len(t.endedAttempts) > 0 && s.otherNodes.Load() > 0 {
		if err := t.prewriteEnded(t.endedAttempts, t.quota); err != nil {
			return err
		}
	}
	if err := t.Conn.Exec(`SELECT one FROM meta FOR UPDATE`); err != nil {
		return err
	}
	commits, member, sent := int64(0), false, queue.MillisOf(time.Now())
	var list [][]byte
	var batch database.Batch
	batch.Add(func(r database.Row) (bool, error) {
		commits, member = r.Num(0), r.Num(1) != 0
		s.otherNodes.Store(r.Num(3))
		s.clockOffset.update(sent, queue.Millis(r.Num(2)), queue.MillisOf(time.Now()))
		t.now = s.now()
		return true, nil
	}, `SELECT commits, (SELECT count(*) FROM nodes WHERE id = ? AND incarnation = ? AND NOT gone), (extract(epoch FROM clock_timestamp()) * 1000)::bigint, (SELECT count(*) FROM nodes WHERE id <> ? AND NOT gone AND until > clock_timestamp()) FROM meta`, s.node, s.incarnation, s.node)
	batch.Add(func(r database.Row) (bool, error) {
		if r.Num(0) == s.mem.commits+int64(len(list))+1 && len(r.View(1)) > 0 {
			list = append(list, slices.Clone(r.View(1)))
		}
		return true, nil
	}, `SELECT n, news FROM changes WHERE n > ? ORDER BY n LIMIT ?`, s.mem.commits, int64(maxMissedDeltas))
	if err := t.Conn.Queries(batch.Queries); err != nil {
		return err
	}
	if !member && s.node != 0 {
		return errExpelled
	}
	if err := s.catchUp(t, commits, list); err != nil {
		return err
	}
	t.rules.Readied = s.jobsReadied
	t.readAhead = &readAhead{}
	if s.otherNodes.Load() > 0 {
		t.delta = &pendingDelta{queues: map[*queueState]map[int]bool{}}
	}
	return s.prefetchClaim(t)
}

// catchUp applies the cache deltas that this node has missed. If they are incomplete or unreadable, it
// reloads the caches.
func (s *Server) catchUp(t *tx, commits int64, list [][]byte) error {
	m := &s.mem
	if commits == m.commits {
		return nil
	}
	poke(s.changes)
	if commits != m.commits+int64(len(list)) {
		return t.reload()
	}
	for i, text := range list {
		if err := t.applyDelta(commits-int64(len(list)-i-1), text); err != nil {
			if !errors.Is(err, errDeltaVersion) {
				s.log.Warn("cannot read a change by another node, so this node reads the queue again; no job is lost; if "+
					"this happens again, run: queuectl doctor --verify", "error", err)
			}
			return t.reload()
		}
		t.undo = nil // the changes are committed, so an error of this transaction must not undo them
	}
	t.undo, t.users, t.queues, t.leased, t.leases, t.leasedBy = nil, nil, nil, false, nil, nil
	t.memoryAtStart = *m
	s.jobsReadied = true
	return nil
}

// storeDelta stores the cache delta of the transaction, and deletes old deltas. A node that has missed a
// deleted delta reloads.
func (t *tx) storeDelta() error {
	text, err := t.buildDelta()
	if err != nil {
		return err
	}
	n := t.s.mem.commits
	if err := t.Exec(`INSERT INTO changes (n, news) VALUES (?, ?) ON CONFLICT (n) DO UPDATE SET news = excluded.news`, n,
		string(text)); err != nil || n%deltaCleanupStep != 0 {
		return err
	}
	return t.Exec(`DELETE FROM changes WHERE n < ?`, n-deltasKept)
}

// Limits of the table changes, in transactions. A node that has missed more than maxMissedDeltas reloads.
const (
	maxMissedDeltas  = 64
	deltasKept       = 128
	deltaCleanupStep = 64
)
