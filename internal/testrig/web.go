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

// Browser sends HTTP requests to the web page of a service. It keeps cookies and follows no redirects. Whatever
// host a request names, Browser connects to Address.
type Browser struct {
	*Queue
	LinkHost string // host and port in the links of the page
	Address  string // host and port to which Browser connects
	Cookie   *http.Cookie
	Client   http.Client
}

// OpenBrowser starts the web page of a queue and returns a browser that has not signed in.
func OpenBrowser(q *Queue) *Browser {
	q.Helper()
	b := &Browser{Queue: q, Address: q.MustCLI("web", "start", "--listen", "127.0.0.1:0")}
	b.LinkHost = b.Address
	b.Client = http.Client{
		Timeout:       TimeoutFactor * 10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, b.Address)
		}},
	}
	q.Cleanup(b.Client.CloseIdleConnections)
	return b
}

// httpResponse contains the parts of an HTTP response that tests check.
type httpResponse struct {
	Code   int
	Header http.Header
	Body   string
	Closed bool // whether the server closes the connection after this response
}

// Request sends an HTTP request and returns the response. Before that, it calls each function in modify with the
// request.
func (b *Browser) Request(method, path, form string, modify ...func(*http.Request)) httpResponse {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), method, "http://"+b.LinkHost+path, strings.NewReader(form))
	if err != nil {
		b.Fatal(err)
	}
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if b.Cookie != nil {
		r.AddCookie(b.Cookie)
	}
	for _, f := range modify {
		f(r)
	}
	got, err := b.Client.Do(r)
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

// WithHeader returns a function for Request that sets a header of the request.
func WithHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}
