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

// keeper is a connection beside the writer's: what a node's lease needs waits for nobody's transaction, and its talk with other nodes,
// which has one of its own, keeps it from nothing. It is made when it is needed, and anew when it is lost.
type keeper struct {
	config *serverAddress
	mu     sync.Mutex
	conn   *serverConn // guarded by mu
}

// keeperPatience is how long one use of it may take.
const keeperPatience = 5 * time.Second

// do calls f with the connection, once more if that was lost before.
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

// unavailable says of an error of the connection that it may be over later.
func unavailable(err error) error {
	if errors.As(err, new(serverLost)) || errors.As(err, new(serverRefused)) && kindOf(err) == busy {
		return queue.Errorf(queue.CodeUnavailable, "%v; try again later", err)
	}
	return err
}

// close gives the connection back.
func (k *keeper) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		return nil
	}
	return k.conn.close()
}

// Channels on which nodes tell each other something. What is told is a hint: polling is the truth.
const (
	commitsChannel = "queuectl_commits" // the node that has committed
	asksChannel    = "queuectl_asks"    // the node that is asked, or answered
)

// Waits of what nodes tell each other.
const (
	tellEvery = 10 * time.Millisecond // at most
	pollEvery = time.Second           // and up to half as long again
	askPoll   = 250 * time.Millisecond
)

// tellCommits tells other nodes that something has changed, outside of all transactions: within one it would take a lock
// that all share.
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
	s.talk.do(ctx, func(c *serverConn) error { // who does not hear it polls
		_, err := c.number(`SELECT 1 FROM pg_notify(?, ?::bigint::text)`, channel, about)
		return err
	})
}

// hearCommits has this node know soon what others have changed, though it writes nothing itself: then it
// claims what there is, and who watches is told.
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
			if !config.pooled { // else nothing is heard, and polling is all
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

// hear waits for what others tell, or for the next poll, and looks.
func (s *Server) hear(ctx context.Context, c *serverConn, heard *[]pgconn.Notification) error {
	told := true
	if len(*heard) == 0 { // else some came with the last answer
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
		for s.behindOf(commits) && s.busy() { // what it does itself has it look
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(tellEvery):
			}
		}
		if s.behindOf(commits) {
			s.do(ctx, urgent, func(*tx) error { return nil }) // which enters
		}
	}
	return nil
}

// HasOthers implements store.Cluster.
func (s *Server) HasOthers() bool { return s.others.Load() > 0 }

// behindOf reports whether this node does not know of so many commits yet.
func (s *Server) behindOf(commits int64) bool { return s.commits.Load() < commits }

// busy reports whether a transaction is under way, and no claim waits for a job.
func (s *engine) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.turn) == 0 && s.waiter == nil
}

// bell is rung for all who wait.
type bell struct {
	mu sync.Mutex
	c  chan struct{} // closed by the next ring, nil if nobody waits; guarded by mu
}

// wait is closed by the next ring.
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
		s.talk.do(within, func(c *serverConn) error { return c.exec(`DELETE FROM asks WHERE n = ?`, n) }) // else it is old soon
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

// unheardMost is of how many looks it is kept that their answers were lost: nearly all of them never reached the server.
const unheardMost = 32

// Asked implements store.Cluster.
func (s *Server) Asked(ctx context.Context, slow bool, limit int) (list []store.Asked, err error) {
	look := 1 + rand.Int64N(math.MaxInt64)
	err = s.talk.do(ctx, func(c *serverConn) error { // perhaps twice: it finds the same then
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
	if err != nil { // it may have been taken, and nobody was told
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
