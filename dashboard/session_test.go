package dashboard

import (
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
		var s sessions
		late, soon := s.addLink(control.Peer{UID: 7}, "a.localhost"), ""
		time.Sleep(linkLifetime)
		if _, err := s.signIn(late, "a.localhost"); !errors.Is(err, queue.ErrDenied) {
			t.Errorf("sign-in with a link after one minute returned %v", err)
		}
		soon = s.addLink(control.Peer{UID: 7, PID: 12, Right: control.RightAdmin}, "a.localhost")
		time.Sleep(linkLifetime - time.Millisecond)
		secret, err := s.signIn(soon, "a.localhost")
		if err != nil {
			t.Fatal(err)
		}
		sess, found := s.findSession(requestWithSession(secret), "queuectl")
		if !found || sess.peer.UID != 7 || sess.peer.Right != control.RightNone || sess.peer.PID != 0 ||
			!sess.hasToken(sess.token) || sess.hasToken("") {
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

// After five invalid secrets in a second, the error for a further one says to try again later. A valid secret is
// always accepted.
func TestWrongLinksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sessions
		right := s.addLink(control.Peer{UID: 7}, "a.localhost")
		denied, late := 0, 0
		for range 100 {
			switch _, err := s.signIn(newSecret(), "a.localhost"); {
			case errors.Is(err, queue.ErrDenied):
				denied++
			case errors.Is(err, queue.ErrUnavailable):
				late++
			}
		}
		if denied != maxFailures || late != 100-maxFailures {
			t.Errorf("%d invalid secrets got the error denied, %d got the error unavailable", denied, late)
		}
		if _, err := s.signIn(right, "a.localhost"); err != nil {
			t.Error(err)
		}
		time.Sleep(failureWindow + time.Millisecond)
		if _, err := s.signIn(newSecret(), "a.localhost"); !errors.Is(err, queue.ErrDenied) {
			t.Errorf("an invalid secret one second later: %v", err)
		}
	})
}

// The number of links and of sessions is limited for each user. One more link or session replaces the oldest
// one of this user.
func TestUsersLinksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sessions
		others := s.addLink(control.Peer{UID: 8}, "a.localhost")
		var mine []string
		for range maxUserLinks + 1 {
			mine = append(mine, s.addLink(control.Peer{UID: 7}, "a.localhost"))
			time.Sleep(time.Millisecond)
		}
		for i, secret := range append(mine, others) {
			if _, err := s.signIn(secret, "a.localhost"); (err != nil) != (i == 0) {
				t.Errorf("link %d: %v", i, err)
			}
		}
		if n := len(s.openSessions); n != maxUserLinks+1 {
			t.Errorf("%d sessions are open after more links than the limit were used", n)
		}
		for range 2 * maxUserSessions {
			time.Sleep(time.Millisecond)
			if _, err := s.signIn(s.addLink(control.Peer{UID: 7}, "a.localhost"), "a.localhost"); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(s.openSessions); n != maxUserSessions+1 {
			t.Errorf("the user has %d sessions", n)
		}
	})
}

// A page shows the eight colours in a job's output, and removes all other control sequences.
func TestRunsOfALine(t *testing.T) {
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

// A page shows the output of a terminal as text: each line as it finally looks, with colours. The result does
// not depend on how the output is divided into pieces.
func TestOutputOfATerminalIsText(t *testing.T) {
	var o outputLines
	var list []line
	for _, p := range []control.OutputPiece{
		{Text: "\x1b]0;title\a\x1b[31m 10%\r\x1b[K 2"}, {Text: "0%\b\b\b30%\x1b[?1049hscr"},
		{Text: "een\x1b[?1049l\r\n\x1b(0lqk\x1b(B more"},
		{DroppedBytes: 3}, {Text: "ask\x1b[2K\rtold? "}, {Text: "\r\x1b[K"}, {Text: "y"}, {Ended: true},
		{Text: "again", Attempt: 2},
	} {
		p.Stream, p.TTY, p.Attempt = "stdout", true, max(p.Attempt, 1)
		for _, l := range o.linesOfPiece(&p) {
			list = appendLine(list, l)
		}
	}
	got := ""
	for _, l := range list {
		got += fmt.Sprintf("%v %s %t\n", l.ColourRuns, l.Dropped, l.Unfinished)
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
func TestLinesAreBounded(t *testing.T) {
	long := new(outputLines).linesOfPiece(&control.OutputPiece{Stream: "stdout", Text: "\x1b[31m" + strings.Repeat("x",
		1<<20)})
	if len(long) != 1 || long[0].memoryBytes() > maxLineBytes+500 ||
		!strings.Contains(long[0].ColourRuns[len(long[0].ColourRuns)-1][0], "bytes more") {
		t.Errorf("%d lines, the first of %d bytes", len(long), long[0].memoryBytes())
	}
	for _, heavy := range []string{strings.Repeat("\"\x00", 1<<12), strings.Repeat("\x1b[31mx\x1b[32my", 1<<12)} {
		if l := new(outputLines).linesOfPiece(&control.OutputPiece{Stream: "stdout",
			Text: heavy})[0]; len(l.ColourRuns) > maxColourRuns+1 ||
			l.memoryBytes() > 4*maxLineBytes {
			t.Errorf("%.10q makes %d runs, %d bytes", heavy, len(l.ColourRuns), l.memoryBytes())
		}
	}
	if cut := new(outputLines).linesOfPiece(&control.OutputPiece{Stream: "stdout",
		Text: "x" + strings.Repeat("é", maxLineBytes)}); strings.Contains(cut[0].ColourRuns[0][0], "\ufffd") {
		t.Error("a long line is cut inside a character")
	}
	if gap := new(outputLines).linesOfPiece(&control.OutputPiece{Stream: "stdout",
		Damage: &control.DamagedRange{Bytes: 7}}); len(gap) != 1 ||
		gap[0].Dropped != "[7 bytes of stdout are damaged]" {
		t.Errorf("damage is shown as %+v", gap)
	}
	if short := new(outputLines).linesOfPiece(&control.OutputPiece{Stream: "stderr", Text: "a\nb\n"}); len(short) != 2 ||
		!short[0].IsStderr || short[1].ColourRuns[0][0] != "b" {
		t.Errorf("a short line is shown as %+v", short)
	}
}

// Each job has its own path, whatever characters its id contains.
func TestPathsOfJobs(t *testing.T) {
	for id, want := range map[string]string{
		"17": "/jobs/17", "a/b@c": "/jobs/a/b@c", "x/../y": "/job?id=x%2F..%2Fy", "a//b": "/job?id=a%2F%2Fb",
		"a/./b": "/job?id=a%2F.%2Fb", "a/": "/job?id=a%2F", "a/../../workers": "/job?id=a%2F..%2F..%2Fworkers",
	} {
		got := jobPath(id)
		u, err := url.Parse(got)
		if got != want || err != nil || string(jobIDOf(u)) != id {
			t.Errorf("%s is at %s, want %s", id, got, want)
		}
	}
}

// Each sign-in link has a random host name.
func TestNamesOfLinks(t *testing.T) {
	if a, b := newLocalHostName(), newLocalHostName(); a == b || !strings.HasSuffix(a, ".localhost") || len(a) < 25 {
		t.Errorf("two links have the host names %s and %s", a, b)
	}
}

// The page of a job shows only a limited part of a large dependency graph.
func TestWideTreesAreBounded(t *testing.T) {
	tree := &control.TreeView{Nodes: []control.TreeNode{{Seq: 1}}}
	for i := range 5000 {
		tree.Nodes = append(tree.Nodes, control.TreeNode{Seq: int64(i + 2)})
		tree.Edges = append(tree.Edges, control.TreeEdge{Parent: 1, Child: int64(i + 2)})
	}
	if got := layoutTree(tree); len(got.Dependencies)+len(got.Dependants) != maxBranches || !got.More {
		t.Errorf("the graph has %d branches, more: %v", len(got.Dependencies)+len(got.Dependants), got.More)
	}
}

// If the page listens on an address other than loopback, it needs TLS and host names.
func TestWhereThePageMayBe(t *testing.T) {
	for _, c := range []struct {
		config Config
		field  string // the setting that the error names
	}{
		{Config{}, ""}, {Config{Listen: "127.0.0.1:7070"}, ""}, {Config{Listen: "127.9.9.9:1"}, ""},
		{Config{Listen: "[::1]:7070"}, ""}, {Config{Listen: "[::ffff:127.0.0.1]:1"}, ""},
		{Config{Listen: "unix:" + filepath.Join(t.TempDir(), "page.sock")}, ""},
		{Config{Listen: "unix:page.sock"}, "web.listen"},
		{Config{Listen: "0.0.0.0:7070"}, "web.listen"}, {Config{Listen: "[::]:7070"}, "web.listen"},
		{Config{Listen: "10.0.0.1:443"}, "web.listen"}, {Config{Listen: "localhost:1"}, "web.listen"},
		{Config{Listen: ":7070"}, "web.listen"},
		{Config{Listen: "10.0.0.1:443", ExtraHosts: []string{"q"}}, "web.listen"},
		{Config{Listen: "10.0.0.1:443", TLSCert: "/c", TLSKey: "/k"}, "web.hosts"},
		{Config{Listen: "10.0.0.1:443", BehindProxy: true}, "web.hosts"},
		{Config{Listen: "10.0.0.1:443", TLSCert: "/c", TLSKey: "/k", ExtraHosts: []string{"q"}}, ""},
		{Config{Listen: "10.0.0.1:80", BehindProxy: true, ExtraHosts: []string{"q"}}, ""},
		{Config{Listen: "127.0.0.1:1", TLSCert: "/c"}, "web.tls_cert"},
		{Config{Listen: "127.0.0.1:1", TLSCert: "/c", TLSKey: "/k", BehindProxy: true}, "web.tls"},
	} {
		err := c.config.Check()
		e, _ := errors.AsType[*queue.Error](err)
		if c.field == "" && err != nil || c.field != "" && (e == nil || e.Field != c.field) {
			t.Errorf("%+v: %v, want %q", c.config, err, c.field)
		}
	}
}
