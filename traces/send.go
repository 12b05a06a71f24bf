package traces

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// sender sends spans by OTLP over HTTP (opentelemetry.io, "OTLP Specification", section OTLP/HTTP). It is used
// instead of the library's sender, which depends on gRPC. See docs/decisions/0087.
type sender struct {
	collectorURL   string
	requestHeaders http.Header
	client         http.Client
	sendCtx        context.Context // ends when Stop aborts all requests
	abortRequests  context.CancelFunc
}

func newSender(collectorURL string) (*sender, error) {
	u, err := url.Parse(collectorURL)
	if err != nil {
		return nil, err
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces" // path defined in the section "OTLP/HTTP Request"
	}
	s := &sender{collectorURL: u.String(), requestHeaders: headersFromEnv(), client: http.Client{
		Timeout: requestTimeout,
		// Follow no redirect, which could send the headers, and secrets in them, to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	s.sendCtx, s.abortRequests = context.WithCancel(context.Background())
	return s, nil
}

// headersFromEnv returns the headers that the environment variables of OpenTelemetry define. Each variable
// contains NAME=VALUE,NAME=VALUE with percent-encoding.
func headersFromEnv() http.Header {
	h := http.Header{}
	for _, variable := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		for pair := range strings.SplitSeq(os.Getenv(variable), ",") {
			name, value, found := strings.Cut(pair, "=")
			if text, err := url.PathUnescape(strings.TrimSpace(value)); found && err == nil {
				h.Set(strings.TrimSpace(name), text)
			}
		}
	}
	h.Set("Content-Type", "application/x-protobuf")
	h.Set("User-Agent", "queuectl")
	return h
}

// Start implements otlptrace.Client.
func (s *sender) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client. It aborts requests in progress.
func (s *sender) Stop(context.Context) error {
	s.abortRequests()
	return nil
}

// UploadTraces implements otlptrace.Client. If the collector is unavailable or requests a retry,
// UploadTraces tries again until ctx ends.
func (s *sender) UploadTraces(ctx context.Context, spans []*trace.ResourceSpans) error {
	// A TracesData has the same encoding as an ExportTraceServiceRequest.
	body, err := proto.Marshal(&trace.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.sendCtx, cancel)()
	for wait := exportInterval; ; wait = min(2*wait, requestTimeout) {
		again, after, err := s.postSpans(ctx, body)
		if !again {
			return err
		}
		select {
		case <-time.After(max(wait, after)):
		case <-ctx.Done():
			return err
		}
	}
}

// isNetworkUnreachable reports whether an error means that this process cannot reach the collector's network at all.
// A retry would fail in the same way.
func isNetworkUnreachable(err error) bool {
	return errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.ENETUNREACH)
}

// postSpans sends one request. It returns whether to send the request again, and the minimum delay before that.
func (s *sender) postSpans(ctx context.Context, requestBody []byte) (shouldRetry bool, retryDelay time.Duration,
	err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.collectorURL, bytes.NewReader(requestBody))
	if err != nil {
		return false, 0, err
	}
	r.Header = s.requestHeaders.Clone()
	got, err := s.client.Do(r)
	if err != nil {
		return !isNetworkUnreachable(err), 0, err
	}
	defer got.Body.Close()
	// Read the body to the end, unless it is long, so that the connection can be reused.
	said, _ := io.ReadAll(io.LimitReader(got.Body, maxLoggedErrorBytes))
	switch got.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return false, 0, nil
	// The OTLP section "Failures" says that these codes can be retried.
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		shouldRetry = true
		if seconds, err := strconv.Atoi(got.Header.Get("Retry-After")); err == nil {
			retryDelay = min(time.Duration(seconds)*time.Second, exportTimeout)
		}
	}
	return shouldRetry, retryDelay, fmt.Errorf("the collector %s answered %s: %q", s.collectorURL, got.Status, said)
}
