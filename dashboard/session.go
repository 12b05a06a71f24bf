package dashboard

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Limits of links and sessions.
// See docs/decisions/0083.
const (
	linkLasts    = time.Minute
	sessionLasts = 12 * time.Hour
	userLinks    = 16          // of one user; the oldest goes
	userSessions = 32          // the same
	wrongEach    = time.Second // secrets that nobody was given, answered in each
	wrongMost    = 5
)

// session is what a browser has that somebody let in.
type session struct {
	peer  control.Peer
	host  string // that it is for, without the port
	ends  time.Time
	token string // of its forms
}

// sessions are the links and sessions of one service, which end with it. Secrets are kept as hashes. Its methods may
// be called at once.
type sessions struct {
	mu    sync.Mutex
	links map[[sha256.Size]byte]session // not used yet
	open  map[[sha256.Size]byte]session
	wrong int // secrets since
	since time.Time
}

// link makes a secret by which a browser is let in once, as a peer on a host.
func (s *sessions) link(p control.Peer, host string) (secret string) {
	p.PID, p.Right = 0, control.None // who asks is asked about at each request
	s.mu.Lock()
	defer s.mu.Unlock()
	secret = newSecret()
	s.links = put(s.links, secret, session{peer: p, host: host, ends: time.Now().Add(linkLasts)}, userLinks)
	return secret
}

// enter takes a link for a session of the same host, whose secret is returned. An error is a *queue.Error.
func (s *sessions) enter(secret, host string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := sha256.Sum256([]byte(secret))
	is, known := s.links[at]
	if !known || is.host != host || !time.Now().Before(is.ends) {
		return "", s.refuse()
	}
	delete(s.links, at)
	is.ends, is.token = time.Now().Add(sessionLasts), newSecret()
	secret = newSecret()
	s.open = put(s.open, secret, is, userSessions)
	return secret, nil
}

// errLink refuses a link that is none, or none any more.
var errLink = queue.Errorf(queue.CodeDenied, "the link is invalid, was used already or is older than a minute; get another: queuectl web open")

// refuse counts a secret that nobody was given. The caller holds mu.
func (s *sessions) refuse() error {
	if now := time.Now(); now.Sub(s.since) > wrongEach {
		s.wrong, s.since = 0, now
	}
	if s.wrong++; s.wrong > wrongMost {
		return queue.Errorf(queue.CodeUnavailable, "too many invalid links; try again in a second")
	}
	return errLink
}

// of is the session of a request, and whether there is one.
func (s *sessions) of(r *http.Request, cookie string) (is session, found bool) {
	for _, c := range r.CookiesNamed(cookie) {
		s.mu.Lock()
		is, found = s.open[sha256.Sum256([]byte(c.Value))]
		s.mu.Unlock()
		if found && is.host == hostOf(r) && time.Now().Before(is.ends) {
			return is, true
		}
	}
	return session{}, false
}

// leave ends the session of a request.
func (s *sessions) leave(r *http.Request, cookie string) {
	for _, c := range r.CookiesNamed(cookie) {
		s.mu.Lock()
		delete(s.open, sha256.Sum256([]byte(c.Value)))
		s.mu.Unlock()
	}
}

// has reports whether a form was made for the session.
func (s *session) has(token string) bool {
	return s.token != "" && subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) == 1
}

// put adds one of a user, in place of what is over, and of the user's oldest beyond so many.
func put(to map[[sha256.Size]byte]session, secret string, one session, most int) map[[sha256.Size]byte]session {
	if to == nil {
		to = map[[sha256.Size]byte]session{}
	}
	var oldest [sha256.Size]byte
	n := 0
	for at, is := range to {
		switch {
		case !time.Now().Before(is.ends):
			delete(to, at)
		case is.peer.UID == one.peer.UID:
			if n++; n == 1 || is.ends.Before(to[oldest].ends) {
				oldest = at
			}
		}
	}
	if n >= most {
		delete(to, oldest)
	}
	to[sha256.Sum256([]byte(secret))] = one
	return to
}

// newSecret is a text of 256 bits that nobody can guess.
func newSecret() string {
	var raw [32]byte
	rand.Read(raw[:]) // it cannot fail
	return base64.RawURLEncoding.EncodeToString(raw[:])
}
