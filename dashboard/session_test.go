package dashboard

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// requestWithSession returns a request with a session cookie that contains the secret.
func requestWithSession(secret string) *http.Request {
	r := httptest.NewRequest("GET", "http://a.localhost/", nil)
	r.AddCookie(&http.Cookie{Name: "queuectl", Value: secret})
	return r
}

// A link is valid for one minute, and a session for 12 hours.
func TestLinksAndSessionsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sessionStore
		late, soon := s.addSignInLink(control.Peer{UID: 7}, "a.localhost"), ""
		time.Sleep(signInLinkLifetime)
		if _, err := s.signIn(late, "a.localhost"); !errors.Is(err, queue.ErrDenied) {
			t.Errorf("sign-in with a link after one minute returned %v", err)
		}
		soon = s.addSignInLink(control.Peer{UID: 7, PID: 12, Right: control.RightAdmin}, "a.localhost")
		time.Sleep(signInLinkLifetime - time.Millisecond)
		secret, err := s.signIn(soon, "a.localhost")
		if err != nil {
			t.Fatal(err)
		}
		sess, found := s.findSession(requestWithSession(secret), "queuectl")
		if !found || sess.peer.UID != 7 || sess.peer.Right != control.RightNone || sess.peer.PID != 0 ||
			!sess.hasFormToken(sess.formToken) || sess.hasFormToken("") {
			t.Errorf("the session is %+v, %v", sess, found)
		}
		time.Sleep(sessionLifetime - time.Millisecond)
		if _, found := s.findSession(requestWithSession(secret), "queuectl"); !found {
			t.Error("the session has ended before 12 hours")
		}
		time.Sleep(time.Millisecond)
		if _, found := s.findSession(requestWithSession(secret), "queuectl"); found {
			t.Error("the session is still valid after 12 hours")
		}
	})
}

// After five invalid links in a second, the error for a further invalid link says to try again later. A valid link is
// always accepted.
func TestTooManyInvalidLinksAskToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sessionStore
		right := s.addSignInLink(control.Peer{UID: 7}, "a.localhost")
		denied, late := 0, 0
		for range 100 {
			switch _, err := s.signIn(rand.Text(), "a.localhost"); {
			case errors.Is(err, queue.ErrDenied):
				denied++
			case errors.Is(err, queue.ErrUnavailable):
				late++
			}
		}
		if denied != maxSignInFailures || late != 100-maxSignInFailures {
			t.Errorf("%d invalid secrets got the error denied, %d got the error unavailable", denied, late)
		}
		if _, err := s.signIn(right, "a.localhost"); err != nil {
			t.Error(err)
		}
		time.Sleep(signInFailureWindow + time.Millisecond)
		if _, err := s.signIn(rand.Text(), "a.localhost"); !errors.Is(err, queue.ErrDenied) {
			t.Errorf("an invalid secret one second later: %v", err)
		}
	})
}

// The number of unused links and the number of sessions are limited for each user. One more link or session replaces
// the oldest link or session of this user.
func TestLinksAndSessionsPerUserAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sessionStore
		others := s.addSignInLink(control.Peer{UID: 8}, "a.localhost")
		var mine []string
		for range maxUnusedLinksPerUser + 1 {
			mine = append(mine, s.addSignInLink(control.Peer{UID: 7}, "a.localhost"))
			time.Sleep(time.Millisecond)
		}
		for i, secret := range append(mine, others) {
			if _, err := s.signIn(secret, "a.localhost"); (err != nil) != (i == 0) {
				t.Errorf("link %d: %v", i, err)
			}
		}
		if n := len(s.sessionsBySecretHash); n != maxUnusedLinksPerUser+1 {
			t.Errorf("%d sessions are open after more links than the limit were used", n)
		}
		for range 2 * maxSessionsPerUser {
			time.Sleep(time.Millisecond)
			if _, err := s.signIn(s.addSignInLink(control.Peer{UID: 7}, "a.localhost"), "a.localhost"); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(s.sessionsBySecretHash); n != maxSessionsPerUser+1 {
			t.Errorf("the user has %d sessions", n)
		}
	})
}

// A page shows the eight colours in a job's output, and removes all other control sequences.
func TestOutputLineKeepsOnlyColours(t *testing.T) {
	for text, want := range map[string][][2]string{
		"plain":                     {{"plain", ""}},
		"a\x1b[31mred\x1b[0m b":     {{"a", ""}, {"red", "1"}, {" b", ""}},
		"\x1b[1;92mgreen\x1b[39mno": {{"green", "2"}, {"no", ""}},
		"\x1b]0;title\x07t\x1b[2J\x1b[10;10Hu\x1b7": {{"tu", ""}},
		"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\":  {{"link", ""}},
		"a\x00\x08b\rc": {{"abc", ""}},
		"e\u202evil":    {{"evil", ""}},
		"<b>":           {{"<b>", ""}},
		"":              nil,
	} {
		got := splitColourRuns(text)
		if len(got) != len(want) {
			t.Errorf("%q: %q, want %q", text, got, want)
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("%q: %q, want %q", text, got, want)
			}
		}
	}
}

// A page shows the output of a terminal as text: each line as it looks in the end, with colours. The result does not
// depend on how the output is divided into pieces.
func TestTerminalOutputIsRenderedAsText(t *testing.T) {
	var o outputLineConverter
	var list []outputLine
	for _, p := range []control.OutputPiece{
		{Text: "\x1b]0;title\a\x1b[31m 10%\r\x1b[K 2"}, {Text: "0%\b\b\b30%\x1b[?1049hscr"},
		{Text: "een\x1b[?1049l\r\n\x1b(0lqk\x1b(B more"},
		{DroppedBytes: 3}, {Text: "ask\x1b[2K\rtold? "}, {Text: "\r\x1b[K"}, {Text: "y"}, {AttemptEnded: true},
		{Text: "again", Attempt: 2},
	} {
		p.Stream, p.FromTerminal, p.Attempt = "stdout", true, max(p.Attempt, 1)
		for _, l := range o.convertPiece(&p) {
			list = appendOrReplaceLine(list, l)
		}
	}
	got := ""
	for _, l := range list {
		got += fmt.Sprintf("%v %s %t\n", l.ColourRuns, l.Dropped, l.IsUnfinished)
	}
	const want = `[[ 30% 1]]  false
[[┌─┐ more 1]]  false
[] [3 bytes of stdout were not kept] false
[[y ]]  false
[[again ]]  true
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// The bytes and the colour changes that a page shows of one output line are limited, whatever the job prints.
func TestShownOutputLineSizeIsLimited(t *testing.T) {
	long := new(outputLineConverter).convertPiece(&control.OutputPiece{Stream: "stdout", Text: "\x1b[31m" +
		strings.Repeat("x", 1<<20)})
	if len(long) != 1 || long[0].memoryBytes() > maxShownLineBytes+500 ||
		!strings.Contains(long[0].ColourRuns[len(long[0].ColourRuns)-1][0], "bytes more") {
		t.Errorf("%d lines, the first of %d bytes", len(long), long[0].memoryBytes())
	}
	for _, heavy := range []string{strings.Repeat("\"\x00", 1<<12), strings.Repeat("\x1b[31mx\x1b[32my", 1<<12)} {
		if l := new(outputLineConverter).convertPiece(&control.OutputPiece{Stream: "stdout",
			Text: heavy})[0]; len(l.ColourRuns) > maxColourRuns+1 ||
			l.memoryBytes() > 4*maxShownLineBytes {
			t.Errorf("%.10q makes %d runs, %d bytes", heavy, len(l.ColourRuns), l.memoryBytes())
		}
	}
	if cut := new(outputLineConverter).convertPiece(&control.OutputPiece{Stream: "stdout",
		Text: "x" + strings.Repeat("é", maxShownLineBytes)}); strings.Contains(cut[0].ColourRuns[0][0], "\ufffd") {
		t.Error("a long line is cut inside a character")
	}
	if gap := new(outputLineConverter).convertPiece(&control.OutputPiece{Stream: "stdout",
		Damage: &control.DamagedRange{ByteCount: 7}}); len(gap) != 1 ||
		gap[0].Dropped != "[7 bytes of stdout are damaged]" {
		t.Errorf("damage is shown as %+v", gap)
	}
	if short := new(outputLineConverter).convertPiece(&control.OutputPiece{Stream: "stderr",
		Text: "a\nb\n"}); len(short) != 2 ||
		!short[0].IsStderr || short[1].ColourRuns[0][0] != "b" {
		t.Errorf("a short line is shown as %+v", short)
	}
}

// Each job has its own path, whatever characters its id contains.
func TestEachJobHasUniquePagePath(t *testing.T) {
	for id, want := range map[string]string{
		"17": "/jobs/17", "a/b@c": "/jobs/a/b@c", "x/../y": "/job?id=x%2F..%2Fy", "a//b": "/job?id=a%2F%2Fb",
		"a/./b": "/job?id=a%2F.%2Fb", "a/": "/job?id=a%2F", "a/../../workers": "/job?id=a%2F..%2F..%2Fworkers",
	} {
		got := jobPath(id)
		u, err := url.Parse(got)
		if got != want || err != nil || string(jobIDFromURL(u)) != id {
			t.Errorf("%s is at %s, want %s", id, got, want)
		}
	}
}

// Each sign-in link has a random host name.
func TestSignInLinksHaveRandomHostNames(t *testing.T) {
	if a, b := randomLocalHostName(), randomLocalHostName(); a == b || !strings.HasSuffix(a, ".localhost") || len(a) < 25 {
		t.Errorf("two links have the host names %s and %s", a, b)
	}
}

// The page of a job shows only a limited part of a large dependency graph.
func TestLargeDependencyTreeIsTruncated(t *testing.T) {
	tree := &control.DependencyTree{Jobs: []control.DependencyTreeJob{{Seq: 1}}}
	for i := range 5000 {
		tree.Jobs = append(tree.Jobs, control.DependencyTreeJob{Seq: int64(i + 2)})
		tree.Dependencies = append(tree.Dependencies, control.JobDependency{ParentSeq: 1, ChildSeq: int64(i + 2)})
	}
	if got := buildDependencyTree(tree); len(got.Dependencies)+len(got.Dependants) != maxTreeBranches || !got.More {
		t.Errorf("the graph has %d branches, more: %v", len(got.Dependencies)+len(got.Dependants), got.More)
	}
}

// If the page listens on an address other than loopback, it needs TLS and host names.
func TestNonLoopbackAddressNeedsTLSAndHosts(t *testing.T) {
	for _, c := range []struct {
		config Config
		field  string // the setting that the error names
	}{
		{Config{}, ""}, {Config{ListenAddress: "127.0.0.1:7070"}, ""}, {Config{ListenAddress: "127.9.9.9:1"}, ""},
		{Config{ListenAddress: "[::1]:7070"}, ""}, {Config{ListenAddress: "[::ffff:127.0.0.1]:1"}, ""},
		{Config{ListenAddress: "unix:" + filepath.Join(t.TempDir(), "page.sock")}, ""},
		{Config{ListenAddress: "unix:page.sock"}, "web.listen"},
		{Config{ListenAddress: "0.0.0.0:7070"}, "web.listen"}, {Config{ListenAddress: "[::]:7070"}, "web.listen"},
		{Config{ListenAddress: "10.0.0.1:443"}, "web.listen"}, {Config{ListenAddress: "localhost:1"}, "web.listen"},
		{Config{ListenAddress: ":7070"}, "web.listen"},
		{Config{ListenAddress: "10.0.0.1:443", ExtraHosts: []string{"q"}}, "web.listen"},
		{Config{ListenAddress: "10.0.0.1:443", TLSCertPath: "/c", TLSKeyPath: "/k"}, "web.hosts"},
		{Config{ListenAddress: "10.0.0.1:443", BehindTLSProxy: true}, "web.hosts"},
		{Config{ListenAddress: "10.0.0.1:443", TLSCertPath: "/c", TLSKeyPath: "/k", ExtraHosts: []string{"q"}}, ""},
		{Config{ListenAddress: "10.0.0.1:80", BehindTLSProxy: true, ExtraHosts: []string{"q"}}, ""},
		{Config{ListenAddress: "127.0.0.1:1", TLSCertPath: "/c"}, "web.tls_cert"},
		{Config{ListenAddress: "127.0.0.1:1", TLSCertPath: "/c", TLSKeyPath: "/k", BehindTLSProxy: true}, "web.tls"},
	} {
		err := c.config.Check()
		e, _ := errors.AsType[*queue.Error](err)
		if c.field == "" && err != nil || c.field != "" && (e == nil || e.Field != c.field) {
			t.Errorf("%+v: %v, want %q", c.config, err, c.field)
		}
	}
}
