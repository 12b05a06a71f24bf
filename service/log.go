package service

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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

// formats writes each record in the format that is asked for then.
type formats struct {
	text, json slog.Handler
	asJSON     func() bool
}

func (f *formats) now() slog.Handler {
	if f.asJSON() {
		return f.json
	}
	return f.text
}

// Enabled reports whether records of the level are written.
func (f *formats) Enabled(ctx context.Context, l slog.Level) bool { return f.now().Enabled(ctx, l) }

// Handle writes a record.
func (f *formats) Handle(ctx context.Context, r slog.Record) error { return f.now().Handle(ctx, r) }

// WithAttrs is the same with these attributes in each record.
func (f *formats) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &formats{f.text.WithAttrs(attrs), f.json.WithAttrs(attrs), f.asJSON}
}

// WithGroup is the same with later attributes in a group.
func (f *formats) WithGroup(name string) slog.Handler {
	return &formats{f.text.WithGroup(name), f.json.WithGroup(name), f.asJSON}
}
