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
// the row of the table meta. It then applies the changes of other nodes. See docs/decisions/0026 and 0112.
func (b backend) BeginTx(t *engine.Tx) error {
	b.newReservationsText = nil
	if err := t.EnsureBegun(); err != nil {
		return err
	}
	if err := t.PrewriteEndedAttempts(); err != nil {
		return err
	}
	if err := t.Conn.Exec(`SELECT one FROM meta FOR UPDATE`); err != nil {
		return err
	}
	known, newest := commitID{b.DatabaseCounters().CommitCount, b.lastCommitRandomMark}, commitID{}
	hasKnown, member, sent := false, false, queue.UnixMillisOf(time.Now())
	var deltas [][]byte
	var batch database.QueryBatch
	batch.AddForEachRow(func(r database.Row) {
		newest, member = commitID{r.Int64(0), r.Int64(4)}, r.Int64(1) != 0
		hasKnown = newest == known
		b.SetOtherActiveNodeCount(r.Int64(3))
		b.serverClockOffset.update(sent, queue.UnixMillis(r.Int64(2)), queue.UnixMillisOf(time.Now()))
		t.ResetStartTime()
	}, `SELECT meta.commits, n.self, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, n.others, n.mark
		FROM meta, LATERAL (SELECT count(*) FILTER (WHERE id = ? AND incarnation = ? AND NOT gone) AS self,
			count(*) FILTER (WHERE id <> ? AND NOT gone AND until > clock_timestamp()) AS others,
			coalesce(max(mark) FILTER (WHERE nodes.commits = meta.commits), 0) AS mark FROM nodes) AS n`,
		b.NodeNumber(), b.serviceStartNumber, b.NodeNumber())
	batch.AddForEachRow(func(r database.Row) {
		if r.Int64(0) == known.commitNumber+int64(len(deltas))+1 && len(r.BytesView(2)) > 0 {
			// The first commit that this node has missed must follow the last commit that the node knows.
			hasKnown = hasKnown || len(deltas) == 0 && r.Int64(1) == known.randomMark
			deltas = append(deltas, slices.Clone(r.BytesView(2)))
		}
	}, `SELECT n, base, news FROM changes WHERE n > ? ORDER BY n LIMIT ?`, known.commitNumber, int64(maxDeltasToCatchUp))
	if err := t.Conn.QueryAll(batch.Queries); err != nil {
		return err
	}
	if !member && b.NodeNumber() != 0 {
		return errNodeLeaseLost
	}
	if newest != known {
		queue.TrySend(b.sharedChangeHints, struct{}{})
	}
	if err := t.CatchUpCache(newest.commitNumber, deltas, hasKnown); err != nil {
		if len(deltas) > 0 {
			b.lastCommitRandomMark = 0 // the caches may reflect only some of the deltas
		}
		return err
	}
	b.lastCommitRandomMark = newest.randomMark
	return nil
}

// commitID identifies a commit of any node. After the promotion of an asynchronous standby, a commit may get a number
// that a lost commit had. The marks of the two commits differ, because marks are random. See docs/decisions/0112.
type commitID struct {
	commitNumber int64 // value of meta.commits after the commit
	// randomMark is the value of nodes.mark after the commit, in the row of the node that made the commit. It is 0 if no
	// row has it.
	randomMark int64
}

func readNewestCommit(c database.Querier) (newest commitID, err error) {
	_, err = database.ScanFirstRow(c, []any{&newest.commitNumber, &newest.randomMark},
		`SELECT commits, (SELECT coalesce(max(mark), 0) FROM nodes WHERE nodes.commits = meta.commits) FROM meta`)
	return newest, err
}

// StoreCacheDelta implements engine.SharedDatabase. It stores the changes of a commit, the delta, for the caches
// of other nodes, and deletes old deltas. A node that needs a deleted delta reloads its caches.
func (b backend) StoreCacheDelta(t *engine.Tx, commitNumber int64, delta []byte) error {
	if err := t.Exec(`INSERT INTO changes (n, base, news) VALUES (?, ?, ?)
		ON CONFLICT (n) DO UPDATE SET base = excluded.base, news = excluded.news`,
		commitNumber, b.lastCommitRandomMark, string(delta)); err != nil || commitNumber%commitsPerDeltaCleanup != 0 {
		return err
	}
	return t.Exec(`DELETE FROM changes WHERE n < ?`, commitNumber-maxKeptDeltas)
}

// Limits of the table "changes", in numbers of commits. A node that has missed more than maxDeltasToCatchUp
// commits reloads its caches instead of reading the deltas.
const (
	maxDeltasToCatchUp     = 64
	maxKeptDeltas          = 128
	commitsPerDeltaCleanup = 64
)
