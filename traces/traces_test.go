package traces

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// newEndedAttempt returns a job with the given environment, and an ended attempt of the job.
func newEndedAttempt(jobSeq int, env ...string) (*queue.Job, queue.Lease, *queue.Attempt, *queue.AttemptDecision) {
	j := &queue.Job{Seq: int64(jobSeq), ID: fmt.Sprint(jobSeq), Queue: "default"}
	j.Env = env
	return j, queue.Lease{Seq: int64(jobSeq), Fence: 1}, &queue.Attempt{StartedAt: 1, EndedAt: 2},
		&queue.AttemptDecision{NextState: queue.Completed}
}

// requireReturnsWithin runs call and fails the test if it takes longer than limit.
func requireReturnsWithin(t *testing.T, limit time.Duration, description string, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		call()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("%s is not done after %v", description, limit)
	}
}

// A collector that accepts no connection blocks no caller. The exporter discards spans above its limit, and spans that
// are still waiting when the exporter is closed.
func TestUnresponsiveCollectorBlocksNoCaller(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // never accepts a connection
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var log strings.Builder
	e := New("test", "node", slog.New(slog.NewTextHandler(&log, nil)))
	if err := e.SetEndpoint("http://" + silent.Addr().String()); err != nil {
		t.Fatal(err)
	}
	requireReturnsWithin(t, 20*time.Second, "what is more than waits", func() {
		for i := range 2 * maxQueuedSpans {
			e.ExportAttempt(newEndedAttempt(i))
		}
	})
	if !strings.Contains(log.String(), "spans is full") {
		t.Errorf("the log is %q, want the message about the full buffer", log.String())
	}
	requireReturnsWithin(t, 10*time.Second, "the end", e.Close)
}

// After SetEndpoint has chosen another collector, or turned the exporter off, the previous collector gets
// no more requests.
func TestReplacedCollectorGetsNoMoreRequests(t *testing.T) {
	asked := make(chan struct{}, 1<<16)
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer busy.Close()
	e := New("test", "node", slog.New(slog.DiscardHandler))
	if err := e.SetEndpoint(busy.URL); err != nil {
		t.Fatal(err)
	}
	for i := range maxQueuedSpans {
		e.ExportAttempt(newEndedAttempt(i))
	}
	<-asked
	if err := e.SetEndpoint(""); err != nil {
		t.Fatal(err)
	}
	busy.CloseClientConnections()
	for len(asked) > 0 {
		<-asked
	}
	late := 0
	for quiet := false; !quiet; {
		select {
		case <-asked:
			if late++; late > 1 { // one request may have been in progress
				t.Fatal("the previous collector got more than one request")
			}
		case <-time.After(3 * time.Second):
			quiet = true
		}
	}
}

// If the collector is unavailable or requests a retry, the exporter tries again. It takes headers from the
// environment, and does not send them to a server to which a reply redirects.
func TestUnavailableCollectorIsRetried(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b, other=c")
	asked := make(chan *http.Request, 16)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter,
		*http.Request) {
		t.Error("a redirect was followed")
	}))
	defer elsewhere.Close()
	n := 0
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r
		if n++; n == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		} else if n == 3 {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	e := New("test", "node", slog.New(slog.DiscardHandler))
	if err := e.SetEndpoint("http://" + at); err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	e.ExportAttempt(newEndedAttempt(1))
	if l, err = net.Listen("tcp", at); err != nil { // the collector starts to listen before the first retry
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go server.Serve(l) // this goroutine ends when the test closes the server
	defer server.Close()
	for range 2 {
		select {
		case r := <-asked:
			if r.Header.Get("X-Key") != "a b" || r.Header.Get("Other") != "c" || r.URL.Path != "/v1/traces" {
				t.Errorf("the collector got a request for %s with the headers %v", r.URL, r.Header)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the exporter did not retry within 20 s")
		}
	}
	e.ExportAttempt(newEndedAttempt(2))
	select {
	case <-asked:
	case <-time.After(20 * time.Second):
		t.Fatal("the exporter did not send the second span within 20 s")
	}
}

// Whatever trace context a user puts into the environment of a job, the exporter needs only limited time and
// memory for it.
func TestHostileTraceContextIsBounded(t *testing.T) {
	const parent = "TRACEPARENT=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, state := range []string{"a=b" + strings.Repeat(" ", 131_000), "a=b" + strings.Repeat(",", 131_000),
		strings.Repeat("a", 1<<17), "a=\x00\xff"} {
		j, lease, _, _ := newEndedAttempt(1, parent, "TRACESTATE="+state)
		span, from := attemptSpanContexts(j, lease)
		if !from.IsValid() || span.TraceID() != from.TraceID() || len(span.TraceState().String()) > maxTracestateBytes {
			t.Errorf("trace state %.20q: got span %v with parent %v", state, span, from)
		}
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	e := New("test", "node", slog.New(slog.DiscardHandler))
	if err := e.SetEndpoint("http://" + silent.Addr().String()); err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	used := func() (m runtime.MemStats) {
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m
	}
	before := used()
	for i := range 1000 {
		e.ExportAttempt(newEndedAttempt(i, strings.Clone(parent), "TRACESTATE=a=b"+strings.Repeat(" ", 131_000)))
	}
	if after := used(); after.HeapAlloc > before.HeapAlloc+32<<20 {
		t.Errorf("1,000 waiting spans use %d MB of memory, want at most 32", (after.HeapAlloc-before.HeapAlloc)>>20)
	}
}

// Two calls of attemptSpanContexts for the same lease return the same span. For another lease of the job,
// attemptSpanContexts returns another span in the same trace.
func TestSameLeaseGivesSameSpan(t *testing.T) {
	j, lease, _, _ := newEndedAttempt(1)
	one, _ := attemptSpanContexts(j, lease)
	again, _ := attemptSpanContexts(j, lease)
	lease.Fence++
	next, _ := attemptSpanContexts(j, lease)
	if one.SpanID() != again.SpanID() || one.TraceID() != next.TraceID() || one.SpanID() == next.SpanID() ||
		!one.IsValid() || !one.IsSampled() {
		t.Errorf("spans of one lease: %v and %v; of the next lease: %v", one, again, next)
	}
}

// The error type of a failed attempt is its reason or its exit code.
func TestSpanErrorTypeIsFailureReasonOrExitCode(t *testing.T) {
	for _, c := range []struct {
		attempt  queue.Attempt
		decision queue.AttemptDecision
		want     string
	}{
		{queue.Attempt{ExitCode: 3}, queue.AttemptDecision{NextState: queue.Failed}, "3"},
		{queue.Attempt{ExitCode: -1}, queue.AttemptDecision{NextState: queue.Dead, Reason: queue.ReasonTimedOut},
			"timed_out"},
		{queue.Attempt{ExitCode: 127}, queue.AttemptDecision{NextState: queue.Dead, Reason: queue.ReasonNotFound},
			"not_found"},
		{queue.Attempt{ExitCode: -1}, queue.AttemptDecision{NextState: queue.Dead}, "_OTHER"},
	} {
		if got := attemptErrorType(&c.attempt, &c.decision); got != c.want {
			t.Errorf("exit code %d, reason %q: got %s, want %s", c.attempt.ExitCode, c.decision.Reason, got, c.want)
		}
	}
}
