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

// These constants limit the connections that are accepted but not served: connections that wait to be served, are being
// refused or are being closed. Such connections do not count towards the setting max_connections, and use some of the
// 64 file descriptors that the service keeps for itself.
const (
	maxStartingGoroutinesPerUser = 4  // goroutines that were started for one user but have not begun to run
	maxConnsAcceptedInARow       = 16 // connections accepted in a row, in about 1 ms, before other goroutines may run
	// maxConcurrentConnRefusals is the maximum number of concurrent refusals whose errors contain user names. The lookup
	// of a name may take seconds, if the account database is slow. While maxConcurrentConnRefusals lookups are running,
	// other users without access get an error without names.
	maxConcurrentConnRefusals = 16
	// maxConcurrentEvictionCloses is the maximum number of evicted connections that are being closed in the background. An
	// evicted connection is one that is closed to make room for a new one. At this limit, a new connection
	// waits until the connection that was evicted for it is closed.
	maxConcurrentEvictionCloses = 16
)

// unservedConns holds the accepted connections that the server does not serve yet.
type unservedConns struct {
	connGoroutines sync.WaitGroup // goroutines that serve, refuse or close connections
	// refusalSemaphore contains one value for each refusal in progress that may look up a user name.
	refusalSemaphore chan struct{}
	// closingSemaphore contains one value for each evicted connection that is being closed in the background.
	closingSemaphore chan struct{}

	// startingGoroutineLimiter counts, for each user, the goroutines that were started but have not begun to run.
	startingGoroutineLimiter *fair.Limiter
}

func newUnservedConns() *unservedConns {
	return &unservedConns{
		refusalSemaphore:         make(chan struct{}, maxConcurrentConnRefusals),
		closingSemaphore:         make(chan struct{}, maxConcurrentEvictionCloses),
		startingGoroutineLimiter: fair.NewLimiter(fair.Bound{MaxAmount: maxStartingGoroutinesPerUser}),
	}
}

// startServeGoroutine starts a goroutine that serves a user's connection, and returns immediately. If the user already
// has maxStartingGoroutinesPerUser goroutines that have not begun to run, the connection waits without a goroutine.
// Otherwise a user who connects very often could cause hundreds of goroutines, and requests of other users would wait
// until all of these goroutines have run. If the waiting connection is evicted, which ends ctx, serve is never called.
func (a *unservedConns) startServeGoroutine(ctx context.Context, uid int, serve func()) {
	r := fair.Request{UserID: uid}
	a.startingGoroutineLimiter.AcquireAsync(ctx, r, func() {
		a.connGoroutines.Go(func() {
			a.startingGoroutineLimiter.Release(r)
			serve()
		})
	})
}

// closeEvictedConns closes evicted connections in the background, because Close may have to wait for the goroutine that
// reads from the connection. If maxConcurrentEvictionCloses connections are already being closed, closeEvictedConns
// closes the connection in the caller's goroutine, which waits. Otherwise a user could use up the file descriptors with
// connections that are being closed.
func (a *unservedConns) closeEvictedConns(evictedConns []*serverConn) {
	for _, c := range evictedConns {
		c.cancelRequests() // end its requests: the goroutine that serves the connection may wait for one
		if !a.tryGo(a.closingSemaphore, func() { c.netConn.Close() }) {
			c.netConn.Close()
		}
	}
}

// tryGo runs work in a new goroutine, which holds the semaphore until work returns. If the semaphore is full, tryGo
// returns false.
func (a *unservedConns) tryGo(semaphore chan struct{}, work func()) bool {
	select {
	case semaphore <- struct{}{}:
		a.connGoroutines.Go(func() {
			defer func() { <-semaphore }()
			work()
		})
		return true
	default:
		return false
	}
}

// admitAndStartServing admits a connection and starts a goroutine that serves the connection. It usually admits the
// connection in the goroutine of the caller, so a connection that is not admitted needs no goroutine. But if
// identifying the peer can block, the new goroutine admits the connection.
func (s *Server) admitAndStartServing(ctx context.Context, nc net.Conn, unserved *unservedConns) {
	if socket.PeerLookupMayBlock { // a client that sends nothing may block this step; it must not delay other clients
		unserved.connGoroutines.Go(func() { s.admitAndServeConn(ctx, nc) })
		return
	}
	ctx, c := newServerConn(ctx, nc)
	evicted, err := s.admitConn(ctx, c)
	unserved.closeEvictedConns(evicted)
	switch {
	case err == nil:
		unserved.startServeGoroutine(ctx, c.peer.UID, func() { s.serveOrRefuseConn(ctx, c, nil) })
	case errors.Is(err, errTooManyConnsWithoutAccess): // the error names users, and looking up their names may be slow
		if !unserved.tryGo(unserved.refusalSemaphore, func() { s.serveOrRefuseConn(ctx, c, err) }) {
			s.serveOrRefuseConn(ctx, c, queue.Errorf(queue.CodeDenied,
				"you have no rights on this service; ask an admin to grant you a right in [access] of its settings"))
		}
	default: // sending the error does not block, because it fits into the empty buffer of a new socket
		s.serveOrRefuseConn(ctx, c, err)
	}
}

func (s *Server) admitAndServeConn(ctx context.Context, nc net.Conn) {
	ctx, c := newServerConn(ctx, nc)
	evicted, err := s.admitConn(ctx, c)
	for _, o := range evicted {
		o.cancelRequests() // end its requests: the goroutine that serves the connection may wait for one
		o.netConn.Close()
	}
	s.serveOrRefuseConn(ctx, c, err)
}

// newServerConn returns a connection and a context that is cancelled when the connection ends.
func newServerConn(ctx context.Context, nc net.Conn) (context.Context, *serverConn) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, &serverConn{netConn: nc, activeRequestsChangedAt: time.Now(), cancelRequests: cancel}
}

// admitConn identifies the peer and adds the connection to the table of served connections. If the limit for all
// connections is reached, it evicts the connection that has been idle longest. If the limit per user is reached, it
// evicts that user's connection that has been idle longest. For a peer without access, it never evicts a connection of
// another user with access. The caller closes the evicted connections.
func (s *Server) admitConn(ctx context.Context, c *serverConn) (evictedConns []*serverConn, err error) {
	stop := context.AfterFunc(ctx, func() { c.netConn.Close() })
	known, isKnown := c.netConn.(identifiedConn)
	if c.peer = known.peer; !isKnown {
		// Identifying the peer may have to wait for the first bytes that the peer sends.
		c.netConn.SetReadDeadline(time.Now().Add(firstLineTimeout))
		c.peer, err = s.identifyPeer(c.netConn)
	}
	if stop(); err != nil {
		return nil, err
	}
	c.peer.Right = s.authorizer.CurrentRight(&c.peer)
	return s.servedConns.addConn(c, s.connLimits)
}

// serveOrRefuseConn serves an admitted connection. If refusal is not nil, the connection was not admitted, and
// serveOrRefuseConn only sends refusal to the client.
func (s *Server) serveOrRefuseConn(ctx context.Context, c *serverConn, refusal error) {
	defer c.netConn.Close()
	defer c.cancelRequests()
	if errors.Is(refusal, errTooManyConnsWithoutAccess) {
		refusal = s.authorizer.MissingRightError(&c.peer, "", RightRead)
	}
	if refusal != nil {
		s.logRejectedConn(c.peer, refusal)
		c.sendLine(encodeAnswerLine(nil, nil, refusal), answerReadTimeout)
		return
	}
	defer s.servedConns.removeConn(c)
	endIfGone := c.cancelRequestsIfClosed
	if _, isKnown := c.netConn.(identifiedConn); isKnown {
		endIfGone = func() bool { return false } // a client in this process never hangs up first
	}
	c.fairConn = s.userLimits.connLimiter.NewConn(c.peer.UID, endIfGone)
	defer c.fairConn.Close()
	ctx = WithPeer(ctx, c.peer)
	var requests sync.WaitGroup
	if refusal = s.authorizer.AdmitConnection(ctx, &c.peer); refusal == nil {
		refusal = s.readRequests(ctx, c, &requests)
	}
	if refusal != nil {
		c.sendLine(encodeAnswerLine(nil, nil, refusal), answerReadTimeout)
		c.cancelRequests()
	}
	s.awaitRequestsOrHangUp(c, &requests)
}
