package sql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/noderequests"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/rules"
)

// Server is a store.Store in a PostgreSQL database. Services on several machines can share the database.
// OpenServer opens a Server.
type Server struct {
	*engine
	*noderequests.Requests
	config      *pgdb.Address
	writer      *pgdb.Conn
	writerStart string // start time of the server process of the writer's connection
	clockOffset clockOffset
	size        atomic.Int64 // size of the database in bytes
	sizeReadAt  time.Time    // when size was last read; used by the writer only

	// reservedText is the new value of the column "reserved" in this node's row. It is nil if the transaction
	// leaves that column unchanged.
	reservedText any

	prefetchThreshold int   // a claim that wants at least this number of jobs sends its query early
	incarnation       int64 // number of this service start; rises with each start of the node's service
	lease             time.Duration
	otherNodes        atomic.Int64   // number of other active nodes, as of the last transaction
	appliedCommits    atomic.Int64   // meta.commits as of the last transaction
	leaseConn         *pgdb.SideConn // connection for the node lease
	changes           chan struct{}
	commitMade        chan struct{}      // makes notifyCommits notify the other nodes
	stopListening     context.CancelFunc // stops notifyCommits and listenForCommits
	background        sync.WaitGroup     // waits for notifyCommits and listenForCommits
}

// sizeInterval is how often the size of the database is read.
const sizeInterval = time.Minute

// defaultLease is the default length of a node lease.
const defaultLease = 30 * time.Second

// OpenServer opens the database of a URL as one of its nodes. It creates the tables if they do not exist.
func OpenServer(ctx context.Context, url string, o Options) (*Server, error) {
	config, err := pgdb.ParseAddress(url)
	if err != nil {
		return nil, err
	}
	s := &Server{config: config, prefetchThreshold: minClaimPrefetch, leaseConn: &pgdb.SideConn{Config: config},
		changes: make(chan struct{}, 1), commitMade: make(chan struct{}, 1)}
	s.engine = newEngine(s, s, o.Order, o.Log)
	s.Requests = noderequests.New(config, func() int64 { return s.node })
	s.hasInbox = true
	s.now = func() queue.Millis { return queue.MillisOf(time.Now()) + queue.Millis(s.clockOffset.Load()) }
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	s.db = &serverWriter{s, s.writer}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.writer.Close())
	}
	s.readers = newReaders(s.reader)
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stopListening = stop
	s.writerToken <- struct{}{}
	o.Node.Name, o.Node.Lease = cmp.Or(o.Node.Name, "node"), cmp.Or(o.Node.Lease, defaultLease)
	if err = s.join(ctx, o.Node); err == nil {
		<-s.writerToken
		err = s.begin(ctx, o)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.background.Go(func() { s.notifyCommits(background) })
	s.background.Go(func() { s.listenForCommits(background) })
	for _, f := range s.Examine(ctx) {
		if f.Level != store.LevelOK {
			s.log.Warn(f.Message, "next", f.Next)
		}
	}
	return s, nil
}

// connect connects the writer. If it replaces a lost connection, it ends the transaction of that connection,
// because the server may not have noticed the loss and would keep the transaction's locks.
func (s *Server) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pgdb.ConnectTimeout)
	defer cancel()
	c, err := pgdb.ConnectWriter(ctx, s.config)
	if err != nil {
		return err
	}
	defer c.InterruptWhenDone(ctx)()
	sent := queue.MillisOf(time.Now())
	ms, err := c.Number(`SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint`)
	received := queue.MillisOf(time.Now())
	if err == nil && s.writer != nil && !s.config.Pooled {
		_, err = c.Number(
			`SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ? AND backend_start = ?::timestamptz) AS t`, int64(s.writer.PID()), s.writerStart)
	}
	start := ""
	if err == nil {
		start, err = database.Text(c, `SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()`)
	}
	if err != nil {
		c.Close()
		return err
	}
	s.clockOffset.update(sent, queue.Millis(ms), received)
	s.writer, s.writerStart = c, start
	return nil
}

// open creates or updates the tables and loads the writer's memory.
func (s *Server) open() error {
	err := pgdb.CheckServer(s.writer, s.config.Database)
	if err == nil {
		err = pgdb.MakeTables(s.writer, database.Migrations, pgdb.Migrations)
	}
	if err == nil {
		err = s.load()
	}
	if err != nil {
		return err
	}
	id, err := pgdb.DatabaseID(s.writer)
	if err != nil {
		return err
	}
	return s.loadFile(id)
}

// serverWriter is the writer's connection. It reconnects after the connection was lost.
type serverWriter struct {
	server *Server
	*pgdb.Conn
}

// Begin implements database.Conn.
func (w *serverWriter) Begin() error {
	if w.IsClosed() {
		if err := w.reconnect(); err != nil {
			return err
		}
	}
	return w.Conn.Begin()
}

// reconnect replaces the lost connection by a new one.
func (w *serverWriter) reconnect() error {
	err := w.server.connect(context.Background())
	if err == nil {
		w.Conn = w.server.writer
	}
	return err
}

// Commit implements database.Conn. It stores a random number, the mark, in the node's row as part of the transaction.
// If the connection is lost during the commit, a new connection reads the mark to find out whether the
// transaction was stored. The transaction ID cannot serve as the mark: a promoted standby may assign it
// again.
// See docs/decisions/0029.
func (w *serverWriter) Commit() error {
	if !w.HasWritten() || w.server.node == 0 {
		return w.Conn.Commit()
	}
	mark := rand.Int64()
	if err := w.Exec(`UPDATE nodes SET mark = ?, reserved = coalesce(?, reserved) WHERE id = ?`, mark,
		w.server.reservedText, w.server.node); err != nil {
		return err
	}
	err := w.Conn.Commit()
	if err == nil || !w.IsClosed() {
		return err
	}
	for until := time.Now().Add(lostCommitTimeout); ; time.Sleep(pgdb.LockRetry) {
		if failed := w.reconnect(); failed == nil {
			// Write the mark again instead of only reading it. This update's commit returns only when
			// synchronous standbys have stored the update, and therefore also the earlier transaction.
			ctx, cancel := context.WithDeadline(context.Background(), until)
			release := w.InterruptWhenDone(ctx)
			holds, failed := w.Number(`UPDATE nodes SET mark = mark WHERE id = ? RETURNING mark = ?`, w.server.node, mark)
			release()
			cancel()
			switch {
			case failed == nil && holds == 1:
				return nil
			case failed == nil:
				return err // nothing was stored
			}
		}
		if time.Now().After(until) {
			return fmt.Errorf("%w: %w", database.Damage("the database server did not confirm the last change and cannot be "+
				"reached"), err)
		}
	}
}

// lostCommitTimeout is how long commit tries to find out whether its transaction was stored, after it lost
// the connection.
const lostCommitTimeout = 30 * time.Second

// reader implements backend.
func (s *Server) reader() (database.ReadConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), pgdb.ConnectTimeout)
	defer cancel()
	c, err := pgdb.Connect(ctx, s.config)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// beforeCommit implements backend.
func (s *Server) beforeCommit() error { return nil }

// readReserved implements backend. Each node lists its own leases in its row of the table nodes.
func (s *Server) readReserved(all *database.Batch, each func(database.Row) (bool, error)) {
	all.Add(each, `SELECT reserved FROM nodes WHERE reserved <> ''`)
}

// writeReserved implements backend. The table meta lists the leases that belong to no node. After a move, it
// lists all leases.
func (s *Server) writeReserved(t *tx) (inMeta string, changed bool, err error) {
	m := &s.mem
	if s.node == 0 {
		return t.reservations(), true, nil
	}
	of := map[int64][]byte{}
	for _, node := range t.leasedBy {
		of[node] = nil
	}
	for seq, l := range m.leases {
		if list, listed := of[l.Job.Node]; !l.Running && (listed || m.reservedInMeta) {
			of[l.Job.Node] = database.AppendReserved(list, seq, l.Job.Fence, l.Job.Node)
		}
	}
	for node, list := range of {
		if node <= 0 {
			inMeta += string(list)
		} else if node == s.node {
			s.reservedText = string(list) // commit writes this node's row anyway
		} else if err := t.Exec(`UPDATE nodes SET reserved = ? WHERE id = ?`, string(list), node); err != nil {
			return "", false, err
		}
	}
	changed = m.reservedInMeta || inMeta != "" || slices.Contains(t.leasedBy, noOwner)
	m.reservedInMeta = inMeta != ""
	return inMeta, changed, nil
}

// onCommit implements backend.
func (s *Server) onCommit(changed bool) {
	s.appliedCommits.Store(s.mem.commits)
	if changed && s.otherNodes.Load() > 0 {
		poke(s.commitMade)
	}
}

// releaseReserve implements backend. The disk belongs to the server, so there is no reserve.
func (s *Server) releaseReserve(bool) bool { return false }

// onSpaceFreed implements backend. The server cleans up its files itself.
func (s *Server) onSpaceFreed() {}

// refusal implements backend.
func (s *Server) refusal(k database.Kind, err error) error {
	err = pgdb.ForUser(err)
	if k == database.Full {
		return queue.Errorf(queue.CodeNoSpace, "the disk of the database server is full (%v); free some space and try again",
			err)
	}
	return queue.Errorf(queue.CodeUnavailable, "the change was not stored: %v; try again later", err)
}

// blameUncertain implements backend. It reports whether the error belongs to PostgreSQL's class 22 (data), 23
// (constraints) or 54 (limits).
func (s *Server) blameUncertain(err error) bool {
	e, refused := errors.AsType[pgdb.Refused](err)
	return refused && slices.Contains([]string{"22", "23", "54"}, e.Code[:2])
}

// onFailure implements backend.
func (s *Server) onFailure() {}

// checkSpace implements backend. It checks nothing, because the server reports it if space runs out.
func (s *Server) checkSpace() error { return nil }

// maintainReserve implements backend. Once a minute it reads the size of the database.
func (s *Server) maintainReserve() {
	if time.Since(s.sizeReadAt) < sizeInterval {
		return
	}
	s.sizeReadAt = time.Now()
	sent := queue.MillisOf(s.sizeReadAt)
	// Ignore an error: if the connection is lost, the next statement reports it.
	s.db.Query(func(r database.Row) (bool, error) {
		s.size.Store(r.Num(0))
		s.clockOffset.update(sent, queue.Millis(r.Num(1)), queue.MillisOf(time.Now()))
		return false, nil
	}, `SELECT pg_database_size(current_database()), (extract(epoch FROM clock_timestamp()) * 1000)::bigint`)
}

// bytes implements backend.
func (s *Server) bytes() int64 { return s.size.Load() }

// readBudget implements backend.
func (s *Server) readBudget() time.Duration { return readTimeout }

// readTooLong implements backend.
func (s *Server) readTooLong(budget time.Duration) error {
	return queue.Errorf(queue.CodeUnavailable, "reading the database took longer than the limit of %v; request "+
		"less, or try again later", budget)
}

// checkReadable implements backend.
func (s *Server) checkReadable() error { return nil }

// readError implements backend.
func (s *Server) readError(err error) error {
	switch {
	case err == nil:
	case errors.As(err, new(database.Damage)):
		s.failFromRead(err)
		return queue.Errorf(queue.CodeUnavailable, "the service ends, because it cannot use its database: %v; check the "+
			"database with: queuectl doctor", err)
	case errors.As(err, new(pgdb.Lost)), errors.As(err, new(pgdb.Refused)) && database.KindOf(err) != database.Mistake:
		return queue.Errorf(queue.CodeUnavailable, "the database cannot be read now (%v); try again later", err)
	}
	return err
}

// close implements backend. A node without leases ends its node lease, so that the other nodes need not wait
// until it expires.
func (s *Server) close() error {
	s.stopListening()
	s.background.Wait()
	var leaveErr error
	if !slices.ContainsFunc(slices.Collect(maps.Values(s.mem.leases)),
		func(l *rules.Lease) bool { return l.Job.Node == s.node }) && s.Err() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), pgdb.CloseTimeout)
		defer cancel()
		leaveErr = s.leave(ctx)
	}
	if leaveErr != nil {
		s.log.Info("cannot notify the other nodes that this node stops; they wait until the lease of this node ends", "error",
			leaveErr)
	}
	for _, c := range []interface{ Close() error }{s.leaseConn, s.Requests.Conn, s.writer} {
		c.Close() // errors are ignored: the server detects closed connections itself
	}
	return nil
}

var (
	_ store.Store    = (*Server)(nil)
	_ store.Examiner = (*Server)(nil)
	_ store.Cluster  = (*Server)(nil)
	_ backend        = (*Server)(nil)
)

// Examine implements store.Examiner.
func (s *Server) Examine(ctx context.Context) (list []store.Finding) {
	err := s.reading(ctx, func(r *reader) (err error) {
		list, err = pgdb.ExamineQueue(r, s.config.Database, pgdb.OldTransaction)
		return err
	})
	if err != nil {
		return []store.Finding{pgdb.Failure(err)}
	}
	return list
}
