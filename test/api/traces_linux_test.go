package api

import (
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/queuectl/queuectl/internal/testrig"
)

// traceReceiver receives spans over HTTP, as an OpenTelemetry collector does.
type traceReceiver struct {
	url          string
	mu           sync.Mutex
	spansByJobID map[string][]*traces.Span // spans by job id
}

// newTraceReceiver starts a receiver.
func newTraceReceiver(t *testing.T) *traceReceiver {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &traceReceiver{url: "http://" + l.Addr().String(), spansByJobID: map[string][]*traces.Span{}}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		raw, err := io.ReadAll(q.Body)
		// The service sends an ExportTraceServiceRequest, which has the same wire format as TracesData.
		var data traces.TracesData
		if err == nil {
			err = proto.Unmarshal(raw, &data)
		}
		if err != nil || q.URL.Path != "/v1/traces" || q.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s %s: %v", q.URL.Path, q.Header, err)
		}
		r.recordSpans(&data)
		// An empty body is a valid ExportTraceServiceResponse.
		w.Header().Set("Content-Type", "application/x-protobuf")
	})}
	go server.Serve(l) // this goroutine ends when the test closes the server
	t.Cleanup(func() { server.Close() })
	return r
}

func (r *traceReceiver) recordSpans(data *traces.TracesData) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range data.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				id := spanAttribute(span, "messaging.message.id")
				r.spansByJobID[id] = append(r.spansByJobID[id], span)
			}
		}
	}
}

// waitSpans waits for spanCount spans of a job and returns them.
func (r *traceReceiver) waitSpans(q *testrig.Harness, id string, spanCount int) (spans []*traces.Span) {
	q.Helper()
	q.WaitUntil("the spans of "+id+" are taken", 20*time.Second, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		spans = r.spansByJobID[id]
		return len(spans) >= spanCount
	})
	if len(spans) != spanCount {
		q.Errorf("%s has %d spans, want %d", id, len(spans), spanCount)
	}
	return spans
}

// mustRunWithEnv runs a queuectl command with additional environment variables, and requires exit code 0.
func mustRunWithEnv(q *testrig.Harness, env []string, args ...string) {
	q.Helper()
	cmd := q.CLICommand(args...)
	cmd.Env = append(cmd.Env, env...)
	if got := testrig.RunCommand(q, cmd); got.ExitCode != 0 {
		q.Fatalf("queuectl %v: %+v", args, got)
	}
}

// spanAttribute returns the value of a span's attribute as text, or "" if the span does not have it.
func spanAttribute(span *traces.Span, name string) string {
	for _, a := range span.Attributes {
		if a.Key == name {
			if text := a.Value.GetStringValue(); text != "" {
				return text
			}
			return a.Value.String()
		}
	}
	return ""
}

// traceparentOf returns the value of TRACEPARENT with which a new span is a child of the given span.
func traceparentOf(span *traces.Span) string {
	return "00-" + hex.EncodeToString(span.TraceId) + "-" + hex.EncodeToString(span.SpanId) + "-01"
}

// The collector gets one span for each attempt, in the trace that the environment of the enqueuing client
// names. The attempt's own environment contains the id of its span. If the service is restarted while an
// attempt runs, the new service reports the same span.
func TestCollectorGetsOneSpanPerAttempt(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	r := newTraceReceiver(t)
	q.MustRunCLI("config", "set", "traces.endpoint", r.url)
	const trace, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	mustRunWithEnv(q, []string{"TRACEPARENT=00-" + trace + "-" + caller + "-01", "TRACESTATE=vendor=1"}, "enqueue", "--id",
		"fails", "--max-retries", "1", "--backoff-base", "0.01", `echo "$TRACEPARENT $TRACESTATE"; exit 3`)
	q.RunCLI("wait", "fails")
	list := r.waitSpans(q, "fails", 2)
	for i, span := range list {
		if hex.EncodeToString(span.TraceId) != trace || hex.EncodeToString(span.ParentSpanId) != caller ||
			span.TraceState != "vendor=1" {
			t.Errorf("span %d is %v", i, span)
		}
		if got := spanAttribute(span, "error.type"); got != "3" {
			t.Errorf("error.type is %q, want the exit code 3", got)
		}
		if span.Status.GetCode() != traces.Status_STATUS_CODE_ERROR || span.EndTimeUnixNano < span.StartTimeUnixNano ||
			span.Name != "process default" {
			t.Errorf("span %d is %v", i, span)
		}
		if got := strings.TrimSpace(q.MustRunCLI("logs", "fails", "--attempt", string(rune('1'+i)))); !strings.Contains(got,
			traceparentOf(span)) || !strings.Contains(got, "vendor=1") {
			t.Errorf("attempt %d got the trace context %q, its span is %s", i+1, got, traceparentOf(span))
		}
		if strings.Contains(span.String(), "exit 3") {
			t.Errorf("a span contains the command: %v", span)
		}
	}
	if string(list[0].SpanId) == string(list[1].SpanId) {
		t.Error("two attempts are one span")
	}
	mustRunWithEnv(q, []string{"TRACEPARENT=00-" + trace + "-" + caller + "-00"}, "enqueue", "--id", "unsampled", "exit 0")
	q.MustRunCLI("wait", "unsampled")
	q.MustRunCLI("enqueue", "--id", "alone", "exit 0")
	q.MustRunCLI("wait", "alone")
	if span := r.waitSpans(q, "alone", 1)[0]; len(span.ParentSpanId) != 0 || hex.EncodeToString(span.TraceId) == trace ||
		span.Status.GetCode() != traces.Status_STATUS_CODE_UNSET {
		t.Errorf("the span of a job without a trace context: %v", span)
	}
	mustRunWithEnv(q, []string{"TRACEPARENT=00-" + trace + "-" + caller + "-01"}, "enqueue", "--id", "adopted",
		"echo $TRACEPARENT; until [ -e "+q.Path("go")+" ]; do sleep 0.05; done")
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.ShowJob("adopted").State == "processing" })
	q.KillService()
	q.StartService("--workers", "2")
	q.WriteFile("go", "")
	q.MustRunCLI("wait", "adopted")
	if span := r.waitSpans(q, "adopted", 1)[0]; hex.EncodeToString(span.TraceId) != trace ||
		hex.EncodeToString(span.ParentSpanId) != caller {
		t.Errorf("the service that adopted the job reported the span %v", span)
	} else if parent := q.MustRunCLI("logs", "adopted"); parent != traceparentOf(span) {
		t.Errorf("the job got the trace context %s, its span is %s", parent, traceparentOf(span))
	}
	r.mu.Lock()
	if got := r.spansByJobID["unsampled"]; got != nil {
		t.Errorf("a trace that is not sampled has the spans %v", got)
	}
	r.mu.Unlock()
}

// If the collector is unreachable or does not reply, jobs are not delayed, and the log reports the problem. A
// repeated request with the same idempotency key is a duplicate even if it belongs to another trace. The jobs
// of a schedule do not belong to the trace of the caller who created the schedule.
func TestHungCollectorDelaysNothing(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	if got := q.RunCLI("config", "set", "traces.endpoint", "localhost:4318"); got.ExitCode != 2 ||
		!strings.Contains(got.Stderr, "traces.endpoint") {
		t.Errorf("config set traces.endpoint without a scheme: %+v", got)
	}
	// This listener never accepts a connection, so clients get no reply.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	q.MustRunCLI("config", "set", "traces.endpoint", "http://"+silent.Addr().String())
	q.MustRunCLI("run", "echo first")
	q.MustRunCLI("config", "set", "traces.endpoint", "http://"+testrig.FreeLoopbackAddress(t))
	for _, id := range []string{"0", "1"} {
		in := []string{"TRACEPARENT=00-" + strings.Repeat(id, 31) + "a-" + strings.Repeat("b", 16) + "-01"}
		mustRunWithEnv(q, in, "enqueue", "--key", "k", "--id", "once", "exit 0")
		mustRunWithEnv(q, in, "schedule", "add", "nightly", "0 3 * * *", "exit 0")
	}
	q.MustRunCLI("wait", "once")
	q.WaitUntil("the log says so", 20*time.Second, func() bool {
		return strings.Contains(q.ReadAllLogs(), "cannot be sent to the collector")
	})
	if code := q.StopService(); code != 0 {
		t.Errorf("the service ended with %d", code)
	}
}
