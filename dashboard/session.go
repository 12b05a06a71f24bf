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

// These constants are limits on links and sessions. See docs/decisions/0083.
const (
	linkLifetime    = time.Minute
	sessionLifetime = 12 * time.Hour
	maxUserLinks    = 16          // maximum number of unused links of one user; a new link replaces the oldest
	maxUserSessions = 32          // maximum number of sessions of one user; a new session replaces the oldest
	failureWindow   = time.Second // in each such period, at most maxFailures invalid links get a normal reply
	maxFailures     = 5
)

// session is the identity of a browser that has signed in.
type session struct {
	peer    control.Peer
	host    string // host name, without the port, for which the session is valid
	expires time.Time
	token   string // token of the session's forms
}

// sessions contains the links and sessions since the start of the service. It stores secrets only
// as hashes. Its methods are safe for concurrent use.
type sessions struct {
	mu            sync.Mutex
	links         map[[sha256.Size]byte]session // unused links, by the hash of the secret
	openSessions  map[[sha256.Size]byte]session
	failures      int // number of invalid secrets since failuresSince
	failuresSince time.Time
}

// addLink returns a secret with which a browser can sign in once, as a peer on a host.
func (s *sessions) addLink(p control.Peer, host string) (secret string) {
	p.PID, p.Right = 0, control.RightNone // each request checks the right again
	s.mu.Lock()
	defer s.mu.Unlock()
	secret = newSecret()
	s.links = addSession(s.links, secret, session{peer: p, host: host, expires: time.Now().Add(linkLifetime)},
		maxUserLinks)
	return secret
}

// signIn exchanges the secret of a link for a session on the same host, and returns the secret of
// the session. The error is a *queue.Error.
func (s *sessions) signIn(secret, host string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := sha256.Sum256([]byte(secret))
	sess, known := s.links[key]
	if !known || sess.host != host || !time.Now().Before(sess.expires) {
		return "", s.countFailure()
	}
	delete(s.links, key)
	sess.expires, sess.token = time.Now().Add(sessionLifetime), newSecret()
	secret = newSecret()
	s.openSessions = addSession(s.openSessions, secret, sess, maxUserSessions)
	return secret, nil
}

// errInvalidLink is the error of a link that does not exist, was used or has expired.
var errInvalidLink = queue.Errorf(queue.CodeDenied,
	"the link is invalid, was used already or is older than a minute; get another: queuectl web open")

// countFailure counts an invalid secret and returns the error. The caller holds mu.
func (s *sessions) countFailure() error {
	if now := time.Now(); now.Sub(s.failuresSince) > failureWindow {
		s.failures, s.failuresSince = 0, now
	}
	if s.failures++; s.failures > maxFailures {
		return queue.Errorf(queue.CodeUnavailable, "too many sign-in links were invalid; try again in a second")
	}
	return errInvalidLink
}

// find returns the session of a request, if it exists.
func (s *sessions) find(r *http.Request, cookie string) (sess session, found bool) {
	for _, c := range r.CookiesNamed(cookie) {
		s.mu.Lock()
		sess, found = s.openSessions[sha256.Sum256([]byte(c.Value))]
		s.mu.Unlock()
		if found && sess.host == hostOf(r) && time.Now().Before(sess.expires) {
			return sess, true
		}
	}
	return session{}, false
}

// signOut ends the session of a request.
func (s *sessions) signOut(r *http.Request, cookie string) {
	for _, c := range r.CookiesNamed(cookie) {
		s.mu.Lock()
		delete(s.openSessions, sha256.Sum256([]byte(c.Value)))
		s.mu.Unlock()
	}
}

// hasToken reports whether a form was created for this session.
func (s *session) hasToken(token string) bool {
	return s.token != "" && subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) == 1
}

// addSession adds a link or a session. It removes the expired ones. If the user then has too many,
// it removes the oldest of the user.
func addSession(sessions map[[sha256.Size]byte]session, secret string, one session,
	most int) map[[sha256.Size]byte]session {
	if sessions == nil {
		sessions = map[[sha256.Size]byte]session{}
	}
	var oldest [sha256.Size]byte
	n := 0
	for key, sess := range sessions {
		switch {
		case !time.Now().Before(sess.expires):
			delete(sessions, key)
		case sess.peer.UID == one.peer.UID:
			if n++; n == 1 || sess.expires.Before(sessions[oldest].expires) {
				oldest = key
			}
		}
	}
	if n >= most {
		delete(sessions, oldest)
	}
	sessions[sha256.Sum256([]byte(secret))] = one
	return sessions
}

// newSecret returns 256 random bits as text.
func newSecret() string {
	var raw [32]byte
	rand.Read(raw[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(raw[:])
}
