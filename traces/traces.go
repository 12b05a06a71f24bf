// Package traces sends attempts to an OpenTelemetry collector, by OTLP over HTTP. Each attempt turns into a span, that
// is, a timed step of a trace. The environment of the job names the trace, in the format of W3C Trace Context. No job
// waits for the collector: spans that the collector does not accept soon are discarded.
package traces

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/queuectl/queuectl/queue"
)

// These constants limit how many spans wait for the collector, and for how long. See docs/decisions/0087.
const (
	maxQueuedSpans     = 8192                   // maximum number of spans that wait; further spans are discarded
	exportInterval     = time.Second            // time between two exports, and first delay before a retry
	requestTimeout     = 10 * time.Second       // time limit for one request, and maximum delay before a retry
	exportTimeout      = 30 * time.Second       // time limit for one export with all its retries
	closeFlushTimeout  = 500 * time.Millisecond // time limit for sending the waiting spans at the end
	failureLogInterval = time.Minute            // minimum time between two log lines about failures
	// maxTracestateBytes is the maximum length of TRACESTATE in bytes. A longer one is left out, as W3C Trace
	// Context, section 3.3.1.5, permits.
	maxTracestateBytes  = 512
	maxLoggedErrorBytes = 500 // maximum number of bytes of an error in the log
)

// Exporter sends attempts to a collector. It sends nothing until SetEndpoint is called. Its methods are
// safe for concurrent use.
type Exporter struct {
	log            *slog.Logger
	serviceVersion string
	nodeName       string

	mu                  sync.Mutex // held by SetEndpoint and Close
	pipeline            atomic.Pointer[pipeline]
	lastFailureLoggedAt atomic.Int64 // time when the last failure was logged, in nanoseconds since 1970
}

// pipeline sends the spans of an exporter to one collector.
type pipeline struct {
	collectorURL string
	exporter     *countingExporter
	provider     *sdk.TracerProvider
	tracer       trace.Tracer
}

// New returns an exporter for a service of the given version on the given node. It logs failures at most once a
// minute.
func New(serviceVersion, nodeName string, log *slog.Logger) *Exporter {
	e := &Exporter{log: log, serviceVersion: serviceVersion, nodeName: nodeName}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(e.logFailure))
	return e
}

// logFailure logs that spans cannot be sent to the collector. It logs at most one failure per failureLogInterval.
func (e *Exporter) logFailure(err error) {
	now := time.Now().UnixNano()
	if last := e.lastFailureLoggedAt.Load(); now-last < int64(failureLogInterval) ||
		!e.lastFailureLoggedAt.CompareAndSwap(last, now) {
		return
	}
	attrs := []any{"error", queue.ClipJSON(err.Error(), maxLoggedErrorBytes)}
	if isNetworkUnreachable(err) {
		attrs = append(attrs, "next", "the systemd unit of the service does not allow network access; docs/tracing.md "+
			"shows the lines to add")
	}
	e.log.Warn("the service discards trace spans, because they cannot be sent to the collector", attrs...)
}

// SetEndpoint makes the exporter send spans to the collector at collectorURL, such as http://127.0.0.1:4318. If
// collectorURL is "", it turns the exporter off. Spans that wait for the previous collector are sent within half a
// second or discarded. Requests contain the headers in the environment variable OTEL_EXPORTER_OTLP_HEADERS.
func (e *Exporter) SetEndpoint(collectorURL string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.pipeline.Load()
	if (was == nil && collectorURL == "") || (was != nil && was.collectorURL == collectorURL) {
		return nil
	}
	var replacement *pipeline
	if collectorURL != "" {
		var err error
		if replacement, err = e.newPipeline(collectorURL); err != nil {
			return err
		}
	}
	e.pipeline.Store(replacement)
	was.close()
	return nil
}

// Close sends the waiting spans, for at most half a second, and discards the rest.
func (e *Exporter) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pipeline.Swap(nil).close()
}

// close sends the waiting spans for at most closeFlushTimeout. It does nothing if p is nil.
func (p *pipeline) close() {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeFlushTimeout)
	defer cancel()
	p.provider.Shutdown(ctx) // discards spans that are not accepted in time
	p.exporter.isClosed.Store(true)
	p.exporter.Shutdown(ctx) // stops retries, which the provider would otherwise continue in the background
}

// countingExporter passes spans to another exporter and counts those that still wait to be sent.
type countingExporter struct {
	sdk.SpanExporter
	waitingSpanCount atomic.Int64
	isClosed         atomic.Bool // further spans must not be sent
}

// ExportSpans implements sdk.SpanExporter.
func (c *countingExporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	defer c.waitingSpanCount.Add(-int64(len(spans)))
	if c.isClosed.Load() {
		return nil
	}
	return c.SpanExporter.ExportSpans(ctx, spans)
}

// errSpanBufferFull is the error that is logged if spans are discarded because the collector is too slow.
var errSpanBufferFull = fmt.Errorf(
	"the collector is too slow, and the buffer of %d spans is full; check the collector's load",
	maxQueuedSpans)

// newPipeline prepares a pipeline to a collector. It does not connect yet.
func (e *Exporter) newPipeline(collectorURL string) (*pipeline, error) {
	to, err := newSender(collectorURL)
	if err != nil {
		return nil, err
	}
	by, err := otlptrace.New(context.Background(), to)
	if err != nil {
		return nil, err
	}
	exporter := &countingExporter{SpanExporter: by}
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(exporter, sdk.WithMaxQueueSize(2*maxQueuedSpans), sdk.WithBatchTimeout(exportInterval),
			sdk.WithExportTimeout(exportTimeout)),
		sdk.WithIDGenerator(contextIDGenerator{}), sdk.WithSampler(sdk.AlwaysSample()),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "queuectl"),
			attribute.String("service.version", e.serviceVersion), attribute.String("host.name", e.nodeName))),
	)
	return &pipeline{collectorURL: collectorURL, exporter: exporter, provider: provider,
		tracer: provider.Tracer("github.com/queuectl/queuectl")}, nil
}

// attemptSpanContexts returns the span of an attempt and its parent span. If the environment of the job names no
// parent, parent is invalid. Both spans depend only on the job and the lease. So if the service restarts while the
// attempt runs, the next service computes the same span.
func attemptSpanContexts(j *queue.Job, lease queue.Lease) (span, parent trace.SpanContext) {
	carrier := propagation.MapCarrier{}
	for _, e := range j.Env {
		// Limit the length, since a span keeps a copy of its trace state until it is sent.
		if name, value, _ := strings.Cut(e, "="); len(value) <= maxTracestateBytes &&
			(name == queue.TraceparentVariable || name == queue.TracestateVariable) {
			carrier[strings.ToLower(name)] = strings.Clone(value)
		}
	}
	parent = trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
	c := trace.SpanContextConfig{TraceID: parent.TraceID(), TraceFlags: parent.TraceFlags(),
		TraceState: parent.TraceState()}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\x00%d\x00%d\x00", j.ID, j.Seq, j.CreatedAt)
	if !parent.IsValid() {
		c.TraceID, c.TraceFlags = trace.TraceID(sum.Sum(nil)), trace.FlagsSampled
	}
	binary.Write(sum, binary.BigEndian, lease.Fence)
	c.SpanID = trace.SpanID(sum.Sum(nil))
	return trace.NewSpanContext(c), parent
}

// AttemptTraceparent returns the value of the variable TRACEPARENT for an attempt that is about to start. "" means
// that the variable must not be changed.
func (e *Exporter) AttemptTraceparent(j *queue.Job) string {
	if e.pipeline.Load() == nil {
		return ""
	}
	span, _ := attemptSpanContexts(j, j.Lease())
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), span), carrier)
	return carrier["traceparent"]
}

// spanIDsContextKey is the key of a context value that contains the ids of a new span.
type spanIDsContextKey struct{}

// contextIDGenerator is an IDGenerator that takes the ids of a new span from the context.
type contextIDGenerator struct{}

// NewIDs implements sdk.IDGenerator.
func (contextIDGenerator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	is := ctx.Value(spanIDsContextKey{}).(trace.SpanContext)
	return is.TraceID(), is.SpanID()
}

// NewSpanID implements sdk.IDGenerator.
func (contextIDGenerator) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	return ctx.Value(spanIDsContextKey{}).(trace.SpanContext).SpanID()
}

// ExportAttempt sends the span of an attempt that has ended and been recorded. It does not block. It sends
// nothing if the trace in the job's environment is not sampled. The span contains the id, the queue and the
// owner of the job, but never the command.
func (e *Exporter) ExportAttempt(j *queue.Job, lease queue.Lease, a *queue.Attempt, d *queue.AttemptDecision) {
	to := e.pipeline.Load()
	if to == nil {
		return
	}
	is, parent := attemptSpanContexts(j, lease)
	if !is.IsSampled() {
		return
	}
	if to.exporter.waitingSpanCount.Add(1) > maxQueuedSpans {
		to.exporter.waitingSpanCount.Add(-1)
		e.logFailure(errSpanBufferFull)
		return
	}
	ctx := context.WithValue(context.Background(), spanIDsContextKey{}, is)
	if parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	// These names follow OpenTelemetry's semantic conventions for messaging and processes.
	attrs := []attribute.KeyValue{
		attribute.String("messaging.system", "queuectl"), attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", j.Queue), attribute.String("messaging.message.id", j.ID),
		attribute.Int("queuectl.attempt", j.StartedAttempts+1), attribute.String("queuectl.state", d.NextState.String()),
		attribute.Int("queuectl.uid", j.UID),
		attribute.String("queuectl.worker", a.Worker), attribute.Int64("queuectl.created_at_ms", int64(j.CreatedAt)),
	}
	if a.PID > 0 {
		attrs = append(attrs, attribute.Int("process.pid", a.PID))
	}
	if a.ExitCode >= 0 {
		attrs = append(attrs, attribute.Int64("process.exit.code", a.ExitCode))
	}
	if a.Signal != 0 {
		attrs = append(attrs, attribute.Int("queuectl.signal", a.Signal))
	}
	if d.Reason != "" {
		attrs = append(attrs, attribute.String("queuectl.reason", string(d.Reason)))
	}
	ended := a.EndedAt
	began := min(a.StartedAt, ended)
	began = cmp.Or(began, ended) // if the start time is unknown
	_, span := to.tracer.Start(ctx, "process "+j.Queue, trace.WithTimestamp(began.Time()),
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attrs...))
	if d.NextState == queue.Failed || d.NextState == queue.Dead {
		span.SetStatus(codes.Error, string(d.Reason)) // not the error message, which may contain the command
		span.SetAttributes(attribute.String("error.type", attemptErrorType(a, d)))
	}
	span.End(trace.WithTimestamp(ended.Time()))
}

// attemptErrorType returns the value of error.type for a failed attempt: the reason of the failure or, if there is
// no reason, the exit code. OpenTelemetry requires one of a small number of values.
func attemptErrorType(a *queue.Attempt, d *queue.AttemptDecision) string {
	switch {
	case d.Reason != "":
		return string(d.Reason)
	case a.ExitCode > 0:
		return strconv.FormatInt(a.ExitCode, 10)
	}
	return "_OTHER" // the conventional value for an unknown class
}
