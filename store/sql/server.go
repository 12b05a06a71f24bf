package sql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Server is a store.Store in a PostgreSQL database. Make it with OpenServer.
type Server struct {
	*engine
	config *pgconn.Config
	writer *serverConn
	behind atomic.Int64 // how far this machine's clock is behind the server's, in ms
	size   atomic.Int64 // of the database, in bytes
	sized  time.Time    // when it was looked at; the writer's
}

// Waits for a server.
const (
	connectWait = 5 * time.Second // for a connection, with the lock
	lockAgain   = 200 * time.Millisecond
	sizeEvery   = time.Minute
)

// oldestServer is the oldest PostgreSQL, as it numbers itself.
const oldestServer = 14_00_00

// serverLock is the number of the lock that the one service has which writes. It is of this program alone.
const serverLock = 0x71756575

// OpenServer opens the database of a URL and makes its tables if there are none. One service at a time may use it.
func OpenServer(ctx context.Context, url string, o Options) (*Server, error) {
	config, err := serverConfig(url)
	if err != nil {
		return nil, err
	}
	s := &Server{config: config}
	s.engine = newEngine(s, o.Order, o.Log)
	s.now = func() queue.Millis { return queue.MillisOf(time.Now()) + queue.Millis(s.behind.Load()) }
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	s.db = &serverWriter{s, s.writer}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.writer.close())
	}
	s.read = newReaders(s.reader)
	if err := s.begin(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for _, f := range s.Examine(ctx) {
		if f.Level != store.Fine {
			s.log.Warn(f.Message, "next", f.Next)
		}
	}
	return s, nil
}

// connect connects the writer, and takes the lock.
func (s *Server) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	c, err := connectServer(ctx, s.config)
	if err != nil {
		return err
	}
	c.ctx = ctx
	defer func() { c.ctx = context.Background() }()
	for taken := false; ; taken = true {
		var got, ms int64
		err := c.query(func(r row) (bool, error) {
			got, ms = r.num(0), r.num(1)
			return false, nil
		}, `SELECT pg_try_advisory_lock(`+fmt.Sprint(serverLock)+`), (extract(epoch FROM clock_timestamp()) * 1000)::bigint`)
		if err == nil && got == 1 {
			s.behind.Store(ms - time.Now().UnixMilli())
			s.writer = c
			return nil
		}
		if err == nil && s.writer != nil { // it may be held by the connection that is lost
			_, err = c.number(`SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = ` + fmt.Sprint(serverLock) + ` AND pid = ` + fmt.Sprint(s.writer.pg.PID()) + `) t`)
		}
		if err != nil && !(taken && ctx.Err() != nil) {
			c.close()
			return err
		}
		select {
		case <-time.After(lockAgain):
		case <-ctx.Done():
			c.close()
			return queue.Errorf(queue.CodeUnavailable, "another service uses the database %s; end it first", s.config.Database)
		}
	}
}

// open makes the tables, and reads what stands at their heads.
func (s *Server) open() error {
	version, err := s.writer.number(`SELECT current_setting('server_version_num')`)
	if err == nil && version < oldestServer {
		err = queue.Errorf(queue.CodeInvalid, "the database's server is PostgreSQL %d; 14 or later is needed", version/10_000)
	}
	if err != nil {
		return err
	}
	there, err := s.hasTables()
	if err == nil && !there {
		err = s.makeTables()
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

// serverID tells one database from another, and from a copy on another server.
func serverID(c conn) (id string, err error) {
	err = c.query(func(r row) (bool, error) {
		id = r.text(0)
		return false, nil
	}, `SELECT system_identifier || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()) FROM pg_control_system()`)
	return id, err
}

// hasTables reports whether the tables are there.
func (s *Server) hasTables() (bool, error) {
	n, err := s.writer.number(hasMeta)
	return n > 0, err
}

const hasMeta = `SELECT count(*) FROM pg_tables WHERE schemaname = '` + serverSchema + `' AND tablename = 'meta'`

// makeTables makes the schema, all of it or nothing.
func (s *Server) makeTables() error {
	script := []string{`BEGIN`, `CREATE SCHEMA IF NOT EXISTS ` + serverSchema}
	for _, step := range migrations {
		for _, statement := range step {
			script = append(script, serverTable(statement))
		}
	}
	script = append(append(script, inboxTables()...), `COMMIT`)
	for _, statement := range script {
		if err := s.writer.pg.Exec(context.Background(), statement).Close(); err != nil {
			return serverError(err, statement)
		}
	}
	return nil
}

// serverTable is a statement of the schema as PostgreSQL writes it: texts are in the order of their bytes.
func serverTable(statement string) string {
	if !strings.HasPrefix(statement, "CREATE TABLE") {
		return statement
	}
	filled := ")"
	if strings.HasPrefix(statement, "CREATE TABLE jobs ") || strings.HasPrefix(statement, "CREATE TABLE meta ") {
		filled = ") WITH (fillfactor = 70)" // a row is written again and again
	}
	return strings.NewReplacer(
		") STRICT, WITHOUT ROWID", filled, ") STRICT", filled,
		" INTEGER PRIMARY KEY AUTOINCREMENT", " BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
		" INTEGER PRIMARY KEY", " BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
		" INTEGER", " BIGINT", " TEXT", ` TEXT COLLATE "C"`, " BLOB", " BYTEA",
	).Replace(statement)
}

// serverWriter is the writer's connection, which is made anew when it is lost.
type serverWriter struct {
	s *Server
	*serverConn
}

// begin implements conn.
func (w *serverWriter) begin() error {
	if w.pg.IsClosed() {
		if err := w.again(); err != nil {
			return err
		}
		if has, err := w.commits(); err != nil {
			return err
		} else if has != w.s.mem.commits {
			return damage("another service has changed the database meanwhile")
		}
	}
	return w.serverConn.begin()
}

// again connects anew.
func (w *serverWriter) again() error {
	err := w.s.connect(context.Background())
	if err == nil {
		w.serverConn = w.s.writer
	}
	return err
}

// commits is how many transactions have changed anything.
func (w *serverWriter) commits() (int64, error) { return w.number(`SELECT commits FROM meta`) }

// commit implements conn. If the connection is lost with it, a new one tells whether it holds.
func (w *serverWriter) commit() error {
	wrote := w.wrote
	err := w.serverConn.commit()
	if err == nil || !w.pg.IsClosed() {
		return err
	}
	if !wrote {
		return nil
	}
	for until := time.Now().Add(doubtWait); ; time.Sleep(lockAgain) {
		if failed := w.again(); failed == nil {
			has, failed := w.commits()
			switch {
			case failed == nil && has == w.s.mem.commits:
				return nil
			case failed == nil && has == w.s.mem.commits-1:
				return err // nothing of it holds
			case failed == nil:
				return damage("another service has changed the database meanwhile")
			}
		}
		if time.Now().After(until) {
			return fmt.Errorf("whether the last change holds is not known: %w", errors.Join(damage("the database cannot be reached"), err))
		}
	}
}

// doubtWait is how long a server is waited for that has been lost while it stored something.
const doubtWait = 30 * time.Second

// reader implements host.
func (s *Server) reader() (conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), connectWait)
	defer cancel()
	c, err := connectServer(ctx, s.config)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ready implements host.
func (s *Server) ready() error { return nil }

// committed implements host.
func (s *Server) committed(bool) {}

// relieve implements host: nobody here can.
func (s *Server) relieve() bool { return false }

// refusal implements host.
func (s *Server) refusal(k kind, err error) error {
	if k == full {
		return queue.Errorf(queue.CodeNoSpace, "no space on the disk of the database's server (%v); free some and try again", err)
	}
	return queue.Errorf(queue.CodeUnavailable, "%v; try again later", err)
}

// broke implements host.
func (s *Server) broke() {}

// room implements host: the server says when there is none.
func (s *Server) room() error { return nil }

// keepRoom implements host: it looks how large the database is, now and then.
func (s *Server) keepRoom() {
	if time.Since(s.sized) < sizeEvery {
		return
	}
	s.sized = time.Now()
	s.db.query(func(r row) (bool, error) { // what is wrong the next statement meets too
		s.size.Store(r.num(0))
		s.behind.Store(r.num(1) - time.Now().UnixMilli())
		return false, nil
	}, `SELECT pg_database_size(current_database()), (extract(epoch FROM clock_timestamp()) * 1000)::bigint`)
}

// Examine implements store.Examiner.
func (s *Server) Examine(ctx context.Context) (list []store.Finding) {
	err := s.reading(ctx, func(r *reader) (err error) {
		list, err = examineServer(r, s.config.Database)
		return err
	})
	if err != nil {
		return []store.Finding{serverFailure(err)}
	}
	return list
}

// ExamineServer looks at the database of a URL, which a service may use or not.
func ExamineServer(ctx context.Context, url string) []store.Finding {
	config, err := serverConfig(url)
	if err != nil {
		return []store.Finding{serverFailure(err)}
	}
	ctx, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	c, err := connectServer(ctx, config)
	if err != nil {
		return []store.Finding{serverFailure(err)}
	}
	defer c.close()
	c.ctx = ctx
	there, err := c.number(hasMeta)
	if err == nil && there == 0 {
		return []store.Finding{{Check: "database", Level: store.Fine, Message: "the database " + config.Database + " has no queue yet: the first start of the service makes it"}}
	}
	list, err := examineServer(c, config.Database)
	if err != nil {
		return []store.Finding{serverFailure(err)}
	}
	return list
}

// serverFailure is what is found of a server that does not answer.
func serverFailure(err error) store.Finding {
	return store.Finding{Check: "database", Level: store.Failure, Message: err.Error(), Next: "look at the server, and at store in the settings"}
}

// examineServer looks at a database that has a queue.
func examineServer(c interface {
	query(each func(r row) (more bool, err error), sql string, args ...any) error
}, name string) (list []store.Finding, err error) {
	version, fsync, commits, full := "", "", "", ""
	standbys, async, refused, size := int64(0), int64(0), int64(0), int64(0)
	began := time.Now()
	err = c.query(func(r row) (bool, error) {
		version, fsync, commits, full, standbys, async, refused, size = r.text(0), r.text(1), r.text(2), r.text(3), r.num(4), r.num(5), r.num(6), r.num(7)
		return false, nil
	}, `SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'),
		(SELECT count(*) FROM pg_stat_replication), (SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async'),
		(SELECT count(*) FROM submissions WHERE refused IS NOT NULL), pg_database_size(current_database())`)
	if err != nil {
		return nil, err
	}
	add := func(level store.Level, message, next string) {
		list = append(list, store.Finding{Check: "database", Level: level, Message: message, Next: next})
	}
	add(store.Fine, fmt.Sprintf("PostgreSQL %s, database %s, %s; it answers in %v", version, name, queue.FormatSize(size>>20<<20), time.Since(began).Round(100*time.Microsecond)), "")
	if fsync != "on" || full != "on" || commits == "off" {
		add(store.Failure, fmt.Sprintf("a crash of the server loses what was acknowledged: fsync is %s, full_page_writes %s, synchronous_commit %s", fsync, full, commits), "set all three to on, and restart the server")
	}
	if async > 0 {
		add(store.Warning, fmt.Sprintf("%d of %d standbys are asynchronous: to promote one may lose jobs that were acknowledged", async, standbys), "name it in synchronous_standby_names, or never promote it")
	}
	if refused > 0 {
		add(store.Warning, fmt.Sprintf("%d jobs that were handed in by queuectl.enqueue are none", refused), "SELECT role, id, refused FROM queuectl.submissions WHERE refused IS NOT NULL says why; DELETE those that were seen")
	}
	return list, nil
}

// bytes implements host.
func (s *Server) bytes() int64 { return s.size.Load() }

// budget implements host.
func (s *Server) budget() time.Duration { return longRead }

// late implements host.
func (s *Server) late(budget time.Duration) error {
	return queue.Errorf(queue.CodeUnavailable, "reading took longer than %v; ask for less, or try again later", budget)
}

// readable implements host.
func (s *Server) readable() error { return nil }

// cannotRead implements host.
func (s *Server) cannotRead(err error) error {
	switch {
	case err == nil:
	case errors.As(err, new(damage)):
		s.failed(err)
		return queue.Errorf(queue.CodeUnavailable, "the database failed (%v): the service ends; its log says more", err)
	case errors.As(err, new(serverLost)), errors.As(err, new(serverRefused)) && kindOf(err) != mistake:
		return queue.Errorf(queue.CodeUnavailable, "the database cannot be read now (%v); try again later", err)
	}
	return err
}

// close implements host.
func (s *Server) close() error { return s.writer.close() }

var (
	_ store.Store    = (*Server)(nil)
	_ store.Examiner = (*Server)(nil)
	_ host           = (*Server)(nil)
)
