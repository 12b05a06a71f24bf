package pgdb

import (
	"context"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
)

// Timeouts and intervals for calls to the server.
const (
	ConnectTimeout    = 5 * time.Second
	queueLockTimeout  = 5 * time.Second
	LockRetryInterval = 200 * time.Millisecond
	// schemaLockTimeout is how long a schema change waits for sessions that use the tables. It is an SQL
	// literal.
	schemaLockTimeout = "'10s'"
	// writerIdleTimeout is the idle time after which the server ends a transaction that writes. Such a transaction belongs
	// to a node that hangs, or has lost its connection to the server.
	writerIdleTimeout = "2s"
)

// QueueAdvisoryLockID is the number of the advisory lock that services and moves of a queue take, and
// schemaChangeLockID the number of the lock for schema changes. Both numbers are arbitrary and used by this program
// only.
const (
	QueueAdvisoryLockID = 0x71756575
	schemaChangeLockID  = QueueAdvisoryLockID + 1
)

// LockQueueForMove takes the advisory lock QueueAdvisoryLockID for a move. A service needs the same lock, in shared
// mode, to join the queue, so no service joins a queue that is being moved.
func LockQueueForMove(ctx context.Context, c *Conn, databaseName string) error {
	ctx, cancel := context.WithTimeout(ctx, queueLockTimeout)
	defer cancel()
	for {
		got, err := c.QueryNumber(`SELECT pg_try_advisory_lock(` + fmt.Sprint(QueueAdvisoryLockID) + `)`)
		if err != nil || got == 1 {
			return err
		}
		select {
		case <-time.After(LockRetryInterval):
		case <-ctx.Done():
			return QueueBeingMovedError(databaseName, c)
		}
	}
}

// QueueBeingMovedError returns an error that says that the queue is being moved. It names the session that holds the
// lock, because any role that can connect to the database can take the lock.
func QueueBeingMovedError(databaseName string, c database.Querier) error {
	who, err := database.QueryText(c, `SELECT 'session ' || l.pid || ' of the role ' || coalesce(a.usename, '?')
		FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_backend_pid() AND l.classid = 0 AND l.objid = ?
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`, int64(QueueAdvisoryLockID))
	switch {
	case err != nil:
		return err
	case who == "": // the lock was released in the meantime
		return queue.Errorf(queue.CodeUnavailable, "the queue in the database %q was locked for a move and is "+
			"free again; try again", databaseName)
	}
	return queue.Errorf(queue.CodeUnavailable, "the queue in the database %q is locked by PostgreSQL %s, probably "+
		"to move the queue; try again later, or look up the session in pg_stat_activity", databaseName, who)
}
