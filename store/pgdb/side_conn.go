package pgdb

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
)

// ReconnectingConn is a connection to the server that is not used for the transactions of the engine. A node has two:
// one renews the node lease, and does not wait for transactions; the other carries messages between nodes,
// which must not delay the renewal. A ReconnectingConn connects at its first use, and again after the connection was
// lost.
type ReconnectingConn struct {
	Config *ConnConfig
	mu     sync.Mutex
	conn   *Conn // guarded by mu
}

// ReconnectingConnTimeout limits how long one call of UseConn may take.
const ReconnectingConnTimeout = 5 * time.Second

// UseConn calls useConn with the connection. If useConn fails because the connection was lost since the previous use,
// UseConn connects again and calls useConn once more.
func (c *ReconnectingConn) UseConn(ctx context.Context, useConn func(*Conn) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, ReconnectingConnTimeout)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	for range 2 {
		fresh := c.conn == nil || c.conn.IsClosed()
		if fresh {
			if c.conn, err = Connect(ctx, c.Config); err != nil {
				return AsUnavailableError(err)
			}
		}
		release := c.conn.InterruptWhenDone(ctx)
		err = useConn(c.conn)
		release()
		if fresh || !c.conn.IsClosed() {
			break
		}
	}
	return AsUnavailableError(err)
}

// AsUnavailableError returns an error that asks the caller to try again, if err may be temporary. Otherwise it
// returns err.
func AsUnavailableError(err error) error {
	if errors.As(err, new(ConnLostError)) || errors.As(err, new(StatementError)) &&
		database.ErrorKindOf(err) == database.DatabaseBusy {
		return queue.Errorf(queue.CodeUnavailable, "%v; try again later", err)
	}
	return err
}

// Close closes the connection.
func (c *ReconnectingConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}
