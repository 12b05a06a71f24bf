package dashboard

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// A Host header is valid if it is a name or an address, optionally with a numeric port (RFC 3986,
// section 3.2.3: port = *DIGIT).
func TestHostWithoutANumericPortIsInvalid(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:7070": true, "localhost:": true, "a.localhost:1": true, "127.0.0.1:65535": true,
		"[::1]": true, "[::1]:80": true,
		"localhost:abc": false, "localhost:80a": false, "localhost:-1": false, "localhost:+80": false,
		"localhost:65536": false,
		"localhost: 80":   false, "localhost:80:90": false, "[::1]:x": false, "::1": false, ":80": false, "": false,
	} {
		if got := isValidHostHeader(host); got != want {
			t.Errorf("Host %q: valid %t, want %t", host, got, want)
		}
	}
	for _, host := range []string{"localhost:abc", "127.0.0.1:80x"} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "http://localhost/api/list", nil)
		r.Host = host
		newTestServer().handler().ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), string(queue.CodeInvalid)) {
			t.Errorf("Host %s: got %d, %s", host, w.Code, w.Body)
		}
	}
}

// localAddrContext is the context of a request to a loopback address. It calls onLookUp when the server looks up this
// address.
type localAddrContext struct {
	context.Context
	onLookUp func()
}

func (c localAddrContext) Value(key any) any {
	if key != http.LocalAddrContextKey {
		return c.Context.Value(key)
	}
	c.onLookUp()
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7070}
}

// A proxy's requests have no anonymous access, even if the new configuration of a page without a proxy takes effect
// while the server checks a request with the old configuration.
func TestAnonymousAccessUsesOneConfiguration(t *testing.T) {
	for path, c := range map[string]*Config{
		"/":        {AllowsAnonymousRead: true, BehindTLSProxy: true},
		"/metrics": {AllowsAnonymousMetrics: true, BehindTLSProxy: true},
	} {
		s := newTestServer()
		s.config.Store(c)
		s.options.NewClientFor = func(control.Peer) *control.Client { return control.NewClient("") }
		r := httptest.NewRequestWithContext(localAddrContext{t.Context(), func() { s.config.Store(&Config{}) }}, "GET",
			"http://localhost"+path, nil)
		w := httptest.NewRecorder()
		s.visitorHandler(func(http.ResponseWriter, *http.Request, *visitor) error { return nil })(w, r)
		if w.Code != http.StatusUnauthorized {
			t.Errorf("%s: the status is %d, want %d", path, w.Code, http.StatusUnauthorized)
		}
	}
}
