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
	// the connection goes through a pooler, and is empty for a direct connection.
	session        string
	ctx            context.Context  // context of the current calls; see interruptWhenDone
	cancelTx       func()           // releases the context of the transaction; nil outside of a transaction
	pipeline       *pgconn.Pipeline // pipeline of the transaction; nil outside of a transaction
	stmts          map[string]*serverStatement
	statementNames int           // number of statements that were given a name to prepare
	unread         []sentMessage // messages whose replies have not been read
	unreadBytes    int           // bytes of arguments in the messages of unread
	// pipelineErr is the first error in the pipeline. After an error, the server skips all statements until
	// the next Sync.
	pipelineErr    error
	sentBytes      int64                       // total bytes of arguments sent on this connection
	unsynced       bool                        // statements were sent since the last Sync
	wrote          bool                        // a writing statement was sent since begin
	heldRows       map[string]*serverStatement // by table: the statement with unsent rows
	roundTrips     int64                       // number of times that the client waited for a reply
	statementsSent int64                       // number of statements sent

	backendStart string // start time of the connection's server process
}

// sentMessage is a message whose reply has not been read. It prepares a statement (Parse), executes one, or
// ends a part of the pipeline (Sync).
type sentMessage struct {
	*serverStatement
	prepare      bool
	sync         bool
	startedQuery bool // a query sent by startQuery; finishQuery reads its rows
}

// serverStatement is a statement that is or will be prepared on the connection.
type serverStatement struct {
	name, text  string
	prepareSent bool // the message that prepares it was sent
	prepared    bool // the server confirmed that it is prepared
	writes      bool
	// types are the types of the arguments as reported by the server. They are nil until the server has
	// reported them, and for statements without byRows.
	types  []uint32
	byRows bool      // each execution writes one row
	batch  *rowBatch // rows that have been collected and not sent
}

// maxTxTime is the maximum duration of one transaction of the writer.
const maxTxTime = 10 * time.Second

// Limits of what is sent before replies are read.
const (
	maxUnread      = 500
	maxUnreadBytes = 1 << 20
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
		c.unreadBytes += len(values[i])
		c.sentBytes += int64(len(values[i]))
	}
	return c.sendValues(s, values, formats)
}

// sendNext sends the collected rows of all tables, then a statement, so that the server executes them in
// order.
func (c *serverConn) sendNext(sql string, args []any) error {
	if err := c.writeHeld(); err != nil {
		return err
	}
	return c.send(sql, args)
}

// sendValues adds a statement with encoded arguments to the pipeline.
func (c *serverConn) sendValues(s *serverStatement, values [][]byte, formats []int16) error {
	if !s.prepareSent && (c.session == "" || s.byRows) {
		c.sendPrepare(s)
	}
	if c.session == "" {
		c.pipeline.SendQueryPrepared(s.name, values, formats, nil)
	} else {
		// Through a pooler, the next transaction may use another connection, which does not have the prepared
		// statement.
		c.pipeline.SendQueryParams(s.text, values, nil, formats, nil)
	}
	c.unread = append(c.unread, sentMessage{serverStatement: s})
	c.wrote, c.unsynced = c.wrote || s.writes, true
	c.statementsSent++
	return nil
}

// sendPrepare sends the message that prepares a statement.
func (c *serverConn) sendPrepare(s *serverStatement) {
	if c.session == "" {
		c.statementNames++
		s.name = "s" + strconv.Itoa(c.statementNames)
	}
	s.prepareSent, c.unsynced = true, true
	c.pipeline.SendPrepare(s.name, s.text, nil)
	c.unread = append(c.unread, sentMessage{serverStatement: s, prepare: true})
}

// readIfMany reads half of the outstanding replies if there are many.
func (c *serverConn) readIfMany() error {
	if len(c.unread) < maxUnread && c.unreadBytes < maxUnreadBytes {
		return nil
	}
	if err := c.push(); err != nil {
		return err
	}
	// The replies to the newest statements are still on their way. Do not wait for them.
	_, err := c.read(maxUnread / 2)
	c.unreadBytes /= 2
	return err
}

// read reads replies until only those to the last n messages are outstanding, where n is keep.
func (c *serverConn) read(keep int) (changed int64, err error) {
	for len(c.unread) > keep {
		next := c.unread[0]
		c.unread = c.unread[1:]
		result, replyErr := c.pipeline.GetResults()
		if next.sync {
			err = cmp.Or(err, serverError(replyErr, ""))
			continue
		}
		if next.prepare && replyErr == nil {
			next.notePrepared(result)
		}
		if r, rows := result.(*pgconn.ResultReader); rows && replyErr == nil {
			tag, failed := r.Close()
			changed, replyErr = tag.RowsAffected(), failed
		}
		if replyErr != nil {
			next.prepareSent = next.prepared
			err = cmp.Or(err, serverError(replyErr, next.text))
			c.dropSkipped()
		}
	}
	if keep == 0 {
		c.unread, c.unreadBytes = c.unread[:0], 0
	}
	return changed, err
}

// dropSkipped drops the messages that follow a failed statement, up to the next Sync. The server neither
// executes nor prepares them.
func (c *serverConn) dropSkipped() {
	for len(c.unread) > 0 && !c.unread[0].sync {
		c.unread[0].prepareSent = c.unread[0].prepared
		c.unread = c.unread[1:]
	}
}

// flush ends the batch with a Sync, like push. The caller waits for the replies next.
func (c *serverConn) flush() error {
	c.roundTrips++
	return c.push()
}

// push makes the server reply to all that was sent. It sends a Sync, not a Flush. After a Sync the server
// counts the transaction as idle, and ends it after writerIdleTimeout if the client hangs.
func (c *serverConn) push() error {
	c.pipeline.SendPipelineSync()
	c.unread, c.unsynced = append(c.unread, sentMessage{sync: true}), false
	return serverError(c.pipeline.Flush(), "")
}

// inPipeline calls f in the pipeline of the current transaction. Outside of a transaction, it creates a
// pipeline for this call.
func (c *serverConn) inPipeline(f func() error) (err error) {
	if c.pipeline != nil {
		if c.pipelineErr == nil {
			c.pipelineErr = f()
		}
		return c.pipelineErr
	}
	c.pipeline, c.pipelineErr = c.pg.StartPipeline(c.ctx), nil
	if err = c.applySession(); err == nil {
		err = f()
	}
	if err != nil {
		c.sync()
		return err
	}
	return c.sync()
}

// applySession sends the session settings, if the connection goes through a pooler.
func (c *serverConn) applySession() error {
	if c.session == "" {
		return nil
	}
	return c.send(c.session, nil)
}

// sync ends the pipeline and reads the remaining replies.
func (c *serverConn) sync() error {
	pipe := c.pipeline
	var err error
	if c.unsynced {
		err = c.flush()
	}
	if err == nil {
		_, err = c.read(0)
	}
	c.pipeline, c.unread, c.unreadBytes, c.unsynced = nil, nil, 0, false
	c.dropHeld()
	if c.cancelTx != nil {
		defer c.cancelTx()
		c.cancelTx = nil
	}
	if closed := pipe.Close(); err == nil {
		err = serverError(closed, "")
	}
	return err
}

// exec implements conn.
func (c *serverConn) exec(sql string, args ...any) error {
	return c.inPipeline(func() error {
		if err := c.sendNext(sql, args); err != nil {
			return err
		}
		return c.readIfMany()
	})
}

// count implements conn.
func (c *serverConn) count(sql string, args ...any) (n int64, err error) {
	err = c.inPipeline(func() error {
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
	var refused error // the error that the callback returned
	err := c.inPipeline(func() error {
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
		statement := c.unread[0].text
		c.unread = c.unread[1:]
		err := c.readRows(each, statement, &refused)
		_, err2 := c.read(0)
		return cmp.Or(err, err2)
	})
	return cmp.Or(err, refused)
}

// startQuery sends a query and makes the server start it, without waiting for its rows. The method
// finishQuery reads them. The rows are lost if the reply to a later statement is read first.
func (c *serverConn) startQuery(sql string, args ...any) error {
	return c.inPipeline(func() error {
		if err := c.sendNext(sql, args); err != nil {
			return err
		}
		c.unread[len(c.unread)-1].startedQuery = true
		return c.push()
	})
}

// finishQuery reads the rows of the query that startQuery sent. ok is false if the rows are lost.
func (c *serverConn) finishQuery(each func(r row) (more bool, err error)) (ok bool, err error) {
	var refused error // the error that the callback returned
	err = c.inPipeline(func() error {
		index := slices.IndexFunc(c.unread, func(s sentMessage) bool { return s.startedQuery })
		if ok = index >= 0; !ok {
			return nil
		}
		c.roundTrips++
		if _, err := c.read(len(c.unread) - index); err != nil {
			return err
		}
		statement := c.unread[0].text
		c.unread = c.unread[1:]
		return c.readRows(each, statement, &refused)
	})
	return ok, cmp.Or(err, refused)
}

// queries implements conn. All statements together take one round trip.
func (c *serverConn) queries(list []batchQuery) error {
	var refused error // the error that a callback returned
	err := c.inPipeline(func() error {
		if err := c.writeHeld(); err != nil {
			return err
		}
		before := len(c.unread)
		for _, a := range list {
			if err := c.send(a.sql, a.args); err != nil {
				return err
			}
		}
		if err := c.flush(); err != nil {
			return err
		}
		if _, err := c.read(len(c.unread) - before); err != nil {
			return err
		}
		for _, a := range list {
			if c.unread[0].prepare {
				if _, err := c.read(len(c.unread) - 1); err != nil {
					return err
				}
			}
			statement := c.unread[0].text
			c.unread = c.unread[1:]
			if err := c.readRows(a.each, statement, &refused); err != nil {
				return err
			}
		}
		_, err := c.read(0)
		return err
	})
	return cmp.Or(err, refused)
}

// readRows reads the rows of the next reply and passes them to the callback each. Once the callback has
// returned an error, readRows stores the error in refused and discards the remaining rows.
func (c *serverConn) readRows(each func(r row) (more bool, err error), statement string, refused *error) error {
	result, err := c.pipeline.GetResults()
	if err != nil {
		c.dropSkipped()
		return serverError(err, statement)
	}
	rows := result.(*pgconn.ResultReader)
	current := serverRow{fields: rows.FieldDescriptions()}
	for more := *refused == nil; more && rows.NextRow(); {
		current.values = rows.Values()
		if more, *refused = each(&current); *refused != nil {
			break
		}
	}
	if _, err = rows.Close(); err != nil {
		c.dropSkipped()
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

// begin implements conn. If the transaction takes longer than maxTxTime, the connection is treated as lost.
func (c *serverConn) begin() error {
	c.wrote = false
	ctx, cancel := context.WithTimeout(c.ctx, maxTxTime)
	c.pipeline, c.pipelineErr, c.cancelTx = c.pg.StartPipeline(ctx), nil, cancel
	if err := c.send(beginWriting, nil); err != nil {
		return err
	}
	return c.applySession()
}

// commit implements conn.
func (c *serverConn) commit() error {
	if c.pipelineErr != nil {
		return c.pipelineErr
	}
	if err := c.sendNext(`COMMIT`, nil); err != nil {
		return err
	}
	return c.sync()
}

// rollback implements conn.
func (c *serverConn) rollback() {
	if c.pipeline != nil {
		c.sync()
	}
	if !c.pg.IsClosed() && c.pg.TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(c.ctx, maxTxTime)
		defer cancel()
		c.pg.Exec(ctx, `ROLLBACK`).Close()
	}
}

// beginReading implements conn.
func (c *serverConn) beginReading() error {
	c.wrote = false
	c.pipeline, c.pipelineErr = c.pg.StartPipeline(c.ctx), nil
	if err := c.send(`BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`, nil); err != nil {
		return err
	}
	if err := c.applySession(); err != nil {
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
	if c.pipeline != nil {
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

// argumentBytes implements conn.
func (c *serverConn) argumentBytes() int64 { return c.sentBytes }

// isOneOf implements conn.
func (c *serverConn) isOneOf(column string) string {
	return column + ` = ANY (string_to_array(?, ' ')::bigint[])`
}

// isOneOfWords implements conn.
func (c *serverConn) isOneOfWords(column string) string {
	return column + ` = ANY (string_to_array(?, ' '))`
}

// readLimit implements conn.
func (c *serverConn) readLimit(want, bytes int) int {
	return max(64, min(want+readLimitSlack, readLimitBytes/max(bytes, 1)))
}

// Limits of rows that one query reads in advance.
const (
	// readLimitSlack is the number of rows that are read in excess, because some jobs may be leased already.
	readLimitSlack = 8
	readLimitBytes = 4 << 20
)

// hasWritten implements conn.
func (c *serverConn) hasWritten() bool { return c.wrote }

// interruptWhenDone implements conn.
func (c *serverConn) interruptWhenDone(ctx context.Context) (release func()) {
	previous := c.ctx
	c.ctx = ctx
	return func() { c.ctx = previous }
}

// isInterruption implements conn.
func (c *serverConn) isInterruption(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err)
}

// close implements conn.
func (c *serverConn) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if c.pipeline != nil {
		c.pipeline.Close()
	}
	return c.pg.Close(ctx)
}

// closeTimeout is the maximum time for closing a connection or reporting to the server that a node stops.
const closeTimeout = 2 * time.Second
