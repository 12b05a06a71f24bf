package control

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Limits for connections that the server does not serve yet, or no longer serves. The connections
// of maxRefusing and maxClosing are not counted in max_connections. Their descriptors are part of
// the 64 that the service reserves for itself.
const (
	maxStarting = 4  // goroutines of one user that were started but do not run yet
	acceptBurst = 16 // accepted connections before other goroutines may run; that many take about 1 ms
	// maxRefusing is how many refusals of users without access may look up names concurrently,
	// which takes seconds if the directory of accounts is slow. Beyond it such users are refused
	// immediately, by an error without names.
	maxRefusing = 16
	// maxClosing is how many evicted connections may be closed in the background concurrently. Beyond it a
	// connection is served only after the one that it evicts is closed.
	maxClosing = 16
)

// arrivals holds the accepted connections that the server does not serve yet.
type arrivals struct {
	conns sync.WaitGroup
	// refusing is a semaphore. It holds one value for each refusal in progress that may have to
	// look up a user name.
	refusing chan struct{}
	// closing is a semaphore. It holds one value for each evicted connection that is being closed
	// in the background.
	closing chan struct{}

	mu    sync.Mutex
	users map[int]*starting // by uid; guarded by mu
}

// starting holds a user's connections that were admitted and are not served yet. Their number is
// bounded by the limit on a user's connections.
type starting struct {
	goroutines int       // goroutines that were started and do not run yet
	waiting    []arrival // connections that have no goroutine yet
}

// arrival is an admitted connection and the function that serves it.
type arrival struct {
	conn  *serverConn
	serve func()
}

func newArrivals() *arrivals {
	return &arrivals{
		refusing: make(chan struct{}, maxRefusing),
		closing:  make(chan struct{}, maxClosing),
		users:    map[int]*starting{},
	}
}

// start starts a goroutine that serves a user's connection, and returns immediately. Each user may
// have at most maxStarting goroutines that were started but do not run yet. The user's other
// connections wait without a goroutine. Accepting a connection is faster than serving it. Without
// this limit, hundreds of one user's goroutines could be queued for a processor ahead of every
// other user's requests. A connection that is evicted while it waits is not served.
func (a *arrivals) start(c *serverConn, serve func()) {
	uid := c.peer.UID
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.users[uid]
	if u == nil {
		u = new(starting)
		a.users[uid] = u
	}
	if u.goroutines >= maxStarting {
		u.waiting = slices.DeleteFunc(u.waiting, func(w arrival) bool { return w.conn.isEvicted() })
		u.waiting = append(u.waiting, arrival{c, serve})
		return
	}
	u.goroutines++
	a.conns.Go(func() {
		a.started(uid)
		serve()
	})
}

// started records that a goroutine of the user has begun to run, and starts a goroutine for the
// user's next waiting connection.
func (a *arrivals) started(uid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.users[uid]
	if len(u.waiting) == 0 {
		if u.goroutines--; u.goroutines == 0 {
			delete(a.users, uid)
		}
		return
	}
	next := u.waiting[0]
	u.waiting = slices.Delete(u.waiting, 0, 1)
	a.conns.Go(func() {
		a.started(uid)
		next.serve()
	})
}

// end closes evicted connections, which the limits no longer count. Close returns only after the
// goroutine that reads from the connection has noticed, so it runs in the background. With
// maxClosing of these under way, end itself closes the connection and waits, because otherwise the
// descriptors in use would be unbounded.
func (a *arrivals) end(evicted []*serverConn) {
	for _, c := range evicted {
		c.hangUp() // the connection may be waiting for room
		select {
		case a.closing <- struct{}{}:
			a.conns.Go(func() {
				defer func() { <-a.closing }()
				c.net.Close()
			})
		default:
			c.net.Close()
		}
	}
}

// arrive admits a connection and starts serving it. It admits the connection before the server
// accepts the next one, so a user who connects over and over occupies only the accepting goroutine.
// Where identifying the peer can block, admission gets its own goroutine.
func (s *Server) arrive(ctx context.Context, nc net.Conn, a *arrivals) {
	if waitsForPeer { // a client that sends nothing must not delay others
		a.conns.Go(func() { s.serve(ctx, nc) })
		return
	}
	ctx, c := newConn(ctx, nc)
	evicted, err := s.admit(ctx, c)
	a.end(evicted)
	switch {
	case err == nil:
		a.start(c, func() { s.converse(ctx, c, nil) })
	case errors.Is(err, errOutside): // explaining the refusal may need a slow user name lookup
		select {
		case a.refusing <- struct{}{}:
			a.conns.Go(func() {
				defer func() { <-a.refusing }()
				s.converse(ctx, c, err)
			})
		default:
			s.converse(ctx, c, queue.Errorf(queue.CodeDenied,
				"you have no rights on this service; ask an admin to grant you a right in [access] of its settings"))
		}
	default: // the response is one line, which fits into a new socket's buffer
		s.converse(ctx, c, err)
	}
}

// serve admits one connection and serves it.
func (s *Server) serve(ctx context.Context, nc net.Conn) {
	ctx, c := newConn(ctx, nc)
	evicted, err := s.admit(ctx, c)
	for _, o := range evicted {
		o.hangUp() // the connection may be waiting for room
		o.net.Close()
	}
	s.converse(ctx, c, err)
}

// newConn returns a connection and a context that is cancelled when the connection ends.
func newConn(ctx context.Context, nc net.Conn) (context.Context, *serverConn) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, &serverConn{net: nc, since: time.Now(), hangUp: cancel}
}

// admit identifies the peer and adds the connection to those that the server serves. At a limit, it
// evicts the connection that has been idle longest. If the user has reached the limit for one user,
// that is a connection of the same user. Connections of users without access evict none.
func (s *Server) admit(ctx context.Context, c *serverConn) (evicted []*serverConn, err error) {
	stop := context.AfterFunc(ctx, func() { c.net.Close() })
	known, isKnown := c.net.(knownConn)
	if c.peer = known.peer; !isKnown {
		c.peer, err = s.peerOf(c.net)
	}
	if stop(); err != nil {
		return nil, err
	}
	c.peer.Right = s.gate.Right(&c.peer)
	return s.conns.add(c, s.limits)
}

// converse serves an admitted connection, or sends its client the reason for the refusal.
func (s *Server) converse(ctx context.Context, c *serverConn, err error) {
	defer c.net.Close()
	defer c.hangUp()
	if errors.Is(err, errOutside) {
		err = s.gate.Refuse(&c.peer, "", Read)
	}
	if err != nil {
		s.logDenied(c.peer, err)
		c.send(answerLine(nil, nil, err), answerLimit)
		return
	}
	defer s.conns.remove(c)
	endIfGone := c.endIfGone
	if _, isKnown := c.net.(knownConn); isKnown || s.within {
		endIfGone = func() bool { return false } // such a connection ends with its server
	}
	c.room = s.shares.connect(c.peer.UID, endIfGone)
	defer c.room.close()
	ctx = WithPeer(ctx, c.peer)
	var calls sync.WaitGroup
	if err = s.gate.Admit(ctx, &c.peer); err == nil {
		err = s.read(ctx, c, &calls)
	}
	if err != nil {
		c.send(answerLine(nil, nil, err), answerLimit)
		c.hangUp()
	}
	s.finish(c, &calls)
}
