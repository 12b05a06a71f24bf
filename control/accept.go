package control

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control/fair"
	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/queue"
)

// These constants limit the connections that are accepted but not served: those that wait to be served, are
// being refused or are being closed. Such connections do not count towards the setting max_connections, and use
// some of the 64 file descriptors that the service keeps for itself.
const (
	maxStartingGoroutines = 4  // goroutines of one user that were started but have not begun to run
	maxAcceptBurst        = 16 // connections accepted in a row, in about 1 ms, before other goroutines may run
	// maxRefusals is the maximum number of concurrent refusals whose errors contain user names. If the account
	// database is slow, the lookup of a name takes seconds. While maxRefusals lookups are running, further
	// users without access get an error without names.
	maxRefusals = 16
	// maxClosings is the maximum number of evicted connections that are being closed in the background. An
	// evicted connection is one that is closed to make room for a new one. At this limit, a new connection
	// waits until the connection that was evicted for it is closed.
	maxClosings = 16
)

// acceptedConns holds the accepted connections that the server does not serve yet.
type acceptedConns struct {
	goroutines sync.WaitGroup // goroutines that serve, refuse or close connections
	// refusalSemaphore contains one value for each refusal in progress that may look up a user name.
	refusalSemaphore chan struct{}
	// closingSemaphore contains one value for each evicted connection that is being closed in the background.
	closingSemaphore chan struct{}

	// startLimiter counts, for each user, the goroutines that were started but have not begun to run.
	startLimiter *fair.Limiter
}

func newAcceptedConns() *acceptedConns {
	return &acceptedConns{
		refusalSemaphore: make(chan struct{}, maxRefusals),
		closingSemaphore: make(chan struct{}, maxClosings),
		startLimiter:     fair.NewLimiter(fair.Bound{Max: maxStartingGoroutines}),
	}
}

// startServing starts a goroutine that serves a user's connection, and returns immediately. If the user already
// has maxStartingGoroutines goroutines that have not begun to run, the connection waits without a goroutine.
// Otherwise a user who connects very often could have hundreds of goroutines that run before any request of
// another user. If the waiting connection is evicted, which ends ctx, serve is never called.
func (a *acceptedConns) startServing(ctx context.Context, uid int, serve func()) {
	r := fair.Request{User: uid}
	a.startLimiter.AcquireAsync(ctx, r, func() {
		a.goroutines.Go(func() {
			a.startLimiter.Release(r)
			serve()
		})
	})
}

// closeEvicted closes evicted connections in the background, because Close may have to wait for the goroutine
// that reads from the connection. If maxClosings connections are already being closed, closeEvicted closes the
// connection itself and waits. Otherwise connections that are being closed could use up the file descriptors.
func (a *acceptedConns) closeEvicted(evicted []*serverConn) {
	for _, c := range evicted {
		c.cancelRequests() // the goroutine that serves this connection may be waiting for its user's other requests
		select {
		case a.closingSemaphore <- struct{}{}:
			a.goroutines.Go(func() {
				defer func() { <-a.closingSemaphore }()
				c.netConn.Close()
			})
		default:
			c.netConn.Close()
		}
	}
}

// admitAndStart admits a connection and starts a goroutine that serves it. It admits the connection before the
// server accepts the next one, so a connection that is not admitted needs no goroutine. If identifying the peer
// can block, the new goroutine also admits the connection.
func (s *Server) admitAndStart(ctx context.Context, nc net.Conn, a *acceptedConns) {
	if socket.PeerOfMayBlock { // a client that sends nothing may block this step; it must not delay other clients
		a.goroutines.Go(func() { s.admitAndServe(ctx, nc) })
		return
	}
	ctx, c := newConn(ctx, nc)
	evicted, err := s.admit(ctx, c)
	a.closeEvicted(evicted)
	switch {
	case err == nil:
		a.startServing(ctx, c.peer.UID, func() { s.serveAdmitted(ctx, c, nil) })
	case errors.Is(err, errTooManyWithoutAccess): // the error names users, and looking up their names may be slow
		select {
		case a.refusalSemaphore <- struct{}{}:
			a.goroutines.Go(func() {
				defer func() { <-a.refusalSemaphore }()
				s.serveAdmitted(ctx, c, err)
			})
		default:
			s.serveAdmitted(ctx, c, queue.Errorf(queue.CodeDenied,
				"you have no rights on this service; ask an admin to grant you a right in [access] of its settings"))
		}
	default: // sending the error does not block, because it fits into the empty buffer of a new socket
		s.serveAdmitted(ctx, c, err)
	}
}

func (s *Server) admitAndServe(ctx context.Context, nc net.Conn) {
	ctx, c := newConn(ctx, nc)
	evicted, err := s.admit(ctx, c)
	for _, o := range evicted {
		o.cancelRequests() // the goroutine that serves this connection may be waiting for its user's other requests
		o.netConn.Close()
	}
	s.serveAdmitted(ctx, c, err)
}

// newConn returns a connection and a context that is cancelled when the connection ends.
func newConn(ctx context.Context, nc net.Conn) (context.Context, *serverConn) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, &serverConn{netConn: nc, activeChangedAt: time.Now(), cancelRequests: cancel}
}

// admit identifies the peer and adds the connection to the table of served connections. If the limit for all
// connections is reached, it evicts the connection that has been idle longest. If the limit per user is
// reached, it evicts that user's connection that has been idle longest. For a peer without access it evicts
// none. The caller closes the evicted connections.
func (s *Server) admit(ctx context.Context, c *serverConn) (evicted []*serverConn, err error) {
	stop := context.AfterFunc(ctx, func() { c.netConn.Close() })
	known, isKnown := c.netConn.(identifiedConn)
	if c.peer = known.peer; !isKnown {
		// Identifying the peer may have to wait for the first bytes that the peer sends.
		c.netConn.SetReadDeadline(time.Now().Add(firstLineTimeout))
		c.peer, err = s.peerOf(c.netConn)
	}
	if stop(); err != nil {
		return nil, err
	}
	c.peer.Right = s.authorizer.Right(&c.peer)
	return s.conns.add(c, s.limits)
}

// serveAdmitted serves an admitted connection. If err is not nil, the connection was refused, and serveAdmitted
// only sends err to the client.
func (s *Server) serveAdmitted(ctx context.Context, c *serverConn, err error) {
	defer c.netConn.Close()
	defer c.cancelRequests()
	if errors.Is(err, errTooManyWithoutAccess) {
		err = s.authorizer.RefusalError(&c.peer, "", RightRead)
	}
	if err != nil {
		s.logDenied(c.peer, err)
		c.send(answerLine(nil, nil, err), answerTimeout)
		return
	}
	defer s.conns.remove(c)
	endIfGone := c.cancelIfClosed
	if _, isKnown := c.netConn.(identifiedConn); isKnown {
		endIfGone = func() bool { return false } // a client in this process never hangs up first
	}
	c.fairConn = s.userLimits.conns.Connect(c.peer.UID, endIfGone)
	defer c.fairConn.Close()
	ctx = WithPeer(ctx, c.peer)
	var requests sync.WaitGroup
	if err = s.authorizer.Admit(ctx, &c.peer); err == nil {
		err = s.readRequests(ctx, c, &requests)
	}
	if err != nil {
		c.send(answerLine(nil, nil, err), answerTimeout)
		c.cancelRequests()
	}
	s.awaitRequests(c, &requests)
}
