// Package pgdb connects to the PostgreSQL database of a queue, sends statements in pipelines, and creates and
// checks the tables.
//
// Start with Connect, Conn and EnsureTables.
package pgdb

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queuectl/queuectl/store/database"
)

// Conn is a connection to a PostgreSQL server. It pipelines the statements of a transaction: it sends
// statements without a result immediately, and reads their replies together with the next result. So a
// transaction takes one round trip for each result that the caller needs, and one for the commit.
type Conn struct {
	pgConn *pgconn.PgConn
	// sessionSettingsSQL is a statement that applies the session settings to the current transaction. It is empty
	// unless the connection goes through a pooler.
	sessionSettingsSQL      string
	callCtx                 context.Context  // context of the current calls; see InterruptWhenDone
	releaseTxContext        func()           // releases the context of the transaction; nil outside of a transaction
	pipeline                *pgconn.Pipeline // pipeline of the transaction; nil outside of a transaction
	statements              map[string]*preparedStatement
	namedStatementCount     int                 // number of statements that were prepared under a name
	unansweredMessages      []unansweredMessage // messages whose replies have not been read
	unansweredArgumentBytes int                 // bytes of arguments in the messages of unansweredMessages
	// pipelineErr is the first error in the pipeline. After an error, the server skips all statements until
	// the next Sync.
	pipelineErr          error
	sentArgumentBytes    int64                         // total size of the arguments sent on this connection, in bytes
	needsSync            bool                          // a statement was sent after the last Sync
	hasWrittenSinceBegin bool                          // a writing statement was sent since Begin
	unsentRowsByTable    map[string]*preparedStatement // by table: the statement whose collected rows are not sent yet
	RoundTrips           int64                         // number of times that the client waited for a reply
	StatementsSent       int64                         // number of statements sent
}

// maxTransactionTime is the maximum duration of one transaction of the writer.
const maxTransactionTime = 10 * time.Second

// Exec implements database.Statements. It sends the statement and does not wait for the reply, which a later
// call reads.
func (c *Conn) Exec(sql string, args ...any) error {
	return c.sendStatementThenCall(c.limitUnreadReplies, sql, args)
}

// ExecCount implements database.Statements. It waits for the reply and returns the number of changed rows.
func (c *Conn) ExecRowsAffected(sql string, args ...any) (changedRows int64, err error) {
	err = c.sendStatementThenCall(func() (err error) {
		changedRows, err = c.flushAndReadReplies()
		return err
	}, sql, args)
	return changedRows, err
}

// Query implements database.Querier. It takes one round trip.
func (c *Conn) Query(handleRow func(r database.Row) (more bool, err error), sql string, args ...any) error {
	return c.QueryAll([]database.Query{{HandleRow: handleRow, SQL: sql, Args: args}})
}

// StartQuery sends a query, which the server starts immediately. FinishQuery reads its rows. If another
// method reads the reply to a later statement first, the rows are lost.
func (c *Conn) StartQuery(sql string, args ...any) error {
	return c.sendStatementThenCall(func() error {
		c.unansweredMessages[len(c.unansweredMessages)-1].isStartedQuery = true
		return c.sendSync()
	}, sql, args)
}

// FinishQuery reads the rows of the query that StartQuery has sent. rowsAvailable is false if the rows are lost.
func (c *Conn) FinishQuery(handleRow func(r database.Row) (more bool, err error)) (rowsAvailable bool, err error) {
	var callbackErr error // error that the callback has returned
	err = c.runInPipeline(func() error {
		index := slices.IndexFunc(c.unansweredMessages, func(s unansweredMessage) bool { return s.isStartedQuery })
		if rowsAvailable = index >= 0; !rowsAvailable {
			return nil
		}
		c.RoundTrips++
		if _, err := c.readReplies(len(c.unansweredMessages) - index); err != nil {
			return err
		}
		return c.readRows(handleRow, &callbackErr)
	})
	return rowsAvailable, cmp.Or(err, callbackErr)
}

// QueryAll implements database.Conn. All statements together take one round trip.
func (c *Conn) QueryAll(queries []database.Query) error {
	var callbackErr error // error that a callback has returned
	err := c.runInPipeline(func() error {
		if err := c.sendCollectedRows(); err != nil {
			return err
		}
		before := len(c.unansweredMessages)
		for _, a := range queries {
			if err := c.sendStatement(a.SQL, a.Args); err != nil {
				return err
			}
		}
		if err := c.syncAndCountRoundTrip(); err != nil {
			return err
		}
		if _, err := c.readReplies(len(c.unansweredMessages) - before); err != nil {
			return err
		}
		for _, a := range queries {
			if c.unansweredMessages[0].isPrepare {
				if _, err := c.readReplies(len(c.unansweredMessages) - 1); err != nil {
					return err
				}
			}
			if err := c.readRows(a.HandleRow, &callbackErr); err != nil {
				return err
			}
		}
		_, err := c.readReplies(0)
		return err
	})
	return cmp.Or(err, callbackErr)
}

// readRows reads the rows of the next reply and calls handleRow for each. If handleRow returns an error,
// readRows stores this error in *callbackErr and discards the remaining rows.
func (c *Conn) readRows(handleRow func(r database.Row) (more bool, err error), callbackErr *error) error {
	statement := c.unansweredMessages[0].sql
	c.unansweredMessages = c.unansweredMessages[1:]
	result, err := c.pipeline.GetResults()
	if err != nil {
		c.dropSkippedMessages()
		return wrapError(err, statement)
	}
	rows := result.(*pgconn.ResultReader)
	current := Row{fields: rows.FieldDescriptions()}
	for more := *callbackErr == nil; more && rows.NextRow(); {
		current.values = rows.Values()
		if more, *callbackErr = handleRow(&current); *callbackErr != nil {
			break
		}
	}
	if _, err = rows.Close(); err != nil {
		c.dropSkippedMessages()
	}
	return wrapError(err, statement)
}

// QueryNumber implements database.Statements. It returns the integer in the first row, or 0.
func (c *Conn) QueryNumber(sql string, args ...any) (int64, error) {
	return database.QueryNumber(c, sql, args...)
}

// beginWritingSQL begins a transaction that writes. It names the isolation level, because roles and databases
// may have another default.
const beginWritingSQL = `BEGIN ISOLATION LEVEL READ COMMITTED`

// Begin implements database.Conn. If the transaction lasts longer than maxTransactionTime, the connection counts as
// lost.
func (c *Conn) Begin() error {
	c.hasWrittenSinceBegin = false
	ctx, cancel := context.WithTimeout(c.callCtx, maxTransactionTime)
	c.pipeline, c.pipelineErr, c.releaseTxContext = c.pgConn.StartPipeline(ctx), nil, cancel
	c.sendWithoutArgs(beginWritingSQL)
	c.sendSessionSettings()
	return nil
}

// Commit implements database.Conn. It waits until the server has confirmed the commit.
func (c *Conn) Commit() error {
	if c.pipelineErr != nil {
		return c.pipelineErr
	}
	if err := c.sendRowsThenStatement(`COMMIT`, nil); err != nil {
		return err
	}
	return c.endPipeline()
}

// Rollback implements database.Conn. It rolls the transaction back.
func (c *Conn) Rollback() {
	if c.pipeline != nil {
		c.endPipeline()
	}
	if !c.pgConn.IsClosed() && c.pgConn.TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(c.callCtx, maxTransactionTime)
		defer cancel()
		c.pgConn.Exec(ctx, `ROLLBACK`).Close()
	}
}

// BeginSnapshot implements database.ReadConn. It begins a transaction whose reads all see the same state of
// the database.
func (c *Conn) BeginSnapshot() error {
	c.hasWrittenSinceBegin = false
	c.pipeline, c.pipelineErr = c.pgConn.StartPipeline(c.callCtx), nil
	c.sendWithoutArgs(`BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`)
	c.sendSessionSettings()
	_, err := c.flushAndReadReplies() // wait for the reply, to detect a lost connection now
	return err
}

// EndSnapshot implements database.ReadConn. It ends the transaction that BeginSnapshot has begun.
func (c *Conn) EndSnapshot() error {
	if c.pipeline != nil {
		c.sendWithoutArgs(`ROLLBACK`)
		c.endPipeline()
	}
	c.Rollback() // necessary if the ROLLBACK above was not executed
	if c.pgConn.IsClosed() {
		return errors.New("the connection to the database is lost")
	}
	return nil
}

// TotalArgumentBytes implements database.Conn. It returns the total size in bytes of the arguments sent on this
// connection.
func (c *Conn) TotalArgumentBytes() int64 { return c.sentArgumentBytes }

// ColumnInNumbersSQL implements database.Statements.
func (c *Conn) ColumnInNumbersSQL(column string) string {
	return column + ` = ANY (string_to_array(?, ' ')::bigint[])`
}

// ColumnInWordsSQL implements database.Statements.
func (c *Conn) ColumnInWordsSQL(column string) string {
	return column + ` = ANY (string_to_array(?, ' '))`
}

// QueryRowLimit implements database.Statements. It returns how many rows one query should request if the caller
// wants wantedRows of rowBytes bytes each.
func (c *Conn) QueryRowLimit(wantedRows, rowBytes int) int {
	return max(64, min(wantedRows+extraRowsPerQuery, maxRowBytesPerQuery/max(rowBytes, 1)))
}

// Limits of the rows that one query requests.
const (
	// extraRowsPerQuery is how many more rows than wanted are requested, because the caller cannot use the jobs
	// that are already leased.
	extraRowsPerQuery   = 8
	maxRowBytesPerQuery = 4 << 20 // total size of the rows in bytes
)

// HasUncountedChanges implements database.Conn. It reports whether a writing statement was sent since Begin.
func (c *Conn) HasUncountedChanges() bool { return c.hasWrittenSinceBegin }

// InterruptWhenDone implements database.ReadConn. Until release is called, the end of ctx interrupts running
// statements.
func (c *Conn) InterruptWhenDone(ctx context.Context) (release func()) {
	previous := c.callCtx
	c.callCtx = ctx
	return func() { c.callCtx = previous }
}

// IsInterruption implements database.ReadConn. It reports whether the end of a context or a timeout has
// caused err.
func (c *Conn) IsInterruption(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err)
}

// IsClosed reports whether the connection is lost or closed.
func (c *Conn) IsClosed() bool { return c.pgConn.IsClosed() }

// PID returns the process id of the connection's server process.
func (c *Conn) PID() uint32 { return c.pgConn.PID() }

// ExecScript executes several SQL statements, separated by semicolons, outside of a transaction's pipeline.
func (c *Conn) ExecScript(ctx context.Context, script string) error {
	return wrapError(c.pgConn.Exec(ctx, script).Close(), script)
}

// Listen makes the server send the notifications of the given channels on this connection.
func (c *Conn) Listen(ctx context.Context, channels ...string) error {
	return c.ExecScript(ctx, `LISTEN `+strings.Join(channels, `; LISTEN `))
}

// WaitForNotification waits for a notification on the channels passed to Listen.
func (c *Conn) WaitForNotification(ctx context.Context) error {
	return c.pgConn.WaitForNotification(ctx)
}

// Close implements database.Statements. It closes the connection.
func (c *Conn) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), CloseTimeout)
	defer cancel()
	if c.pipeline != nil {
		c.pipeline.Close()
	}
	return c.pgConn.Close(ctx)
}

// CloseTimeout is the maximum time for closing a connection or reporting to the server that a node stops.
const CloseTimeout = 2 * time.Second
