package service

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
)

// maxLog is how large the log of a background service may grow, in bytes; then it
// becomes the old one, in place of the one before.
const maxLog = 1 << 20

// boundedLog keeps a log, and one old one, at about maxLog each. The file stays
// open in runners too, so it is copied and cut short, not renamed: everybody
// appends to it.
type boundedLog struct{ file *os.File }

// Write appends a message, and puts the log aside when it has grown too large. A
// log that cannot be put aside is cut short all the same.
func (l boundedLog) Write(p []byte) (int, error) {
	n, err := l.file.Write(p)
	info, failed := l.file.Stat()
	if failed != nil || info.Size() <= maxLog {
		return n, err
	}
	if old, failed := os.ReadFile(l.file.Name()); failed == nil {
		os.WriteFile(l.file.Name()+".1", old, 0o600)
	}
	l.file.Truncate(0)
	return n, err
}

// OpenLog opens the log of a background service. One that has grown past 1 MiB
// is put aside, in place of the one put aside before.
func OpenLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("put the old log aside: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return f, nil
}

// RunnerLog is the log of a runner: text, of what a person should know.
func RunnerLog(w *os.File) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// journal writes records for systemd's journal: text, after the priority that its
// level is there (sd-daemon(3)), and without a time, which the journal notes itself.
type journal struct {
	slog.Handler
	out *prefixed
}

func newJournal(w io.Writer, o *slog.HandlerOptions) *journal {
	out := &prefixed{w: w}
	timeless := slog.HandlerOptions{Level: o.Level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return a
	}}
	return &journal{slog.NewTextHandler(out, &timeless), out}
}

// Handle writes a record.
func (j *journal) Handle(ctx context.Context, r slog.Record) error {
	j.out.mu.Lock()
	defer j.out.mu.Unlock()
	switch {
	case r.Level >= slog.LevelError:
		j.out.prefix = "<3>"
	case r.Level >= slog.LevelWarn:
		j.out.prefix = "<4>"
	case r.Level >= slog.LevelInfo:
		j.out.prefix = "<6>"
	default:
		j.out.prefix = "<7>"
	}
	return j.Handler.Handle(ctx, r)
}

// WithAttrs is the same with these attributes in each record.
func (j *journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &journal{j.Handler.WithAttrs(attrs), j.out}
}

// WithGroup is the same with later attributes in a group.
func (j *journal) WithGroup(name string) slog.Handler {
	return &journal{j.Handler.WithGroup(name), j.out}
}

// prefixed writes each line after a prefix.
type prefixed struct {
	w      io.Writer
	mu     sync.Mutex
	prefix string // guarded by mu
}

// Write implements io.Writer. The caller holds mu.
func (p *prefixed) Write(line []byte) (int, error) {
	_, err := p.w.Write(append([]byte(p.prefix), line...))
	return len(line), err
}

// formats writes each record in the format that is asked for then.
type formats struct {
	text, json, auto slog.Handler
	format           func() string
}

func (f *formats) now() slog.Handler {
	switch f.format() {
	case "text":
		return f.text
	case "json":
		return f.json
	}
	return f.auto
}

// Enabled reports whether records of the level are written.
func (f *formats) Enabled(ctx context.Context, l slog.Level) bool { return f.now().Enabled(ctx, l) }

// Handle writes a record.
func (f *formats) Handle(ctx context.Context, r slog.Record) error { return f.now().Handle(ctx, r) }

// WithAttrs is the same with these attributes in each record.
func (f *formats) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &formats{f.text.WithAttrs(attrs), f.json.WithAttrs(attrs), f.auto.WithAttrs(attrs), f.format}
}

// WithGroup is the same with later attributes in a group.
func (f *formats) WithGroup(name string) slog.Handler {
	return &formats{f.text.WithGroup(name), f.json.WithGroup(name), f.auto.WithGroup(name), f.format}
}
