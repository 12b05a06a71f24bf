package sql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// Server is a store.Store in a PostgreSQL database. Services on several machines can share the database.
// OpenServer opens a Server.
type Server struct {
	*engine
	config      *serverAddress
	writer      *serverConn
	clockOffset clockOffset
	size        atomic.Int64 // size of the database in bytes
	sizeReadAt  time.Time    // when size was last read; used by the writer only

	// reservedText is the new value of the column "reserved" in this node's row. It is nil if the transaction
	// leaves that column unchanged.
	reservedText any

	prefetchThreshold int   // a claim that wants at least this number of jobs sends its query early
	incarnation       int64 // number of this service start; rises with each start of the node's service
	lease             time.Duration
	otherNodes        atomic.Int64 // number of other active nodes, as of the last transaction
	appliedCommits    atomic.Int64 // meta.commits as of the last transaction
	replies           broadcast
	leaseConn         *sideConn // connection for the node lease
	messageConn       *sideConn // connection for requests between nodes
	changes           chan struct{}
	commitMade        chan struct{} // makes notifyCommits notify the other nodes
	// lostTakes holds the numbers of calls of Asked whose results were lost, newest last. Only the caller of
	// Asked uses it.
	lostTakes     []int64
	hints         chan struct{}
	stopListening context.CancelFunc // stops notifyCommits and listenForCommits
	background    sync.WaitGroup     // waits for notifyCommits and listenForCommits
}

// Timeouts and intervals for calls to the server.
const (
	connectTimeout = 5 * time.Second
	lockTimeout    = 5 * time.Second
	lockRetry      = 200 * time.Millisecond
	sizeInterval   = time.Minute
	// tablesTimeout is how long a schema change waits for other sessions that use the tables.
	tablesTimeout = "'10s'"
	// writerIdleTimeout is the idle time after which the server ends a transaction: its node hangs or is cut
	// off.
	writerIdleTimeout = "2s"
)

// oldestServer is the oldest supported version of PostgreSQL, in the format of server_version_num.
const oldestServer = 14_00_00

// serverLock is the number of the advisory lock that protects a queue while it is moved. tablesLock is the
// number of the advisory lock for schema changes. Both numbers are arbitrary and used by this program only.
const (
	serverLock = 0x71756575
	tablesLock = serverLock + 1
)

// defaultLease is the default length of a node lease.
const defaultLease = 30 * time.Second

// OpenServer opens the database of a URL as one of its nodes. It creates the tables if they do not exist.
func OpenServer(ctx context.Context, url string, o Options) (*Server, error) {
	config, err := readAddress(url)
	if err != nil {
		return nil, err
	}
	s := &Server{config: config, prefetchThreshold: minClaimPrefetch, leaseConn: &sideConn{config: config},
		messageConn: &sideConn{config: config}, changes: make(chan struct{}, 1), commitMade: make(chan struct{}, 1),
		hints: make(chan struct{}, 1)}
	s.engine = newEngine(s, s, o.Order, o.Log)
	s.hasInbox = true
	s.now = func() queue.Millis { return queue.MillisOf(time.Now()) + queue.Millis(s.clockOffset.Load()) }
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	s.db = &serverWriter{s, s.writer}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.writer.close())
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
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	// The transaction of an idle writer must end soon, because its locks block all other nodes.
	c, err := connectServer(ctx, s.config.with("idle_in_transaction_session_timeout", writerIdleTimeout))
	if err != nil {
		return err
	}
	c.ctx = ctx
	defer func() { c.ctx = context.Background() }()
	sent := queue.MillisOf(time.Now())
	ms, err := c.number(`SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint`)
	received := queue.MillisOf(time.Now())
	if err == nil && s.writer != nil && !s.config.pooled {
		_, err = c.number(
			`SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ? AND backend_start = ?::timestamptz) AS t`, int64(s.writer.pg.PID()), s.writer.backendStart)
	}
	if err == nil {
		err = c.query(func(r row) (bool, error) {
			c.backendStart = r.text(0)
			return false, nil
		}, `SELECT backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()`)
	}
	if err != nil {
		c.close()
		return err
	}
	s.clockOffset.update(sent, queue.Millis(ms), received)
	s.writer = c
	return nil
}

// lock takes the advisory lock of Move, so that no service uses a queue that is being moved.
func (s *Server) lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	for {
		got, err := s.writer.number(`SELECT pg_try_advisory_lock(` + fmt.Sprint(serverLock) + `)`)
		if err != nil || got == 1 {
			return err
		}
		select {
		case <-time.After(lockRetry):
		case <-ctx.Done():
			return s.errLocked(s.writer.query)
		}
	}
}

// errLocked returns an error which says that the queue is being moved, and names the holder of the lock. Any
// role that can connect to the database can take this lock, even on purpose.
func (s *Server) errLocked(query func(each func(r row) (bool, error), sql string, args ...any) error) error {
	who := "" // "" if the lock has been released
	err := query(func(r row) (bool, error) {
		who = r.text(0)
		return false, nil
	}, `SELECT 'the role ' || coalesce(a.usename, '?') || ', process ' || l.pid || ' of the server' FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_backend_pid() AND l.classid = 0 AND l.objid = ? AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`, int64(serverLock))
	if err != nil {
		return err
	}
	if who == "" {
		return queue.Errorf(queue.CodeUnavailable, "the queue in the database %s was locked for a move and is "+
			"free again; try again", s.config.Database)
	}
	return queue.Errorf(queue.CodeUnavailable, "the queue in the database %s is locked by %s, probably to move the "+
		"queue; try again later, or end that program if it is not queuectl", s.config.Database, who)
}

// open creates or updates the tables and loads the writer's memory.
func (s *Server) open() error {
	version, err := s.writer.number(`SELECT current_setting('server_version_num')`)
	if err == nil && version < oldestServer {
		err = queue.Errorf(queue.CodeInvalid, "the database server is PostgreSQL %d; version 14 or later is required",
			version/10_000)
	}
	if err == nil {
		err = s.writer.query(func(r row) (bool, error) {
			// SQL_ASCII accepts any text unchanged.
			if encoding := r.text(0); encoding != "UTF8" && encoding != "SQL_ASCII" {
				return false, queue.Errorf(queue.CodeInvalid,
					"the database %s has the encoding %s, but queuectl needs UTF8; create a database with ENCODING 'UTF8'",
					s.config.Database, encoding)
			}
			return false, nil
		}, `SELECT current_setting('server_encoding')`)
	}
	if err == nil {
		err = s.makeTables(migrations, serverMigrations)
	}
	if err == nil {
		err = s.load()
	}
	if err != nil {
		return err
	}
	id, err := serverID(s.writer)
	if err != nil {
		return err
	}
	return s.loadFile(id)
}

// serverID returns an id of the database. It differs between databases of one server and between a database
// and its copy on another server.
func serverID(c conn) (id string, err error) {
	err = c.query(func(r row) (bool, error) {
		id = r.text(0)
		return false, nil
	}, `SELECT system_identifier || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()) FROM pg_control_system()`)
	return id, err
}

// hasTables reports whether the tables exist.
func (s *Server) hasTables() (bool, error) {
	n, err := s.writer.number(hasMeta)
	return n > 0, err
}

const hasMeta = `SELECT count(*) FROM pg_tables WHERE schemaname = '` + serverSchema + `' AND tablename = 'meta'`

// serverMigrations lists, per schema version, statements that only PostgreSQL needs; those in migrations come
// first. Every new version also recreates the SQL function for applications. A change that adds a field to
// jobs must therefore add a version.
var serverMigrations = [][]string{slices.Concat(inboxTables(), nodeTables())}

// serverTable translates a statement of the schema for PostgreSQL. Texts get the collation "C", which sorts
// by bytes.
func serverTable(statement string) string {
	if !strings.HasPrefix(statement, "CREATE TABLE") {
		return statement
	}
	if strings.HasPrefix(statement, "CREATE TABLE jobs ") {
		statement = numbersFirst(statement)
	}
	filled := ")"
	if strings.HasPrefix(statement, "CREATE TABLE jobs ") || strings.HasPrefix(statement, "CREATE TABLE meta ") {
		filled = ") WITH (fillfactor = 70)" // rows are updated often
	}
	return strings.NewReplacer(
		") STRICT, WITHOUT ROWID", filled, ") STRICT", filled,
		" INTEGER PRIMARY KEY AUTOINCREMENT", " BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
		" INTEGER PRIMARY KEY", " BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
		" INTEGER", " BIGINT", " TEXT", ` TEXT COLLATE "C"`, " BLOB", " BYTEA",
	).Replace(statement)
}

// numbersFirst moves the integer columns before the text columns. PostgreSQL finds a column that follows a
// text only by walking over all columns before it, and indexes and queries read the integers most.
// See docs/decisions/0001.
func numbersFirst(statement string) string {
	lines := strings.Split(statement, "\n")
	columns := lines[1 : len(lines)-1]
	slices.SortStableFunc(columns, func(a, b string) int {
		return cmp.Compare(bit(!strings.Contains(a, " INTEGER ")), bit(!strings.Contains(b, " INTEGER ")))
	})
	for i, c := range columns { // every column except the last one ends with a comma
		text, comment, _ := strings.Cut(c, " -- ")
		text = strings.TrimSuffix(strings.TrimRight(text, " "), ",")
		if i < len(columns)-1 {
			text += ","
		}
		columns[i] = text + " -- " + comment
	}
	return strings.Join(lines, "\n")
}

// serverWriter is the writer's connection. It reconnects after the connection was lost.
type serverWriter struct {
	server *Server
	*serverConn
}

// begin implements conn.
func (w *serverWriter) begin() error {
	if w.pg.IsClosed() {
		if err := w.reconnect(); err != nil {
			return err
		}
	}
	return w.serverConn.begin()
}

// reconnect replaces the lost connection by a new one.
func (w *serverWriter) reconnect() error {
	err := w.server.connect(context.Background())
	if err == nil {
		w.serverConn = w.server.writer
	}
	return err
}

// commit implements conn. It stores a random number, the mark, in the node's row as part of the transaction.
// If the connection is lost during the commit, a new connection reads the mark to find out whether the
// transaction was stored. The transaction ID cannot serve as the mark: a promoted standby may assign it
// again.
// See docs/decisions/0029.
func (w *serverWriter) commit() error {
	if !w.wrote || w.server.node == 0 {
		return w.serverConn.commit()
	}
	mark := rand.Int64()
	if err := w.exec(`UPDATE nodes SET mark = ?, reserved = coalesce(?, reserved) WHERE id = ?`, mark,
		w.server.reservedText, w.server.node); err != nil {
		return err
	}
	err := w.serverConn.commit()
	if err == nil || !w.pg.IsClosed() {
		return err
	}
	for until := time.Now().Add(lostCommitTimeout); ; time.Sleep(lockRetry) {
		if failed := w.reconnect(); failed == nil {
			// Write the mark again instead of only reading it. This update's commit returns only when
			// synchronous standbys have stored the update, and therefore also the earlier transaction.
			ctx, cancel := context.WithDeadline(context.Background(), until)
			release := w.interruptWhenDone(ctx)
			holds, failed := w.number(`UPDATE nodes SET mark = mark WHERE id = ? RETURNING mark = ?`, w.server.node, mark)
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
			return fmt.Errorf("%w: %w", damage("the database cannot be reached, so it is unknown whether the last change was "+
				"stored"), err)
		}
	}
}

// lostCommitTimeout is how long commit tries to find out whether its transaction was stored, after it lost
// the connection.
const lostCommitTimeout = 30 * time.Second

// reader implements backend.
func (s *Server) reader() (readConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	c, err := connectServer(ctx, s.config)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// beforeCommit implements backend.
func (s *Server) beforeCommit() error { return nil }

// readReserved implements backend. Each node lists its own leases in its row of the table nodes.
func (s *Server) readReserved(all *queryBatch, each func(row) (bool, error)) {
	all.add(each, `SELECT reserved FROM nodes WHERE reserved <> ''`)
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
			of[l.Job.Node] = appendReserved(list, seq, l.Job.Fence, l.Job.Node)
		}
	}
	for node, list := range of {
		if node <= 0 {
			inMeta += string(list)
		} else if node == s.node {
			s.reservedText = string(list) // commit writes this node's row anyway
		} else if err := t.exec(`UPDATE nodes SET reserved = ? WHERE id = ?`, string(list), node); err != nil {
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
func (s *Server) refusal(k kind, err error) error {
	// The error for the user omits the SQL statement.
	if said, refused := errors.AsType[serverRefused](err); refused {
		err = said.PgError
	}
	if k == full {
		return queue.Errorf(queue.CodeNoSpace, "the disk of the database server is full (%v); free some space and try again",
			err)
	}
	return queue.Errorf(queue.CodeUnavailable, "%v; try again later", err)
}

// blameUncertain implements backend. It reports whether the error belongs to PostgreSQL's class 22 (data), 23
// (constraints) or 54 (limits).
func (s *Server) blameUncertain(err error) bool {
	e, refused := errors.AsType[serverRefused](err)
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
	s.db.query(func(r row) (bool, error) {
		s.size.Store(r.num(0))
		s.clockOffset.update(sent, queue.Millis(r.num(1)), queue.MillisOf(time.Now()))
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
	case errors.As(err, new(damage)):
		s.failFromRead(err)
		return queue.Errorf(queue.CodeUnavailable, "the database failed (%v), so the service ends; see the service's log, "+
			"and check the database with: queuectl doctor", err)
	case errors.As(err, new(serverLost)), errors.As(err, new(serverRefused)) && kindOf(err) != mistake:
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
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		leaveErr = s.leave(ctx)
	}
	if leaveErr != nil {
		s.log.Info("cannot notify the other nodes that this node stops; they wait until the lease of this node ends", "error",
			leaveErr)
	}
	for _, c := range []interface{ close() error }{s.leaseConn, s.messageConn, s.writer} {
		c.close() // errors are ignored: the server detects closed connections itself
	}
	return nil
}

var (
	_ store.Store    = (*Server)(nil)
	_ store.Examiner = (*Server)(nil)
	_ store.Cluster  = (*Server)(nil)
	_ backend        = (*Server)(nil)
)
