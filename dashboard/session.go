package dashboard

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"sync"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// These constants limit sign-in links and sessions. See docs/decisions/0083.
const (
	signInLinkLifetime    = time.Minute
	sessionLifetime       = 12 * time.Hour
	maxUnusedLinksPerUser = 16 // maximum number of unused links of one user; one more replaces the oldest
	maxSessionsPerUser    = 32 // maximum number of sessions of one user; one more replaces the oldest
	// After maxSignInFailures invalid links within signInFailureWindow, the error asks the user to wait.
	signInFailureWindow = time.Second
	maxSignInFailures   = 5
)

// session is the identity of a browser that has signed in.
type session struct {
	peer      control.Peer
	hostName  string // host name, without the port, under which the session is valid
	expiresAt time.Time
	formToken string // secret that the forms of the session must contain, so that other sites cannot send them
}

// secretHash is the hash of the secret of a sign-in link or a session.
type secretHash = [sha256.Size]byte

func hashOfSecret(secret string) secretHash { return sha256.Sum256([]byte(secret)) }

// sessionStore contains all sign-in links and all sessions, in memory only. It does not contain the secrets of the
// links and sessions, but only hashes of the secrets. The methods are safe for concurrent use.
type sessionStore struct {
	mu                      sync.Mutex
	signInLinksBySecretHash map[secretHash]session // unused links
	sessionsBySecretHash    map[secretHash]session
	signInFailureCount      int // number of invalid secrets since failureWindowStart
	failureWindowStart      time.Time
}

// addSignInLink adds a sign-in link and returns its secret. With the secret, a browser can sign in once as the peer,
// under the given host name.
func (s *sessionStore) addSignInLink(p control.Peer, hostName string) (secret string) {
	p.PID, p.Right = 0, control.RightNone // the right is determined again at each request
	s.mu.Lock()
	defer s.mu.Unlock()
	secret = rand.Text()
	s.signInLinksBySecretHash = addSessionWithinLimit(s.signInLinksBySecretHash, secret,
		session{peer: p, hostName: hostName, expiresAt: time.Now().Add(signInLinkLifetime)}, maxUnusedLinksPerUser)
	return secret
}

// signIn exchanges the secret of a link for a session under the same host name. The link must have been created for
// this host name. signIn returns the secret of the session. The error is a *queue.Error.
func (s *sessionStore) signIn(linkSecret, hostName string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := hashOfSecret(linkSecret)
	sess, known := s.signInLinksBySecretHash[key]
	if !known || sess.hostName != hostName || !time.Now().Before(sess.expiresAt) {
		return "", s.countLinkFailureLocked()
	}
	delete(s.signInLinksBySecretHash, key)
	sess.expiresAt, sess.formToken = time.Now().Add(sessionLifetime), rand.Text()
	linkSecret = rand.Text()
	s.sessionsBySecretHash = addSessionWithinLimit(s.sessionsBySecretHash, linkSecret, sess, maxSessionsPerUser)
	return linkSecret, nil
}

// errInvalidSignInLink is the error for a link that does not exist, was already used or has expired.
var errInvalidSignInLink = queue.Errorf(queue.CodeDenied,
	"the link is invalid, was used already or is older than a minute; get another: queuectl web open")

// countLinkFailureLocked counts an attempt to sign in with an invalid secret, and returns the error for it. The
// caller holds mu.
func (s *sessionStore) countLinkFailureLocked() error {
	if now := time.Now(); now.Sub(s.failureWindowStart) > signInFailureWindow {
		s.signInFailureCount, s.failureWindowStart = 0, now
	}
	if s.signInFailureCount++; s.signInFailureCount > maxSignInFailures {
		return queue.Errorf(queue.CodeUnavailable, "too many sign-in links were invalid; try again in a second")
	}
	return errInvalidSignInLink
}

// findSession returns the session whose secret is in a cookie named cookieName. It returns false if the request
// contains no such cookie, or if its session is not valid.
func (s *sessionStore) findSession(r *http.Request, cookieName string) (sess session, found bool) {
	for _, c := range r.CookiesNamed(cookieName) {
		s.mu.Lock()
		sess, found = s.sessionsBySecretHash[hashOfSecret(c.Value)]
		s.mu.Unlock()
		if found && sess.hostName == requestHostName(r) && time.Now().Before(sess.expiresAt) {
			return sess, true
		}
	}
	return session{}, false
}

// signOut ends each session whose secret is in a cookie of the request named cookieName.
func (s *sessionStore) signOut(r *http.Request, cookieName string) {
	for _, c := range r.CookiesNamed(cookieName) {
		s.mu.Lock()
		delete(s.sessionsBySecretHash, hashOfSecret(c.Value))
		s.mu.Unlock()
	}
}

// hasFormToken reports whether token is the form token of the session s.
func (s *session) hasFormToken(token string) bool {
	return s.formToken != "" && subtle.ConstantTimeCompare([]byte(token), []byte(s.formToken)) == 1
}

// addSessionWithinLimit adds a link or a session to a map, and removes all expired entries. If the user already has
// maxPerUser entries, it also removes the oldest entry of the user.
func addSessionWithinLimit(sessionsByHash map[secretHash]session, secret string, newSession session,
	maxPerUser int) map[secretHash]session {
	if sessionsByHash == nil {
		sessionsByHash = map[secretHash]session{}
	}
	var oldest secretHash
	n := 0
	for key, sess := range sessionsByHash {
		switch {
		case !time.Now().Before(sess.expiresAt):
			delete(sessionsByHash, key)
		case sess.peer.UID == newSession.peer.UID:
			if n++; n == 1 || sess.expiresAt.Before(sessionsByHash[oldest].expiresAt) {
				oldest = key
			}
		}
	}
	if n >= maxPerUser {
		delete(sessionsByHash, oldest)
	}
	sessionsByHash[hashOfSecret(secret)] = newSession
	return sessionsByHash
}
