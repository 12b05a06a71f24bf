//go:build linux || windows

package test

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
)

// browser requests pages. It keeps cookies, follows no redirects, and connects to the same address for every
// host name.
type browser struct {
	*queue
	linkHost string // host and port in the links of the page
	address  string
	cookie   *http.Cookie
	client   http.Client
}

// pageOf starts the web page of a queue and returns a browser without a session.
func pageOf(q *queue) *browser {
	q.Helper()
	b := &browser{queue: q, address: q.must("web", "start", "--listen", "127.0.0.1:0")}
	b.linkHost = b.address
	b.client = http.Client{
		Timeout:       timeoutFactor * 10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, b.address)
		}},
	}
	q.Cleanup(b.client.CloseIdleConnections)
	return b
}

// httpResponse is the response to a request.
type httpResponse struct {
	code   int
	header http.Header
	body   string
	closed bool // the service will close the connection after this response
}

// request sends a request and returns the response. It applies change to the request before sending it.
func (b *browser) request(method, path, form string, change ...func(*http.Request)) httpResponse {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), method, "http://"+b.linkHost+path, strings.NewReader(form))
	if err != nil {
		b.Fatal(err)
	}
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if b.cookie != nil {
		r.AddCookie(b.cookie)
	}
	for _, f := range change {
		f(r)
	}
	got, err := b.client.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer got.Body.Close()
	raw, err := io.ReadAll(got.Body)
	if err != nil {
		b.Fatal(err)
	}
	return httpResponse{got.StatusCode, got.Header, string(raw), got.Close}
}

// link returns the secret of a link that the program has printed. From then on, the browser uses the host of
// the link.
func (b *browser) link(open string) (secret string) {
	b.Helper()
	u, err := url.Parse(open)
	if err != nil || u.Path != "/open" || u.Query().Get("link") == "" || !strings.HasSuffix(u.Hostname(), ".localhost") {
		b.Fatalf("the link is %q, %v", open, err)
	}
	b.linkHost = u.Host
	return u.Query().Get("link")
}

// openSession creates a session for the browser with a link.
func (b *browser) openSession() {
	b.Helper()
	secret := b.link(b.must("web", "open"))
	got := b.request("POST", "/open", "link="+secret)
	if got.code != http.StatusSeeOther || got.header.Get("Location") != "/" {
		b.Fatalf("a link is answered by %+v", got)
	}
	var err error
	if b.cookie, err = http.ParseSetCookie(got.header.Get("Set-Cookie")); err != nil {
		b.Fatal(err)
	}
}

// formToken returns the token of the session's forms, escaped for use in a form.
func (b *browser) formToken() string {
	b.Helper()
	_, token, found := strings.Cut(b.request("GET", "/", "").body, `name="token" value="`)
	token, _, _ = strings.Cut(token, `"`)
	if !found {
		b.Fatal("the page has no form")
	}
	return url.QueryEscape(token)
}

func withHost(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }

func withHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// The service serves no web page until a user starts the page. After a restart, a user must start the page
// again. A link creates one session for one browser, and only when the user presses the button of the page to
// which it leads.
func TestLinkOpensAPageSession(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	if got := q.cli("web", "open"); got.code != 5 || !strings.Contains(got.err, "queuectl web start") {
		t.Errorf("got %+v", got)
	}
	b := pageOf(q)
	for _, path := range []string{"/", "/jobs", "/api/list", "/api/events", "/api/openapi.json"} {
		if got := b.request("GET", path, ""); got.code != http.StatusUnauthorized ||
			!strings.Contains(got.body, "web open") || !got.closed {
			t.Errorf("%s is answered by %+v", path, got)
		}
	}
	if one, other := q.must("web", "open"), q.must("web", "open"); one[:20] == other[:20] {
		t.Errorf("two links have one name, so who has one reads the cookies of the other: %s, %s", one, other)
	}
	secret := b.link(q.must("web", "open"))
	for range 2 { // fetching the page of a link, as a link preview does, does not use up the link
		if got := b.request("GET", "/open?link="+secret, ""); got.code != http.StatusOK ||
			got.header.Get("Set-Cookie") != "" {
			t.Errorf("got %+v", got)
		}
	}
	if got := b.request("POST", "/open", "link="+secret, withHost("localhost")); got.code != http.StatusForbidden {
		t.Errorf("under another name a link is answered by %+v", got)
	}
	got := b.request("POST", "/open", "link="+secret)
	c, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
	if err != nil || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.MaxAge != 12*3600 || c.Path != "/" ||
		c.Domain != "" {
		t.Fatalf("the cookie is %+v, %v", c, err)
	}
	if got := b.request("POST", "/open", "link="+secret); got.code != http.StatusForbidden ||
		!strings.Contains(got.body, "web open") {
		t.Errorf("used once more it is answered by %+v", got)
	}
	b.cookie = c
	if got := b.request("GET", "/", ""); got.code != http.StatusOK || !strings.Contains(got.body, "All is well") ||
		!strings.Contains(got.body, ">Sign out<") {
		t.Errorf("the page is %+v", got)
	}
	// Browsers send a cookie to all ports of a host, so the page accepts the cookie only under its own host
	// name.
	for _, name := range []string{"localhost", "127.0.0.1", "other.localhost"} {
		if got := b.request("GET", "/", "", withHost(name)); got.code != http.StatusUnauthorized {
			t.Errorf("%s takes the session: %d", name, got.code)
		}
	}
	for _, file := range []string{"log", "stderr"} {
		paths, _ := filepath.Glob(q.path(file + "*"))
		for _, path := range paths {
			if raw, _ := os.ReadFile(path); strings.Contains(string(raw), secret) || strings.Contains(string(raw), c.Value) {
				t.Errorf("%s tells a secret", path)
			}
		}
	}
	q.kill()
	q.start("--workers", "1")
	b.address = q.must("web", "start", "--listen", "127.0.0.1:0")
	if got := b.request("GET", "/", ""); got.code != http.StatusUnauthorized {
		t.Errorf("a session outlives its service: %d", got.code)
	}
	q.must("web", "stop")
	if _, err := net.Dial("tcp", b.address); err == nil {
		t.Error("the page is there after web stop")
	}
}

// The page rejects requests that other sites cause in a browser, and requests for a host name that is not the
// page's.
func TestPageRefusesOtherPages(t *testing.T) {
	b := pageOf(startQueue(t, "--workers", "1"))
	b.openSession()
	for _, name := range []string{"evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.1.2.3",
		"[2001:db8::1]:80"} {
		for _, path := range []string{"/", "/api/list", "/assets/page.css", "/open"} {
			if got := b.request("GET", path, "", withHost(name)); got.code != http.StatusMisdirectedRequest {
				t.Errorf("%s of %s is answered by %d", path, name, got.code)
			}
		}
	}
	for name, change := range map[string]func(*http.Request){
		"another site": withHeader("Sec-Fetch-Site", "cross-site"), "a subdomain": withHeader("Sec-Fetch-Site", "same-site"),
		"another origin": withHeader("Origin", "http://evil.example"),
	} {
		if got := b.request("POST", "/leave", "token="+b.formToken(), change); got.code != http.StatusForbidden {
			t.Errorf("a form of %s is answered by %d", name, got.code)
		}
	}
	if got := b.request("POST", "/leave", ""); got.code != http.StatusForbidden ||
		!strings.Contains(got.body, "belongs to another session") {
		t.Errorf("a form without a token is answered by %+v", got)
	}
	for path, form := range map[string]string{
		"/workers": "n=3", "/queues": "verb=pause&queue=default", "/schedules": "verb=run&schedule=n",
		"/jobs/a": "verb=cancel", "/bulk": "verb=rm&q=*", "/dead/retry": "n=all",
	} {
		if got := b.request("POST", path, form); got.code != http.StatusForbidden ||
			!strings.Contains(got.body, "belongs to another session") {
			t.Errorf("a form without a token at %s is answered by %+v", path, got)
		}
		if got := b.request("POST", path, form+"&token="+b.cookie.Value); got.code != http.StatusForbidden {
			t.Errorf("one with a wrong token at %s is answered by %+v", path, got)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		if got := b.request(method, "/api/list", ""); got.code != http.StatusMethodNotAllowed &&
			got.code != http.StatusNotFound {
			t.Errorf("%s is answered by %d", method, got.code)
		}
	}
	for _, name := range []string{"enqueue", "cancel", "web.open", "config.set", "backup", "events.x", "none"} {
		if got := b.request("GET", "/api/"+name, ""); got.code != http.StatusNotFound {
			t.Errorf("%s is answered by %+v", name, got)
		}
	}
	page := b.request("GET", "/", "")
	_, token, _ := strings.Cut(page.body, `name="token" value="`)
	token, _, _ = strings.Cut(token, `"`)
	if got := b.request("POST", "/leave", "token="+url.QueryEscape(token)); got.code != http.StatusSeeOther {
		t.Errorf("its own form is answered by %+v", got)
	}
	if got := b.request("GET", "/", ""); got.code != http.StatusUnauthorized {
		t.Errorf("who has left is let in: %d", got.code)
	}
	if got := b.request("POST", "/open", "link="+strings.Repeat("x", 1<<20)); got.code == http.StatusSeeOther {
		t.Errorf("a form of a megabyte is answered by %d", got.code)
	}
}

// The page shows names, commands and outputs of jobs as text. The browser executes none of it.
func TestPageShowsTextAsText(t *testing.T) {
	b := pageOf(startQueue(t, "--workers", "1"))
	const evil = `<script>alert(1)</script><img src=x onerror=alert(2)>"'--><svg/onload=alert(3)>`
	b.must("enqueue", "--id", "evil", "--label", "l="+evil, "--max-retries", "0",
		"echo '"+strings.ReplaceAll(evil, "'", `'"'"'`)+"' >&2; exit 1")
	b.cli("wait", "evil")
	b.openSession()
	for _, path := range []string{"/", "/jobs", "/jobs?state=dead", "/jobs/evil", "/jobs?q=%3Cscript%3E",
		"/jobs?queue=%22%3E%3Cscript%3E", "/open?link=%22%3E%3Cscript%3Ealert(1)%3C/script%3E", "/%3Cscript%3E",
		"/jobs/%3Cscript%3Ealert(1)"} {
		got := b.request("GET", path, "")
		got.body = strings.Replace(got.body, `<script src="/assets/page.js" defer>`, "", 1)
		if strings.Contains(got.body, "<script") || strings.Contains(got.body, "<img") ||
			strings.Contains(got.body, "<svg/onload") {
			t.Errorf("%s has it as it came: %s", path, got.body)
		}
		policy := got.header.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") ||
			got.header.Get("X-Content-Type-Options") != "nosniff" || got.header.Get("X-Frame-Options") != "DENY" ||
			got.header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s goes with %v", path, got.header)
		}
	}
	if got := b.request("GET", "/jobs/evil", ""); !strings.Contains(got.body, "&lt;script&gt;alert(1)") ||
		!strings.Contains(got.body, "exit code 1") {
		t.Errorf("the page of the job is %s", got.body)
	}
	if got := b.request("GET", "/api/show?id=evil", ""); got.header.Get("Content-Type") != "application/json" ||
		strings.Contains(got.body, "<script") {
		t.Errorf("got %+v", got)
	}
}

// Methods that only read accept GET requests with their parameters in the query. They return the same errors
// as on the socket.
func TestPageAnswersReadMethods(t *testing.T) {
	b := pageOf(startQueue(t, "--workers", "1"))
	b.must("enqueue", "--id", "a", "--label", "k=v", "-Q", "build", "--in", "1h", "true")
	b.must("enqueue", "--id", "b", "--in", "1h", "true")
	b.openSession()
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
		got := b.request("GET", path, "")
		if got.code != http.StatusOK || !strings.Contains(got.body, want) || !json.Valid([]byte(got.body)) {
			t.Errorf("%s is answered by %+v, want %s", path, got, want)
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
		got := b.request("GET", path, "")
		if got.code != want.code || !strings.Contains(got.body, want.text) {
			t.Errorf("%s is answered by %+v, want %v", path, got, want)
		}
	}
	var api struct {
		OpenAPI string         `json:"openapi"`
		Paths   map[string]any `json:"paths"`
	}
	if err := json.Unmarshal([]byte(b.request("GET", "/api/openapi.json", "").body), &api); err != nil ||
		api.OpenAPI != "3.1.0" || api.Paths["/api/web.open"] != nil || api.Paths["/api/enqueue"] != nil {
		t.Errorf("it describes %v, %v", api, err)
	}
}

// An action on many jobs applies only to the jobs that its confirmation page showed. If some of these jobs
// are refused, the page reports both how many succeeded and how many were refused. A parameter that a page
// does not know is an error.
func TestPageActsOnMany(t *testing.T) {
	b := pageOf(startQueue(t, "--workers", "0"))
	for _, id := range []string{"a1", "a2", "b1"} {
		b.must("enqueue", "--id", id, "-Q", "zz", "--label", "k="+id[:1], "true")
	}
	b.openSession()
	sees := func(path, text string) {
		t.Helper()
		if got := b.request("GET", path, ""); got.code != http.StatusOK || !strings.Contains(got.body, text) {
			t.Errorf("%s is %d, without %q: %s", path, got.code, text, got.body)
		}
	}
	does := func(form, to string) string {
		t.Helper()
		got := b.request("POST", "/bulk", "token="+b.formToken()+"&"+form)
		if location := got.header.Get("Location"); got.code != http.StatusSeeOther || !strings.HasPrefix(location, to) {
			t.Fatalf("%s leads to %q: %+v", form, location, got)
		}
		return got.header.Get("Location")
	}
	sees("/bulk?verb=cancel&queue=zz&state=waiting", "Cancel 3 jobs?")
	sees("/bulk?verb=hold&label=k%3Da", "Hold 2 jobs?")
	b.must("enqueue", "--id", "a3", "-Q", "zz", "true")
	sees(does("verb=cancel&queue=zz&state=waiting&n=3", "/bulk?"), "more jobs match now")
	if got := b.must("list", "--state", "cancelled", "-q"); got != "" {
		t.Errorf("what was not shown is cancelled: %s", got)
	}
	sees(does("verb=hold&label=k%3Da&n=2", "/jobs?"), "hold applied to 2 jobs")
	b.must("cancel", "b1")
	sees("/bulk?verb=cancel&id=b1&id=a1&id=a2", "Cancel 2 jobs?")
	if got := b.request("POST", "/bulk", "token="+b.formToken()+
		"&verb=hold&id=b1&id=a3"); got.code != http.StatusConflict ||
		!strings.Contains(got.body, "hold was done for 1 job and refused for 1") || !strings.Contains(got.body, `href="/dead"`) {
		t.Errorf("what is refused in part is answered by %+v", got)
	}
	for _, path := range []string{"/jobs?foo=1", "/jobs?label=k", "/bulk?verb=hold&stat=held",
		"/bulk?verb=release&state=dead", "/stats?since=junk", "/?x=1", "/dead?x=1", "/schedules?state=dead", "/workers?x=1",
		"/live?page=%2Fworkers%3Fx%3D1", "/api/summary?x=1", "/api/events?sinec=3"} {
		if got := b.request("GET", path, ""); got.code != http.StatusBadRequest {
			t.Errorf("%s is answered by %d", path, got.code)
		}
	}
	for _, form := range []string{"/queues?queue=zz&verb=pause&until=1h", "/workers?n=1&force=1",
		"/dead/retry?error=&timeut=5s", "/job?verb=hold&at=1"} {
		path, form, _ := strings.Cut(form, "?")
		if got := b.request("POST", path, "token="+b.formToken()+"&"+form); got.code != http.StatusBadRequest {
			t.Errorf("%s with %s is answered by %d", path, form, got.code)
		}
	}
	for _, id := range []string{"x1", "x2"} {
		b.must("enqueue", "--id", id, "--max-retries", "0", "exit 7")
	}
	b.must("enqueue", "--id", "x3", "--max-retries", "0", "exit 8")
	b.must("worker", "start")
	b.cli("wait", "x1", "x2", "x3")
	sees("/dead?error=exit+code+7", ">x1<")
	if got := b.request("GET", "/dead?error=exit+code+7", ""); strings.Contains(got.body, ">x3<") {
		t.Errorf("what died of another error: %s", got.body)
	}
	sees("/dead/rm?error=exit+code+7", "Remove 2 dead jobs?")
	if got := b.request("POST", "/dead/rm", "token="+b.formToken()+
		"&error=exit+code+7&shown="); !strings.HasPrefix(got.header.Get("Location"), "/dead/rm?") ||
		b.must("dlq", "list", "-q") == "" {
		t.Errorf("more than was shown: %+v", got)
	}
	_, shown, _ := strings.Cut(b.request("GET", "/dead/rm?error=exit+code+7", "").body, `name="shown" value="`)
	shown, _, _ = strings.Cut(shown, `"`)
	if got := b.request("POST", "/dead/rm", "token="+b.formToken()+"&error=exit+code+7&shown="+
		shown); !strings.HasPrefix(got.header.Get("Location"), "/dead?did=rm&n=2") ||
		strings.TrimSpace(b.must("dlq", "list", "-q")) != "x3" {
		t.Errorf("removal of a group: %+v, and there are %q", got, b.must("dlq", "list", "-q"))
	}
	sees("/jobs?queue=zz", `href="/jobs?queue=zz&amp;state=dead"`)
	sees("/jobs?label=k%3Da", ">a1<")
}

// The page of a job shows the output of each attempt. If a page does not update itself, it shows the time at
// which it was made.
func TestPageOfAnAttempt(t *testing.T) {
	b := pageOf(startQueue(t, "--workers", "1"))
	b.must("enqueue", "--id", "again", "--max-retries", "1", "--backoff-base", "0.01",
		"echo try $QUEUECTL_ATTEMPT; exit 3")
	b.cli("wait", "again")
	b.openSession()
	if got := b.request("GET", "/jobs/again", ""); !strings.Contains(got.body, "try 2") ||
		!strings.Contains(got.body, `href="/jobs/again?attempt=1"`) || !strings.Contains(got.body, "data-live") {
		t.Errorf("the page is %s", got.body)
	}
	if got := b.request("GET", "/jobs/again?attempt=1", ""); !strings.Contains(got.body, "try 1") ||
		strings.Contains(got.body, "try 2") || strings.Contains(got.body, "data-live") {
		t.Errorf("the first attempt is %s", got.body)
	}
	if got := b.request("GET", "/jobs/again?attempt=x", ""); got.code != http.StatusBadRequest {
		t.Errorf("got %d", got.code)
	}
}

// The page sends each event when it happens, with the number of the event. A client that connects again gets
// the events after the last number that it received. A client that does not read its events delays no other
// client. The number of streams per user is limited.
func TestPageSendsEvents(t *testing.T) {
	b := pageOf(startQueue(t, "--workers", "1"))
	b.openSession()
	follow := func(query string, last string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+b.linkHost+"/api/events"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.AddCookie(b.cookie)
		if last != "" {
			r.Header.Set("Last-Event-ID", last)
		}
		client := http.Client{Transport: b.client.Transport}
		got, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := follow("?since=0", "")
	defer first.Body.Close()
	b.must("enqueue", "--id", "a", "true")
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
	// Anonymous access must not keep the stream of the ended session open.
	b.must("config", "set", "web.anonymous", "read")
	b.request("POST", "/leave", "token="+b.formToken())
	if raw, err := io.ReadAll(idle.Body); err != nil { // this returns because the stream ends
		t.Errorf("after %q: %v", raw, err)
	}
	b.openSession()
	full := false
	for range 80 { // open streams and do not read them
		r := follow("?since=0", "")
		defer r.Body.Close()
		if full = r.StatusCode == http.StatusServiceUnavailable; full {
			break
		}
	}
	if !full {
		t.Error("80 streams are one user's")
	}
	if got := b.request("GET", "/api/status", ""); got.code != http.StatusOK {
		t.Errorf("beside them status is answered by %+v", got)
	}
}

// A browser without a session gets access only if web.anonymous permits it. The access is then limited to
// browsers on this machine and to data that the right "read" shows. Beyond loopback, the page requires TLS
// and configured host names.
func TestAnonymousPageAccess(t *testing.T) {
	b := pageOf(startQueue(t, "--workers", "1"))
	b.must("enqueue", "--id", "a", "--in", "1h", "echo secret")
	b.must("config", "set", "web.anonymous", "read")
	if got := b.request("GET", "/api/show?id=a", ""); got.code != http.StatusOK || strings.Contains(got.body, "secret") ||
		!strings.Contains(got.body, `"hidden":["command"`) {
		t.Errorf("anybody gets %+v", got)
	}
	if got := b.request("GET", "/", ""); got.code != http.StatusOK || strings.Contains(got.body, "secret") ||
		strings.Contains(got.body, ">Sign out<") {
		t.Errorf("anybody sees %+v", got)
	}
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Port", "Forwarded", "X-Real-IP", "Via",
		"CF-Connecting-IP", "True-Client-IP"} {
		if got := b.request("GET", "/api/status", "", withHeader(name, "127.0.0.1")); got.code != http.StatusUnauthorized {
			t.Errorf("with %s anybody gets %+v", name, got)
		}
	}
	if got := b.request("POST", "/leave", "token="); got.code != http.StatusForbidden {
		t.Errorf("anybody's form is answered by %+v", got)
	}
	b.must("config", "set", "web.anonymous", "none")
	if got := b.request("GET", "/api/status", ""); got.code != http.StatusUnauthorized {
		t.Errorf("got %+v", got)
	}
	oldListen := b.setting("web.listen").Value
	for _, c := range []struct{ listen, want string }{
		{"0.0.0.0:0", "web.tls_cert"}, {"[::]:0", "web.tls_cert"}, {"192.0.2.1:80", "web.tls_cert"},
		{"unix:rel", "absolute path"}, {"localhost:1", "listen: \"localhost:1\" is not an address"},
	} {
		got := b.cli("web", "start", "--listen", c.listen)
		if got.code == 0 || !strings.Contains(got.err, c.want) {
			t.Errorf("%s is answered by %+v, want %s", c.listen, got, c.want)
		}
		if got := b.cli("config", "set", "web.listen", c.listen); got.code == 0 || !strings.Contains(got.err, c.want) ||
			b.setting("web.listen").Value != oldListen {
			t.Errorf("set, %s is answered by %+v, want %s", c.listen, got, c.want)
		}
	}
	// Starting the page at the address that it already uses is not an error.
	b.must("web", "start", "--listen", b.address)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if got := b.cli("web", "start", "--listen", listener.Addr().String()); got.code != 5 ||
		!strings.Contains(got.err, fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)) {
		t.Errorf("where another one is, it is answered by %+v", got)
	}
	b.openSession() // the page still works at its old address, although the new one was refused
	if got := b.request("GET", "/api/status", ""); got.code != http.StatusOK {
		t.Errorf("got %+v", got)
	}
	for _, key := range []string{"web.tls_cert", "web.tls_key"} {
		b.cli("config", "set", key, filepath.Join(b.dir, "none"))
	}
	if got := b.cli("reload"); got.code != 0 || !strings.Contains(got.err,
		"reloaded, but the web page keeps its previous settings") {
		t.Errorf("a reload with a certificate that is not there is answered by %+v", got)
	}
}

// Users can cause any number of different errors with their jobs. The page of dead jobs limits how many kinds
// of errors it shows, and how much text of each.
func TestPageOfManyErrors(t *testing.T) {
	b := pageOf(startQueue(t, "--workers", "4"))
	b.openSession()
	var list strings.Builder
	for i := range 60 {
		fmt.Fprintf(&list, `{"id":"e%d","argv":["/nope/%d/\u202e%s"],"max_retries":0}`+"\n", i, i, strings.Repeat("<", 3000))
	}
	b.must("enqueue", "--batch", "many", "--file", b.writeFile("list.jsonl", list.String()))
	b.cli("wait", "--batch", "many")
	got := b.request("GET", "/dead", "")
	if rows := strings.Count(got.body, "/dead/retry?"); got.code != http.StatusOK || rows != 50 ||
		len(got.body) > 200_000 || strings.Contains(got.body, "\u202e") {
		t.Errorf("%d: %d kinds in %d bytes", got.code, rows, len(got.body))
	}
	if !strings.Contains(got.body, "in 60 groups") {
		t.Errorf("it does not say that there are more: %s", got.body)
	}
}

// Responses are compressed for clients that accept it. Events are not compressed, because compression would
// delay them.
func TestPageIsCompressed(t *testing.T) {
	b := pageOf(startQueue(t, "--workers", "1"))
	b.openSession()
	for path, want := range map[string]string{"/": "gzip", "/assets/page.css": "gzip", "/api/openapi.json": "gzip",
		"/api/events": ""} {
		b.client.Timeout = 3 * time.Second
		ctx, cancel := context.WithCancel(b.Context())
		r, err := http.NewRequestWithContext(ctx, "GET", "http://"+b.linkHost+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", "gzip")
		r.AddCookie(b.cookie)
		got, err := b.client.Do(r)
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

// Connections without a session cannot make the page unavailable, and their requests use little memory.
func TestPageSurvivesFloodWithoutASession(t *testing.T) {
	b := pageOf(startQueue(t, "--workers", "0"))
	b.openSession()
	for i := range 1600 { // more connections than the page keeps open
		c, err := net.Dial("tcp", b.address)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		t.Cleanup(func() { c.Close() })
		// Writing to a connection that the page has already closed is harmless.
		io.WriteString(c, "POST /open HTTP/1.1\r\nHost: "+b.linkHost+
			"\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 60000\r\n\r\nlink=")
	}
	started := time.Now()
	if got := b.request("GET", "/", ""); got.code != http.StatusOK || time.Since(started) > timeoutFactor*2*time.Second {
		t.Errorf("a visitor is answered after %v by %d", time.Since(started), got.code)
	}
	if got := b.request("POST", "/open", "link="+strings.Repeat("x", 5<<10),
		func(r *http.Request) { r.Header.Del("Cookie") }); got.code == http.StatusOK || got.code == http.StatusSeeOther {
		t.Errorf("a link of 5 KiB is answered by %d", got.code)
	}
}
