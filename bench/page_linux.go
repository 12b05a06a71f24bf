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

// These constants are the targets and settings for the dashboard, the web page of the service.
const (
	maxOverviewPageTime             = 20 * time.Millisecond // maximum time to get the overview of a full queue
	maxPageBytes                    = 100_000
	maxWatchedToUnwatchedDrainRatio = 1.05 // maximum ratio of the time of a watched drain to that of an unwatched drain
	maxBrowserStreamsMemoryMB       = 64.0 // maximum memory that the service uses for the browsers
	watchingBrowserCount            = 500
	nonReadingBrowserCount          = 50 // number of additional browsers, which connect and read nothing
)

// browser is a client that is signed in to the dashboard of a service.
type browser struct {
	baseURL, listenAddress string // URL of the dashboard without a path, and the address on which it listens
	sessionCookie          *http.Cookie
	client                 http.Client
}

// signInBrowser starts the dashboard of a service and signs a browser in.
func (s *service) signInBrowser() (*browser, error) {
	state, err := s.StartWebPage(s.ctx, control.WebStartParams{ListenAddress: "127.0.0.1:0"})
	if err != nil {
		return nil, err
	}
	link, err := s.CreateWebLink(s.ctx, control.NoParams{})
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(link.URL)
	if err != nil {
		return nil, err
	}
	w := &browser{baseURL: "http://" + u.Host, listenAddress: state.ListenAddress}
	w.client = http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, w.listenAddress)
		}},
	}
	r, err := w.client.PostForm(w.baseURL+"/open", u.Query())
	if err != nil {
		return nil, err
	}
	r.Body.Close()
	w.sessionCookie, err = http.ParseSetCookie(r.Header.Get("Set-Cookie"))
	return w, err
}

// get requests a path of the dashboard. The caller reads and closes the body of the response.
func (w *browser) get(ctx context.Context, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, "GET", w.baseURL+path, nil)
	if err != nil {
		return nil, err
	}
	r.AddCookie(w.sessionCookie)
	got, err := w.client.Do(r)
	if err == nil && got.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("the response to %s has the status %s", path, got.Status), got.Body.Close())
	}
	return got, err
}

// measureDashboardPage measures how long it takes to get the overview of a queue with many ended jobs. It also measures
// how much longer the service needs to empty a queue while browsers watch the overview.
func (b *bench) measureDashboardPage() (err error) {
	n := b.itemsToMeasure(1_000_000, 100_000)
	full, err := b.startServiceWithEndedJobs(n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, full.stopAndRemoveDir()) }()
	w, err := full.signInBrowser()
	if err != nil {
		return err
	}
	var loadTimes []float64
	bytes := int64(0)
	for range 20 * b.measurementRounds {
		began := time.Now()
		got, err := w.get(full.ctx, "/")
		if err != nil {
			return err
		}
		bytes, err = io.Copy(io.Discard, got.Body)
		if err := errors.Join(err, got.Body.Close()); err != nil {
			return err
		}
		loadTimes = append(loadTimes, time.Since(began).Seconds())
	}
	b.results.addRowWithVerdict(row{fmt.Sprintf("load the overview of the web page with %d ended jobs", n),
		formatMillis(median(loadTimes)) + " (p95 " + formatMillis(quantile(loadTimes, 0.95)) + ")", "", "",
		"≤ " + formatMillis(maxOverviewPageTime.Seconds()), ""}, median(loadTimes) <= maxOverviewPageTime.Seconds())
	b.results.addRowWithVerdict(row{"size of this overview", fmt.Sprintf("%d bytes", bytes), "", "",
		fmt.Sprintf("≤ %d", maxPageBytes),
		""}, bytes <= maxPageBytes)
	return b.measureWatchedDrains()
}

// measureWatchedDrains measures how long the service takes to empty a queue. It alternates between drains that browsers
// watch on the dashboard and drains that none watches.
func (b *bench) measureWatchedDrains() error {
	var withoutBrowsers, withBrowsers, extraMemory []float64
	jobs := max(b.jobsPerDrain, b.itemsToMeasure(watchedDrainJobs, 0))
	for range b.measurementRounds {
		without, small, err := b.drainWatched(jobs, false)
		if err != nil {
			return err
		}
		with, large, err := b.drainWatched(jobs, true)
		if err != nil {
			return err
		}
		withoutBrowsers, withBrowsers = append(withoutBrowsers, without), append(withBrowsers, with)
		extraMemory = append(extraMemory, large-small)
	}
	ratio := median(pairwiseRatios(withBrowsers, withoutBrowsers))
	b.results.addRowWithVerdict(row{
		fmt.Sprintf("drain of %d jobs while %d browsers are connected, %d of which read nothing", jobs,
			watchingBrowserCount+nonReadingBrowserCount, nonReadingBrowserCount), fmt.Sprintf("%.2f s", median(withBrowsers)),
		fmt.Sprintf("without browsers %.2f s", median(withoutBrowsers)), formatRatio(ratio),
		"≤ " + formatRatio(maxWatchedToUnwatchedDrainRatio), ""}, ratio <= maxWatchedToUnwatchedDrainRatio)
	b.results.addRowWithVerdict(row{"memory of the service for these browsers",
		fmt.Sprintf("%.0f MB", median(extraMemory)), "", "",
		fmt.Sprintf("≤ %.0f MB", maxBrowserStreamsMemoryMB), ""}, median(extraMemory) <= maxBrowserStreamsMemoryMB)
	return nil
}

// watchedDrainJobs is the number of jobs in a drain that browsers watch. With this number a drain takes several
// seconds. The dashboard refreshes once a second, so one refresh more or less hardly changes the result.
const watchedDrainJobs = 14_000

// drainWatched empties a new queue, with or without browsers that watch it. It returns the time in seconds and
// the memory of the service in MB.
func (b *bench) drainWatched(jobCount int, withBrowsers bool) (seconds, serviceMemoryMB float64, err error) {
	s, err := b.startService()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, s.stopAndRemoveDir()) }()
	w, err := s.signInBrowser()
	if err != nil {
		return 0, 0, err
	}
	if withBrowsers {
		leave, err := w.watchOverview(s.ctx)
		if err != nil {
			return 0, 0, err
		}
		defer leave()
	}
	e, err := s.fillAndDrain(2, jobCount, "true")
	if err != nil {
		return 0, 0, err
	}
	m, _, err := s.processMemory()
	return e.elapsed.Seconds(), m.rssMB, err
}

// watchOverview connects browsers that watch the overview. The browsers stay connected until the caller calls
// disconnect. nonReadingBrowserCount of the browsers read nothing.
func (w *browser) watchOverview(ctx context.Context) (disconnect func(), err error) {
	ctx, disconnect = context.WithCancel(ctx)
	for i := range watchingBrowserCount + nonReadingBrowserCount {
		got, err := w.get(ctx, "/live?"+url.Values{"page": {"/"}}.Encode())
		if err != nil {
			disconnect()
			return nil, err
		}
		if i < watchingBrowserCount {
			go func() { // this goroutine ends when disconnect is called
				io.Copy(io.Discard, got.Body)
				got.Body.Close()
			}()
			continue
		}
		context.AfterFunc(ctx, func() { got.Body.Close() })
	}
	return disconnect, nil
}
