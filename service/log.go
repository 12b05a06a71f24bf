package service

import (
	"context"
	"errors"
	"log/slog"
)

// formats writes each record in the format that the settings define at that time.
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

// WithAttrs returns a handler that adds the attributes to each record.
func (f *formats) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &formats{f.text.WithAttrs(attrs), f.json.WithAttrs(attrs), f.auto.WithAttrs(attrs), f.format}
}

// WithGroup returns a handler that puts later attributes into a group.
func (f *formats) WithGroup(name string) slog.Handler {
	return &formats{f.text.WithGroup(name), f.json.WithGroup(name), f.auto.WithGroup(name), f.format}
}

// both writes each record to those of two handlers that accept its level.
type both struct{ first, second slog.Handler }

// Enabled reports whether one of the handlers writes records of the level.
func (b both) Enabled(ctx context.Context, l slog.Level) bool {
	return b.first.Enabled(ctx, l) || b.second.Enabled(ctx, l)
}

// Handle writes a record.
func (b both) Handle(ctx context.Context, r slog.Record) error {
	var errs []error
	for _, h := range []slog.Handler{b.first, b.second} {
		if h.Enabled(ctx, r.Level) {
			errs = append(errs, h.Handle(ctx, r.Clone()))
		}
	}
	return errors.Join(errs...)
}

// WithAttrs returns a handler that adds the attributes to each record.
func (b both) WithAttrs(attrs []slog.Attr) slog.Handler {
	return both{b.first.WithAttrs(attrs), b.second.WithAttrs(attrs)}
}

// WithGroup returns a handler that puts later attributes into a group.
func (b both) WithGroup(name string) slog.Handler {
	return both{b.first.WithGroup(name), b.second.WithGroup(name)}
}
