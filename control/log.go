package control

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// The log contains only two kinds of request parameters: ids of jobs and names of settings. Commands and
// environment variables may be secret.

// maxLoggedJobIDs is the maximum number of job ids that the log shows for one request.
const maxLoggedJobIDs = 3

// requestLogLevel returns the level at which a request is logged. The level is info, which the log contains by
// default, for a request that has changed something. It is lower for requests that read, enqueue a job or type
// into a terminal, because they are frequent. It is also lower for requests that were rejected or changed
// nothing: a user can send any number of them, and could fill the disk with log lines.
func (m *Method) requestLogLevel(result any, err error) slog.Level {
	quiet := !m.Right.Covers(RightSubmit) || m.Name == "logs" || m.Name == "attach" || m.Name == "enqueue" ||
		m.Name == "enqueue.batch"
	switch r, counts := result.(interface{ changedAnything() bool }); {
	case err != nil && ErrorCodeInfoOf(err).Code == queue.CodeInternal:
		return slog.LevelError
	case quiet, err != nil && !errors.Is(err, queue.ErrOutcomeUnknown), counts && !r.changedAnything():
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// In each requestLogWindow, a user without the right "operate" causes at most maxRequestLogLinesPerUser log lines at
// the level info. The audit log still records all changes.
const (
	maxRequestLogLinesPerUser = 60
	requestLogWindow          = time.Minute
)

// logLimiter limits how many log lines each user causes. The zero logLimiter is ready to use.
type logLimiter struct {
	mu           sync.Mutex
	windowsByUID map[int]*userLogWindow // by uid; guarded by mu
}

// userLogWindow counts the log lines about one user in the current period, which has the length requestLogWindow.
type userLogWindow struct {
	windowStart  time.Time // start of the period
	writtenLines int       // lines written in the period
	omittedLines int       // lines left out since the last line that was written
}

// allowLine reports whether a line about the user may be written now. If it may, omittedLines is the number of lines
// about the user that were left out since the last one was written.
func (l *logLimiter) allowLine(uid int, now time.Time) (omittedLines int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.windowsByUID[uid]
	if u == nil {
		if l.windowsByUID == nil {
			l.windowsByUID = map[int]*userLogWindow{}
		}
		u = &userLogWindow{windowStart: now}
		l.windowsByUID[uid] = u
	}
	if now.Sub(u.windowStart) >= requestLogWindow {
		u.windowStart, u.writtenLines = now, 0
	}
	if u.writtenLines >= maxRequestLogLinesPerUser {
		u.omittedLines++
		return 0, false
	}
	u.writtenLines++
	omittedLines, u.omittedLines = u.omittedLines, 0
	return omittedLines, true
}

// The methods changedAnything report whether the request with this result has changed something.

func (r BulkResult) changedAnything() bool     { return len(r.ChangedJobIDs) > 0 }
func (r RemovalCount) changedAnything() bool   { return r.RemovedJobs > 0 }
func (d ScheduleDetail) changedAnything() bool { return !d.AlreadyExisted }
func (r EnqueueResult) changedAnything() bool  { return !r.AlreadyExisted }

// logRequest writes a line about a request to the log, if the request is to be logged.
func (s *Server) logRequest(ctx context.Context, t *activeRequest, duration time.Duration, result any, err error) {
	m := findMethod(t.method)
	if m == nil {
		m = &Method{Right: RightRead}
	}
	level, peer, omitted := m.requestLogLevel(result, err), &t.conn.peer, 0
	if level == slog.LevelInfo && !peer.Right.Covers(RightOperate) {
		var ok bool
		if omitted, ok = s.logLimiter.allowLine(peer.UID, time.Now()); !ok {
			level = slog.LevelDebug
		}
	}
	if !s.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("method", queue.ClipForMessage(t.method)), slog.Int("uid", peer.UID),
		slog.Int("pid", peer.PID),
		slog.Float64("took_ms", float64(duration.Microseconds())/1000)}
	if len(t.loggedJobIDs) > 0 && m.Right.Covers(RightSubmit) {
		var firstIDs []string
		for _, id := range t.loggedJobIDs[:min(len(t.loggedJobIDs), maxLoggedJobIDs)] {
			firstIDs = append(firstIDs, loggableJobID(id))
		}
		attrs = append(attrs, slog.Any("jobs", firstIDs), slog.Int("of", len(t.loggedJobIDs)))
	}
	if t.loggedSettingName != "" && m.Right.Covers(RightSubmit) {
		attrs = append(attrs, slog.String("key", queue.ClipForMessage(t.loggedSettingName)))
	}
	if omitted > 0 {
		attrs = append(attrs, slog.Int("omitted", omitted))
	}
	text := "request"
	switch {
	case level == slog.LevelError:
		text = "request failed"
		attrs = append(attrs, slog.Any("error", err))
	case err != nil:
		attrs = append(attrs, slog.String("refused", string(ErrorCodeInfoOf(err).Code)))
	}
	s.log.LogAttrs(ctx, level, text, attrs...)
}

// rejectedConnLogInterval is the minimum interval between two log lines about rejected connections.
const rejectedConnLogInterval = 10 * time.Second

// logRejectedConn logs a rejected connection, at most once per rejectedConnLogInterval for all users together.
func (s *Server) logRejectedConn(p Peer, err error) {
	now, last := time.Now().UnixNano(), s.rejectionLoggedAtUnixNanos.Load()
	if now-last < int64(rejectedConnLogInterval) || !s.rejectionLoggedAtUnixNanos.CompareAndSwap(last, now) {
		return
	}
	s.log.Warn("connection refused", "uid", p.UID, "pid", p.PID, "error", err)
}

// loggableJobID returns a job id in a form that is safe for the log. The id in a rejected request may have any length
// and contain any characters.
func loggableJobID(jobID string) string {
	if queue.ValidID(jobID) {
		return jobID
	}
	return strconv.QuoteToASCII(queue.ClipForMessage(jobID))
}
