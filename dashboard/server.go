// Package dashboard serves a queue to browsers and scripts over HTTP: the page, and what methods that only read
// answer, as JSON. It speaks to the queue as its control API's clients do, as whoever a request is from, and so
// within their rights and limits.
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
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Limits of requests.
const (
	maxConns     = 1024
	maxHeader    = 16 << 10 // bytes
	maxBody      = 64 << 10 // bytes
	headerWithin = 5 * time.Second
	bodyWithin   = 10 * time.Second
	takenWithin  = 30 * time.Second // an answer; of a stream each piece
	idleFor      = time.Minute
	closeWithin  = time.Second
)

// Options are what a server needs of the service.
type Options struct {
	As        func(control.Peer) *control.Client // a client that is served as somebody
	Anonymous control.Peer                       // whom requests without a session are from, if they are let in
	Scraper   control.Peer                       // whom those for the metrics alone are from
	Log       *slog.Logger
}

// Server serves the page. It is off until Set. Its methods may be called at once, Set and Close by one at a time.
type Server struct {
	opt      Options
	name     string // below localhost: no other service's page has it, so no other's gets the cookie
	config   atomic.Pointer[Config]
	sessions sessions
	feeds    feeds
	cross    *http.CrossOriginProtection

	mu     sync.Mutex
	http   *http.Server // nil while it is off
	at     net.Addr
	cancel context.CancelFunc // of its requests
}

// New makes a server that listens nowhere yet.
func New(o Options) *Server {
	s := &Server{opt: o, name: strings.ToLower(newSecret()[:10]), cross: http.NewCrossOriginProtection()}
	s.name = strings.NewReplacer("-", "a", "_", "b").Replace(s.name) + ".localhost"
	s.config.Store(&Config{})
	return s
}

// Set has the page be where a configuration says, and nowhere else. If it cannot be there, it is as it was.
func (s *Server) Set(c Config) error {
	if err := c.Check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.config.Load()
	same := s.http != nil && (was.Listen == c.Listen || c.Listen == listening(s.at))
	if same && was.TLSCert == c.TLSCert && was.TLSKey == c.TLSKey {
		s.config.Store(&c)
		return nil
	}
	var l net.Listener
	var err error
	if c.Listen != "" {
		if same {
			s.close() // its address is wanted again
		}
		if l, err = listen(&c); err != nil {
			return err
		}
	}
	s.close()
	s.config.Store(&c)
	if l != nil {
		s.serve(l)
	}
	return nil
}

// Close ends what is served, and all sessions with it.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close()
}

// close ends what is served. The caller holds mu.
func (s *Server) close() {
	if s.http == nil {
		return
	}
	s.cancel()
	within, done := context.WithTimeout(context.Background(), closeWithin)
	defer done()
	if s.http.Shutdown(within) != nil {
		s.http.Close()
	}
	s.http, s.at = nil, nil
}

// listen opens what a configuration asks for.
func listen(c *Config) (l net.Listener, err error) {
	if path, unix := strings.CutPrefix(c.Listen, "unix:"); unix {
		if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
			os.Remove(path) // of a service that was killed
		}
		if l, err = net.Listen("unix", path); err == nil {
			err = os.Chmod(path, 0o660)
		}
	} else {
		l, err = net.Listen("tcp", c.Listen)
	}
	if err != nil {
		return nil, queue.Errorf(queue.CodeWrongState, "the page cannot be at %s: %v", c.Listen, err)
	}
	l = netutil.LimitListener(l, maxConns)
	if c.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		if err != nil {
			l.Close()
			return nil, queue.Invalid("web.tls_cert", "cannot be used: %v", err)
		}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	}
	return l, nil
}

// serve serves on a listener. The caller holds mu.
func (s *Server) serve(l net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	server := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerWithin, ReadTimeout: bodyWithin, WriteTimeout: takenWithin, IdleTimeout: idleFor, MaxHeaderBytes: maxHeader,
		ErrorLog:    slog.NewLogLogger(s.opt.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	s.http, s.at, s.cancel = server, l.Addr(), cancel
	go func() { // ends with the server
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.opt.Log.Error("the page has ended", "error", err)
		}
	}()
}

// Listening is where the page is, "" while it is off.
func (s *Server) Listening() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return listening(s.at)
}

// listening is an address as Config has it.
func listening(at net.Addr) string {
	switch at := at.(type) {
	case nil:
		return ""
	case *net.UnixAddr:
		return "unix:" + at.Name
	default:
		return at.String()
	}
}

// Link is a URL that lets a browser in once, as a peer, within a minute, and when that is over. An error is a
// *queue.Error.
func (s *Server) Link(p control.Peer) (url string, ends time.Time, err error) {
	s.mu.Lock()
	at := s.at
	s.mu.Unlock()
	if at == nil {
		return "", ends, queue.Errorf(queue.CodeWrongState, "the page is off; an admin can have it served: queuectl web start")
	}
	c := s.config.Load()
	scheme, host, port := "http", s.name, ""
	if c.TLSCert != "" || c.Proxy {
		scheme = "https"
	}
	if tcp, ok := at.(*net.TCPAddr); ok && !c.Proxy {
		port = fmt.Sprintf(":%d", tcp.Port)
	}
	switch {
	case len(c.Hosts) > 0:
		host = c.Hosts[0]
	case port == "":
		return "", ends, queue.Errorf(queue.CodeWrongState, "the page has no name where %s leads; set web.hosts", c.Listen)
	}
	ends = time.Now().Add(linkLasts)
	return scheme + "://" + host + port + "/open?link=" + s.sessions.link(p, host), ends, nil
}

// secure reports whether a request came by TLS, to here or to the proxy.
func (s *Server) secure(r *http.Request) bool { return r.TLS != nil || s.config.Load().Proxy }

// cookie is what the cookie of a session is called: with TLS, browsers send it to this host alone.
func (s *Server) cookie(r *http.Request) string {
	if s.secure(r) {
		return "__Host-queuectl"
	}
	return "queuectl"
}

// keep has a browser keep the secret of a session; "" has it forget.
func (s *Server) keep(w http.ResponseWriter, r *http.Request, secret string) {
	age := int(sessionLasts / time.Second)
	if secret == "" {
		age = -1
	}
	http.SetCookie(w, &http.Cookie{Name: s.cookie(r), Value: secret, Path: "/", MaxAge: age, Secure: s.secure(r), HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

// visitor is whom a request is from.
type visitor struct {
	session
	client *control.Client
}

// visitorOf says whom a request is from: nobody if found is false.
func (s *Server) visitorOf(r *http.Request) (v visitor, found bool) {
	if is, open := s.sessions.of(r, s.cookie(r)); open {
		return visitor{session: is}, true
	}
	c := s.config.Load()
	if c.Anonymous && !c.Proxy && s.local(r) {
		return visitor{session: session{peer: s.opt.Anonymous}}, true
	}
	return v, false
}

// clientOf is a client that asks as a visitor, and is to be closed.
func (s *Server) clientOf(v *visitor) *control.Client { return s.opt.As(v.peer) }

// local reports whether a request is from this machine, and from nobody else by way of a proxy.
func (s *Server) local(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && at.IP.IsLoopback() && !forwarded(r)
}

// headers go with each answer: nothing is fetched from elsewhere, shown inside of another page, or kept.
var headers = map[string]string{
	"Cache-Control":                "no-store",
	"Content-Security-Policy":      "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Referrer-Policy":              "no-referrer",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
}

// handler is what answers all requests.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	s.routes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				s.opt.Log.Error("panic in a request of the page", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
				s.fail(w, r, queue.Errorf(queue.CodeInternal, "internal error; the service's log says more"))
			}
		}()
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		if c := s.config.Load(); !c.has(hostOf(r)) {
			s.failAs(w, r, http.StatusMisdirectedRequest, queue.Errorf(queue.CodeDenied, "the page has no host %q; an admin can name it in web.hosts", queue.Clip(hostOf(r))))
			return
		}
		if err := s.cross.Check(r); err != nil {
			s.fail(w, r, queue.Errorf(queue.CodeDenied, "the request comes from another page"))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		mux.ServeHTTP(w, r)
	})
}
