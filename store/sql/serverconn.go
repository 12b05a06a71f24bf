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

// serverConn is a connection to a PostgreSQL server. What a transaction writes is sent as it comes, and its
// answers are read with those of the next statement that is waited for: so it takes one round trip for each of
// these, and one to commit.
type serverConn struct {
	pg      *pgconn.PgConn
	session string           // of a connection by a pooler: the statement that gives each transaction its settings
	ctx     context.Context  // of what runs; see endWith
	end     func()           // gives back the context of a transaction; nil outside of one
	pipe    *pgconn.Pipeline // of a transaction, nil outside of one
	stmts   map[string]*serverStatement
	named   int          // statements that were prepared
	sent    []serverSent // whose answers were not read yet
	bytes   int          // that these carry
	met     error        // by a statement of the pipeline: the server carries out none that follows
	bound   int64
	open    bool                        // something was sent since the last end
	wrote   bool                        // something since begin
	held    map[string]*serverStatement // whose rows were not sent yet, by their table
	trips   int64                       // times that an answer was waited for
	asked   int64                       // number of statements sent

	since string // when its process at the server began
}

// serverSent is a statement that was sent, to be prepared or carried out, or an end of what the server answers at once.
type serverSent struct {
	*serverStatement
	prepare  bool
	end      bool
	expected bool // its rows are read later
}

// serverStatement is a statement that the server has prepared, or is about to.
type serverStatement struct {
	name, text string
	asked      bool // the server was asked to prepare it
	prepared   bool // and has
	writes     bool
	types      []uint32 // of its arguments, once they are known; of one that writes rows alone
	byRows     bool     // it writes a row each time
	rows       *rows    // that were not sent yet
}

// serverPatience is how long a transaction of the writer may take, all in all.
const serverPatience = 10 * time.Second

// Limits of what is sent before answers are read.
const (
	unreadMost      = 500
	unreadBytesMost = 1 << 20
)

// statement is a statement that is prepared, or is about to be.
func (c *serverConn) statement(sql string) *serverStatement {
	s := c.stmts[sql]
	if s == nil {
		s = &serverStatement{text: serverSQL(sql), writes: !strings.HasPrefix(sql, "SELECT") && sql != beginWriting}
		c.stmts[sql] = s
	}
	return s
}

// send sends a statement in a pipeline.
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

// sendNext sends the rows that are held, and then a statement.
func (c *serverConn) sendNext(sql string, args []any) error {
	if err := c.writeHeld(); err != nil {
		return err
	}
	return c.send(sql, args)
}

// sendValues sends a statement with the values of its arguments.
func (c *serverConn) sendValues(s *serverStatement, values [][]byte, formats []int16) error {
	if !s.asked && (c.session == "" || s.byRows) {
		c.ask(s)
	}
	if c.session == "" {
		c.pipe.SendQueryPrepared(s.name, values, formats, nil)
	} else { // the next transaction's connection would not know it
		c.pipe.SendQueryParams(s.text, values, nil, formats, nil)
	}
	c.sent = append(c.sent, serverSent{serverStatement: s})
	c.wrote, c.open = c.wrote || s.writes, true
	c.asked++
	return nil
}

// ask asks the server to prepare a statement.
func (c *serverConn) ask(s *serverStatement) {
	if c.session == "" {
		c.named++
		s.name = "s" + strconv.Itoa(c.named)
	}
	s.asked, c.open = true, true
	c.pipe.SendPrepare(s.name, s.text, nil)
	c.sent = append(c.sent, serverSent{serverStatement: s, prepare: true})
}

// bounded reads answers if there are many.
func (c *serverConn) bounded() error {
	if len(c.sent) < unreadMost && c.bytes < unreadBytesMost {
		return nil
	}
	if err := c.push(); err != nil {
		return err
	}
	_, err := c.read(unreadMost / 2) // the answers of the others are on their way, and are not waited for
	c.bytes /= 2
	return err
}

// read reads the answers of all that was sent, but for the last n statements.
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

// skip forgets what was sent after a statement that has failed: the server carries out none up to the next end, and
// prepares none.
func (c *serverConn) skip() {
	for len(c.sent) > 0 && !c.sent[0].end {
		c.sent[0].asked = c.sent[0].prepared
		c.sent = c.sent[1:]
	}
}

// flush has the server answer what was sent, to be waited for.
func (c *serverConn) flush() error {
	c.trips++
	return c.push()
}

// push has the server answer what was sent. It is a Sync of the protocol, not a Flush: after that the server knows that a transaction
// stands still, and ends it in time, though the client hangs.
func (c *serverConn) push() error {
	c.pipe.SendPipelineSync()
	c.sent, c.open = append(c.sent, serverSent{end: true}), false
	return serverError(c.pipe.Flush(), "")
}

// within calls f in a pipeline: that of the transaction, or one of its own.
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

// settle gives a transaction that has just begun its settings, if the connection has none.
func (c *serverConn) settle() error {
	if c.session == "" {
		return nil
	}
	return c.send(c.session, nil)
}

// sync ends a pipeline, and reads what is left.
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
	var refused error // by each
	err := c.within(func() error {
		if err := c.sendNext(sql, args); err != nil {
			return err
		}
		if err := c.flush(); err != nil {
			return err
		}
		if _, err := c.read(2); err != nil { // its own, and the end
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

// expect sends a query, and has the server begin with it. answered reads its rows, unless the answer to a later statement was read before.
func (c *serverConn) expect(sql string, args ...any) error {
	return c.within(func() error {
		if err := c.sendNext(sql, args); err != nil {
			return err
		}
		c.sent[len(c.sent)-1].expected = true
		return c.push()
	})
}

// answered reads the rows of the query that is expected; ok is false if they are lost.
func (c *serverConn) answered(each func(r row) (more bool, err error)) (ok bool, err error) {
	var refused error // by each
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

// queries implements conn: they take one round trip.
func (c *serverConn) queries(list []asked) error {
	var refused error // by one of those that are told
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

// rows reads the rows of the statement whose answer comes next. Once a row is refused no other one is told.
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

// beginWriting begins a transaction that writes, whatever level the role or the database begins with.
const beginWriting = `BEGIN ISOLATION LEVEL READ COMMITTED`

// begin implements conn. A server that does not answer in time is lost.
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
	_, err := c.read(0) // so that one knows of a connection that was lost
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

// Limits of rows that are read ahead.
const (
	spareRows  = 8 // that may be leased already
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

// closeWait is how long a server is told that a connection ends.
const closeWait = 2 * time.Second
