package control

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Nothing that a request carries is logged but the names of jobs and settings: a
// command or a variable may be secret.

// logged is how many jobs of a request are named in the log.
const logged = 3

// level is that of a request's line: what a person or a script changes is worth one,
// what is asked or enqueued is not.
func (m *Method) level() slog.Level {
	if !m.Right.Covers(Submit) || m.Name == "logs" || m.Name == "attach" || m.Name == "enqueue" || m.Name == "enqueue.batch" {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// logRequest writes the line of a request that was answered.
func (s *Server) logRequest(ctx context.Context, t *task, err error, took time.Duration) {
	m := methodOf(t.method)
	if m == nil {
		m = &Method{Right: Read}
	}
	level := m.level()
	internal := err != nil && RowOf(err).Code == queue.CodeInternal
	if internal {
		level = slog.LevelError
	}
	if !s.log.Enabled(ctx, level) {
		return
	}
	peer := &t.conn.peer
	attrs := []slog.Attr{slog.String("method", queue.Clip(t.method)), slog.Int("uid", peer.UID), slog.Int("pid", peer.PID), slog.Float64("took_ms", float64(took.Microseconds())/1000)}
	if len(t.about) > 0 && m.Right.Covers(Submit) {
		var first []string
		for _, id := range t.about[:min(len(t.about), logged)] {
			first = append(first, plainID(id))
		}
		attrs = append(attrs, slog.Any("jobs", first), slog.Int("of", len(t.about)))
	}
	if t.key != "" && m.Right.Covers(Submit) {
		attrs = append(attrs, slog.String("key", queue.Clip(t.key)))
	}
	text := "request"
	switch {
	case internal:
		text = "request failed"
		attrs = append(attrs, slog.Any("error", err))
	case err != nil:
		attrs = append(attrs, slog.String("refused", string(RowOf(err).Code)))
	}
	s.log.LogAttrs(ctx, level, text, attrs...)
}

// deniedEvery is how often it is logged at most that somebody was not let in.
const deniedEvery = 10 * time.Second

// logDenied tells of a peer that was not let in, unless another has just been.
func (s *Server) logDenied(p Peer, err error) {
	now, last := time.Now().UnixNano(), s.denied.Load()
	if now-last < int64(deniedEvery) || !s.denied.CompareAndSwap(last, now) {
		return
	}
	s.log.Warn("connection refused", "uid", p.UID, "pid", p.PID, "error", err)
}

// plainID is an id as the log has it: what was refused may be of any length, and of any characters.
func plainID(id string) string {
	if queue.ValidID(id) {
		return id
	}
	return strconv.QuoteToASCII(queue.Clip(id))
}
