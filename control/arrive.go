package control

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// Limits of connections that are not served yet.
const (
	maxStarting = 4  // connections of one user whose goroutines do not run yet
	maxRefusing = 64 // connections that are refused because their users have no right
	acceptBurst = 16 // connections that are accepted before other goroutines run: about a millisecond
)

// arrivals are the connections that a server has accepted.
type arrivals struct {
	conns    sync.WaitGroup
	refusing chan struct{} // has a value for each connection that is refused because its user has no right

	mu    sync.Mutex
	users map[int]*starting // by uid; guarded by mu
}

// starting are a user's connections that are admitted and not served yet. There are no more of them than a user may
// have connections.
type starting struct {
	goroutines int      // that do not run yet
	waiting    []func() // serve the connections that have no goroutine yet
}

// start serves a connection of a user in its own goroutine, and does not wait. Only a few goroutines of each user are
// started before they run. Accepting a connection is faster than serving it, so otherwise hundreds of one user would
// wait for a processor, ahead of the requests and connections of all other users.
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

// started is called by a goroutine of a user that begins to run.
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

// arrive admits a connection and has it served. It does so before the next one is accepted, except where that may have
// to wait: a user who connects without end occupies this one goroutine, and not one for each connection.
func (s *Server) arrive(ctx context.Context, nc net.Conn, a *arrivals) {
	if waitsForPeer { // a client that sends nothing delays no other
		a.conns.Go(func() { s.serve(ctx, nc) })
		return
	}
	ctx, c := newConn(ctx, nc)
	evicted, err := s.admit(ctx, c)
	switch {
	case err == nil:
		a.start(c.peer.UID, func() { s.converse(ctx, c, evicted, nil) })
	case errors.Is(err, errOutside): // why may take a look-up of names
		a.refusing <- struct{}{}
		a.conns.Go(func() {
			defer func() { <-a.refusing }()
			s.converse(ctx, c, evicted, err)
		})
	default: // one line, for which a new socket has room
		s.converse(ctx, c, evicted, err)
	}
}

// serve admits one connection and serves it.
func (s *Server) serve(ctx context.Context, nc net.Conn) {
	ctx, c := newConn(ctx, nc)
	evicted, err := s.admit(ctx, c)
	s.converse(ctx, c, evicted, err)
}

// newConn makes the connection, and the context that ends with it.
func newConn(ctx context.Context, nc net.Conn) (context.Context, *serverConn) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, &serverConn{net: nc, since: time.Now(), hangUp: cancel}
}

// admit asks for the peer and adds the connection to those that are served. At a limit, the one that has been
// idle longest is evicted: of the same user, if that user has as many as allowed. People without any right evict none.
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

// converse serves a connection that was admitted, or answers its client why it was not.
func (s *Server) converse(ctx context.Context, c *serverConn, evicted []*serverConn, err error) {
	defer c.net.Close()
	defer c.hangUp()
	for _, o := range evicted {
		o.hangUp() // it may wait for room
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
		endIfGone = func() bool { return false } // it ends with its server
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
