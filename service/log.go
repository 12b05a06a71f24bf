package service

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/service/settings"
)

// logFormats writes each record in the format that the settings define at that time.
type logFormats struct {
	text, json, auto slog.Handler
	format           func() string
}

func (f *logFormats) current() slog.Handler {
	switch f.format() {
	case "text":
		return f.text
	case "json":
		return f.json
	}
	return f.auto
}

// Enabled reports whether records of the level are written.
func (f *logFormats) Enabled(ctx context.Context, l slog.Level) bool {
	return f.current().Enabled(ctx, l)
}

// Handle writes a record.
func (f *logFormats) Handle(ctx context.Context, r slog.Record) error {
	return f.current().Handle(ctx, r)
}

// WithAttrs returns a handler that adds the attributes to each record.
func (f *logFormats) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logFormats{f.text.WithAttrs(attrs), f.json.WithAttrs(attrs), f.auto.WithAttrs(attrs), f.format}
}

// WithGroup returns a handler that puts later attributes into a group.
func (f *logFormats) WithGroup(name string) slog.Handler {
	return &logFormats{f.text.WithGroup(name), f.json.WithGroup(name), f.auto.WithGroup(name), f.format}
}

// teeHandler passes each record to two handlers. It leaves out a handler that does not accept the record's
// level.
type teeHandler struct{ first, second slog.Handler }

// Enabled reports whether one of the handlers writes records of the level.
func (b teeHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return b.first.Enabled(ctx, l) || b.second.Enabled(ctx, l)
}

// Handle writes a record.
func (b teeHandler) Handle(ctx context.Context, r slog.Record) error {
	var errs []error
	for _, h := range []slog.Handler{b.first, b.second} {
		if h.Enabled(ctx, r.Level) {
			errs = append(errs, h.Handle(ctx, r.Clone()))
		}
	}
	return errors.Join(errs...)
}

// WithAttrs returns a handler that adds the attributes to each record.
func (b teeHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return teeHandler{b.first.WithAttrs(attrs), b.second.WithAttrs(attrs)}
}

// WithGroup returns a handler that puts later attributes into a group.
func (b teeHandler) WithGroup(name string) slog.Handler {
	return teeHandler{b.first.WithGroup(name), b.second.WithGroup(name)}
}

// newLog returns the log, which writes to w. It follows changes of the settings.
func newLog(o *Options, settings *settings.Keeper, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: &settings.Level}
	text, json := slog.NewTextHandler(w, options), slog.NewJSONHandler(w, options)
	var auto slog.Handler = json
	switch {
	case o.Terminal || o.Background || o.Manager != nil:
		auto = text
	case logs.WritesToJournal(o.Log):
		auto = logs.NewJournal(w, options)
	}
	var log slog.Handler = &logFormats{text: text, json: json, auto: auto,
		format: func() string { return settings.Current().LogFormat }}
	if o.Manager != nil {
		log = teeHandler{log, o.Manager.Log}
	}
	return slog.New(log)
}
