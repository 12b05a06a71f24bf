package page

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// browserWindow is a window of Chromium that shows the page.
type browserWindow struct {
	*testrig.Harness
	ctx         context.Context
	pageAddress string
}

// openBrowserWindow opens a browser window and signs in with a link from `queuectl web open`. The test fails if a
// script of the web page reports an error.
func openBrowserWindow(q *testrig.Harness) *browserWindow {
	q.Helper()
	testrig.SkipIfShort(q)
	path := skip.UnlessProgram(q, "chromium", "needs chromium; .ci/run installs it, "+
		"and TestSignInLinkOpensOneSession and others send requests as browsers do")
	profile, err := os.MkdirTemp("", "qp")
	if err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { os.RemoveAll(profile) }) // ignore errors, because the browser may still write files
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.UserDataDir(profile), chromedp.WindowSize(1280, 900), chromedp.Flag("disable-dev-shm-usage", true))
	allocated, end := chromedp.NewExecAllocator(q.Context(), options...)
	q.Cleanup(end)
	ctx, closeIt := chromedp.NewContext(allocated)
	q.Cleanup(func() { chromedp.Cancel(ctx); closeIt() })
	w := &browserWindow{Harness: q, ctx: ctx}
	if err := chromedp.Run(ctx); err != nil { // this starts the browser, which runs until ctx ends
		q.Fatal(err)
	}
	chromedp.ListenTarget(ctx, func(e any) {
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			q.Errorf("an error of the page: %s", e.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.APITypeError {
				q.Errorf("the page says %s", e.Args[0].Value)
			}
		}
	})
	q.MustRunCLI("web", "start", "--listen", "127.0.0.1:0")
	link := q.MustRunCLI("web", "open")
	w.pageAddress, _, _ = strings.Cut(link, "/open")
	w.runActions(chromedp.Navigate(link), chromedp.Click("main button"), chromedp.WaitVisible("#verdict"))
	return w
}

// runActions executes actions within 30 s.
func (w *browserWindow) runActions(actions ...chromedp.Action) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		var html string
		chromedp.Run(w.ctx, chromedp.OuterHTML("main", &html))
		w.Fatalf("%v; the page is %s", err, html)
	}
}

// openPagePath opens a path of the page in the window, and waits for the heading.
func (w *browserWindow) openPagePath(path string) {
	w.Helper()
	w.runActions(chromedp.Navigate(w.pageAddress+path), chromedp.WaitVisible("main h1"))
}

// waitForText waits until the page shows a text in an element. It does not reload the page.
func (w *browserWindow) waitForText(selector, text string) {
	w.Helper()
	w.WaitUntil(fmt.Sprintf("%s has %q", selector, text), 20*time.Second, func() (seen bool) {
		err := chromedp.Run(
			w.ctx, chromedp.Evaluate(fmt.Sprintf(`[...document.querySelectorAll(%q)].some(e => e.innerText.includes(%q))`,
				selector, text), &seen))
		return err == nil && seen // Evaluate fails while the browser loads another document
	})
}

// Users open the page with a link and see changes as they happen: running jobs and their output, dependency graphs, and
// a service that stops and restarts. On the page, users can also retry dead jobs and pause a queue.
func TestPageUpdatesLiveInBrowser(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	for _, id := range []string{"d1", "d2", "d3"} {
		q.MustRunCLI("enqueue", "--id", id, "--max-retries", "0", "test -e "+q.Path("fixed")+" || exit 7")
		q.RunCLI("wait", id)
	}
	w := openBrowserWindow(q)
	w.waitForText("#strip .dead b", "3")

	// The run time of a job is counted from the job's start, not from the time when the page was loaded.
	w.runActions(chromedp.Poll(`performance.now() > 4000`, nil))
	q.MustRunCLI("enqueue", "--id", "young", "-Q", "short", "sleep 60")
	w.waitForText("#running", "young")
	var age int
	w.runActions(chromedp.Evaluate(
		`parseInt([...document.querySelectorAll('#running tr')].find(e => e.innerText.includes('young')).querySelector('time').textContent)`, &age))
	if age > 3 {
		t.Errorf("a job that has just begun has run for %d s", age)
	}
	q.MustRunCLI("cancel", "young")

	// A running job appears without a reload.
	q.MustRunCLI("enqueue", "--id", "talks", "-Q", "chat", "i=0; while [ ! -e "+q.Path("enough")+
		" ]; do i=$((i+1)); echo \"<b>line</b> $i\"; sleep 0.05; done")
	w.waitForText("#running", "talks")
	w.waitForText("#queues", "chat")

	// A queue can be paused and resumed.
	w.runActions(chromedp.Click(`button[aria-label="Pause queue chat"]`), chromedp.WaitVisible("#verdict"))
	w.waitForText("#queues tr.paused", "chat")
	q.MustRunCLI("enqueue", "--id", "quiet", "-Q", "chat", "true")
	w.waitForText("#waiting", "queue chat is paused")
	if got := q.MustRunCLI("queue", "list"); !strings.Contains(got, "paused") {
		t.Errorf("queue list after the pause of a queue: %s", got)
	}
	w.runActions(chromedp.Click(`button[aria-label="Resume queue chat"]`),
		chromedp.WaitVisible(`button[aria-label="Pause queue chat"]`))

	// The page follows the output of a running job and shows it as text, not as HTML.
	w.openPagePath("/jobs/talks")
	w.waitForText("#log", "<b>line</b> 5")
	w.runActions(chromedp.Poll(`document.querySelectorAll('#log p').length > 20`, nil))
	var elements int
	w.runActions(chromedp.Evaluate(`document.querySelectorAll('#log span b b').length`, &elements))
	if elements != 0 {
		t.Errorf("the output of a job created %d HTML elements", elements)
	}

	// The graph is updated: the dependant starts after its parent has ended.
	q.MustRunCLI("enqueue", "--id", "after", "--after", "talks", "sleep 60")
	w.openPagePath("/jobs/after")
	w.waitForText("#deps", "talks")
	w.waitForText("#why", "talks")
	q.WriteFile("enough", "")
	w.waitForText("#head", "processing")

	// The statistics contain a chart and a row per queue.
	w.openPagePath("/stats?since=1h")
	w.waitForText("table", "chat")
	var bars string
	w.runActions(chromedp.AttributeValue(".plot .bar", "d", &bars, nil))
	if !strings.HasPrefix(bars, "M") {
		t.Errorf("the bars of the chart are %q", bars)
	}

	// Filters select jobs.
	w.openPagePath("/jobs")
	w.runActions(chromedp.SetValue(`.filter input[name=q]`, "d*"), chromedp.Submit(`.filter input[name=q]`),
		chromedp.WaitVisible("table.list"))
	w.waitForText("table.list", "d3")
	var rows int
	w.runActions(chromedp.Evaluate(`document.querySelectorAll('table.list tbody tr').length`, &rows))
	if rows != 3 {
		t.Errorf("the filter d* lists %d jobs", rows)
	}

	// The list updates itself, except while a job is selected or the pointer is on the list. The second click
	// moves the pointer away from the list, so that here only the selection can delay the update.
	w.runActions(chromedp.Click(`table.list input[value=d3]`), chromedp.Click(`main h1`))
	q.MustRunCLI("enqueue", "--id", "d4", "--max-retries", "0", "true")
	w.runActions(chromedp.WaitReady(`#list[data-held]`))
	w.runActions(chromedp.Evaluate(`document.querySelector('table.list input[value=d3]').checked = false`, nil))
	w.waitForText("table.list", "d4")

	// A user can retry one job of a group of dead jobs, then all of them.
	w.runActions(chromedp.Navigate(w.pageAddress+"/dead"), chromedp.WaitVisible("table.groups"))
	w.waitForText("table.groups", "exit code 7")
	q.WriteFile("fixed", "")
	w.runActions(chromedp.Click(`table.groups a.btn`), chromedp.WaitVisible("#go"))
	w.waitForText("main h1", "Retry 3 dead jobs?")
	if got := q.MustRunCLI("dlq", "list", "-q"); strings.Count(got, "\n") != 2 {
		t.Errorf("a preview changed the dead-letter list: %q", got)
	}
	w.runActions(chromedp.Click(`button[name=n][value="1"]`), chromedp.WaitVisible("#head"))
	w.waitForText("#head", "completed")
	w.runActions(chromedp.Navigate(w.pageAddress+"/dead/retry"), chromedp.WaitVisible("#go"),
		chromedp.Click(`button[name=n][value=all]`), chromedp.WaitVisible("main .none"))
	q.WaitUntil("nothing is dead", 20*time.Second, func() bool { return q.MustRunCLI("dlq", "list", "-q") == "" })

	// Before many jobs are cancelled, the page shows a list of these jobs.
	q.MustRunCLI("enqueue", "--id", "later1", "--in", "1h", "true")
	q.MustRunCLI("enqueue", "--id", "later2", "--in", "1h", "true")
	w.openPagePath("/jobs?q=later*")
	w.runActions(chromedp.Click("#all"), chromedp.Click(`button[value=cancel]`), chromedp.WaitVisible("#go"))
	w.waitForText("main h1", "Cancel 2 jobs?")
	w.runActions(chromedp.Click("#go button.main"), chromedp.WaitVisible("table.list"))
	if got := q.MustRunCLI("show", "later2", "--json"); !strings.Contains(got, `"cancelled"`) {
		t.Errorf("later2 is %s", got)
	}

	// The page reports that the service has stopped. After a restart of the service, the user must sign in again.
	w.openPagePath("/")
	q.KillService()
	w.runActions(chromedp.WaitVisible("#gone"))
	q.StartService("--workers", "2")
	q.MustRunCLI("web", "start", "--listen", "127.0.0.1"+w.pageAddress[strings.LastIndex(w.pageAddress, ":"):])
	w.waitForText("#gone", "The session has ended")
}

// The script of the page formats ages of jobs as the command line does.
func TestPageFormatsAgesLikeCLI(t *testing.T) {
	if testrig.RepositoryRoot() == "" {
		skip.MissingRequirement(t, "sources", "needs the table of ages, which is with the sources; make test-long has it")
	}
	raw, err := os.ReadFile(filepath.Join(testrig.RepositoryRoot(), "internal/present/testdata/ages.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	w := openBrowserWindow(testrig.StartQueue(t, "--workers", "0"))
	for line := range strings.Lines(string(raw)) {
		seconds, want, _ := strings.Cut(strings.TrimSpace(line), "\t")
		var got string
		w.runActions(chromedp.Evaluate("age("+seconds+")", &got))
		if got != want {
			t.Errorf("%s s: got %q, want %q", seconds, got, want)
		}
	}
}

// The page of a removed job reports that the job no longer exists.
func TestRemovedJobsPageReportsRemoval(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "--id", "goes", "true")
	w := openBrowserWindow(q)
	w.openPagePath("/jobs/goes")
	q.MustRunCLI("rm", "goes")
	w.waitForText("#gone", "no longer exists")
}

// The page shows the output of a job's terminal as text, also while the job runs. If the job has overwritten
// a line, the page shows the last state of the line.
func TestPageShowsTerminalOutputAsText(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("enqueue", "--id", "t", "--tty",
		`printf '\033]0;title\007\033[31m 10%%\r\033[K 50%%\033[0m'; until [ -e `+
			q.Path("go")+` ]; do sleep 0.02; done; printf '\r\033[K100%%\n\033[?1049hscreen\033[?1049lend\n'`)
	w := openBrowserWindow(q)
	w.openPagePath("/jobs/t")
	shows := func(want string) {
		t.Helper()
		w.runActions(chromedp.Poll(`[...document.querySelectorAll('#log p > span')].map(e => e.textContent).join('|') === '`+
			want+`'`,
			nil))
	}
	shows(" 50%")
	q.WriteFile("go", "")
	shows("100%|end")
	w.openPagePath("/jobs/t")
	shows("100%|end")
}

// markupPayloads are texts that would run a script, or break out of their element, if a page treated them as
// markup.
var markupPayloads = []string{
	`<script>pwned=1</script>`, `<img src=x onerror=pwned=1>`, `"><svg onload=pwned=1>`, `'-(pwned=1)-'`,
	`javascript:pwned=1`,
	`</pre></p></main><iframe srcdoc="<script>parent.pwned=1</script>">`,
	`<a href="javascript:pwned=1" autofocus onfocus=pwned=1>x</a>`, `{{constructor.constructor('pwned=1')()}}`,
	`<details open ontoggle=pwned=1>`,
	`<math><mtext></table><mglyph><style><!--</style><img title="--><img src onerror=pwned=1>">`,
	`&lt;script&gt;pwned=1&lt;/script&gt;`,
	// The overview shows only the last line of a job's output. The following payloads come last, so that this
	// line contains one of them.
	"\u2028</script><script>pwned=1</script>", "\x1b]8;;javascript:pwned=1\x07x\x1b]8;;\x07",
	"x\n\nevent: html\ndata: <img src=x onerror=pwned=1>\n\n", "\u202etxt.<img src=x onerror=pwned=1>", "<!--", "]]>",
	"\x85\xff<img src=x onerror=pwned=1>",
}

// Browsers treat names, commands and outputs of jobs as text, on static pages and on pages that update
// themselves. They do so even if the Content-Security-Policy of the page is turned off.
func TestBrowserTreatsJobDataAsText(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := openBrowserWindow(q)
	w.runActions(chromedp.ActionFunc(func(ctx context.Context) error { return page.SetBypassCSP(true).Do(ctx) }))
	file := q.WriteFile("payloads", strings.Join(markupPayloads, "\n"))
	paths := []string{"/", "/jobs", "/dead", "/dead/retry", "/schedules", "/workers", "/stats", "/bulk?verb=retry&q=*",
		"/jobs?q=" + url.QueryEscape(markupPayloads[1]), "/jobs?label=" + url.QueryEscape("l="+markupPayloads[2])}
	for i, p := range markupPayloads {
		if strings.ContainsRune(p, '\n') || !utf8.ValidString(p) {
			continue // this payload cannot be an argument, so only the output of a job contains it
		}
		id := fmt.Sprint("p", i)
		q.MustRunCLI("enqueue", "--id", id, "--label", "l="+p, "--max-retries", "0", "--cwd", "/"+p, "--unique",
			"k"+fmt.Sprint(i),
			"true "+p)
		q.MustRunCLI("enqueue", "--id", "w"+id, "--in", "1h", "--env", "P="+p, "echo "+p)
		paths = append(paths, "/jobs/"+id, "/jobs/w"+id)
	}
	q.MustRunCLI("schedule", "add", "nightly", "0 3 * * *", "--", "echo", markupPayloads[0], markupPayloads[2])
	q.MustRunCLI("enqueue", "--id", "follow", "--max-retries", "0",
		`printf '{"percent":1,"text":"<img src=x onerror=pwned=1>"}' >"$QUEUECTL_PROGRESS"; while [ ! -e `+q.Path("enough")+
			` ]; do cat `+file+`; cat `+file+` >&2; sleep 0.1; done; cat `+file+` >"$QUEUECTL_RESULT"; exit 1`)
	harmless := func(path string) {
		t.Helper()
		var found string
		w.runActions(chromedp.Evaluate(
			`(typeof pwned === 'undefined' ? '' : 'carried out ') + [...document.querySelectorAll('main script, main iframe, main img, main math, main details[ontoggle], [onerror], [onload], [onfocus], a[href^="javascript"]')].map(e => e.outerHTML.slice(0, 200)).join()`, &found))
		if found != "" {
			t.Errorf("%s: %s", path, found)
		}
	}
	for _, path := range append(paths, "/jobs/follow") {
		w.runActions(chromedp.Navigate(w.pageAddress+path), chromedp.WaitVisible("main h1"))
		harmless(path)
	}
	// Wait for lines that arrive after the page was loaded.
	w.runActions(chromedp.Poll(`document.querySelectorAll('#log p').length > 200`, nil))
	w.waitForText("#log", markupPayloads[1])
	harmless("the output that is followed")
	w.openPagePath("/")
	w.waitForText("#running", "follow")
	harmless("the overview that is live")
	q.WriteFile("enough", "")
	q.RunCLI("wait", "follow")
	w.openPagePath("/jobs/follow")
	w.waitForText("#log", markupPayloads[1])
	harmless("the output of one that has ended")
}

// A user can reach every control of the page with the keyboard.
func TestPageControlsWorkByKeyboard(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("enqueue", "--id", "k1", "--in", "1h", "true")
	w := openBrowserWindow(q)
	w.runActions(chromedp.KeyEvent("g"), chromedp.KeyEvent("j"), chromedp.WaitVisible("table.list"))
	w.runActions(chromedp.KeyEvent("j"), chromedp.KeyEvent("x"),
		chromedp.Poll(`document.querySelector('tbody input[type=checkbox]').checked`, nil))
	w.runActions(chromedp.KeyEvent("\r"), chromedp.WaitVisible("#head"))
	w.waitForText("#head", "k1")
	w.runActions(chromedp.KeyEvent("/"), chromedp.Poll(`document.activeElement.name === 'q'`, nil))
	var unreached string
	w.runActions(chromedp.Evaluate(
		`[...document.querySelectorAll('a[href],button,input:not([type=hidden])')].filter(e => e.tabIndex < 0).map(e => e.outerHTML).join()`, &unreached))
	if unreached != "" {
		t.Errorf("controls that the Tab key did not reach: %s", unreached)
	}
}

// No page is wider than its window, in either colour scheme.
func TestPagesFitTheWindow(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	longText := strings.Repeat("word ", 60) + strings.Repeat("x", 200)
	q.MustRunCLI("enqueue", "--id", "long-"+strings.Repeat("n", 100), "--max-retries", "0", "echo '"+longText+"'; exit 3")
	q.MustRunCLI("enqueue", "--id", "waits", "--in", "1h", "echo "+longText)
	q.MustRunCLI("schedule", "add", "nightly", "0 3 * * *", "--", "echo", longText)
	q.WaitUntil("the job is dead", 20*time.Second, func() bool { return q.MustRunCLI("dlq", "list", "-q") != "" })
	w := openBrowserWindow(q)
	for _, width := range []int64{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			w.runActions(chromedp.EmulateViewport(width, 900),
				emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
			for _, path := range []string{"/", "/jobs", "/jobs/waits", "/jobs/long-" + strings.Repeat("n", 100), "/dead",
				"/dead/retry", "/schedules", "/workers", "/stats", "/stats?since=30d", "/bulk?verb=cancel&id=waits", "/none"} {
				w.runActions(chromedp.Navigate(w.pageAddress+path), chromedp.WaitVisible("main h1"))
				var wide int64
				w.runActions(chromedp.Evaluate(`document.documentElement.scrollWidth`, &wide))
				if wide > width {
					var widest string
					w.runActions(chromedp.Evaluate(
						`[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 120)).join("\n")`, &widest))
					t.Errorf("%s is %d pixels wide in a window of %d pixels:\n%s", path, wide, width, widest)
				}
			}
		}
	}
}

// On a phone, the page shows everything that users need: the search field, sign out, and the state and time of each
// job. Tabs scroll sideways without moving the rest of the page. A user name is on the same line as its label.
func TestNarrowPageShowsEssentialControls(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("enqueue", "--id", "dies", "--max-retries", "0", "exit 3")
	q.MustRunCLI("enqueue", "--id", "later", "--in", "1h", "true")
	q.WaitUntil("the job is dead", 20*time.Second, func() bool { return q.MustRunCLI("dlq", "list", "-q") != "" })
	w := openBrowserWindow(q)
	w.runActions(chromedp.EmulateViewport(390, 900))
	for _, c := range []struct{ path, name, test string }{
		{"/", "search", `document.querySelector('.top input[type=search]').checkVisibility()`},
		{"/", "Sign out", `document.querySelector('form[action="/leave"] button').checkVisibility()`},
		{"/", "aligned names",
			`(r => Math.abs(r[0].bottom - r[1].bottom) < 1)([...document.querySelectorAll('.who > .live, .who > span')].map(e => e.getBoundingClientRect()))`},
		{"/jobs", "state of each row",
			`[...document.querySelectorAll('tbody tr')].every(r => /pending|dead/.test(r.innerText))`},
		{"/jobs", "time of each row", `[...document.querySelectorAll('tbody tr')].every(r => /\d\d:\d\d/.test(r.innerText))`},
		{"/dead", "time of each group",
			`[...document.querySelectorAll('tbody tr')].every(r => /\d\d:\d\d/.test(r.innerText))`},
		{"/jobs", "tabs that do not scroll vertically",
			`(e => getComputedStyle(e).overflowY === 'hidden')(document.querySelector('.tabs ul'))`},
		{"/", "navigation that does not scroll vertically",
			`(e => getComputedStyle(e).overflowY === 'hidden')(document.querySelector('.top nav'))`},
	} {
		holds := false
		w.runActions(chromedp.Navigate(w.pageAddress+c.path), chromedp.WaitVisible("main h1"),
			chromedp.Evaluate(c.test, &holds))
		if !holds {
			t.Errorf("%s at 390 px lacks: %s", c.path, c.name)
		}
	}
}

// htmlCheckerPathEnvVar is the environment variable with the path of the Nu HTML checker. The checker needs
// Java.
const htmlCheckerPathEnvVar = "QUEUECTL_VNU"

// The Nu HTML checker of the W3C finds no error in any page.
func TestPagesAreValidHTML(t *testing.T) {
	vnu := os.Getenv(htmlCheckerPathEnvVar)
	if vnu == "" {
		skip.MissingRequirement(t, "vnu", "needs the Nu HTML checker and Java; .ci/run installs them")
	}
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "1"))
	signIn(b)
	b.MustRunCLI("enqueue", "--id", "dies", "--max-retries", "0", "echo out; echo err >&2; exit 3")
	b.MustRunCLI("enqueue", "--id", "runs", "-Q", "build", "queuectl progress 40 half; sleep 60")
	b.MustRunCLI("enqueue", "--id", "waits", "--after", "runs", "--env", "A=b", "true")
	b.MustRunCLI("schedule", "add", "nightly", "0 3 * * *", "--", "true")
	b.MustRunCLI("queue", "pause", "build")
	b.WaitUntil("the job is dead", 20*time.Second, func() bool { return b.MustRunCLI("dlq", "list", "-q") != "" })
	args := []string{"-jar", vnu, "--errors-only", "--html"}
	for i, path := range []string{"/", "/jobs", "/jobs/waits", "/jobs/dies", "/jobs/runs", "/dead",
		"/dead?error=exit+code+3", "/dead/retry", "/dead/rm", "/schedules", "/workers", "/stats",
		"/bulk?verb=cancel&id=waits", "/none", "/open?link=x"} {
		args = append(args, b.WriteFile(fmt.Sprintf("page%d.html", i), b.SendRequest("GET", path, "").Body))
	}
	if out, err := exec.Command("java", args...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// axeCorePathEnvVar is the environment variable with the path of axe-core, a checker for accessibility.
const axeCorePathEnvVar = "QUEUECTL_AXE"

// Every page is accessible to users with impaired vision or without a pointer: axe-core finds no violation.
func TestPagesAreAccessible(t *testing.T) {
	axe, err := os.ReadFile(os.Getenv(axeCorePathEnvVar))
	if err != nil {
		skip.MissingRequirement(t, "axe", "needs axe-core; .ci/run installs it")
	}
	q := testrig.StartQueue(t, "--workers", "1")
	q.MustRunCLI("enqueue", "--id", "dies", "--max-retries", "0", "echo out; echo err >&2; exit 3")
	q.MustRunCLI("enqueue", "--id", "runs", "-Q", "build", "echo up; sleep 60")
	q.MustRunCLI("enqueue", "--id", "waits", "--after", "runs", "true")
	q.MustRunCLI("queue", "set", "mail", "--weight", "3")
	q.MustRunCLI("queue", "pause", "mail")
	q.MustRunCLI("schedule", "add", "nightly", "0 3 * * *", "--", "true")
	q.WaitUntil("the job is dead", 20*time.Second, func() bool { return q.MustRunCLI("dlq", "list", "-q") != "" })
	w := openBrowserWindow(q)
	for _, scheme := range []string{"light", "dark"} {
		w.runActions(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme",
			Value: scheme}}))
		for _, path := range []string{"/", "/jobs", "/jobs/waits", "/jobs/dies", "/jobs/runs", "/dead", "/dead/retry",
			"/schedules", "/workers", "/stats", "/stats?since=30d", "/bulk?verb=cancel&id=waits", "/none", "/open?link=x"} {
			var found []string
			w.runActions(chromedp.Navigate(w.pageAddress+path), chromedp.WaitVisible("main h1"),
				chromedp.Evaluate(string(axe), nil),
				chromedp.Evaluate(
					`axe.run().then(r => r.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.html.slice(0, 160) + " " + n.failureSummary)))`, &found, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
			for _, f := range found {
				t.Errorf("%s, %s: %s", path, scheme, f)
			}
		}
	}
}
