// Package dashboard serves a queue over HTTP: web pages for browsers, and JSON results of read-only methods for
// scripts. It calls the control API as the visitor, so each visitor has the same rights and limits as on the
// command line.
//
// Start with Server. The file routes.go lists the paths.
package dashboard

import (
	"context"
	"crypto/rand"
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
	readHeaderTimeout     = 5 * time.Second
	readBodyTimeout       = 10 * time.Second
	sendTimeout           = 30 * time.Second // maximum time for sending a response or one part of a stream
	idleTimeout           = 10 * time.Second
	serverCloseTimeout    = 500 * time.Millisecond
)

// Options contains the parts of the service that a Server needs.
type Options struct {
	NewClientFor func(control.Peer) *control.Client // returns a client that acts as a peer
	// AnonymousPeer is the peer as which requests without a session call the API, if the configuration allows such
	// requests.
	AnonymousPeer      control.Peer
	MetricsScraperPeer control.Peer // peer as which requests without a session read the metrics
	// Listeners contains the listeners that systemd has passed to the service. If there are any, they replace
	// Config.ListenAddress.
	Listeners []net.Listener
	Log       *slog.Logger
}

// Server serves the web page. It serves nothing until ApplyConfig is called. Its methods are safe for
// concurrent use.
type Server struct {
	options               Options
	config                atomic.Pointer[Config]
	cert                  atomic.Pointer[tls.Certificate] // certificate of the configuration; nil without TLS
	isLoadingCert         atomic.Bool                     // a goroutine is reading a certificate
	sessions              sessionStore
	livePages             *livePages
	connLimiter           *connLimiter
	crossOriginProtection *http.CrossOriginProtection

	mu         sync.Mutex
	httpServer *http.Server // nil while the page is off; guarded by mu, like the fields below
	address    string       // current address, in the format of Config.ListenAddress
	tcpPort    int          // TCP port; 0 for a Unix socket

	endStreams     context.CancelFunc // ends all streams, and stops watching the socket's file
	cancelRequests context.CancelFunc // cancels all requests
}

// streamsContextKey is the key of a value in the context of a request. The value is a context that ends when the page
// is closed.
type streamsContextKey struct{}

// withCancelOnServerClose returns r with a context that also ends when the page is closed. Handlers of streams use this
// context. Otherwise the closing would wait for the streams, which may last for hours.
func withCancelOnServerClose(r *http.Request) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(r.Context().Value(streamsContextKey{}).(context.Context), cancel)
	return r.WithContext(ctx), func() {
		stop()
		cancel()
	}
}

// New returns a Server that does not listen yet.
func New(o Options) *Server {
	s := &Server{options: o, crossOriginProtection: http.NewCrossOriginProtection(), livePages: newLivePages(),
		connLimiter: newConnLimiter()}
	s.config.Store(&Config{})
	return s
}

// randomLocalHostName returns a random host name below localhost. A browser sends the cookies of a host to all ports of
// the host, and programs of other users may listen on some of these ports. These programs do not know the random name,
// so they cannot lead the browser to a URL with this name. See docs/decisions/0083.
func randomLocalHostName() string {
	return "q" + strings.ToLower(rand.Text()[:20]) + ".localhost"
}

// ApplyConfig applies a configuration: it listens on the configured address and reads the certificate again. If
// ApplyConfig cannot listen on this address, it returns an error and keeps the previous configuration.
func (s *Server) ApplyConfig(c Config) error {
	if path, unix := strings.CutPrefix(c.ListenAddress, "unix:"); unix {
		c.ListenAddress = "unix:" + filepath.Clean(path)
	}
	var addresses []string
	for _, l := range s.options.Listeners {
		if n := l.Addr().Network(); n != "tcp" && n != "unix" {
			return queue.InvalidFieldError("web.listen", "systemd passed a socket of the type %s; in queuectl-web.socket, set "+
				"ListenStream to a TCP or Unix address", n)
		}
		addresses = append(addresses, listenerAddress(l))
	}
	if addresses == nil {
		addresses = []string{c.ListenAddress}
	}
	for _, c.ListenAddress = range slices.Backward(addresses) {
		// The loop goes backward, so that c.ListenAddress is the first of the addresses after the loop.
		if err := c.Check(); err != nil {
			return err
		}
	}
	var certPair *tls.Certificate
	if c.ListenAddress != "" && c.TLSCertPath != "" {
		var err error
		if certPair, err = s.loadCert(c.TLSCertPath, c.TLSKeyPath); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	previous := s.config.Load()
	if s.httpServer != nil && (previous.ListenAddress == c.ListenAddress || c.ListenAddress == s.address) &&
		(previous.TLSCertPath != "") == (certPair != nil) {
		s.config.Store(&c)
		s.cert.Store(certPair)
		return nil
	}
	if c.ListenAddress == "" {
		s.closeLocked()
		s.config.Store(&c)
		return nil
	}
	before := *previous
	before.ListenAddress = s.address
	if s.httpServer != nil && (c.ListenAddress == s.address || s.tcpPort != 0 &&
		strings.HasSuffix(c.ListenAddress, fmt.Sprintf(":%d", s.tcpPort))) {
		s.closeLocked() // the new listener needs the address or the port of the old one
	}
	err := s.startListeningLocked(c, certPair)
	if err != nil && s.httpServer == nil && before.ListenAddress != "" {
		if retryErr := s.startListeningLocked(before, s.cert.Load()); retryErr != nil {
			s.options.Log.Error("the web page is off: after the new address failed, it could not listen on the "+
				"previous address either", "error", retryErr)
		}
	}
	return err
}

// startListeningLocked listens on the configured address, and then stops the previous server. The caller holds mu.
func (s *Server) startListeningLocked(c Config, certPair *tls.Certificate) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	streams, endStreams := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			endStreams()
			cancel()
		}
	}()
	list, err := s.openListeners(streams, c.ListenAddress)
	switch {
	case errors.Is(err, syscall.EAFNOSUPPORT) && strings.HasPrefix(c.ListenAddress, "127."):
		return queue.Errorf(queue.CodeWrongState, "the service has no network access, so systemd must open the page's "+
			"socket (127.0.0.1:7070): sudo systemctl enable queuectl-web.socket && sudo systemctl restart queuectl.service; "+
			"running jobs continue")
	case err != nil:
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err // leave out the address, because the message below contains it
		}
		return queue.Errorf(queue.CodeWrongState, "cannot listen on %s: %v", c.ListenAddress, err)
	}
	s.closeLocked()
	s.address, s.tcpPort = c.ListenAddress, 0
	if tcp, ok := list[0].Addr().(*net.TCPAddr); ok {
		s.address, s.tcpPort = tcp.String(), tcp.Port
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
	s.startServingLocked(context.WithValue(ctx, streamsContextKey{}, streams), list)
	return nil
}

// listenerAddress returns the address of a listener in the format of Config.ListenAddress.
func listenerAddress(l net.Listener) string {
	if a := l.Addr(); a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return l.Addr().String()
}

// openListeners opens the sockets of the page, at least one. If openListeners itself creates a Unix socket, the socket
// is created again whenever its file is removed, until ctx ends.
func (s *Server) openListeners(ctx context.Context, address string) (listeners []net.Listener, err error) {
	// duplicate the listener, so that the original stays open for the next call
	for _, handed := range s.options.Listeners {
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
		l, err = listenUnix(ctx, path, s.options.Log)
	} else {
		l, err = net.Listen("tcp", address)
	}
	return []net.Listener{l}, err
}

// duplicateListener returns a second listener on the same socket, which is a TCP or Unix socket.
func duplicateListener(l net.Listener) (net.Listener, error) {
	f, err := l.(interface{ File() (*os.File, error) }).File()
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
	within, done := context.WithTimeout(context.Background(), serverCloseTimeout)
	defer done()
	if s.httpServer.Shutdown(within) != nil { // waits for requests in progress, up to the time limit
		s.httpServer.Close()
	}
	s.cancelRequests()
	s.httpServer, s.address, s.tcpPort = nil, "", 0
}

// startServingLocked starts serving on the listeners. The caller holds mu.
func (s *Server) startServingLocked(ctx context.Context, listeners []net.Listener) {
	server := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readBodyTimeout, WriteTimeout: sendTimeout,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(s.options.Log.Handler(), slog.LevelDebug),
		BaseContext:    func(net.Listener) context.Context { return ctx }, ConnContext: withConn,
	}
	s.httpServer = server
	for _, l := range listeners {
		go func() { // this goroutine ends when the server is stopped
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				s.options.Log.Error("the web page accepts no more connections, because its socket failed; jobs are not affected; "+
					"restart the service to open the page again", "error", err)
			}
		}()
	}
}

// Address returns the address of the page in the format of Config.ListenAddress, or "" while the page is off.
func (s *Server) Address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}

// NewSignInLink returns a URL with which a browser can sign in once as the peer. The URL expires after a minute, at the
// returned time. The error is a *queue.Error.
func (s *Server) NewSignInLink(p control.Peer) (url string, expires time.Time, err error) {
	s.mu.Lock()
	address, port := s.address, s.tcpPort
	s.mu.Unlock()
	c := s.config.Load()
	// Each link has its own host name, so the browser does not mix up the cookies of different sessions.
	scheme, host := "http", randomLocalHostName()
	if c.TLSCertPath != "" || c.BehindTLSProxy {
		scheme = "https"
	}
	switch {
	case address == "":
		return "", expires, queue.Errorf(queue.CodeWrongState,
			"the web page is off; an admin can start it: queuectl web start")
	case scheme == "https" && len(c.ExtraHosts) > 0:
		host = c.ExtraHosts[0]
	case c.BehindTLSProxy || port == 0:
		return "", expires, queue.Errorf(queue.CodeWrongState,
			"no host name is known for the web page at %s; add one to the setting web.hosts", c.ListenAddress)
	}
	authority := host
	if strings.Contains(host, ":") {
		authority = "[" + host + "]"
	}
	if !c.BehindTLSProxy && port != 0 {
		authority = net.JoinHostPort(host, fmt.Sprint(port))
	}
	expires = time.Now().Add(signInLinkLifetime)
	return scheme + "://" + authority + "/open?link=" + s.sessions.addSignInLink(p, host), expires, nil
}

// isSentOverTLS reports whether the browser has sent the request over TLS, to this server or to a proxy in front of
// it.
func (s *Server) isSentOverTLS(r *http.Request) bool {
	return r.TLS != nil || s.config.Load().BehindTLSProxy
}

// sessionCookieName returns the name of the session cookie. With TLS, the name begins with __Host-, so that
// browsers send the cookie only to the host that has set it.
func (s *Server) sessionCookieName(r *http.Request) string {
	if s.isSentOverTLS(r) {
		return "__Host-queuectl"
	}
	return "queuectl"
}

// setSessionCookie stores sessionSecret in a cookie of the browser. If sessionSecret is "", setSessionCookie deletes
// the cookie.
func (s *Server) setSessionCookie(w http.ResponseWriter, r *http.Request, sessionSecret string) {
	age := int(sessionLifetime / time.Second)
	if sessionSecret == "" {
		age = -1
	}
	http.SetCookie(w, &http.Cookie{Name: s.sessionCookieName(r), Value: sessionSecret, Path: "/", MaxAge: age,
		Secure:   s.isSentOverTLS(r),
		HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

// visitor is the user, or the client without a session, that sends a request.
type visitor struct {
	session
	client *control.Client
}

// findVisitor returns the visitor who sends a request. It returns false if the request has neither a valid session nor
// anonymous access.
func (s *Server) findVisitor(r *http.Request) (v visitor, found bool) {
	if sess, open := s.sessions.findSession(r, s.sessionCookieName(r)); open {
		return visitor{session: sess}, true
	}
	if c := s.config.Load(); c.AllowsAnonymousRead && c.isLocalRequest(r) {
		return visitor{session: session{peer: s.options.AnonymousPeer}}, true
	}
	return v, false
}

// newVisitorClient returns a client that acts as the visitor. The caller must close the client.
func (s *Server) newVisitorClient(v *visitor) *control.Client { return s.options.NewClientFor(v.peer) }

// isLocalRequest reports whether a request comes directly from a program on this machine, not from a proxy. The caller
// must take the settings of anonymous access from the same configuration. While the configuration changes, settings of
// two configurations together could give access that neither of them gives.
func (c *Config) isLocalRequest(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && addr.IP.IsLoopback() && !c.BehindTLSProxy && !isForwarded(r)
}

// responseHeaders contains the headers of every response. The headers forbid three things: that the page loads
// resources from other sites, that another page embeds the page, and that the page is cached.
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

// handler returns the handler for all requests.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	s.registerRoutes(mux)
	// Compress responses of more than a kilobyte for browsers that accept it. Compression is unsafe if another site can
	// make the browser send requests and observe the size of responses that contain a secret (the attack BREACH). Here,
	// another site can cause only requests without the session cookie, because the cookie is SameSite=Strict. The
	// responses to such requests contain no secret.
	compressed := gzhttp.GzipHandler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				s.options.Log.Error("panic in a web page request", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
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
		if !isValidHostHeader(r.Host) {
			s.replyError(w, r, queue.InvalidFieldError("host", "the Host header %q must be NAME or NAME:NUMBER",
				queue.ClipForMessage(r.Host)))
			return
		}
		if c := s.config.Load(); !c.acceptsHost(requestHostName(r)) {
			s.replyErrorStatus(w, r, http.StatusMisdirectedRequest,
				queue.Errorf(queue.CodeDenied, "unknown host %q; an admin can add it to the setting web.hosts",
					queue.ClipForMessage(requestHostName(r))))
			return
		}
		v, known := s.findVisitor(r)
		if v.formToken == "" {
			w.Header().Set("Connection", "close") // without a session, a connection serves only one request
		}
		if err := s.crossOriginProtection.Check(r); err != nil {
			s.replyError(w, r, queue.Errorf(queue.CodeDenied, "the request comes from another web site, so it was refused"))
			return
		}
		most := int64(maxAnonymousBodyBytes)
		if known {
			most = maxBodyBytes
			if err := s.connLimiter.setConnUser(connFromContext(r.Context()), v.peer.UID); err != nil {
				w.Header().Set("Connection", "close")
				s.replyError(w, r, err)
				return
			}
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
		if r.URL.Path == "/live" || r.URL.Path == "/api/events" {
			mux.ServeHTTP(w, r) // do not compress: compression would delay the events until a buffer is full
			return
		}
		compressed.ServeHTTP(w, r)
	})
}
