package pgdb

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
)

// SideConn is a connection to the server that is separate from the writer's connection. A node has two of
// them. One renews the node lease, so that the renewal need not wait for transactions. The other one carries
// messages between nodes, so that messages do not delay the renewal. A SideConn connects at its first use,
// and again after the connection was lost.
type SideConn struct {
	Config *Address
	mu     sync.Mutex
	conn   *Conn // guarded by mu
}

// SideConnTimeout limits how long one use of the connection may take.
const SideConnTimeout = 5 * time.Second

// Do calls f with the connection, and once more if the connection had been lost before the call.
func (k *SideConn) Do(ctx context.Context, f func(*Conn) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, SideConnTimeout)
	defer cancel()
	k.mu.Lock()
	defer k.mu.Unlock()
	for range 2 {
		fresh := k.conn == nil || k.conn.IsClosed()
		if fresh {
			if k.conn, err = Connect(ctx, k.Config); err != nil {
				return UnavailableError(err)
			}
		}
		release := k.conn.InterruptWhenDone(ctx)
		err = f(k.conn)
		release()
		if fresh || !k.conn.IsClosed() {
			break
		}
	}
	return UnavailableError(err)
}

// UnavailableError turns an error of the connection that may be temporary into one that asks the caller to try
// again.
func UnavailableError(err error) error {
	if errors.As(err, new(ConnLostError)) || errors.As(err, new(StatementError)) &&
		database.ErrorKindOf(err) == database.DatabaseBusy {
		return queue.Errorf(queue.CodeUnavailable, "%v; try again later", err)
	}
	return err
}

// Close closes the connection.
func (k *SideConn) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		return nil
	}
	return k.conn.Close()
}
