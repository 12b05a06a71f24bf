package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/queuectl/queuectl/control"
)

// Targets of the page.
const (
	maxPage       = 20 * time.Millisecond // the overview of a full queue
	maxPageBytes  = 100_000
	maxStreamCost = 1.05 // of a drain's time, with so many browsers that look
	maxStreamMB   = 64.0
	streams       = 500
	deafStreams   = 50 // that read nothing
)

// browser is let in to the page of a service.
type browser struct {
	at, address string
	cookie      *http.Cookie
	client      http.Client
}

// openPage has the page of a service served, and a browser let in.
func (s *service) openPage() (*browser, error) {
	state, err := s.WebStart(s.ctx, control.WebStart{Listen: "127.0.0.1:0"})
	if err != nil {
		return nil, err
	}
	link, err := s.WebOpen(s.ctx, control.Nothing{})
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(link.URL)
	if err != nil {
		return nil, err
	}
	w := &browser{at: "http://" + u.Host, address: state.Listen}
	w.client = http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, w.address)
		}},
	}
	r, err := w.client.PostForm(w.at+"/open", u.Query())
	if err != nil {
		return nil, err
	}
	r.Body.Close()
	w.cookie, err = http.ParseSetCookie(r.Header.Get("Set-Cookie"))
	return w, err
}

// get asks for a path; the answer's body is still to be read.
func (w *browser) get(ctx context.Context, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, "GET", w.at+path, nil)
	if err != nil {
		return nil, err
	}
	r.AddCookie(w.cookie)
	got, err := w.client.Do(r)
	if err == nil && got.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("%s is answered by %s", path, got.Status), got.Body.Close())
	}
	return got, err
}

// page measures the overview of a queue that has much of everything, and what browsers cost that look at one while it
// is drained.
func (b *bench) page() (err error) {
	n := b.size(1_000_000, 100_000)
	full, err := b.serveEnded(n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, full.discard()) }()
	w, err := full.openPage()
	if err != nil {
		return err
	}
	var took []float64
	bytes := int64(0)
	for range 20 * b.pairs {
		began := time.Now()
		got, err := w.get(full.ctx, "/")
		if err != nil {
			return err
		}
		bytes, err = io.Copy(io.Discard, got.Body)
		if err := errors.Join(err, got.Body.Close()); err != nil {
			return err
		}
		took = append(took, time.Since(began).Seconds())
	}
	b.report.judge(row{fmt.Sprintf("the page's overview with %d ended jobs", n), ms(median(took)) + " (p95 " + ms(quantile(took, 0.95)) + ")", "", "", "≤ " + ms(maxPage.Seconds()), ""}, median(took) <= maxPage.Seconds())
	b.report.judge(row{"its size", fmt.Sprintf("%d bytes", bytes), "", "", fmt.Sprintf("≤ %d", maxPageBytes), ""}, bytes <= maxPageBytes)
	return b.watched()
}

// watched measures a drain with and without browsers that look at the page, in turns.
func (b *bench) watched() error {
	var alone, beside, more []float64
	jobs := max(b.jobs, b.size(drainWatchedJobs, 0))
	for range b.pairs {
		without, small, err := b.drainWatched(jobs, false)
		if err != nil {
			return err
		}
		with, large, err := b.drainWatched(jobs, true)
		if err != nil {
			return err
		}
		alone, beside, more = append(alone, without), append(beside, with), append(more, large-small)
	}
	ratio := median(ratios(beside, alone))
	b.report.judge(row{fmt.Sprintf("a drain of %d jobs beside %d browsers, %d of which read nothing", jobs, streams+deafStreams, deafStreams), fmt.Sprintf("%.2f s", median(beside)), fmt.Sprintf("alone %.2f s", median(alone)), times(ratio), "≤ " + times(maxStreamCost), ""}, ratio <= maxStreamCost)
	b.report.judge(row{"their memory in the service", fmt.Sprintf("%.0f MB", median(more)), "", "", fmt.Sprintf("≤ %.0f MB", maxStreamMB), ""}, median(more) <= maxStreamMB)
	return nil
}

// drainWatchedJobs is how many jobs are drained beside browsers: for so long that the looks of a second, of which one more or
// less falls into it, do not count.
const drainWatchedJobs = 14_000

// drainWatched drains a fresh queue, with browsers that look at it or without, and tells what the service takes in MB then.
func (b *bench) drainWatched(jobs int, watched bool) (seconds, megabytes float64, err error) {
	s, err := b.serve()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, s.discard()) }()
	w, err := s.openPage()
	if err != nil {
		return 0, 0, err
	}
	if watched {
		leave, err := w.crowd(s.ctx)
		if err != nil {
			return 0, 0, err
		}
		defer leave()
	}
	e, err := s.empty(2, jobs, "true")
	if err != nil {
		return 0, 0, err
	}
	m, _, err := s.memories()
	return e.wall.Seconds(), m.rss, err
}

// crowd has browsers look at the overview until leave is called.
func (w *browser) crowd(ctx context.Context) (leave func(), err error) {
	ctx, leave = context.WithCancel(ctx)
	for i := range streams + deafStreams {
		got, err := w.get(ctx, "/live?"+url.Values{"page": {"/"}}.Encode())
		if err != nil {
			leave()
			return nil, err
		}
		if i < streams {
			go func() { // ends with ctx
				io.Copy(io.Discard, got.Body)
				got.Body.Close()
			}()
			continue
		}
		context.AfterFunc(ctx, func() { got.Body.Close() })
	}
	return leave, nil
}
