package dashboard

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
