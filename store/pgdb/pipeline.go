package pgdb

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queuectl/queuectl/store/database"
)

// unansweredMessage is a message of the PostgreSQL protocol whose reply has not been read. It prepares a statement
// (Parse), executes one, or asks for the replies (Sync).
type unansweredMessage struct {
	*preparedStatement
	isPrepare      bool // a Parse message
	isSync         bool // a Sync message
	isStartedQuery bool // a query sent by StartQuery; FinishQuery reads its rows
}

// preparedStatement is a statement that is or will be prepared on the connection.
type preparedStatement struct {
	name, sql   string
	prepareSent bool // the Parse message was sent
	isPrepared  bool // the server has confirmed the Parse message
	mayWrite    bool // the statement may change rows
	// argumentTypes are the OIDs of the types of the arguments, as reported by the server. They are nil
	// before the server has reported them, and always nil if writesOneRow is false.
	argumentTypes []uint32
	writesOneRow  bool      // each execution writes one row
	unsentRows    *rowBatch // rows that are collected and not yet sent
}

// Limits of the messages, and of the bytes of their arguments, that are sent before the connection reads
// replies.
const (
	maxUnansweredMessages = 500
	maxUnansweredBytes    = 1 << 20
)

// findOrAddStatement returns the record of a statement on this connection, and creates the record if necessary.
func (c *Conn) findOrAddStatement(sql string) *preparedStatement {
	s := c.statements[sql]
	if s == nil {
		s = &preparedStatement{sql: translateStatement(sql), mayWrite: !strings.HasPrefix(sql, "SELECT") &&
			sql != beginWritingSQL}
		c.statements[sql] = s
	}
	return s
}

// sendWithoutArgs adds a statement that has no arguments to the pipeline.
func (c *Conn) sendWithoutArgs(sql string) { c.sendValues(c.findOrAddStatement(sql), nil, nil) }

// sendStatement adds a statement with its arguments to the pipeline.
func (c *Conn) sendStatement(sql string, args []any) error {
	s := c.findOrAddStatement(sql)
	values, formats := make([][]byte, len(args)), make([]int16, len(args))
	for i, a := range args {
		switch a := a.(type) {
		case int64:
			values[i] = strconv.AppendInt(nil, a, 10)
		case string:
			values[i] = []byte(CleanTextForPostgres(a))
		case []byte:
			values[i], formats[i] = a, 1
			if a == nil {
				values[i] = []byte{}
			}
		case nil:
		default:
			n, isInteger := database.IntegerArgument(a)
			if !isInteger {
				return unsupportedArgumentError(i, sql, a)
			}
			values[i] = strconv.AppendInt(nil, n, 10)
		}
		c.unansweredArgumentBytes += len(values[i])
		c.sentArgumentBytes += int64(len(values[i]))
	}
	c.sendValues(s, values, formats)
	return nil
}

// unsupportedArgumentError returns the error for an argument of a statement whose type is not supported.
func unsupportedArgumentError(argumentIndex int, sql string, argument any) error {
	return fmt.Errorf("bug in queuectl: argument %d of the SQL statement %s has the type %T, which is not supported",
		argumentIndex+1, sql, argument)
}

// sendRowsThenStatement sends the rows that WriteRow has collected, and then a statement, so that the server executes
// them in this order.
func (c *Conn) sendRowsThenStatement(sql string, args []any) error {
	if err := c.sendCollectedRows(); err != nil {
		return err
	}
	return c.sendStatement(sql, args)
}

// sendStatementThenCall sends a statement as sendRowsThenStatement does, in the pipeline of the current transaction,
// and then calls afterSend.
func (c *Conn) sendStatementThenCall(afterSend func() error, sql string, args []any) error {
	return c.runInPipeline(func() error {
		if err := c.sendRowsThenStatement(sql, args); err != nil {
			return err
		}
		return afterSend()
	})
}

// sendValues adds a statement with encoded arguments to the pipeline.
func (c *Conn) sendValues(s *preparedStatement, values [][]byte, formats []int16) {
	if !s.prepareSent && (c.sessionSettingsSQL == "" || s.writesOneRow) {
		c.sendPrepare(s)
	}
	if c.sessionSettingsSQL == "" {
		c.pipeline.SendQueryPrepared(s.name, values, formats, nil)
	} else {
		// Through a pooler, each transaction may use another connection, on which the statement is not
		// prepared. So send its text.
		c.pipeline.SendQueryParams(s.sql, values, nil, formats, nil)
	}
	c.unansweredMessages = append(c.unansweredMessages, unansweredMessage{preparedStatement: s})
	c.hasWrittenSinceBegin, c.needsSync = c.hasWrittenSinceBegin || s.mayWrite, true
	c.StatementsSent++
}

// sendPrepare sends the message that prepares a statement.
func (c *Conn) sendPrepare(s *preparedStatement) {
	if c.sessionSettingsSQL == "" {
		c.namedStatementCount++
		s.name = "s" + strconv.Itoa(c.namedStatementCount)
	}
	s.prepareSent, c.needsSync = true, true
	c.pipeline.SendPrepare(s.name, s.sql, nil)
	c.unansweredMessages = append(c.unansweredMessages, unansweredMessage{preparedStatement: s, isPrepare: true})
}

// limitUnreadReplies does nothing until maxUnansweredMessages or maxUnansweredBytes is reached. It then reads replies
// until only maxUnansweredMessages/2 are unread.
func (c *Conn) limitUnreadReplies() error {
	if len(c.unansweredMessages) < maxUnansweredMessages && c.unansweredArgumentBytes < maxUnansweredBytes {
		return nil
	}
	if err := c.sendSync(); err != nil {
		return err
	}
	// Do not wait for the replies to the newest statements, which the server may still be executing.
	_, err := c.readReplies(maxUnansweredMessages / 2)
	c.unansweredArgumentBytes /= 2
	return err
}

// readReplies reads replies until at most maxUnanswered are unread. changedRows is the number of rows that the last
// statement has changed.
func (c *Conn) readReplies(maxUnanswered int) (changedRows int64, err error) {
	for len(c.unansweredMessages) > maxUnanswered {
		next := c.unansweredMessages[0]
		c.unansweredMessages = c.unansweredMessages[1:]
		result, replyErr := c.pipeline.GetResults()
		if next.isSync {
			err = cmp.Or(err, wrapError(replyErr, ""))
			continue
		}
		if next.isPrepare && replyErr == nil {
			next.recordPrepareReply(result)
		}
		if r, rows := result.(*pgconn.ResultReader); rows && replyErr == nil {
			tag, failed := r.Close()
			changedRows, replyErr = tag.RowsAffected(), failed
		}
		if replyErr != nil {
			next.prepareSent = next.isPrepared
			err = cmp.Or(err, wrapError(replyErr, next.sql))
			c.dropSkippedMessages()
		}
	}
	if maxUnanswered == 0 {
		c.unansweredMessages, c.unansweredArgumentBytes = c.unansweredMessages[:0], 0
	}
	return changedRows, err
}

// dropSkippedMessages removes the messages up to the next Sync from unansweredMessages. After a failed statement, the
// server skips these messages and sends no replies to them.
func (c *Conn) dropSkippedMessages() {
	for len(c.unansweredMessages) > 0 && !c.unansweredMessages[0].isSync {
		c.unansweredMessages[0].prepareSent = c.unansweredMessages[0].isPrepared
		c.unansweredMessages = c.unansweredMessages[1:]
	}
}

// flushAndReadReplies makes the server send all replies, and reads them.
func (c *Conn) flushAndReadReplies() (changedRows int64, err error) {
	if err := c.syncAndCountRoundTrip(); err != nil {
		return 0, err
	}
	return c.readReplies(0)
}

// syncAndCountRoundTrip makes the server reply to all statements, as sendSync does, and counts a round trip, because
// the caller then waits for the replies.
func (c *Conn) syncAndCountRoundTrip() error {
	c.RoundTrips++
	return c.sendSync()
}

// sendSync makes the server reply to all statements that were sent. It sends a Sync instead of a Flush: after
// a Sync the server treats the transaction as idle, and ends it after writerIdleTimeout if the client hangs.
func (c *Conn) sendSync() error {
	c.pipeline.SendPipelineSync()
	c.unansweredMessages, c.needsSync = append(c.unansweredMessages, unansweredMessage{isSync: true}), false
	return wrapError(c.pipeline.Flush(), "")
}

// runInPipeline calls operation in the pipeline of the current transaction, or in a new pipeline if no transaction has
// begun.
func (c *Conn) runInPipeline(operation func() error) error {
	if c.pipeline != nil {
		if c.pipelineErr == nil {
			c.pipelineErr = operation()
		}
		return c.pipelineErr
	}
	c.pipeline, c.pipelineErr = c.pgConn.StartPipeline(c.callCtx), nil
	c.sendSessionSettings()
	return cmp.Or(operation(), c.endPipeline())
}

// sendSessionSettings sends the session settings at the start of a transaction, if the connection goes through a
// pooler.
func (c *Conn) sendSessionSettings() {
	if c.sessionSettingsSQL != "" {
		c.sendWithoutArgs(c.sessionSettingsSQL)
	}
}

// endPipeline ends the pipeline and reads the remaining replies.
func (c *Conn) endPipeline() error {
	pipe := c.pipeline
	var err error
	if c.needsSync {
		_, err = c.flushAndReadReplies()
	} else {
		_, err = c.readReplies(0)
	}
	c.pipeline, c.unansweredMessages, c.unansweredArgumentBytes, c.needsSync = nil, nil, 0, false
	c.discardCollectedRows()
	if c.releaseTxContext != nil {
		defer c.releaseTxContext()
		c.releaseTxContext = nil
	}
	return cmp.Or(err, wrapError(pipe.Close(), ""))
}
