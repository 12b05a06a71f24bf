package sql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// serverConn is a connection to a PostgreSQL server. It pipelines the statements of a transaction: statements
// without a result are sent immediately, and their replies are read together with the next result that the
// caller needs. A transaction thus takes one round trip for each such result and one for the commit.
type serverConn struct {
	pg *pgconn.PgConn
	// session is a statement that applies the session settings to the current transaction. It is set only if
	// the connection goes through a pooler, and empty otherwise.
	session string
	ctx     context.Context  // context of the current calls; see endWith
	end     func()           // releases the context of the transaction; nil outside of one
	pipe    *pgconn.Pipeline // of the transaction; nil outside of one
	stmts   map[string]*serverStatement
	named   int          // number of statements that were given a name to prepare
	sent    []serverSent // messages whose replies were not read yet
	bytes   int          // bytes of arguments in sent
	// met is the first error in the pipeline. After an error, the server skips all statements up to the next
	// Sync.
	met   error
	bound int64                       // total bytes of arguments sent on this connection
	open  bool                        // statements were sent since the last Sync
	wrote bool                        // a writing statement was sent since begin
	held  map[string]*serverStatement // statements with rows that were not sent yet, by table
	trips int64                       // number of times that the client waited for a reply
	asked int64                       // number of statements sent

	since string // start time of the connection's server process
}

// serverSent is a message that was sent and whose reply was not read yet: a Parse (prepare), an execution, or
// a Sync (end).
type serverSent struct {
	*serverStatement
	prepare  bool
	end      bool
	expected bool // a query sent by expect; answered reads its rows
}

// serverStatement is a statement that is or will be prepared on the connection.
type serverStatement struct {
	name, text string
	asked      bool // the message that prepares it was sent
	prepared   bool // the server confirmed that it is prepared
	writes     bool
	// types are the types of the arguments. They are set only if byRows is, once the server has reported
	// them.
	types  []uint32
	byRows bool  // each execution writes one row
	rows   *rows // rows that were not sent yet
}

// serverPatience is the maximum duration of one transaction of the writer.
const serverPatience = 10 * time.Second

// Limits of what is sent before replies are read.
const (
	unreadMost      = 500
	unreadBytesMost = 1 << 20
)

// statement returns the connection's record of a statement, and creates it if necessary.
func (c *serverConn) statement(sql string) *serverStatement {
	s := c.stmts[sql]
	if s == nil {
		s = &serverStatement{text: serverSQL(sql), writes: !strings.HasPrefix(sql, "SELECT") && sql != beginWriting}
		c.stmts[sql] = s
	}
	return s
}

// send adds a statement to the pipeline.
func (c *serverConn) send(sql string, args []any) error {
	s := c.statement(sql)
	values, formats := make([][]byte, len(args)), make([]int16, len(args))
	for i, a := range args {
		switch a := a.(type) {
		case int64:
			values[i] = strconv.AppendInt(nil, a, 10)
		case string:
			values[i] = []byte(cleanText(a))
		case []byte:
			values[i], formats[i] = a, 1
			if a == nil {
				values[i] = []byte{}
			}
		case nil:
		default:
			return fmt.Errorf("argument %d has a type that the database does not support (%T); SQL statement: %s", i+1, a, sql)
		}
		c.bytes += len(values[i])
		c.bound += int64(len(values[i]))
	}
	return c.sendValues(s, values, formats)
}

// sendNext sends the rows that are held, then a statement.
func (c *serverConn) sendNext(sql string, args []any) error {
	if err := c.writeHeld(); err != nil {
		return err
	}
	return c.send(sql, args)
}

// sendValues adds a statement with encoded arguments to the pipeline.
func (c *serverConn) sendValues(s *serverStatement, values [][]byte, formats []int16) error {
	if !s.asked && (c.session == "" || s.byRows) {
		c.ask(s)
	}
	if c.session == "" {
		c.pipe.SendQueryPrepared(s.name, values, formats, nil)
	} else {
		// Through a pooler, the next transaction may use another connection, which does not have the prepared
		// statement.
		c.pipe.SendQueryParams(s.text, values, nil, formats, nil)
	}
	c.sent = append(c.sent, serverSent{serverStatement: s})
	c.wrote, c.open = c.wrote || s.writes, true
	c.asked++
	return nil
}

// ask sends the message that prepares a statement.
func (c *serverConn) ask(s *serverStatement) {
	if c.session == "" {
		c.named++
		s.name = "s" + strconv.Itoa(c.named)
	}
	s.asked, c.open = true, true
	c.pipe.SendPrepare(s.name, s.text, nil)
	c.sent = append(c.sent, serverSent{serverStatement: s, prepare: true})
}

// bounded reads half of the outstanding replies if there are many.
func (c *serverConn) bounded() error {
	if len(c.sent) < unreadMost && c.bytes < unreadBytesMost {
		return nil
	}
	if err := c.push(); err != nil {
		return err
	}
	// The replies to the newest statements are still on their way. Do not wait for them.
	_, err := c.read(unreadMost / 2)
	c.bytes /= 2
	return err
}

// read reads replies until only those to the last n messages are outstanding, where n is but.
func (c *serverConn) read(but int) (changed int64, err error) {
	for len(c.sent) > but {
		next := c.sent[0]
		c.sent = c.sent[1:]
		got, met := c.pipe.GetResults()
		if next.end {
			err = cmp.Or(err, serverError(met, ""))
			continue
		}
		if next.prepare && met == nil {
			next.learn(got)
		}
		if r, rows := got.(*pgconn.ResultReader); rows && met == nil {
			tag, failed := r.Close()
			changed, met = tag.RowsAffected(), failed
		}
		if met != nil {
			next.asked = next.prepared
			err = cmp.Or(err, serverError(met, next.text))
			c.skip()
		}
	}
	if but == 0 {
		c.sent, c.bytes = c.sent[:0], 0
	}
	return changed, err
}

// skip drops the messages that follow a failed statement, up to the next Sync. The server neither executes
// nor prepares them.
func (c *serverConn) skip() {
	for len(c.sent) > 0 && !c.sent[0].end {
		c.sent[0].asked = c.sent[0].prepared
		c.sent = c.sent[1:]
	}
}

// flush ends the batch with a Sync, like push. The caller waits for the replies next.
func (c *serverConn) flush() error {
	c.trips++
	return c.push()
}

// push makes the server reply to all that was sent. It sends a Sync, not a Flush. After a Sync the server
// counts the transaction as idle, and ends it after writerIdle if the client hangs.
func (c *serverConn) push() error {
	c.pipe.SendPipelineSync()
	c.sent, c.open = append(c.sent, serverSent{end: true}), false
	return serverError(c.pipe.Flush(), "")
}

// within calls f in the pipeline of the transaction, or otherwise in a new pipeline.
func (c *serverConn) within(f func() error) (err error) {
	if c.pipe != nil {
		if c.met == nil {
			c.met = f()
		}
		return c.met
	}
	c.pipe, c.met = c.pg.StartPipeline(c.ctx), nil
	if err = c.settle(); err == nil {
		err = f()
	}
	if err != nil {
		c.sync()
		return err
	}
	return c.sync()
}

// settle sends the session settings, if the connection goes through a pooler.
func (c *serverConn) settle() error {
	if c.session == "" {
		return nil
	}
	return c.send(c.session, nil)
}

// sync ends the pipeline and reads the remaining replies.
func (c *serverConn) sync() error {
	pipe := c.pipe
	var err error
	if c.open {
		err = c.flush()
	}
	if err == nil {
		_, err = c.read(0)
	}
	c.pipe, c.sent, c.bytes, c.open = nil, nil, 0, false
	c.dropHeld()
	if c.end != nil {
		defer c.end()
		c.end = nil
	}
	if closed := pipe.Close(); err == nil {
		err = serverError(closed, "")
	}
	return err
}

// exec implements conn.
func (c *serverConn) exec(sql string, args ...any) error {
	return c.within(func() error {
		if err := c.sendNext(sql, args); err != nil {
			return err
		}
		return c.bounded()
	})
}

// count implements conn.
func (c *serverConn) count(sql string, args ...any) (n int64, err error) {
	err = c.within(func() error {
		if err := c.sendNext(sql, args); err != nil {
			return err
		}
		if err := c.flush(); err != nil {
			return err
		}
		n, err = c.read(0)
		return err
	})
	return n, err
}

// query implements conn.
func (c *serverConn) query(each func(r row) (more bool, err error), sql string, args ...any) error {
	var refused error // the error that each returned
	err := c.within(func() error {
		if err := c.sendNext(sql, args); err != nil {
			return err
		}
		if err := c.flush(); err != nil {
			return err
		}
		// Leave two replies: the one with the rows, and that of the Sync.
		if _, err := c.read(2); err != nil {
			return err
		}
		statement := c.sent[0].text
		c.sent = c.sent[1:]
		err := c.rows(each, statement, &refused)
		_, err2 := c.read(0)
		return cmp.Or(err, err2)
	})
	return cmp.Or(err, refused)
}

// expect sends a query and makes the server start it, without waiting for its rows. The method answered reads
// them. The rows are lost if the reply to a later statement is read first.
func (c *serverConn) expect(sql string, args ...any) error {
	return c.within(func() error {
		if err := c.sendNext(sql, args); err != nil {
			return err
		}
		c.sent[len(c.sent)-1].expected = true
		return c.push()
	})
}

// answered reads the rows of the query that expect sent. ok is false if the rows are lost.
func (c *serverConn) answered(each func(r row) (more bool, err error)) (ok bool, err error) {
	var refused error // the error that each returned
	err = c.within(func() error {
		at := slices.IndexFunc(c.sent, func(s serverSent) bool { return s.expected })
		if ok = at >= 0; !ok {
			return nil
		}
		c.trips++
		if _, err := c.read(len(c.sent) - at); err != nil {
			return err
		}
		statement := c.sent[0].text
		c.sent = c.sent[1:]
		return c.rows(each, statement, &refused)
	})
	return ok, cmp.Or(err, refused)
}

// queries implements conn. All statements together take one round trip.
func (c *serverConn) queries(list []asked) error {
	var refused error // the error that one of the each functions returned
	err := c.within(func() error {
		if err := c.writeHeld(); err != nil {
			return err
		}
		before := len(c.sent)
		for _, a := range list {
			if err := c.send(a.sql, a.args); err != nil {
				return err
			}
		}
		if err := c.flush(); err != nil {
			return err
		}
		if _, err := c.read(len(c.sent) - before); err != nil {
			return err
		}
		for _, a := range list {
			if c.sent[0].prepare {
				if _, err := c.read(len(c.sent) - 1); err != nil {
					return err
				}
			}
			statement := c.sent[0].text
			c.sent = c.sent[1:]
			if err := c.rows(a.each, statement, &refused); err != nil {
				return err
			}
		}
		_, err := c.read(0)
		return err
	})
	return cmp.Or(err, refused)
}

// rows reads the rows of the next reply and passes them to each. After each has returned an error, further
// rows are read but not passed on.
func (c *serverConn) rows(each func(r row) (more bool, err error), statement string, refused *error) error {
	got, err := c.pipe.GetResults()
	if err != nil {
		c.skip()
		return serverError(err, statement)
	}
	rows := got.(*pgconn.ResultReader)
	at := serverRow{fields: rows.FieldDescriptions()}
	for more := *refused == nil; more && rows.NextRow(); {
		at.values = rows.Values()
		if more, *refused = each(row{of: &at}); *refused != nil {
			break
		}
	}
	if _, err = rows.Close(); err != nil {
		c.skip()
	}
	return serverError(err, statement)
}

// number implements conn.
func (c *serverConn) number(sql string, args ...any) (n int64, err error) {
	err = c.query(func(r row) (bool, error) {
		n = r.num(0)
		return false, nil
	}, sql, args...)
	return n, err
}

// beginWriting begins a writing transaction. It names the isolation level, because the role or the database
// may have another default.
const beginWriting = `BEGIN ISOLATION LEVEL READ COMMITTED`

// begin implements conn. If the transaction takes longer than serverPatience, the connection counts as lost.
func (c *serverConn) begin() error {
	c.wrote = false
	ctx, cancel := context.WithTimeout(c.ctx, serverPatience)
	c.pipe, c.met, c.end = c.pg.StartPipeline(ctx), nil, cancel
	if err := c.send(beginWriting, nil); err != nil {
		return err
	}
	return c.settle()
}

// commit implements conn.
func (c *serverConn) commit() error {
	if c.met != nil {
		return c.met
	}
	if err := c.sendNext(`COMMIT`, nil); err != nil {
		return err
	}
	return c.sync()
}

// rollback implements conn.
func (c *serverConn) rollback() {
	if c.pipe != nil {
		c.sync()
	}
	if !c.pg.IsClosed() && c.pg.TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(c.ctx, serverPatience)
		defer cancel()
		c.pg.Exec(ctx, `ROLLBACK`).Close()
	}
}

// beginReading implements conn.
func (c *serverConn) beginReading() error {
	c.wrote = false
	c.pipe, c.met = c.pg.StartPipeline(c.ctx), nil
	if err := c.send(`BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`, nil); err != nil {
		return err
	}
	if err := c.settle(); err != nil {
		return err
	}
	if err := c.flush(); err != nil {
		return err
	}
	_, err := c.read(0) // detects a lost connection
	return err
}

// endReading implements conn.
func (c *serverConn) endReading() error {
	if c.pipe != nil {
		if err := c.send(`ROLLBACK`, nil); err == nil {
			c.sync()
		}
	}
	if c.pg.IsClosed() {
		return errors.New("the connection to the database is lost")
	}
	if c.pg.TxStatus() != 'I' {
		return c.pg.Exec(c.ctx, `ROLLBACK`).Close()
	}
	return nil
}

// carried implements conn.
func (c *serverConn) carried() int64 { return c.bound }

// among implements conn.
func (c *serverConn) among(column string) string {
	return column + ` = ANY (string_to_array(?, ' ')::bigint[])`
}

// amongWords implements conn.
func (c *serverConn) amongWords(column string) string {
	return column + ` = ANY (string_to_array(?, ' '))`
}

// ahead implements conn.
func (c *serverConn) ahead(want, bytes int) int {
	return max(64, min(want+spareRows, aheadBytes/max(bytes, 1)))
}

// Limits of rows that one query reads in advance.
const (
	// spareRows is the number of extra rows, since some of the rows read may be leased already.
	spareRows  = 8
	aheadBytes = 4 << 20
)

// hasWritten implements conn.
func (c *serverConn) hasWritten() bool { return c.wrote }

// endWith implements conn.
func (c *serverConn) endWith(ctx context.Context) (release func()) {
	was := c.ctx
	c.ctx = ctx
	return func() { c.ctx = was }
}

// interrupted implements conn.
func (c *serverConn) interrupted(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err)
}

// close implements conn.
func (c *serverConn) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	if c.pipe != nil {
		c.pipe.Close()
	}
	return c.pg.Close(ctx)
}

// closeWait is the maximum time for closing a connection or reporting to the server that a node stops.
const closeWait = 2 * time.Second
