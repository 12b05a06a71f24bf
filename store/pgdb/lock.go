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
	lockTimeout       = 5 * time.Second
	LockRetryInterval = 200 * time.Millisecond
	// schemaLockTimeout is how long a schema change waits for sessions that use the tables. It is an SQL
	// literal.
	schemaLockTimeout = "'10s'"
	// writerIdleTimeout is the idle time after which the server ends a transaction that writes. Its node
	// hangs, or has lost its connection to the server.
	writerIdleTimeout = "2s"
)

// QueueLockID is the number of the advisory lock that services and moves of a queue take, and tablesLockID
// the number of the lock for schema changes. Both numbers are arbitrary and used by this program only.
const (
	QueueLockID  = 0x71756575
	tablesLockID = QueueLockID + 1
)

// LockQueue takes the advisory lock QueueLockID for a move. A service needs the same lock, in shared mode, to
// join the queue, so no service joins a queue that is being moved.
func LockQueue(ctx context.Context, c *Conn, databaseName string) error {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	for {
		got, err := c.QueryNumber(`SELECT pg_try_advisory_lock(` + fmt.Sprint(QueueLockID) + `)`)
		if err != nil || got == 1 {
			return err
		}
		select {
		case <-time.After(LockRetryInterval):
		case <-ctx.Done():
			return LockedError(databaseName, c)
		}
	}
}

// LockedError returns an error that says that the queue is being moved. It names the session that holds the
// lock, because any role that can connect to the database can take the lock.
func LockedError(databaseName string, c database.Querier) error {
	who, err := database.QueryText(c, `SELECT 'session ' || l.pid || ' of the role ' || coalesce(a.usename, '?')
		FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND l.pid <> pg_backend_pid() AND l.classid = 0 AND l.objid = ?
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`, int64(QueueLockID))
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
