// Package traces tells an OpenTelemetry collector of attempts, by OTLP over HTTP: a span each, which goes on with the
// trace that the submitter's environment named, as W3C Trace Context has it. Nothing waits for a collector: what it
// does not take soon is given up.
package traces

import (
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

// Limits of what waits for a collector, and for how long.
// See docs/decisions/0087.
const (
	maxQueued    = 8192 // spans; what is beyond is given up
	sendEvery    = time.Second
	sendWithin   = 10 * time.Second
	giveUpAfter  = 30 * time.Second // limit of one export with all its retries
	closeWithin  = 500 * time.Millisecond
	tellEvery    = time.Minute // least time between two log lines about the same failure
	maxState     = 512         // bytes of TRACESTATE; a longer one is left out, as W3C Trace Context, section 3.3.1.5, lets
	maxErrorText = 500         // bytes of a failure in the log
)

// Exporter tells a collector of attempts. It is off until Set. Its methods are safe for concurrent use.
type Exporter struct {
	log     *slog.Logger
	version string
	node    string

	mu     sync.Mutex // of Set and Close
	to     atomic.Pointer[pipeline]
	warned atomic.Int64 // when the last failure was logged, in nanoseconds
}

// pipeline is the way to one collector.
type pipeline struct {
	endpoint string
	exporter *counted
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// New makes an exporter of a service's version and node. What fails is in the log, once a minute at most.
func New(version, node string, log *slog.Logger) *Exporter {
	e := &Exporter{log: log, version: version, node: node}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(e.failed))
	return e
}

// failed says that spans were not taken.
func (e *Exporter) failed(err error) {
	now := time.Now().UnixNano()
	if last := e.warned.Load(); now-last < int64(tellEvery) || !e.warned.CompareAndSwap(last, now) {
		return
	}
	attrs := []any{"error", queue.ClipJSON(err.Error(), maxErrorText)}
	if barred(err) {
		attrs = append(attrs, "next", "the systemd unit of the service does not allow network access; docs/tracing.md shows the lines to add")
	}
	e.log.Warn("the trace collector did not accept spans, so the service discards the spans", attrs...)
}

// Set makes the exporter send spans to the collector at a URL like http://127.0.0.1:4318, or to none with "". Spans that
// wait for a previous collector are still sent, for half a second at most. Headers are those of the environment of the
// process, OTEL_EXPORTER_OTLP_HEADERS.
func (e *Exporter) Set(endpoint string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.to.Load()
	if (was == nil && endpoint == "") || (was != nil && was.endpoint == endpoint) {
		return nil
	}
	var is *pipeline
	if endpoint != "" {
		var err error
		if is, err = e.open(endpoint); err != nil {
			return err
		}
	}
	e.to.Store(is)
	was.close()
	return nil
}

// Close sends what waits, for half a second at most.
func (e *Exporter) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.to.Swap(nil).close()
}

func (p *pipeline) close() {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	p.provider.Shutdown(ctx) // what is not taken by then is given up
	p.exporter.left.Store(true)
	p.exporter.Shutdown(ctx) // for good: the provider still sends in the background
}

// counted is an exporter that knows how many spans wait for it.
type counted struct {
	sdk.SpanExporter
	waiting atomic.Int64
	left    atomic.Bool // nothing more is sent
}

// ExportSpans implements sdk.SpanExporter.
func (c *counted) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	defer c.waiting.Add(-int64(len(spans)))
	if c.left.Load() {
		return nil
	}
	return c.SpanExporter.ExportSpans(ctx, spans)
}

// errFull says that a collector is too slow.
var errFull = fmt.Errorf("%d spans are already waiting to be sent, the maximum", maxQueued)

// open makes the way to a collector; nothing is sent yet.
func (e *Exporter) open(endpoint string) (*pipeline, error) {
	to, err := newSender(endpoint)
	if err != nil {
		return nil, err
	}
	by, err := otlptrace.New(context.Background(), to)
	if err != nil {
		return nil, err
	}
	exporter := &counted{SpanExporter: by}
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(exporter, sdk.WithMaxQueueSize(2*maxQueued), sdk.WithBatchTimeout(sendEvery), sdk.WithExportTimeout(giveUpAfter)),
		sdk.WithIDGenerator(fixedIDs{}), sdk.WithSampler(sdk.AlwaysSample()),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "queuectl"), attribute.String("service.version", e.version), attribute.String("host.name", e.node))),
	)
	return &pipeline{endpoint: endpoint, exporter: exporter, provider: provider, tracer: provider.Tracer("github.com/queuectl/queuectl")}, nil
}

// spanOf is the span of an attempt, and the one that it belongs to, which is not valid if its submitter named none. Both
// follow from the job and its lease alone, so that a service which takes over a running attempt knows them.
func spanOf(j *queue.Job, lease queue.Lease) (span, parent trace.SpanContext) {
	carrier := propagation.MapCarrier{}
	for _, e := range j.Env {
		// A span keeps what it is given until it is sent, so of the environment it gets a bounded copy.
		if name, value, _ := strings.Cut(e, "="); len(value) <= maxState && (name == queue.Traceparent || name == queue.Tracestate) {
			carrier[strings.ToLower(name)] = strings.Clone(value)
		}
	}
	parent = trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
	c := trace.SpanContextConfig{TraceID: parent.TraceID(), TraceFlags: parent.TraceFlags(), TraceState: parent.TraceState()}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\x00%d\x00%d\x00", j.ID, j.Seq, j.CreatedAt)
	if !parent.IsValid() {
		c.TraceID, c.TraceFlags = trace.TraceID(sum.Sum(nil)), trace.FlagsSampled
	}
	binary.Write(sum, binary.BigEndian, lease.Fence)
	c.SpanID = trace.SpanID(sum.Sum(nil))
	return trace.NewSpanContext(c), parent
}

// Parent is the TRACEPARENT of the attempt that is about to start, "" if the job's own is to stay.
func (e *Exporter) Parent(j *queue.Job) string {
	if e.to.Load() == nil {
		return ""
	}
	span, _ := spanOf(j, j.Lease())
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), span), carrier)
	return carrier["traceparent"]
}

// idsKey is the key of a context for the numbers of the span that is to be made.
type idsKey struct{}

// fixedIDs gives a span the numbers that its context has.
type fixedIDs struct{}

// NewIDs implements sdk.IDGenerator.
func (fixedIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	is := ctx.Value(idsKey{}).(trace.SpanContext)
	return is.TraceID(), is.SpanID()
}

// NewSpanID implements sdk.IDGenerator.
func (fixedIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	return ctx.Value(idsKey{}).(trace.SpanContext).SpanID()
}

// Ended tells of an attempt of a job that has ended and been recorded, unless its submitter's trace is not sampled. It
// waits for nothing. The span has the job's id, queue and owner, never its command.
func (e *Exporter) Ended(j *queue.Job, lease queue.Lease, a *queue.Attempt, d *queue.Decision) {
	to := e.to.Load()
	if to == nil {
		return
	}
	is, parent := spanOf(j, lease)
	if !is.IsSampled() {
		return
	}
	if to.exporter.waiting.Add(1) > maxQueued {
		to.exporter.waiting.Add(-1)
		e.failed(errFull)
		return
	}
	ctx := context.WithValue(context.Background(), idsKey{}, is)
	if parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	attrs := []attribute.KeyValue{ // names of OpenTelemetry's semantic conventions for messaging and processes
		attribute.String("messaging.system", "queuectl"), attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", j.Queue), attribute.String("messaging.message.id", j.ID),
		attribute.Int("queuectl.attempt", j.Runs+1), attribute.String("queuectl.state", d.State.String()), attribute.Int("queuectl.uid", j.UID),
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
	if began == 0 {
		began = ended // it is not known when
	}
	_, span := to.tracer.Start(ctx, "process "+j.Queue, trace.WithTimestamp(began.Time()), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attrs...))
	if d.State == queue.Failed || d.State == queue.Dead {
		span.SetStatus(codes.Error, string(d.Reason)) // the whole error may contain the command
		span.SetAttributes(attribute.String("error.type", errorType(a, d)))
	}
	span.End(trace.WithTimestamp(ended.Time()))
}

// errorType returns the value of error.type for a failed attempt, as OpenTelemetry's conventions define it: the class
// of the error, one of few. It is the reason or, as for a status code in HTTP, the exit code.
func errorType(a *queue.Attempt, d *queue.Decision) string {
	switch {
	case d.Reason != "":
		return string(d.Reason)
	case a.ExitCode > 0:
		return strconv.FormatInt(a.ExitCode, 10)
	}
	return "_OTHER" // the value for an unknown class
}
