package control

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// Limits on connections that the server does not serve yet.
const (
	maxStarting = 4  // goroutines of one user that were started and do not run yet
	maxRefusing = 64 // connections that are being turned away because their users have no access
	acceptBurst = 16 // accepted connections before other goroutines may run; that many take about 1 ms
)

// arrivals holds the accepted connections that the server does not serve yet.
type arrivals struct {
	conns    sync.WaitGroup
	refusing chan struct{} // holds one value for each connection that is being turned away because its user has no access

	mu    sync.Mutex
	users map[int]*starting // by uid; guarded by mu
}

// starting holds a user's connections that were admitted and are not served yet. Their number is bounded by the limit
// on a user's connections.
type starting struct {
	goroutines int      // goroutines that were started and do not run yet
	waiting    []func() // each function serves one connection that has no goroutine yet
}

// start starts a goroutine that serves a user's connection, and returns immediately. At most maxStarting goroutines
// of a user are started before they run. The other connections wait without a goroutine. Accepting a connection is
// faster than serving it. Without this limit, hundreds of one user's goroutines could be queued for a processor ahead
// of every other user's requests.
func (a *arrivals) start(uid int, serve func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.users[uid]
	if u == nil {
		u = new(starting)
		a.users[uid] = u
	}
	if u.goroutines >= maxStarting {
		u.waiting = append(u.waiting, serve)
		return
	}
	u.goroutines++
	a.conns.Go(func() {
		a.started(uid)
		serve()
	})
}

// started records that a goroutine of the user has begun to run, and starts a goroutine for the user's next waiting
// connection.
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
		next()
	})
}

// arrive admits a connection and starts serving it. It admits the connection before the server accepts the next one,
// so a user who connects over and over occupies only the accepting goroutine. Where identifying the peer can block,
// admission gets its own goroutine.
func (s *Server) arrive(ctx context.Context, nc net.Conn, a *arrivals) {
	if waitsForPeer { // a client that sends nothing must not delay others
		a.conns.Go(func() { s.serve(ctx, nc) })
		return
	}
	ctx, c := newConn(ctx, nc)
	evicted, err := s.admit(ctx, c)
	switch {
	case err == nil:
		a.start(c.peer.UID, func() { s.converse(ctx, c, evicted, nil) })
	case errors.Is(err, errOutside): // explaining the refusal may need a slow user name lookup
		a.refusing <- struct{}{}
		a.conns.Go(func() {
			defer func() { <-a.refusing }()
			s.converse(ctx, c, evicted, err)
		})
	default: // the response is one line, which fits into a new socket's buffer
		s.converse(ctx, c, evicted, err)
	}
}

// serve admits one connection and serves it.
func (s *Server) serve(ctx context.Context, nc net.Conn) {
	ctx, c := newConn(ctx, nc)
	evicted, err := s.admit(ctx, c)
	s.converse(ctx, c, evicted, err)
}

// newConn returns a connection and a context that is cancelled when the connection ends.
func newConn(ctx context.Context, nc net.Conn) (context.Context, *serverConn) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, &serverConn{net: nc, since: time.Now(), hangUp: cancel}
}

// admit identifies the peer and adds the connection to those that the server serves. At a limit, it evicts the
// connection that has been idle longest. If the user has reached the limit for one user, that is a connection of the
// same user. Connections of users without access evict none.
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
func (s *Server) converse(ctx context.Context, c *serverConn, evicted []*serverConn, err error) {
	defer c.net.Close()
	defer c.hangUp()
	for _, o := range evicted {
		o.hangUp() // the connection may be waiting for room
		o.net.Close()
	}
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
