//go:build linux || windows

package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// signInLinkSecret returns the secret in a sign-in link that `queuectl web open` has printed. It also makes the
// browser use the host name of the link for later requests.
func signInLinkSecret(b *testrig.Browser, webOpenOutput string) (secret string) {
	b.Helper()
	u, err := url.Parse(webOpenOutput)
	if err != nil || u.Path != "/open" || u.Query().Get("link") == "" || !strings.HasSuffix(u.Hostname(), ".localhost") {
		b.Fatalf("the link is %q, %v", webOpenOutput, err)
	}
	b.LinkHostPort = u.Host
	return u.Query().Get("link")
}

// signIn signs the browser in with a new link.
func signIn(b *testrig.Browser) {
	b.Helper()
	secret := signInLinkSecret(b, b.MustRunCLI("web", "open"))
	got := b.SendRequest("POST", "/open", "link="+secret)
	if got.StatusCode != http.StatusSeeOther || got.Header.Get("Location") != "/" {
		b.Fatalf("a link gets %+v", got)
	}
	var err error
	if b.SessionCookie, err = http.ParseSetCookie(got.Header.Get("Set-Cookie")); err != nil {
		b.Fatal(err)
	}
}

// sessionFormToken returns the token that protects the forms of the session, escaped for use in a form.
func sessionFormToken(b *testrig.Browser) string {
	b.Helper()
	_, token, found := strings.Cut(b.SendRequest("GET", "/", "").Body, `name="token" value="`)
	token, _, _ = strings.Cut(token, `"`)
	if !found {
		b.Fatal("the page has no form")
	}
	return url.QueryEscape(token)
}

// setRequestHost returns a function that sets the host name of a request.
func setRequestHost(hostName string) func(*http.Request) {
	return func(r *http.Request) { r.Host = hostName }
}

// The service serves no web page until a user starts the page. After a restart, a user must start it again. A
// link creates one session for one browser, and only when the user presses the button on the page of the link.
func TestSignInLinkOpensOneSession(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	if got := q.RunCLI("web", "open"); got.ExitCode != 5 || !strings.Contains(got.Stderr, "queuectl web start") {
		t.Errorf("web open before web start: got %+v", got)
	}
	b := testrig.OpenBrowser(q)
	for _, path := range []string{"/", "/jobs", "/api/list", "/api/events", "/api/openapi.json"} {
		if got := b.SendRequest("GET", path, ""); got.StatusCode != http.StatusUnauthorized ||
			!strings.Contains(got.Body, "web open") || !got.ConnectionClosed {
			t.Errorf("%s gets %+v", path, got)
		}
	}
	if one, other := q.MustRunCLI("web", "open"), q.MustRunCLI("web", "open"); one[:20] == other[:20] {
		t.Errorf("two links have the same host name, so one session can read the cookies of the other: %s, %s", one, other)
	}
	secret := signInLinkSecret(b, q.MustRunCLI("web", "open"))
	for range 2 { // a link preview fetches the page of the link, and the link must still work afterwards
		if got := b.SendRequest("GET", "/open?link="+secret, ""); got.StatusCode != http.StatusOK ||
			got.Header.Get("Set-Cookie") != "" {
			t.Errorf("fetching the page of a link: got %+v", got)
		}
	}
	if got := b.SendRequest("POST", "/open", "link="+secret,
		setRequestHost("localhost")); got.StatusCode != http.StatusForbidden {
		t.Errorf("a link under another host name gets %+v", got)
	}
	got := b.SendRequest("POST", "/open", "link="+secret)
	c, err := http.ParseSetCookie(got.Header.Get("Set-Cookie"))
	if err != nil || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.MaxAge != 12*3600 || c.Path != "/" ||
		c.Domain != "" {
		t.Fatalf("the cookie is %+v, %v", c, err)
	}
	if got := b.SendRequest("POST", "/open", "link="+secret); got.StatusCode != http.StatusForbidden ||
		!strings.Contains(got.Body, "web open") {
		t.Errorf("a link that was already used gets %+v", got)
	}
	b.SessionCookie = c
	if got := b.SendRequest("GET", "/", ""); got.StatusCode != http.StatusOK ||
		!strings.Contains(got.Body, "All is well") || !strings.Contains(got.Body, ">Sign out<") {
		t.Errorf("the page is %+v", got)
	}
	// A browser sends a cookie to all ports of a host name. So other services on this machine can receive the cookie of
	// the page. To prevent this, the page uses a separate host name, and accepts the cookie only under that name.
	for _, name := range []string{"localhost", "127.0.0.1", "other.localhost"} {
		if got := b.SendRequest("GET", "/", "", setRequestHost(name)); got.StatusCode != http.StatusUnauthorized {
			t.Errorf("the host name %s accepts the session: %d", name, got.StatusCode)
		}
	}
	for _, file := range []string{"log", "stderr"} {
		paths, _ := filepath.Glob(q.Path(file + "*"))
		for _, path := range paths {
			if raw, _ := os.ReadFile(path); strings.Contains(string(raw), secret) || strings.Contains(string(raw), c.Value) {
				t.Errorf("%s contains a secret", path)
			}
		}
	}
	q.KillService()
	q.StartService("--workers", "1")
	b.ServerAddress = q.MustRunCLI("web", "start", "--listen", "127.0.0.1:0")
	if got := b.SendRequest("GET", "/", ""); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("a session outlives its service: %d", got.StatusCode)
	}
	q.MustRunCLI("web", "stop")
	if _, err := net.Dial("tcp", b.ServerAddress); err == nil {
		t.Error("the page still accepts connections after web stop")
	}
}

// The page rejects requests that other web sites cause in a browser. It also rejects requests for a host name
// that is not its own.
func TestPageRefusesCrossSiteRequests(t *testing.T) {
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "1"))
	signIn(b)
	for _, name := range []string{"evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.1.2.3",
		"[2001:db8::1]:80"} {
		for _, path := range []string{"/", "/api/list", "/assets/page.css", "/open"} {
			if got := b.SendRequest("GET", path, "", setRequestHost(name)); got.StatusCode != http.StatusMisdirectedRequest {
				t.Errorf("%s of %s gets %d", path, name, got.StatusCode)
			}
		}
	}
	for name, change := range map[string]func(*http.Request){
		"another site":   testrig.WithRequestHeader("Sec-Fetch-Site", "cross-site"),
		"a subdomain":    testrig.WithRequestHeader("Sec-Fetch-Site", "same-site"),
		"another origin": testrig.WithRequestHeader("Origin", "http://evil.example"),
	} {
		if got := b.SendRequest("POST", "/leave", "token="+sessionFormToken(b),
			change); got.StatusCode != http.StatusForbidden {
			t.Errorf("a form of %s gets %d", name, got.StatusCode)
		}
	}
	if got := b.SendRequest("POST", "/leave", ""); got.StatusCode != http.StatusForbidden ||
		!strings.Contains(got.Body, "belongs to another session") {
		t.Errorf("a form without a token gets %+v", got)
	}
	for path, form := range map[string]string{
		"/workers": "n=3", "/queues": "verb=pause&queue=default", "/schedules": "verb=run&schedule=n",
		"/jobs/a": "verb=cancel", "/bulk": "verb=rm&q=*", "/dead/retry": "n=all",
	} {
		if got := b.SendRequest("POST", path, form); got.StatusCode != http.StatusForbidden ||
			!strings.Contains(got.Body, "belongs to another session") {
			t.Errorf("a form without a token at %s gets %+v", path, got)
		}
		if got := b.SendRequest("POST", path, form+"&token="+b.SessionCookie.Value); got.StatusCode != http.StatusForbidden {
			t.Errorf("a form with a wrong token at %s gets %+v", path, got)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		if got := b.SendRequest(method, "/api/list", ""); got.StatusCode != http.StatusMethodNotAllowed &&
			got.StatusCode != http.StatusNotFound {
			t.Errorf("%s gets %d", method, got.StatusCode)
		}
	}
	for _, name := range []string{"enqueue", "cancel", "web.open", "config.set", "backup", "events.x", "none"} {
		if got := b.SendRequest("GET", "/api/"+name, ""); got.StatusCode != http.StatusNotFound {
			t.Errorf("%s gets %+v", name, got)
		}
	}
	page := b.SendRequest("GET", "/", "")
	_, token, _ := strings.Cut(page.Body, `name="token" value="`)
	token, _, _ = strings.Cut(token, `"`)
	if got := b.SendRequest("POST", "/leave", "token="+url.QueryEscape(token)); got.StatusCode != http.StatusSeeOther {
		t.Errorf("the form of the page gets %+v", got)
	}
	if got := b.SendRequest("GET", "/", ""); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("a session that has signed out still has access: %d", got.StatusCode)
	}
	if got := b.SendRequest("POST", "/open", "link="+strings.Repeat("x", 1<<20)); got.StatusCode == http.StatusSeeOther {
		t.Errorf("a form of a megabyte gets %d", got.StatusCode)
	}
}

// The page shows names, commands and outputs of jobs as text, so the browser executes no script in them.
func TestPageEscapesJobText(t *testing.T) {
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "1"))
	const evil = `<script>alert(1)</script><img src=x onerror=alert(2)>"'--><svg/onload=alert(3)>`
	b.MustRunCLI("enqueue", "--id", "evil", "--label", "l="+evil, "--max-retries", "0",
		"echo '"+strings.ReplaceAll(evil, "'", `'"'"'`)+"' >&2; exit 1")
	b.RunCLI("wait", "evil")
	signIn(b)
	for _, path := range []string{"/", "/jobs", "/jobs?state=dead", "/jobs/evil", "/jobs?q=%3Cscript%3E",
		"/jobs?queue=%22%3E%3Cscript%3E", "/open?link=%22%3E%3Cscript%3Ealert(1)%3C/script%3E", "/%3Cscript%3E",
		"/jobs/%3Cscript%3Ealert(1)"} {
		got := b.SendRequest("GET", path, "")
		got.Body = strings.Replace(got.Body, `<script src="/assets/page.js" defer>`, "", 1)
		if strings.Contains(got.Body, "<script") || strings.Contains(got.Body, "<img") ||
			strings.Contains(got.Body, "<svg/onload") {
			t.Errorf("%s contains the HTML without escaping: %s", path, got.Body)
		}
		policy := got.Header.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") ||
			got.Header.Get("X-Content-Type-Options") != "nosniff" || got.Header.Get("X-Frame-Options") != "DENY" ||
			got.Header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s goes with %v", path, got.Header)
		}
	}
	if got := b.SendRequest("GET", "/jobs/evil", ""); !strings.Contains(got.Body, "&lt;script&gt;alert(1)") ||
		!strings.Contains(got.Body, "exit code 1") {
		t.Errorf("the page of the job is %s", got.Body)
	}
	if got := b.SendRequest("GET", "/api/show?id=evil", ""); got.Header.Get("Content-Type") != "application/json" ||
		strings.Contains(got.Body, "<script") {
		t.Errorf("the API shows a job with HTML in its fields as %+v", got)
	}
}

// API methods that only read also accept GET requests, with their parameters in the query of the URL. They
// return the same errors as on the socket.
func TestReadMethodsAcceptGETRequests(t *testing.T) {
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "1"))
	b.MustRunCLI("enqueue", "--id", "a", "--label", "k=v", "-Q", "build", "--in", "1h", "true")
	b.MustRunCLI("enqueue", "--id", "b", "--in", "1h", "true")
	signIn(b)
	for path, want := range map[string]string{
		"/api/list?label=k%3Dv&limit=5":      `"id":"a"`,
		"/api/list?state=pending&state=held": `"id":"b"`,
		"/api/show?id=a":                     `"queue":"build"`,
		"/api/status":                        `"workers":`,
		"/api/summary":                       `"timed":`,
		"/api/why?id=b":                      `"kind":"time"`,
		"/api/queue.list":                    `"queue":"build"`,
		"/api/whoami":                        `"right":"admin"`,
		"/api/simulate?next=3":               `"jobs":`,
		"/api/config.get?key=workers":        `"value":"1"`,
		"/api/tree?id=a":                     `"nodes":`,
		"/api/openapi.json":                  `"/api/queue.list"`,
		"/api/list?label=k%3Dv&label=z%3Dw":  `"jobs":[]`,
	} {
		got := b.SendRequest("GET", path, "")
		if got.StatusCode != http.StatusOK || !strings.Contains(got.Body, want) || !json.Valid([]byte(got.Body)) {
			t.Errorf("%s gets %+v, want %s", path, got, want)
		}
	}
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/api/show?id=none":         {404, `"code":"not_found"`},
		"/api/show":                 {400, `id: required`},
		"/api/list?limit=many":      {400, `limit: `},
		"/api/list?limit=0.5":       {400, `"code":"invalid"`},
		"/api/list?colour=red":      {400, `colour: unknown parameter of method list`},
		"/api/list?limit=1&limit=2": {400, `limit: the parameter is given 2 times`},
		"/api/list?label=k":         {400, `does not have the form NAME=VALUE`},
		"/api/events?since=x":       {400, `since: `},
	} {
		got := b.SendRequest("GET", path, "")
		if got.StatusCode != want.code || !strings.Contains(got.Body, want.text) {
			t.Errorf("%s gets %+v, want %v", path, got, want)
		}
	}
	var api struct {
		OpenAPI string         `json:"openapi"`
		Paths   map[string]any `json:"paths"`
	}
	if err := json.Unmarshal([]byte(b.SendRequest("GET", "/api/openapi.json", "").Body), &api); err != nil ||
		api.OpenAPI != "3.1.0" || api.Paths["/api/web.open"] != nil || api.Paths["/api/enqueue"] != nil {
		t.Errorf("the OpenAPI document describes %v, %v", api, err)
	}
}

// An action on many jobs applies only to the jobs that its confirmation page showed. If the service
// refuses the action for some of these jobs, the page reports how many succeeded and how many were
// refused. Unknown parameters are errors.
func TestBulkActionAppliesToConfirmedJobs(t *testing.T) {
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "0"))
	for _, id := range []string{"a1", "a2", "b1"} {
		b.MustRunCLI("enqueue", "--id", id, "-Q", "zz", "--label", "k="+id[:1], "true")
	}
	signIn(b)
	sees := func(path, text string) {
		t.Helper()
		if got := b.SendRequest("GET", path, ""); got.StatusCode != http.StatusOK || !strings.Contains(got.Body, text) {
			t.Errorf("%s is %d, without %q: %s", path, got.StatusCode, text, got.Body)
		}
	}
	does := func(form, to string) string {
		t.Helper()
		got := b.SendRequest("POST", "/bulk", "token="+sessionFormToken(b)+"&"+form)
		if location := got.Header.Get("Location"); got.StatusCode != http.StatusSeeOther || !strings.HasPrefix(location, to) {
			t.Fatalf("%s leads to %q: %+v", form, location, got)
		}
		return got.Header.Get("Location")
	}
	sees("/bulk?verb=cancel&queue=zz&state=waiting", "Cancel 3 jobs?")
	sees("/bulk?verb=hold&label=k%3Da", "Hold 2 jobs?")
	b.MustRunCLI("enqueue", "--id", "a3", "-Q", "zz", "true")
	sees(does("verb=cancel&queue=zz&state=waiting&n=3", "/bulk?"), "more jobs match now")
	if got := b.MustRunCLI("list", "--state", "cancelled", "-q"); got != "" {
		t.Errorf("jobs that the page did not show were cancelled: %s", got)
	}
	sees(does("verb=hold&label=k%3Da&n=2", "/jobs?"), "hold applied to 2 jobs")
	b.MustRunCLI("cancel", "b1")
	sees("/bulk?verb=cancel&id=b1&id=a1&id=a2", "Cancel 2 jobs?")
	if got := b.SendRequest("POST", "/bulk", "token="+sessionFormToken(b)+"&verb=hold&id=b1&id=a3"); got.StatusCode !=
		http.StatusConflict || !strings.Contains(got.Body, "hold was done for 1 job and refused for 1") ||
		!strings.Contains(got.Body, `href="/dead"`) {
		t.Errorf("a hold that is refused for one of two jobs gets %+v", got)
	}
	for _, path := range []string{"/jobs?foo=1", "/jobs?label=k", "/bulk?verb=hold&stat=held",
		"/bulk?verb=release&state=dead", "/stats?since=junk", "/?x=1", "/dead?x=1", "/schedules?state=dead", "/workers?x=1",
		"/live?page=%2Fworkers%3Fx%3D1", "/api/summary?x=1", "/api/events?sinec=3"} {
		if got := b.SendRequest("GET", path, ""); got.StatusCode != http.StatusBadRequest {
			t.Errorf("%s gets %d", path, got.StatusCode)
		}
	}
	for _, form := range []string{"/queues?queue=zz&verb=pause&until=1h", "/workers?n=1&force=1",
		"/dead/retry?error=&timeut=5s", "/job?verb=hold&at=1"} {
		path, form, _ := strings.Cut(form, "?")
		if got := b.SendRequest("POST", path, "token="+sessionFormToken(b)+"&"+
			form); got.StatusCode != http.StatusBadRequest {
			t.Errorf("%s with %s gets %d", path, form, got.StatusCode)
		}
	}
	for _, id := range []string{"x1", "x2"} {
		b.MustRunCLI("enqueue", "--id", id, "--max-retries", "0", "exit 7")
	}
	b.MustRunCLI("enqueue", "--id", "x3", "--max-retries", "0", "exit 8")
	b.MustRunCLI("worker", "start")
	b.RunCLI("wait", "x1", "x2", "x3")
	sees("/dead?error=exit+code+7", ">x1<")
	if got := b.SendRequest("GET", "/dead?error=exit+code+7", ""); strings.Contains(got.Body, ">x3<") {
		t.Errorf("the list for one error contains a job with another error: %s", got.Body)
	}
	sees("/dead/rm?error=exit+code+7", "Remove 2 dead jobs?")
	if got := b.SendRequest("POST", "/dead/rm", "token="+sessionFormToken(b)+
		"&error=exit+code+7&shown="); !strings.HasPrefix(got.Header.Get("Location"), "/dead/rm?") ||
		b.MustRunCLI("dlq", "list", "-q") == "" {
		t.Errorf("an action on jobs that the page did not show: got %+v", got)
	}
	_, shown, _ := strings.Cut(b.SendRequest("GET", "/dead/rm?error=exit+code+7", "").Body, `name="shown" value="`)
	shown, _, _ = strings.Cut(shown, `"`)
	if got := b.SendRequest("POST", "/dead/rm", "token="+sessionFormToken(b)+"&error=exit+code+7&shown="+
		shown); !strings.HasPrefix(got.Header.Get("Location"), "/dead?did=rm&n=2") ||
		strings.TrimSpace(b.MustRunCLI("dlq", "list", "-q")) != "x3" {
		t.Errorf("removal of a group: %+v, remaining dead jobs %q", got, b.MustRunCLI("dlq", "list", "-q"))
	}
	sees("/jobs?queue=zz", `href="/jobs?queue=zz&amp;state=dead"`)
	sees("/jobs?label=k%3Da", ">a1<")
}

// The page of a job shows the output of each attempt. A page that does not update itself shows the time at
// which it was made.
func TestJobPageShowsEachAttemptsOutput(t *testing.T) {
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "1"))
	b.MustRunCLI("enqueue", "--id", "again", "--max-retries", "1", "--backoff-base", "0.01",
		"echo try $QUEUECTL_ATTEMPT; exit 3")
	b.RunCLI("wait", "again")
	signIn(b)
	if got := b.SendRequest("GET", "/jobs/again", ""); !strings.Contains(got.Body, "try 2") ||
		!strings.Contains(got.Body, `href="/jobs/again?attempt=1"`) || !strings.Contains(got.Body, "data-live") {
		t.Errorf("the page is %s", got.Body)
	}
	if got := b.SendRequest("GET", "/jobs/again?attempt=1", ""); !strings.Contains(got.Body, "try 1") ||
		strings.Contains(got.Body, "try 2") || strings.Contains(got.Body, "data-live") {
		t.Errorf("the first attempt is %s", got.Body)
	}
	if got := b.SendRequest("GET", "/jobs/again?attempt=x", ""); got.StatusCode != http.StatusBadRequest {
		t.Errorf("an invalid number of an attempt: got status %d", got.StatusCode)
	}
}

// The page sends each event when it happens, with the number of the event. A client that connects again gets
// the events after the last number that it received. A client that does not read its events delays no other
// client. The number of open event streams per user is limited.
func TestPageStreamsEventsAsTheyHappen(t *testing.T) {
	testrig.SkipIfShort(t)
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "1"))
	signIn(b)
	follow := func(query string, last string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+b.LinkHostPort+"/api/events"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.AddCookie(b.SessionCookie)
		if last != "" {
			r.Header.Set("Last-Event-ID", last)
		}
		client := http.Client{Transport: b.HTTPClient.Transport}
		got, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := follow("?since=0", "")
	defer first.Body.Close()
	b.MustRunCLI("enqueue", "--id", "a", "true")
	var ids []string
	for lines := bufio.NewScanner(first.Body); lines.Scan(); {
		if id, isID := strings.CutPrefix(lines.Text(), "id: "); isID {
			ids = append(ids, id)
		}
		if strings.Contains(lines.Text(), `"event":"ended"`) && strings.Contains(lines.Text(), `"id":"a"`) {
			break
		}
	}
	if len(ids) < 2 || first.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("the events were %v, with %v", ids, first.Header)
	}
	resumed := follow("?since=0", ids[0])
	defer resumed.Body.Close()
	line, err := bufio.NewReader(resumed.Body).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "id: "+ids[1] {
		t.Errorf("after %s comes %q, %v", ids[0], line, err)
	}
	idle := follow("", "")
	defer idle.Body.Close()
	// The server must end the stream of a session that has ended. It must do so even if anonymous access would permit the
	// same stream.
	b.MustRunCLI("config", "set", "web.anonymous", "read")
	b.SendRequest("POST", "/leave", "token="+sessionFormToken(b))
	if raw, err := io.ReadAll(idle.Body); err != nil { // ReadAll returns because the stream ends
		t.Errorf("after %q: %v", raw, err)
	}
	signIn(b)
	full := false
	for range 80 { // open streams and do not read them
		r := follow("?since=0", "")
		defer r.Body.Close()
		if full = r.StatusCode == http.StatusServiceUnavailable; full {
			break
		}
	}
	if !full {
		t.Error("one user could open 80 streams; want a limit")
	}
	if got := b.SendRequest("GET", "/api/status", ""); got.StatusCode != http.StatusOK {
		t.Errorf("with 80 open streams, status gets %+v", got)
	}
}

// A browser without a session gets access only if web.anonymous permits it. Only browsers on this machine get
// such access, and only to data that the right "read" shows. At an address other than loopback, the page
// requires TLS and configured host names.
func TestAnonymousPageAccessIsRestricted(t *testing.T) {
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "1"))
	b.MustRunCLI("enqueue", "--id", "a", "--in", "1h", "echo secret")
	b.MustRunCLI("config", "set", "web.anonymous", "read")
	if got := b.SendRequest("GET", "/api/show?id=a", ""); got.StatusCode != http.StatusOK ||
		strings.Contains(got.Body, "secret") || !strings.Contains(got.Body, `"hidden":["command"`) {
		t.Errorf("a request without a session gets %+v", got)
	}
	if got := b.SendRequest("GET", "/", ""); got.StatusCode != http.StatusOK || strings.Contains(got.Body, "secret") ||
		strings.Contains(got.Body, ">Sign out<") {
		t.Errorf("the page without a session: %+v", got)
	}
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Port", "Forwarded", "X-Real-IP", "Via",
		"CF-Connecting-IP", "True-Client-IP"} {
		if got := b.SendRequest("GET", "/api/status", "", testrig.WithRequestHeader(name,
			"127.0.0.1")); got.StatusCode != http.StatusUnauthorized {
			t.Errorf("a request without a session, with the header %s, gets %+v", name, got)
		}
	}
	if got := b.SendRequest("POST", "/leave", "token="); got.StatusCode != http.StatusForbidden {
		t.Errorf("a form without a session gets %+v", got)
	}
	b.MustRunCLI("config", "set", "web.anonymous", "none")
	if got := b.SendRequest("GET", "/api/status", ""); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("status without a session after anonymous access has ended: got %+v", got)
	}
	oldListen := b.GetSetting("web.listen").Value
	for _, c := range []struct{ listen, want string }{
		{"0.0.0.0:0", "web.tls_cert"}, {"[::]:0", "web.tls_cert"}, {"192.0.2.1:80", "web.tls_cert"},
		{"unix:rel", "absolute path"}, {"localhost:1", "listen: \"localhost:1\" is not an address"},
	} {
		got := b.RunCLI("web", "start", "--listen", c.listen)
		if got.ExitCode == 0 || !strings.Contains(got.Stderr, c.want) {
			t.Errorf("%s gets %+v, want %s", c.listen, got, c.want)
		}
		if got := b.RunCLI("config", "set", "web.listen", c.listen); got.ExitCode == 0 ||
			!strings.Contains(got.Stderr, c.want) || b.GetSetting("web.listen").Value != oldListen {
			t.Errorf("config set web.listen %s: %+v, want %s", c.listen, got, c.want)
		}
	}
	// Starting the page at the address that it already uses is not an error.
	b.MustRunCLI("web", "start", "--listen", b.ServerAddress)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if got := b.RunCLI("web", "start", "--listen", listener.Addr().String()); got.ExitCode != 5 ||
		!strings.Contains(got.Stderr, fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)) {
		t.Errorf("web start on the port of another process: %+v", got)
	}
	signIn(b) // the page still works at its old address, because the new address was refused
	if got := b.SendRequest("GET", "/api/status", ""); got.StatusCode != http.StatusOK {
		t.Errorf("status with a new session: got %+v", got)
	}
	for _, key := range []string{"web.tls_cert", "web.tls_key"} {
		b.RunCLI("config", "set", key, filepath.Join(b.StateDir, "none"))
	}
	if got := b.RunCLI("reload"); got.ExitCode != 0 || !strings.Contains(got.Stderr,
		"reloaded, but the web page keeps its previous settings") {
		t.Errorf("reload with a missing certificate: %+v", got)
	}
}

// Responses are compressed for clients that accept it. Events are not compressed, because compression would
// delay them.
func TestPageResponsesAreCompressed(t *testing.T) {
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "1"))
	signIn(b)
	for path, want := range map[string]string{"/": "gzip", "/assets/page.css": "gzip", "/api/openapi.json": "gzip",
		"/api/events": ""} {
		b.HTTPClient.Timeout = 3 * time.Second
		ctx, cancel := context.WithCancel(b.Context())
		r, err := http.NewRequestWithContext(ctx, "GET", "http://"+b.LinkHostPort+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", "gzip")
		r.AddCookie(b.SessionCookie)
		got, err := b.HTTPClient.Do(r)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if encoding := got.Header.Get("Content-Encoding"); got.StatusCode != http.StatusOK || encoding != want {
			t.Errorf("%s: %s, Content-Encoding %q, want %q", path, got.Status, encoding, want)
		}
		cancel()
		got.Body.Close()
	}
}
