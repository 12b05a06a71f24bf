package service

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/url"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// Browsers that show the same page hold no connection between two updates, and each update is rendered only once for
// all browsers. So idle browsers do not make the service raise GOMAXPROCS, which would slow down the processing of jobs
// by 5 %.
func TestIdleBrowsersHoldNoConnections(t *testing.T) {
	forEachStore(t, func(w *runningService) {
		ctx := w.Context()
		state, err := w.StartWebPage(ctx, control.WebStartParams{ListenAddress: "127.0.0.1:0"})
		if err != nil {
			w.Fatal(err)
		}
		link, err := w.CreateWebLink(ctx, control.NoParams{})
		if err != nil {
			w.Fatal(err)
		}
		w.Client.Close()
		secret, err := url.Parse(link.URL)
		if err != nil {
			w.Fatal(err)
		}
		client := http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, state.ListenAddress)
			}},
		}
		defer client.CloseIdleConnections()
		entered, err := client.PostForm("http://"+secret.Host+"/open", secret.Query())
		if err != nil {
			w.Fatal(err)
		}
		entered.Body.Close()
		cookie, err := http.ParseSetCookie(entered.Header.Get("Set-Cookie"))
		if err != nil {
			w.Fatal(err)
		}
		var said []*bufio.Scanner
		for range 3 {
			r, err := http.NewRequestWithContext(ctx, "GET", "http://"+secret.Host+"/live?page=%2F", nil)
			if err != nil {
				w.Fatal(err)
			}
			r.AddCookie(cookie)
			got, err := client.Do(r)
			if err != nil {
				w.Fatal(err)
			}
			defer got.Body.Close()
			said = append(said, bufio.NewScanner(got.Body))
		}
		next := func(event string) {
			w.Helper()
			for i, lines := range said {
				for lines.Scan() && lines.Text() != "event: "+event {
				}
				if lines.Err() != nil || lines.Text() != "event: "+event {
					w.Fatalf("browser %d received no %s: %q, %v", i, event, lines.Text(), lines.Err())
				}
			}
		}
		next("fragments")
		begun := w.concurrencyLimitCalls.Load()
		next("tick")
		if n := w.concurrencyLimitCalls.Load() - begun; n != 0 {
			w.Errorf("room was made for many %d times", n)
		}
	})
}
