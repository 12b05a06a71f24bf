package control

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// newRequestLogger returns a function that logs the same request n times, and returns the resulting log lines of level
// info or above.
func newRequestLogger() func(method string, right Right, result any, err error, n int) string {
	var out bytes.Buffer
	s := &Server{log: slog.New(slog.NewTextHandler(&out, nil))}
	return func(method string, right Right, result any, err error, n int) string {
		out.Reset()
		for range n {
			t := &activeRequest{request: request{method: method}, conn: &serverConn{peer: Peer{UID: 1, Right: right}}}
			s.logRequest(context.Background(), t, 0, result, err)
		}
		return out.String()
	}
}

// By default, the log does not show requests that were rejected or changed nothing. Otherwise a user could fill
// the disk with log lines.
func TestLogOmitsRequestsWithoutEffect(t *testing.T) {
	logged := newRequestLogger()
	matched := 3
	for name, c := range map[string]struct {
		method string
		result any
		err    error
		want   bool
	}{
		"a change":             {"cancel", BulkResult{ChangedJobIDs: []string{"a"}}, nil, true},
		"a partial change":     {"cancel", BulkResult{ChangedJobIDs: []string{"a"}, Refusals: []Refusal{{}}}, nil, true},
		"a setting":            {"config.set", nil, nil, true},
		"an unknown outcome":   {"cancel", nil, queue.ErrOutcomeUnknown, true},
		"a bug":                {"show", nil, errors.New("a bug"), true},
		"invalid parameters":   {"cancel", nil, queue.ErrInvalid, false},
		"a missing right":      {"config.set", nil, queue.ErrDenied, false},
		"no such method":       {"nothing", nil, queue.ErrUnsupported, false},
		"no job selected":      {"cancel", BulkResult{}, nil, false},
		"every job refused":    {"cancel", BulkResult{Refusals: []Refusal{{}}}, nil, false},
		"a dry run":            {"cancel", BulkResult{SelectedCount: &matched}, nil, false},
		"nothing removed":      {"clear", RemovalCount{}, nil, false},
		"the schedule existed": {"schedule.add", ScheduleDetail{AlreadyExisted: true}, nil, false},
		"a schedule":           {"schedule.add", ScheduleDetail{}, nil, true},
		"an enqueued job":      {"enqueue", EnqueueResult{JobID: "a"}, nil, false},
		"an occurrence":        {"schedule.run", EnqueueResult{JobID: "a"}, nil, true},
	} {
		if got := logged(c.method, RightAdmin, c.result, c.err, 1); (got != "") != c.want {
			t.Errorf("%s: logged %q, want a line: %t", name, got, c.want)
		}
	}
}

// A user who makes many changes causes only a limited number of log lines. The next line that is written says
// how many lines were omitted.
func TestLogLinesPerUserAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged, done := newRequestLogger(), BulkResult{ChangedJobIDs: []string{"a"}}
		for right, want := range map[Right]int{RightSubmit: maxRequestLogLinesPerUser,
			RightOperate: maxRequestLogLinesPerUser + 7} {
			if n := strings.Count(logged("hold", right, done, nil, maxRequestLogLinesPerUser+7), "\n"); n != want {
				t.Errorf("%v: %d lines, want %d", right, n, want)
			}
		}
		time.Sleep(requestLogWindow)
		if got := logged("hold", RightSubmit, done, nil, 1); !strings.Contains(got, " omitted=7\n") {
			t.Errorf("in the next window: logged %q, want omitted=7", got)
		}
		if got := logged("hold", RightSubmit, done, nil, 1); got == "" || strings.Contains(got, "omitted") {
			t.Errorf("after that: logged %q, want a line without a count", got)
		}
	})
}
