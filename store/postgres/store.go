// Package postgres stores the jobs of a queue in a PostgreSQL database, so that the services of several machines
// can share the queue.
//
// Start with Open. BeginTx takes the writer lock and applies the changes of other nodes. Package store/engine
// does the rest of the work.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/engine"
	"github.com/queuectl/queuectl/store/noderequests"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/reads"
)

// Store is a store.Store in a PostgreSQL database. Services on several machines can share the database.
// Open opens a Store.
type Store struct {
	*engine.Engine
	*noderequests.NodeMessenger
	connConfig                *pgdb.ConnConfig
	writer                    *serverWriter
	writerServerStartTimeText string // text of the time when the server process of the writer's connection started
	serverClockOffset         serverClockOffsetMillis
	databaseBytes             atomic.Int64 // size of the database as last read
	// time when databaseBytes was last read; used only by the goroutine that may write
	databaseBytesReadAt time.Time

	// lastCommitRandomMark is the mark of the last commit that the writer's memory reflects, or 0 if it is unknown. Only
	// the writer uses it. Counters().CommitCount is the number of that commit.
	lastCommitRandomMark int64

	// newReservationsText is the new value of the column "reserved" in this node's row. It is nil if the transaction
	// leaves that column unchanged.
	newReservationsText any

	serviceStartNumber int64 // number of this service start; it increases with each start of the node's service
	nodeLeaseDuration  time.Duration
	lastAppliedCommit  atomic.Pointer[commitID] // last commit that this node's cache reflects; set after each commit
	leaseConn          *pgdb.ReconnectingConn   // connection for the node lease
	sharedChangeHints  chan struct{}
	notifyCommitHints  chan struct{}      // makes notifyNodesOfCommits notify the other nodes
	cancelListening    context.CancelFunc // stops notifyNodesOfCommits and listenForCommits
	backgroundTasks    sync.WaitGroup     // waits for notifyNodesOfCommits and listenForCommits
}

// backend implements the interfaces Backend, DiskSpace and SharedDatabase of the engine for a Store.
type backend struct{ *Store }

// Options are the parameters of Open, without the URL.
type Options struct {
	// RankOrder decides how the ranks of jobs are computed. If RankOrderFromSettings is not nil, it computes the
	// order from the stored settings, and RankOrder is ignored.
	RankOrder             queue.RankPolicy
	RankOrderFromSettings func([]store.Setting) (queue.RankPolicy, error)
	Log                   *slog.Logger // nil discards the log
	Node                  NodeConfig
}

const databaseSizeReadInterval = time.Minute

// defaultNodeLeaseDuration is the default for how long a node may act without renewing its node lease.
const defaultNodeLeaseDuration = 30 * time.Second

// Open opens the database at a URL, and makes this service a node of its queue. It creates the tables if they
// do not exist.
func Open(ctx context.Context, url string, o Options) (*Store, error) {
	config, err := pgdb.ParseDatabaseURL(url)
	if err != nil {
		return nil, err
	}
	s := &Store{connConfig: config, leaseConn: &pgdb.ReconnectingConn{Config: config},
		sharedChangeHints: make(chan struct{}, 1), notifyCommitHints: make(chan struct{}, 1)}
	s.writer = &serverWriter{store: s}
	s.lastAppliedCommit.Store(&commitID{})
	b := backend{s}
	s.Engine = engine.New(engine.Config{Backend: b, DiskSpace: b, SharedDatabase: b, RankOrder: o.RankOrder, Log: o.Log,
		Clock: func() queue.UnixMillis {
			return queue.UnixMillisOf(time.Now()) + queue.UnixMillis(s.serverClockOffset.Load())
		}})
	s.NodeMessenger = noderequests.New(config, s.NodeNumber)
	if err := s.connectWriter(ctx); err != nil {
		return nil, err
	}
	if err := s.initDatabase(); err != nil {
		return nil, errors.Join(err, s.writer.Close())
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.cancelListening = stop
	s.AllowWrites()
	o.Node.NodeName, o.Node.LeaseDuration = cmp.Or(o.Node.NodeName, "node"),
		cmp.Or(o.Node.LeaseDuration, defaultNodeLeaseDuration)
	if err = s.joinAsNode(ctx, o.Node); err == nil {
		err = s.Start(ctx, o.RankOrder, o.RankOrderFromSettings)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.backgroundTasks.Go(func() { s.notifyNodesOfCommits(background) })
	s.backgroundTasks.Go(func() { s.listenForCommits(background) })
	for _, f := range s.Examine(ctx) {
		if f.Level != store.LevelOK {
			s.Log().Warn(f.Message, "next", f.Advice)
		}
	}
	return s, nil
}

// connectWriter opens the connection for writes. If an earlier connection was lost, it ends that connection's
// transaction: the server may not have noticed the loss, and would keep the transaction's locks.
func (s *Store) connectWriter(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pgdb.ConnectTimeout)
	defer cancel()
	c, err := pgdb.ConnectForWriting(ctx, s.connConfig)
	if err != nil {
		return err
	}
	defer c.InterruptWhenDone(ctx)()
	sent := queue.UnixMillisOf(time.Now())
	ms, err := c.QueryNumber(`SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint`)
	received := queue.UnixMillisOf(time.Now())
	if err == nil && s.writer.Conn != nil && !s.connConfig.UsesPooler {
		_, err = c.QueryNumber(`SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE pid = ? AND backend_start = ?::timestamptz) AS t`, int64(s.writer.PID()), s.writerServerStartTimeText)
	}
	start := ""
	if err == nil {
		start, err = database.QueryText(c, `SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()`)
	}
	if err != nil {
		c.Close()
		return err
	}
	s.serverClockOffset.update(sent, queue.UnixMillis(ms), received)
	s.writer.Conn, s.writerServerStartTimeText = c, start
	return nil
}

// initDatabase creates or upgrades the tables, and loads the state that the engine keeps in memory.
func (s *Store) initDatabase() error {
	err := pgdb.CheckServerIsSupported(s.writer.Conn, s.connConfig.Database)
	if err == nil {
		err = pgdb.EnsureTables(s.writer.Conn, database.SchemaMigrations, pgdb.PostgresMigrations)
	}
	if err != nil {
		return err
	}
	id, err := pgdb.DatabaseID(s.writer)
	if err != nil {
		return err
	}
	newest, err := readNewestCommit(s.writer)
	if err == nil {
		err = s.LoadCache(s.writer, id)
	}
	if err == nil && s.DatabaseCounters().CommitCount == newest.commitNumber {
		s.lastCommitRandomMark = newest.randomMark
	}
	return err
}

// serverWriter is the connection for writes. It connects again after the connection was lost.
type serverWriter struct {
	store *Store
	*pgdb.Conn
}

// Begin implements database.Conn. It connects again if the connection was lost.
func (w *serverWriter) Begin() error {
	if w.IsClosed() {
		if err := w.store.connectWriter(context.Background()); err != nil {
			return err
		}
	}
	return w.Conn.Begin()
}

// Commit implements database.Conn. As part of the transaction, it stores a random number, the mark, in the node's
// row. The mark and the number of the commit identify the commit for all nodes. If the connection is lost during
// the commit, a new connection reads the mark to find out whether the transaction was stored. The transaction ID
// cannot serve as the mark, because a promoted standby may assign it again. See docs/decisions/0029 and 0112.
func (w *serverWriter) Commit() error {
	if !w.HasUncountedChanges() || w.store.NodeNumber() == 0 {
		return w.Conn.Commit()
	}
	mark := rand.Int64()
	if err := w.Exec(`UPDATE nodes SET mark = ?, commits = ?, reserved = coalesce(?, reserved) WHERE id = ?`, mark,
		w.store.DatabaseCounters().CommitCount, w.store.newReservationsText, w.store.NodeNumber()); err != nil {
		return err
	}
	err := w.Conn.Commit()
	if err == nil {
		w.store.lastCommitRandomMark = mark
	}
	if err == nil || !w.IsClosed() {
		return err
	}
	for until := time.Now().Add(lostCommitCheckTimeout); ; time.Sleep(pgdb.LockRetryInterval) {
		if failed := w.store.connectWriter(context.Background()); failed == nil {
			// Write the mark instead of only reading it: when this update is committed, synchronous standbys
			// have stored it and thus also the earlier transaction.
			ctx, cancel := context.WithDeadline(context.Background(), until)
			release := w.InterruptWhenDone(ctx)
			holds, failed := w.QueryNumber(`UPDATE nodes SET mark = mark WHERE id = ? RETURNING mark = ?`, w.store.NodeNumber(),
				mark)
			release()
			cancel()
			switch {
			case failed == nil && holds == 1:
				w.store.lastCommitRandomMark = mark
				return nil
			case failed == nil:
				return err // nothing was stored
			}
		}
		if time.Now().After(until) {
			return fmt.Errorf("%w: %w", database.DamageError(
				"the database server did not confirm the last change and cannot be "+
					"reached"), err)
		}
	}
}

// lostCommitCheckTimeout is how long Commit, after the connection was lost, tries to find out whether the
// transaction was stored.
const lostCommitCheckTimeout = 30 * time.Second

// OpenReader implements reads.ReadDatabase. It opens a connection for reads.
func (b backend) OpenReader() (database.ReadConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), pgdb.ConnectTimeout)
	defer cancel()
	c, err := pgdb.Connect(ctx, b.connConfig)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// BeforeCommitGroup implements engine.Backend. It returns nil, because there are no local files to check.
func (b backend) BeforeCommitGroup() error { return nil }

// ReadReservations implements engine.Backend. The row of each node in the table nodes lists its reserved
// leases, whose attempts are not known to have started.
func (b backend) AddReservationQuery(batch *database.QueryBatch, readRow func(database.Row)) {
	batch.AddForEachRow(readRow, `SELECT reserved FROM nodes WHERE reserved <> ''`)
}

// WriteReservations implements engine.Backend. A node's row lists its reserved leases, whose attempts are not known to
// have started. The table meta lists only the reserved leases that belong to no node. After a move from another
// database, these are all reserved leases.
func (b backend) WriteReservations(t *engine.Tx) (metaListText string, metaListChanged bool, err error) {
	if b.NodeNumber() == 0 {
		return t.EncodedReservations(), true, nil
	}
	for node, list := range t.EncodedReservationsByNode() {
		if node <= 0 {
			metaListText += string(list)
		} else if node == b.NodeNumber() {
			b.newReservationsText = string(list) // Commit writes this node's row anyway
		} else if err := t.Exec(`UPDATE nodes SET reserved = ? WHERE id = ?`, string(list), node); err != nil {
			return "", false, err
		}
	}
	return metaListText, t.SetMetaHasReservations(metaListText != ""), nil
}

// AfterCommit implements engine.Backend. It records which commit the cache reflects, and notifies the other nodes.
func (b backend) AfterCommit(metaRowChanged bool) {
	b.lastAppliedCommit.Store(&commitID{b.DatabaseCounters().CommitCount, b.lastCommitRandomMark})
	if metaRowChanged && b.HasOtherNodes() {
		queue.TrySend(b.notifyCommitHints, struct{}{})
	}
}

// ReleaseDiskReserve implements engine.DiskSpace. It returns false, because a store on a server keeps no reserve
// on the disk.
func (b backend) ReleaseDiskReserve(bool) bool { return false }

// OnSpaceFreed implements engine.DiskSpace. It does nothing, because the server returns free space by itself.
func (b backend) OnSpaceFreed() {}

// RefusedRequestError implements engine.Backend. It returns the error for requests that fail because of the server.
func (b backend) RefusedRequestError(kind database.ErrorKind, err error) error {
	err = pgdb.ErrorWithoutStatement(err)
	if kind == database.DiskFull {
		return queue.Errorf(queue.CodeNoSpace, "the disk of the database server is full (%v); free some space and try again",
			err)
	}
	return queue.Errorf(queue.CodeUnavailable, "the change was not stored: %v; try again later", err)
}

// MayStemFromEarlierStatement implements engine.Backend. It reports whether an earlier statement in the pipeline
// may have caused the error. This holds for PostgreSQL's error classes 22 (data), 23 (constraints) and 54
// (limits).
func (b backend) MayStemFromEarlierStatement(err error) bool {
	e, refused := errors.AsType[pgdb.StatementError](err)
	return refused && slices.Contains([]string{"22", "23", "54"}, e.Code[:2])
}

// OnEngineFailure implements engine.Backend. There is nothing to do.
func (b backend) OnEngineFailure() {}

// CheckDiskSpace implements engine.DiskSpace. It does nothing, because the server returns an error when its disk
// is full.
func (b backend) CheckDiskSpace() error { return nil }

// MaintainDiskReserve implements engine.DiskSpace. Once a minute it reads the size of the database and the
// server's clock.
func (b backend) MaintainDiskReserve() {
	if time.Since(b.databaseBytesReadAt) < databaseSizeReadInterval {
		return
	}
	b.databaseBytesReadAt = time.Now()
	sent := queue.UnixMillisOf(b.databaseBytesReadAt)
	// Ignore an error: the next statement reports a lost connection.
	database.ReadFirstRow(b.writer, func(r database.Row) {
		b.databaseBytes.Store(r.Int64(0))
		b.serverClockOffset.update(sent, queue.UnixMillis(r.Int64(1)), queue.UnixMillisOf(time.Now()))
	}, `SELECT pg_database_size(current_database()), (extract(epoch FROM clock_timestamp()) * 1000)::bigint`)
}

// DatabaseBytes implements engine.DiskSpace. It returns the size that MaintainDiskReserve last read.
func (b backend) DatabaseBytes() int64 { return b.databaseBytes.Load() }

// ReadTimeout implements reads.ReadDatabase. It returns the usual time limit of a read.
func (b backend) ReadTimeout() (timeLimit time.Duration, problem error) {
	return engine.DefaultReadTimeout, nil
}

// CheckReadable implements reads.ReadDatabase. It returns nil, because a database on a server has no files that could
// change unnoticed.
func (b backend) CheckReadable() error { return nil }

// ConvertReadError implements reads.ReadDatabase. It returns the error that the caller of a failed read gets.
func (b backend) ConvertReadError(err error) error {
	switch {
	case err == nil:
	case errors.As(err, new(database.DamageError)):
		b.FailAfterReadError(err)
		return queue.Errorf(queue.CodeUnavailable, "the service ends, because it cannot use its database: %v; see the "+
			"service's log and queuectl doctor", err)
	case errors.As(err, new(pgdb.ConnLostError)), errors.As(err, new(pgdb.StatementError)) &&
		database.ErrorKindOf(err) != database.RequestFailed:
		return queue.Errorf(queue.CodeUnavailable, "the database cannot be read now (%v); try again later", err)
	}
	return err
}

// StopListening ends the goroutines that apply commits of other nodes, and waits for them. After that, this
// node applies these commits only in its own transactions.
func (s *Store) StopListening() {
	s.cancelListening()
	s.backgroundTasks.Wait()
}

// Close implements engine.Backend. A node without leases ends its node lease, so that other nodes need not
// wait until the node lease expires.
func (b backend) Close() error {
	b.StopListening()
	if !b.ThisNodeHasLeases() && b.Err() == nil {
		if err := b.endNodeLease(); err != nil {
			b.Log().Info("cannot notify the other nodes that this node stops; they wait until the lease of this node ends",
				"error", err)
		}
	}
	for _, c := range []interface{ Close() error }{b.leaseConn, b.NodeMessenger.Conn, b.writer} {
		c.Close() // errors are ignored: the server detects closed connections itself
	}
	return nil
}

var (
	_ store.Store           = (*Store)(nil)
	_ store.Examiner        = (*Store)(nil)
	_ store.Cluster         = (*Store)(nil)
	_ engine.Backend        = backend{}
	_ engine.DiskSpace      = backend{}
	_ engine.SharedDatabase = backend{}
)

// Examine implements store.Examiner. It checks the database and the server, for "queuectl doctor".
func (s *Store) Examine(ctx context.Context) (findings []store.Finding) {
	err := s.RunRead(ctx, func(r *reads.ReadSnapshot) (err error) {
		findings, err = pgdb.ExamineQueueDatabase(r, s.connConfig.Database, pgdb.MinReportedTransactionAge)
		return err
	})
	return pgdb.FindingsOrServerFailure(findings, err)
}
