//go:build linux || windows

package page

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// Users can cause any number of different errors with their jobs. The page of dead jobs limits how many kinds
// of errors it shows, and how much text of each.
func TestDeadJobsPageLimitsErrorText(t *testing.T) {
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "4"))
	signIn(b)
	var list strings.Builder
	for i := range 60 {
		fmt.Fprintf(&list, `{"id":"e%d","argv":["/nope/%d/\u202e%s"],"max_retries":0}`+"\n", i, i, strings.Repeat("<", 3000))
	}
	b.MustRunCLI("enqueue", "--batch", "many", "--file", b.WriteFile("list.jsonl", list.String()))
	b.RunCLI("wait", "--batch", "many")
	got := b.SendRequest("GET", "/dead", "")
	if rows := strings.Count(got.Body, "/dead/retry?"); got.StatusCode != http.StatusOK || rows != 50 ||
		len(got.Body) > 200_000 || strings.Contains(got.Body, "\u202e") {
		t.Errorf("%d: %d kinds in %d bytes", got.StatusCode, rows, len(got.Body))
	}
	if !strings.Contains(got.Body, "in 60 groups") {
		t.Errorf("the page does not show how many groups exist: %s", got.Body)
	}
}

// Many connections without a session cannot make the page unavailable, and their requests use little memory.
func TestPageSurvivesUnauthenticatedConnectionFlood(t *testing.T) {
	b := testrig.OpenBrowser(testrig.StartQueue(t, "--workers", "0"))
	signIn(b)
	for i := range 1600 { // more connections than the page keeps open
		c, err := net.Dial("tcp", b.ServerAddress)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		t.Cleanup(func() { c.Close() })
		// Writing to a connection that the page has already closed is harmless.
		io.WriteString(c, "POST /open HTTP/1.1\r\nHost: "+b.LinkHostPort+
			"\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 60000\r\n\r\nlink=")
	}
	started := time.Now()
	if got := b.SendRequest("GET", "/", ""); got.StatusCode != http.StatusOK ||
		time.Since(started) > testrig.TimeoutFactor*2*time.Second {
		t.Errorf("a visitor is answered after %v by %d", time.Since(started), got.StatusCode)
	}
	if got := b.SendRequest("POST", "/open", "link="+strings.Repeat("x", 5<<10),
		func(r *http.Request) { r.Header.Del("Cookie") }); got.StatusCode == http.StatusOK ||
		got.StatusCode == http.StatusSeeOther {
		t.Errorf("a link of 5 KiB gets %d", got.StatusCode)
	}
}
