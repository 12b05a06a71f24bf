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
)

// keeper is a connection to the server that is separate from the writer's. A node has two: one renews the
// node's lease, so that the renewal waits for no transaction; the other carries messages between nodes, so
// that they do not delay the renewal. The connection is opened at its first use, and opened again after it
// was lost.
type keeper struct {
	config *serverAddress
	mu     sync.Mutex
	conn   *serverConn // guarded by mu
}

// keeperPatience limits how long one use of the connection may take.
const keeperPatience = 5 * time.Second

// do calls f with the connection, and once more if the connection had been lost before the call.
func (k *keeper) do(ctx context.Context, f func(*serverConn) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, keeperPatience)
	defer cancel()
	k.mu.Lock()
	defer k.mu.Unlock()
	for range 2 {
		fresh := k.conn == nil || k.conn.pg.IsClosed()
		if fresh {
			if k.conn, err = connectServer(ctx, k.config); err != nil {
				return unavailable(err)
			}
		}
		release := k.conn.endWith(ctx)
		err = f(k.conn)
		release()
		if fresh || !k.conn.pg.IsClosed() {
			break
		}
	}
	return unavailable(err)
}

// unavailable turns an error of the connection that may be temporary into one that asks the caller to try
// again.
func unavailable(err error) error {
	if errors.As(err, new(serverLost)) || errors.As(err, new(serverRefused)) && kindOf(err) == busy {
		return queue.Errorf(queue.CodeUnavailable, "%v; try again later", err)
	}
	return err
}

// close closes the connection.
func (k *keeper) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		return nil
	}
	return k.conn.close()
}

// The channels on which nodes notify each other with NOTIFY. A notification is only a hint and may be lost;
// polling guarantees progress.
const (
	commitsChannel = "queuectl_commits" // the payload is the node that has committed
	asksChannel    = "queuectl_asks"    // the payload is the node that has a request or got an answer
)

// Intervals of the communication between nodes.
const (
	tellEvery = 10 * time.Millisecond // the shortest time between two notifications of one node
	pollEvery = time.Second           // the shortest poll interval; up to half is added at random
	askPoll   = 250 * time.Millisecond
)

// tellCommits notifies the other nodes of commits, outside of all transactions. Within a transaction,
// NOTIFY would take a lock that all nodes share.
func (s *Server) tellCommits(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.told:
		}
		s.notify(ctx, commitsChannel, s.node)
		select {
		case <-ctx.Done():
			return
		case <-time.After(tellEvery):
		}
	}
}

func (s *Server) notify(ctx context.Context, channel string, about int64) {
	s.talk.do(ctx, func(c *serverConn) error { // a node that misses the notification polls
		_, err := c.number(`SELECT 1 FROM pg_notify(?, ?::bigint::text)`, channel, about)
		return err
	})
}

// hearCommits learns of other nodes' commits soon, even if this node writes nothing itself. The node then
// claims new jobs and notifies the callers that watch jobs. The function runs until ctx ends.
func (s *Server) hearCommits(ctx context.Context) {
	for pause := listenAgain; ctx.Err() == nil; pause = min(2*pause, listenMost) {
		var heard []pgconn.Notification
		config := *s.config
		config.Config = config.Config.Copy()
		config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { heard = append(heard, *n) }
		within, cancel := context.WithTimeout(ctx, connectWait)
		c, err := connectServer(within, &config)
		cancel()
		if err == nil {
			// A pooled connection receives no notifications, so the node only polls.
			if !config.pooled {
				err = c.pg.Exec(ctx, `LISTEN `+commitsChannel+`; LISTEN `+asksChannel).Close()
			}
			for err == nil {
				pause = listenAgain
				err = s.hear(ctx, c, &heard)
			}
			c.close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(pause)):
		}
	}
}

// hear waits for a notification, or until the next poll. If this node may have missed commits, it begins a
// transaction, which applies them.
func (s *Server) hear(ctx context.Context, c *serverConn, heard *[]pgconn.Notification) error {
	told := true
	if len(*heard) == 0 { // otherwise notifications came with an earlier reply
		within, cancel := context.WithTimeout(ctx, pollEvery+rand.N(pollEvery/2))
		defer cancel()
		err := c.pg.WaitForNotification(within)
		told = err == nil
		if err != nil && within.Err() == nil || ctx.Err() != nil || c.pg.IsClosed() {
			return errors.Join(err, ctx.Err())
		}
	}
	list := *heard
	*heard = nil
	asked, changed := !told, !told
	for _, n := range list {
		own := n.Payload == strconv.FormatInt(s.node, 10)
		asked = asked || n.Channel == asksChannel && own
		changed = changed || n.Channel == commitsChannel && !own
	}
	if asked {
		poke(s.hints)
		s.answers.ring()
	}
	if changed {
		within, cancel := context.WithTimeout(ctx, keeperPatience)
		release := c.endWith(within)
		commits, err := c.number(`SELECT commits FROM meta`)
		release()
		cancel()
		if err != nil {
			return err
		}
		for s.behindOf(commits) && s.busy() { // the running transaction may apply the changes itself
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(tellEvery):
			}
		}
		if s.behindOf(commits) {
			s.do(ctx, urgent, func(*tx) error { return nil }) // beginning a transaction applies the changes
		}
	}
	return nil
}

// HasOthers implements store.Cluster.
func (s *Server) HasOthers() bool { return s.others.Load() > 0 }

// behindOf reports whether this node has not yet applied the commit of that number.
func (s *Server) behindOf(commits int64) bool { return s.commits.Load() < commits }

// busy reports whether a transaction is running and no claim waits for a job.
func (s *engine) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.turn) == 0 && s.waiter == nil
}

// bell wakes all goroutines that wait for it.
type bell struct {
	mu sync.Mutex
	c  chan struct{} // closed by the next ring; nil if no goroutine waits; guarded by mu
}

// wait returns a channel that the next ring closes.
func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		close(b.c)
		b.c = nil
	}
}

// Hints implements store.Cluster.
func (s *Server) Hints() <-chan struct{} { return s.hints }

// Changes implements store.Cluster.
func (s *Server) Changes() <-chan struct{} { return s.changes }

// Database implements store.Cluster.
func (s *Server) Database() string { return s.file }

// Lease implements store.Cluster.
func (s *Server) Lease() time.Duration { return s.lease }

// Ask implements store.Cluster.
func (s *Server) Ask(ctx context.Context, node int64, ask []byte, slow bool) (answer []byte, err error) {
	if len(ask) > store.MaxAsk {
		return nil, queue.Errorf(queue.CodeTooLarge, "the request to another node has %d bytes; the maximum is %d", len(ask), store.MaxAsk)
	}
	var n int64
	err = s.talk.do(ctx, func(c *serverConn) (err error) {
		n, err = c.number(`INSERT INTO asks (node, asker, slow, ask) VALUES (?, ?, ?, ?) RETURNING n`, node, s.node, bit(slow), string(ask))
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
		defer cancel()
		// If this fails, upkeep deletes the row when it is old.
		s.talk.do(within, func(c *serverConn) error { return c.exec(`DELETE FROM asks WHERE n = ?`, n) })
	}()
	s.notify(ctx, asksChannel, node)
	for {
		heard, there := s.answers.wait(), false
		err = s.talk.do(ctx, func(c *serverConn) error {
			answer, there = nil, false
			return c.query(func(r row) (bool, error) {
				if there = true; r.num(1) != 0 {
					answer = json.RawMessage(r.text(0))
				}
				return false, nil
			}, `SELECT answer, answer IS NOT NULL FROM asks WHERE n = ?`, n)
		})
		if err == nil && !there {
			err = queue.Errorf(queue.CodeUnavailable, "the node that must carry out this request does not answer; try again later")
		}
		if err != nil || answer != nil {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-heard:
		case <-time.After(askPoll):
		}
	}
}

// unheardMost is how many queries of Asked with lost replies are remembered. Nearly all such queries never
// reached the server.
const unheardMost = 32

// Asked implements store.Cluster.
func (s *Server) Asked(ctx context.Context, slow bool, limit int) (list []store.Asked, err error) {
	look := 1 + rand.Int64N(math.MaxInt64)
	// do may call the function twice. With the same value of look, the second call finds the same rows.
	err = s.talk.do(ctx, func(c *serverConn) error {
		list = nil
		for len(s.unheard) > 0 {
			if err := c.exec(`UPDATE asks SET taken = 0 WHERE node = ? AND taken = ?`, s.node, s.unheard[0]); err != nil {
				return err
			}
			s.unheard = s.unheard[1:]
		}
		return c.query(func(r row) (bool, error) {
			list = append(list, store.Asked{N: r.num(0), Ask: []byte(r.text(1))})
			return true, nil
		}, `UPDATE asks SET taken = ? WHERE n IN (SELECT n FROM asks WHERE node = ? AND slow = ? AND answer IS NULL AND taken IN (0, ?) ORDER BY n LIMIT ?) RETURNING n, ask`, look, s.node, bit(slow), look, int64(limit))
	})
	if err != nil { // the server may have marked requests as taken, but the reply was lost
		s.unheard, list = append(s.unheard[max(0, len(s.unheard)-unheardMost+1):], look), nil
	}
	slices.SortFunc(list, func(a, b store.Asked) int { return cmp.Compare(a.N, b.N) })
	return list, err
}

// Wanted implements store.Cluster.
func (s *Server) Wanted(ctx context.Context) (wanted map[int64]bool, err error) {
	err = s.talk.do(ctx, func(c *serverConn) error {
		wanted = map[int64]bool{}
		return c.query(func(r row) (bool, error) {
			wanted[r.num(0)] = true
			return true, nil
		}, `SELECT n FROM asks WHERE node = ? AND answer IS NULL`, s.node)
	})
	return wanted, err
}

// Answer implements store.Cluster.
func (s *Server) Answer(ctx context.Context, n int64, answer []byte) error {
	asker := int64(0)
	err := s.talk.do(ctx, func(c *serverConn) (err error) {
		asker, err = c.number(`UPDATE asks SET answer = ? WHERE n = ? RETURNING asker`, string(answer), n)
		return err
	})
	if err == nil && asker != 0 {
		s.notify(ctx, asksChannel, asker)
	}
	return err
}
