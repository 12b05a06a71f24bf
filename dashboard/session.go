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

// Limits of links and sessions. See docs/decisions/0083.
const (
	linkLasts    = time.Minute
	sessionLasts = 12 * time.Hour
	userLinks    = 16          // maximum number of unused links of one user; a new link replaces the oldest
	userSessions = 32          // maximum number of sessions of one user; a new session replaces the oldest
	wrongEach    = time.Second // period for which wrongMost invalid links get a normal reply
	wrongMost    = 5
)

// session is the identity of a browser that was admitted.
type session struct {
	peer  control.Peer
	host  string // host name that the session is valid for, without the port
	ends  time.Time
	token string // token of the session's forms
}

// sessions holds the links and sessions of one service run. It stores secrets as hashes. Its methods are safe
// for concurrent use.
type sessions struct {
	mu    sync.Mutex
	links map[[sha256.Size]byte]session // unused links, by the hash of their secret
	open  map[[sha256.Size]byte]session
	wrong int // number of invalid secrets since the time since
	since time.Time
}

// link returns a secret that admits a browser once, as a peer on a host.
func (s *sessions) link(p control.Peer, host string) (secret string) {
	p.PID, p.Right = 0, control.None // the right is checked at each request
	s.mu.Lock()
	defer s.mu.Unlock()
	secret = newSecret()
	s.links = put(s.links, secret, session{peer: p, host: host, ends: time.Now().Add(linkLasts)}, userLinks)
	return secret
}

// enter exchanges a link for a session on the same host and returns the session's secret. An error is a
// *queue.Error.
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

// errLink is the error of a link that does not exist, was used or has expired.
var errLink = queue.Errorf(queue.CodeDenied, "the link is invalid, was used already or is older than a minute; get another: queuectl web open")

// refuse counts an invalid secret and returns the error. The caller holds mu.
func (s *sessions) refuse() error {
	if now := time.Now(); now.Sub(s.since) > wrongEach {
		s.wrong, s.since = 0, now
	}
	if s.wrong++; s.wrong > wrongMost {
		return queue.Errorf(queue.CodeUnavailable, "too many sign-in links were invalid; try again in a second")
	}
	return errLink
}

// of returns the session of a request, and whether there is one.
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

// put adds a link or session. It removes those that have expired and, if the user has too many, the user's
// oldest.
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

// newSecret returns 256 random bits as text.
func newSecret() string {
	var raw [32]byte
	rand.Read(raw[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(raw[:])
}
