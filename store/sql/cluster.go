package sql

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/records"
)

// sideConn is a connection to the server that is separate from the writer's connection. A node has two of
// them. One renews the node lease, so that the renewal need not wait for transactions. The other one carries
// messages between nodes, so that messages do not delay the renewal. A sideConn connects at its first use,
// and again after the connection was lost.
type sideConn struct {
	config *pgdb.Address
	mu     sync.Mutex
	conn   *pgdb.Conn // guarded by mu
}

// sideConnTimeout limits how long one use of the connection may take.
const sideConnTimeout = 5 * time.Second

// do calls f with the connection, and once more if the connection had been lost before the call.
func (k *sideConn) do(ctx context.Context, f func(*pgdb.Conn) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, sideConnTimeout)
	defer cancel()
	k.mu.Lock()
	defer k.mu.Unlock()
	for range 2 {
		fresh := k.conn == nil || k.conn.IsClosed()
		if fresh {
			if k.conn, err = pgdb.Connect(ctx, k.config); err != nil {
				return unavailable(err)
			}
		}
		release := k.conn.InterruptWhenDone(ctx)
		err = f(k.conn)
		release()
		if fresh || !k.conn.IsClosed() {
			break
		}
	}
	return unavailable(err)
}

// unavailable turns an error of the connection that may be temporary into one that asks the caller to try
// again.
func unavailable(err error) error {
	if errors.As(err, new(pgdb.Lost)) || errors.As(err, new(pgdb.Refused)) && database.KindOf(err) == database.Busy {
		return queue.Errorf(queue.CodeUnavailable, "%v; try again later", err)
	}
	return err
}

// Close closes the connection.
func (k *sideConn) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		return nil
	}
	return k.conn.Close()
}

// The channels on which nodes notify each other with NOTIFY. A notification is only a hint and may be lost;
// polling guarantees progress.
const (
	commitsChannel  = "queuectl_commits" // the payload is the node that has committed
	requestsChannel = "queuectl_asks"    // the payload is the node that received a request or an answer
)

// Intervals of the communication between nodes.
const (
	notifyInterval = 10 * time.Millisecond // the shortest time between two notifications of one node
	pollInterval   = time.Second           // the shortest poll interval; a random part of up to half of it is added
	replyInterval  = 250 * time.Millisecond
)

// notifyCommits notifies the other nodes of commits, outside of all transactions. Within a transaction,
// NOTIFY would take a lock that all nodes share.
func (s *Server) notifyCommits(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.commitMade:
		}
		s.notify(ctx, commitsChannel, s.node)
		select {
		case <-ctx.Done():
			return
		case <-time.After(notifyInterval):
		}
	}
}

func (s *Server) notify(ctx context.Context, channel string, about int64) {
	s.messageConn.do(ctx, func(c *pgdb.Conn) error { // ignore errors: a node that misses the notification polls
		_, err := c.Number(`SELECT 1 FROM pg_notify(?, ?::bigint::text)`, channel, about)
		return err
	})
}

// listenForCommits applies other nodes' commits soon after they are made, even if this node writes nothing.
// The node can then claim new jobs and notify callers that watch jobs. The function runs until ctx ends.
func (s *Server) listenForCommits(ctx context.Context) {
	for pause := minListenRetry; ctx.Err() == nil; pause = min(2*pause, maxListenRetry) {
		var received []pgconn.Notification
		config := *s.config
		config.Config = config.Config.Copy()
		config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { received = append(received, *n) }
		within, cancel := context.WithTimeout(ctx, pgdb.ConnectTimeout)
		c, err := pgdb.Connect(within, &config)
		cancel()
		if err == nil {
			// A pooled connection receives no notifications, so the node only polls.
			if !config.Pooled {
				err = c.Listen(ctx, commitsChannel, requestsChannel)
			}
			for err == nil {
				pause = minListenRetry
				err = s.awaitNotification(ctx, c, &received)
			}
			c.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(pause)):
		}
	}
}

// awaitNotification waits for a notification, or until the next poll. If this node may have missed commits,
// it begins a transaction, which applies them.
func (s *Server) awaitNotification(ctx context.Context, c *pgdb.Conn, received *[]pgconn.Notification) error {
	notified := true
	if len(*received) == 0 { // wait only if no notifications came with an earlier reply
		timed, cancel := context.WithTimeout(ctx, pollInterval+rand.N(pollInterval/2))
		defer cancel()
		err := c.WaitForNotification(timed)
		notified = err == nil
		if err != nil && timed.Err() == nil || ctx.Err() != nil || c.IsClosed() {
			return errors.Join(err, ctx.Err())
		}
	}
	notifications := *received
	*received = nil
	hasRequests, hasCommits := !notified, !notified
	for _, n := range notifications {
		toThisNode := n.Payload == strconv.FormatInt(s.node, 10)
		hasRequests = hasRequests || n.Channel == requestsChannel && toThisNode
		hasCommits = hasCommits || n.Channel == commitsChannel && !toThisNode
	}
	if hasRequests {
		poke(s.hints)
		s.replies.wakeAll()
	}
	if hasCommits {
		timed, cancel := context.WithTimeout(ctx, sideConnTimeout)
		release := c.InterruptWhenDone(timed)
		commits, err := c.Number(`SELECT commits FROM meta`)
		release()
		cancel()
		if err != nil {
			return err
		}
		for s.hasMissed(commits) && s.runsTx() { // the running transaction may apply the changes itself
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(notifyInterval):
			}
		}
		if s.hasMissed(commits) {
			s.do(ctx, urgent, func(*tx) error { return nil }) // beginning a transaction applies the changes
		}
	}
	return nil
}

// HasOthers implements store.Cluster.
func (s *Server) HasOthers() bool { return s.otherNodes.Load() > 0 }

// hasMissed reports whether this node has not yet applied the commit of that number.
func (s *Server) hasMissed(commits int64) bool { return s.appliedCommits.Load() < commits }

// runsTx reports whether a transaction is running and no claim waits for a job.
func (s *engine) runsTx() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.writerToken) == 0 && s.waiter == nil
}

// broadcast wakes all goroutines that wait for it.
type broadcast struct {
	mu   sync.Mutex
	next chan struct{} // closed by the next wakeAll; nil if no goroutine waits; guarded by mu
}

// wait returns a channel that the next wakeAll closes.
func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

func (b *broadcast) wakeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}

// Hints implements store.NodeRequests.
func (s *Server) Hints() <-chan struct{} { return s.hints }

// Changes implements store.Cluster.
func (s *Server) Changes() <-chan struct{} { return s.changes }

// Database implements store.Cluster.
func (s *Server) Database() string { return s.databaseID }

// Lease implements store.Cluster.
func (s *Server) Lease() time.Duration { return s.lease }

// Ask implements store.NodeRequests.
func (s *Server) Ask(ctx context.Context, node int64, request []byte, slow bool) (answer []byte, err error) {
	if len(request) > store.MaxRequestBytes {
		return nil, queue.Errorf(queue.CodeTooLarge, "the request to another node has %d bytes; the maximum is %d",
			len(request), store.MaxRequestBytes)
	}
	var n int64
	err = s.messageConn.do(ctx, func(c *pgdb.Conn) (err error) {
		n, err = c.Number(`INSERT INTO asks (node, asker, slow, ask) VALUES (?, ?, ?, ?) RETURNING n`, node, s.node,
			records.Bit(slow), string(request))
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), pgdb.CloseTimeout)
		defer cancel()
		// If this fails, upkeep deletes the row when it is old.
		s.messageConn.do(within, func(c *pgdb.Conn) error { return c.Exec(`DELETE FROM asks WHERE n = ?`, n) })
	}()
	s.notify(ctx, requestsChannel, node)
	for {
		woken, found := s.replies.wait(), false
		err = s.messageConn.do(ctx, func(c *pgdb.Conn) error {
			answer, found = nil, false
			return c.Query(func(r database.Row) (bool, error) {
				if found = true; r.Num(1) != 0 {
					answer = json.RawMessage(r.Text(0))
				}
				return false, nil
			}, `SELECT answer, answer IS NOT NULL FROM asks WHERE n = ?`, n)
		})
		if err == nil && !found {
			err = queue.Errorf(queue.CodeUnavailable, "the node that must carry out this request does not "+
				"answer; try again later")
		}
		if err != nil || answer != nil {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-woken:
		case <-time.After(replyInterval):
		}
	}
}

// maxLostTakes is how many queries of Asked with lost replies are remembered. Nearly all such queries never
// reached the server.
const maxLostTakes = 32

// Asked implements store.NodeRequests.
func (s *Server) Asked(ctx context.Context, slow bool, limit int) (list []store.NodeRequest, err error) {
	take := 1 + rand.Int64N(math.MaxInt64)
	// The method do may call the function twice. With the same value of look, the second call finds the same
	// rows.
	err = s.messageConn.do(ctx, func(c *pgdb.Conn) error {
		list = nil
		for len(s.lostTakes) > 0 {
			if err := c.Exec(`UPDATE asks SET taken = 0 WHERE node = ? AND taken = ?`, s.node, s.lostTakes[0]); err != nil {
				return err
			}
			s.lostTakes = s.lostTakes[1:]
		}
		return c.Query(func(r database.Row) (bool, error) {
			list = append(list, store.NodeRequest{N: r.Num(0), Payload: []byte(r.Text(1))})
			return true, nil
		}, `UPDATE asks SET taken = ? WHERE n IN (SELECT n FROM asks WHERE node = ? AND slow = ? AND answer IS NULL AND taken IN (0, ?) ORDER BY n LIMIT ?) RETURNING n, ask`, take, s.node, records.Bit(slow), take, int64(limit))
	})
	if err != nil { // the server may have marked requests as taken, but the reply was lost
		s.lostTakes, list = append(s.lostTakes[max(0, len(s.lostTakes)-maxLostTakes+1):], take), nil
	}
	slices.SortFunc(list, func(a, b store.NodeRequest) int { return cmp.Compare(a.N, b.N) })
	return list, err
}

// Wanted implements store.NodeRequests.
func (s *Server) Wanted(ctx context.Context) (wanted map[int64]bool, err error) {
	err = s.messageConn.do(ctx, func(c *pgdb.Conn) error {
		wanted = map[int64]bool{}
		return c.Query(func(r database.Row) (bool, error) {
			wanted[r.Num(0)] = true
			return true, nil
		}, `SELECT n FROM asks WHERE node = ? AND answer IS NULL`, s.node)
	})
	return wanted, err
}

// Answer implements store.NodeRequests.
func (s *Server) Answer(ctx context.Context, n int64, answer []byte) error {
	asker := int64(0)
	err := s.messageConn.do(ctx, func(c *pgdb.Conn) (err error) {
		asker, err = c.Number(`UPDATE asks SET answer = ? WHERE n = ? RETURNING asker`, string(answer), n)
		return err
	})
	if err == nil && asker != 0 {
		s.notify(ctx, requestsChannel, asker)
	}
	return err
}

var _ store.NodeRequests = (*Server)(nil)
