package postgres

import (
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
)

// errNodeLeaseLost stops the store of a node whose node lease has expired, because other nodes have taken
// over its jobs.
var errNodeLeaseLost = database.DamageError(
	"this node did not renew its lease in time, so other nodes have taken over its jobs")

// BeginTx implements engine.Backend. It begins a transaction and takes the writer lock, which is the lock on
// the row of the table meta. It then applies the changes of other nodes. See docs/decisions/0026.
func (b backend) BeginTx(t *engine.Tx) error {
	b.reservedText = nil
	if err := t.EnsureBegun(); err != nil {
		return err
	}
	if err := t.PrewriteEndedAttempts(); err != nil {
		return err
	}
	if err := t.Conn.Exec(`SELECT one FROM meta FOR UPDATE`); err != nil {
		return err
	}
	applied := b.Counters().Commits
	commits, member, sent := int64(0), false, queue.MillisOf(time.Now())
	var deltas [][]byte
	var batch database.QueryBatch
	batch.AddEach(func(r database.Row) {
		commits, member = r.Num(0), r.Num(1) != 0
		b.SetOtherNodes(r.Num(3))
		b.clockOffset.update(sent, queue.Millis(r.Num(2)), queue.MillisOf(time.Now()))
		t.UpdateTime()
	}, `SELECT commits, (SELECT count(*) FROM nodes WHERE id = ? AND incarnation = ? AND NOT gone),
			(extract(epoch FROM clock_timestamp()) * 1000)::bigint,
			(SELECT count(*) FROM nodes WHERE id <> ? AND NOT gone AND until > clock_timestamp())
		FROM meta`, b.Node(), b.incarnation, b.Node())
	batch.AddEach(func(r database.Row) {
		if r.Num(0) == applied+int64(len(deltas))+1 && len(r.View(1)) > 0 {
			deltas = append(deltas, slices.Clone(r.View(1)))
		}
	}, `SELECT n, news FROM changes WHERE n > ? ORDER BY n LIMIT ?`, applied, int64(maxMissedDeltas))
	if err := t.Conn.QueryAll(batch.Queries); err != nil {
		return err
	}
	if !member && b.Node() != 0 {
		return errNodeLeaseLost
	}
	if commits != applied {
		queue.TrySend(b.changeHints, struct{}{})
	}
	return t.CatchUp(commits, deltas)
}

// StoreDelta implements engine.SharedDatabase. It stores the changes of a commit, the delta, for the caches
// of other nodes, and deletes old deltas. A node that needs a deleted delta reloads its caches.
func (b backend) StoreDelta(t *engine.Tx, commit int64, delta []byte) error {
	if err := t.Exec(`INSERT INTO changes (n, news) VALUES (?, ?) ON CONFLICT (n) DO UPDATE SET news = excluded.news`,
		commit, string(delta)); err != nil || commit%deltaCleanupStep != 0 {
		return err
	}
	return t.Exec(`DELETE FROM changes WHERE n < ?`, commit-maxKeptDeltas)
}

// Limits of the table "changes", in numbers of commits. A node that has missed more than maxMissedDeltas
// commits reloads its caches instead of reading the deltas.
const (
	maxMissedDeltas  = 64
	maxKeptDeltas    = 128
	deltaCleanupStep = 64
)
