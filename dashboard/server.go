// Package dashboard serves a queue over HTTP: web pages for browsers, and JSON results of read-only methods for
// scripts. It calls the control API as the visitor, so each visitor has the same rights and limits as on the
// command line.
//
// Start with Server. The file routes.go lists the paths.
package dashboard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzhttp"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// These constants limit HTTP requests.
const (
	maxHeaderBytes        = 16 << 10 // maximum size of the headers in bytes
	maxBodyBytes          = 64 << 10 // maximum size of the request body of a visitor, in bytes
	maxAnonymousBodyBytes = 4 << 10  // maximum size of a request body without a session, in bytes
	headerTimeout         = 5 * time.Second
	bodyTimeout           = 10 * time.Second
	sendTimeout           = 30 * time.Second // maximum time for sending a response or one part of a stream
	idleTimeout           = 10 * time.Second
	closeTimeout          = 500 * time.Millisecond
)

// Options contains the parts of the service that a Server needs.
type Options struct {
	ClientAs func(control.Peer) *control.Client // returns a client that acts as a peer
	// Anonymous is the peer for requests without a session, if the configuration allows such requests.
	Anonymous control.Peer
	Scraper   control.Peer // peer for requests without a session that read the metrics
	// Listeners contains the listeners that systemd has passed to the service. If there are any, they replace
	// Config.Listen.
	Listeners []net.Listener
	Log       *slog.Logger
}

// Server serves the web page. It serves nothing until ApplyConfig is called. Its methods are safe for
// concurrent use.
type Server struct {
	opt           Options
	config        atomic.Pointer[Config]
	cert          atomic.Pointer[tls.Certificate] // certificate of the configuration; nil without TLS
	isLoadingCert atomic.Bool                     // another goroutine reads a certificate now
	sessions      sessions
	livePages     *livePages
	connLimiter   *connLimiter
	crossOrigin   *http.CrossOriginProtection

	mu         sync.Mutex
	httpServer *http.Server // nil while the page is off; guarded by mu, like the fields below
	address    string       // current address, in the format of Config.Listen
	port       int          // TCP port; 0 for a Unix socket

	endStreams     context.CancelFunc // ends all streams, and stops watching the socket's file
	cancelRequests context.CancelFunc // cancels all requests
}

// streamsKey is the key of a value in the context of a request. The value is a context that ends when the page
// is closed.
type streamsKey struct{}

// cancelOnClose returns r with a context that also ends when the page is closed. Handlers of streams use this
// context, because a stream would otherwise delay the closing.
func cancelOnClose(r *http.Request) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(r.Context().Value(streamsKey{}).(context.Context), cancel)
	return r.WithContext(ctx), func() {
		stop()
		cancel()
	}
}

// New returns a Server that does not listen yet.
func New(o Options) *Server {
	s := &Server{opt: o, crossOrigin: http.NewCrossOriginProtection(), livePages: newLivePages(),
		connLimiter: newConnLimiter()}
	s.config.Store(&Config{})
	return s
}

// newLocalHostName returns a random host name below localhost. A browser sends the cookies of a host to all
// ports of the host, and other users' programs may listen on these ports. They cannot lead the browser to the
// random name, because they do not know it. See docs/decisions/0083.
func newLocalHostName() string {
	return "q" + strings.NewReplacer("-", "a", "_", "b").Replace(strings.ToLower(newSecret()[:20])) + ".localhost"
}

// ApplyConfig applies a configuration: it listens on the configured address and reads the certificate again. If
// it cannot listen on this address, it returns an error and keeps the previous configuration.
func (s *Server) ApplyConfig(c Config) error {
	if path, unix := strings.CutPrefix(c.Listen, "unix:"); unix {
		c.Listen = "unix:" + filepath.Clean(path)
	}
	var addresses []string
	for _, l := range s.opt.Listeners {
		if n := l.Addr().Network(); n != "tcp" && n != "unix" {
			return queue.Invalid("web.listen", "%v", socketTypeError(n))
		}
		addresses = append(addresses, addressOf(l))
	}
	if addresses == nil {
		addresses = []string{c.Listen}
	}
	for _, c.Listen = range slices.Backward(addresses) {
		// The loop goes backward, so that c.Listen is the first address in the end.
		if err := c.Check(); err != nil {
			return err
		}
	}
	var certPair *tls.Certificate
	if c.Listen != "" && c.TLSCert != "" {
		var err error
		if certPair, err = s.loadCert(c.TLSCert, c.TLSKey); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	previous := s.config.Load()
	if s.httpServer != nil && (previous.Listen == c.Listen || c.Listen == s.address) &&
		(previous.TLSCert != "") == (certPair != nil) {
		s.config.Store(&c)
		s.cert.Store(certPair)
		return nil
	}
	if c.Listen == "" {
		s.closeLocked()
		s.config.Store(&c)
		return nil
	}
	before := *previous
	before.Listen = s.address
	if s.httpServer != nil && (c.Listen == s.address || s.port != 0 &&
		strings.HasSuffix(c.Listen, fmt.Sprintf(":%d", s.port))) {
		s.closeLocked() // the new listener needs the address or the port of the old one
	}
	err := s.startListeningLocked(c, certPair)
	if err != nil && s.httpServer == nil && before.Listen != "" {
		if retryErr := s.startListeningLocked(before, s.cert.Load()); retryErr != nil {
			s.opt.Log.Error("the web page is off: after the new address failed, it could not listen on the "+
				"previous address either", "error", retryErr)
		}
	}
	return err
}

// startListeningLocked listens on the configured address, and then closes the previous server. The caller holds
// mu.
func (s *Server) startListeningLocked(c Config, certPair *tls.Certificate) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	streams, endStreams := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			endStreams()
			cancel()
		}
	}()
	list, err := s.listen(streams, c.Listen)
	switch {
	case errors.Is(err, syscall.EAFNOSUPPORT) && strings.HasPrefix(c.Listen, "127."):
		return queue.Errorf(queue.CodeWrongState, "the service has no network access, so systemd must open the page's "+
			"socket (127.0.0.1:7070): sudo systemctl enable queuectl-web.socket && sudo systemctl restart queuectl.service; "+
			"running jobs continue")
	case err != nil:
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err // leave out the address, because the message below contains it
		}
		return queue.Errorf(queue.CodeWrongState, "cannot listen on %s: %v", c.Listen, err)
	}
	s.closeLocked()
	s.address, s.port = c.Listen, 0
	if tcp, ok := list[0].Addr().(*net.TCPAddr); ok {
		s.address, s.port = tcp.String(), tcp.Port
	}
	s.config.Store(&c)
	s.cert.Store(certPair)
	for i, l := range list {
		list[i] = &limitedListener{l, s.connLimiter}
		if certPair != nil {
			list[i] = tls.NewListener(list[i], &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
				GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cert.Load(), nil }})
		}
	}
	s.cancelRequests, s.endStreams = cancel, endStreams
	s.startServingLocked(context.WithValue(ctx, streamsKey{}, streams), list)
	return nil
}

// addressOf returns the address of a listener in the format of Config.Listen.
func addressOf(l net.Listener) string {
	if a := l.Addr(); a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return l.Addr().String()
}

// listen opens the sockets of the page, at least one. If the file of a Unix socket is removed, listen creates
// it again, until ctx ends.
func (s *Server) listen(ctx context.Context, address string) (listeners []net.Listener, err error) {
	for _, handed := range s.opt.Listeners { // duplicate the socket, so that the original stays open for the next call
		l, err := duplicateListener(handed)
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return nil, err
		}
		listeners = append(listeners, l)
	}
	if len(listeners) > 0 {
		return listeners, nil
	}
	var l net.Listener
	if path, unix := strings.CutPrefix(address, "unix:"); unix {
		l, err = listenUnix(ctx, path, s.opt.Log)
	} else {
		l, err = net.Listen("tcp", address)
	}
	return []net.Listener{l}, err
}

// socketTypeError returns the error for a socket from systemd that is neither a TCP nor a Unix socket.
func socketTypeError(network string) error {
	return fmt.Errorf("systemd passed a socket of the type %s; in queuectl-web.socket, set ListenStream to a TCP or Unix "+
		"address", network)
}

// duplicateListener returns a second listener on the same socket.
func duplicateListener(l net.Listener) (net.Listener, error) {
	filer, ok := l.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, socketTypeError(l.Addr().Network())
	}
	f, err := filer.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FileListener(f)
}

// Close stops the server. ApplyConfig can start the server again.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked()
}

// closeLocked stops the server. The caller holds mu.
func (s *Server) closeLocked() {
	if s.httpServer == nil {
		return
	}
	s.endStreams()
	within, done := context.WithTimeout(context.Background(), closeTimeout)
	defer done()
	if s.httpServer.Shutdown(within) != nil { // waits for requests in progress, up to the time limit
		s.httpServer.Close()
	}
	s.cancelRequests()
	s.httpServer, s.address, s.port = nil, "", 0
}

// startServingLocked starts serving on the listeners. The caller holds mu.
func (s *Server) startServingLocked(ctx context.Context, listeners []net.Listener) {
	server := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: sendTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(s.opt.Log.Handler(), slog.LevelDebug),
		BaseContext:    func(net.Listener) context.Context { return ctx }, ConnContext: withConn,
	}
	s.httpServer = server
	for _, l := range listeners {
		go func() { // this goroutine ends when the server is stopped
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				s.opt.Log.Error("the web page accepts no more connections, because its socket failed; jobs are not affected; "+
					"restart the service to open the page again", "error", err)
			}
		}()
	}
}

// Address returns the address of the page in the format of Config.Listen, or "" while the page is off.
func (s *Server) Address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}

// NewLink returns a URL that signs a browser in as the peer, once. The URL expires after a minute, at the
// returned time. The error is a *queue.Error.
func (s *Server) NewLink(p control.Peer) (url string, expires time.Time, err error) {
	s.mu.Lock()
	address, port := s.address, s.port
	s.mu.Unlock()
	c := s.config.Load()
	// Each link has its own host name, so the browser has no cookies of other sessions for it.
	scheme, host := "http", newLocalHostName()
	if c.TLSCert != "" || c.BehindProxy {
		scheme = "https"
	}
	switch {
	case address == "":
		return "", expires, queue.Errorf(queue.CodeWrongState,
			"the web page is off; an admin can start it: queuectl web start")
	case scheme == "https" && len(c.ExtraHosts) > 0:
		host = c.ExtraHosts[0]
	case c.BehindProxy || port == 0:
		return "", expires, queue.Errorf(queue.CodeWrongState,
			"no host name is known for the web page at %s; add one to the setting web.hosts", c.Listen)
	}
	authority := host
	if strings.Contains(host, ":") {
		authority = "[" + host + "]"
	}
	if !c.BehindProxy && port != 0 {
		authority = net.JoinHostPort(host, fmt.Sprint(port))
	}
	expires = time.Now().Add(linkLifetime)
	return scheme + "://" + authority + "/open?link=" + s.sessions.addLink(p, host), expires, nil
}

// isSecure reports whether the browser has sent the request over TLS, to this server or to a proxy in front of
// it.
func (s *Server) isSecure(r *http.Request) bool { return r.TLS != nil || s.config.Load().BehindProxy }

// sessionCookie returns the name of the session cookie. With TLS, the name begins with __Host-, so that
// browsers send the cookie only to the host that has set it.
func (s *Server) sessionCookie(r *http.Request) string {
	if s.isSecure(r) {
		return "__Host-queuectl"
	}
	return "queuectl"
}

// setCookie stores the secret of a session in a cookie of the browser. If secret is "", setCookie deletes the
// cookie.
func (s *Server) setCookie(w http.ResponseWriter, r *http.Request, secret string) {
	age := int(sessionLifetime / time.Second)
	if secret == "" {
		age = -1
	}
	http.SetCookie(w, &http.Cookie{Name: s.sessionCookie(r), Value: secret, Path: "/", MaxAge: age, Secure: s.isSecure(r),
		HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

// visitor is the user, or the anonymous client, that sends a request.
type visitor struct {
	session
	isAnonymous bool // has no session; the configuration allows anonymous access
	client      *control.Client
}

// findVisitor returns the visitor who sends a request. It returns false if the request must be rejected.
func (s *Server) findVisitor(r *http.Request) (v visitor, found bool) {
	if sess, open := s.sessions.findSession(r, s.sessionCookie(r)); open {
		return visitor{session: sess}, true
	}
	c := s.config.Load()
	if c.AnonymousRead && !c.BehindProxy && s.isLocal(r) {
		return visitor{session: session{peer: s.opt.Anonymous}, isAnonymous: true}, true
	}
	return v, false
}

// clientOf returns a client that acts as the visitor. The caller must close the client.
func (s *Server) clientOf(v *visitor) *control.Client { return s.opt.ClientAs(v.peer) }

// isLocal reports whether a request comes directly from a program on this machine, not from a proxy.
func (s *Server) isLocal(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && addr.IP.IsLoopback() && !isForwarded(r)
}

// responseHeaders contains the headers of every response. They forbid that the page loads resources from other
// sites, that another page embeds it, and that it is cached.
var responseHeaders = map[string]string{
	"Cache-Control": "no-store",
	"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; " +
		"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Referrer-Policy":              "no-referrer",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
}

// compressResponses compresses responses of more than a kilobyte for browsers that accept it. Compression is
// unsafe if another site can make the browser send requests and observe the size of responses that contain a
// secret (the attack BREACH). Here, the responses to such requests contain no secret: the browser sends them
// without the session cookie, which is SameSite=Strict.
func compressResponses(h http.Handler) http.Handler {
	wrap, err := gzhttp.NewWrapper(gzhttp.MinSize(1 << 10))
	if err != nil {
		panic("dashboard: " + err.Error()) // cannot happen, because the options are constants
	}
	return wrap(h)
}

// handler returns the handler for all requests.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	s.registerRoutes(mux)
	compressed := compressResponses(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				s.opt.Log.Error("panic in a web page request", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
				s.replyError(w, r, queue.Errorf(queue.CodeInternal, "internal error; see the service's log"))
			}
		}()
		for name, value := range responseHeaders {
			w.Header().Set(name, value)
		}
		if r.TLS != nil {
			// Behind a proxy, the proxy decides whether to send this header.
			w.Header().Set("Strict-Transport-Security", "max-age=31536000")
		}
		if !isValidHost(r.Host) {
			s.replyErrorStatus(w, r, http.StatusBadRequest, queue.Invalid("host",
				"the Host header %q must be NAME or NAME:NUMBER",
				queue.Clip(r.Host)))
			return
		}
		if c := s.config.Load(); !c.hasHost(hostOf(r)) {
			s.replyErrorStatus(w, r, http.StatusMisdirectedRequest,
				queue.Errorf(queue.CodeDenied, "unknown host %q; an admin can add it to the setting web.hosts",
					queue.Clip(hostOf(r))))
			return
		}
		v, known := s.findVisitor(r)
		if v.token == "" {
			w.Header().Set("Connection", "close") // without a session, a connection serves a single request
		}
		if err := s.crossOrigin.Check(r); err != nil {
			s.replyError(w, r, queue.Errorf(queue.CodeDenied, "the request comes from another web site, so it was refused"))
			return
		}
		most := int64(maxAnonymousBodyBytes)
		if known {
			most = maxBodyBytes
			if err := s.connLimiter.identify(connOf(r.Context()), v.peer.UID); err != nil {
				w.Header().Set("Connection", "close")
				s.replyError(w, r, err)
				return
			}
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
		if r.URL.Path == "/live" || r.URL.Path == "/api/events" {
			mux.ServeHTTP(w, r) // do not compress, so that events reach the browser immediately
			return
		}
		compressed.ServeHTTP(w, r)
	})
}
