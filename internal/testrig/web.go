//go:build linux || windows

package testrig

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Browser sends HTTP requests to the web page of a service. It keeps cookies and follows no redirects. It always
// connects to ServerAddress, even if the request is for another host.
type Browser struct {
	*Harness
	LinkHostPort  string // host and port in the links of the page
	ServerAddress string // host and port to which Browser connects
	SessionCookie *http.Cookie
	HTTPClient    http.Client
}

// OpenBrowser starts the web page of a queue and returns a browser that has not signed in.
func OpenBrowser(q *Harness) *Browser {
	q.Helper()
	b := &Browser{Harness: q, ServerAddress: q.MustRunCLI("web", "start", "--listen", "127.0.0.1:0")}
	b.LinkHostPort = b.ServerAddress
	b.HTTPClient = http.Client{
		Timeout:       TimeoutFactor * 10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, b.ServerAddress)
		}},
	}
	q.Cleanup(b.HTTPClient.CloseIdleConnections)
	return b
}

// httpResponse contains the parts of an HTTP response that tests check.
type httpResponse struct {
	StatusCode       int
	Header           http.Header
	Body             string
	ConnectionClosed bool // whether the server closes the connection after this response
}

// SendRequest sends an HTTP request and returns the response. Before it sends the request, it passes the request to
// each function in modifyRequest.
func (b *Browser) SendRequest(method, path, formBody string, modifyRequest ...func(*http.Request)) httpResponse {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), method, "http://"+b.LinkHostPort+path, strings.NewReader(formBody))
	if err != nil {
		b.Fatal(err)
	}
	if formBody != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if b.SessionCookie != nil {
		r.AddCookie(b.SessionCookie)
	}
	for _, f := range modifyRequest {
		f(r)
	}
	got, err := b.HTTPClient.Do(r)
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

// WithRequestHeader returns a function for the parameter modifyRequest of SendRequest. The function sets a header of
// the request.
func WithRequestHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}
