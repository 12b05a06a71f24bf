package service

import (
	"context"
	"io"
	"log/slog"

	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/service/settings"
)

// logFormats writes each record in the format that the settings define at that time.
type logFormats struct {
	handlers map[string]slog.Handler // by the value of the setting log_format
	settings *settings.Keeper
}

func (f *logFormats) current() slog.Handler { return f.handlers[f.settings.Current().LogFormat] }

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
	return f.each(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

// WithGroup returns a handler that puts later attributes into a group.
func (f *logFormats) WithGroup(name string) slog.Handler {
	return f.each(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

// each returns a handler in which the function change has replaced the handler of each format.
func (f *logFormats) each(change func(slog.Handler) slog.Handler) slog.Handler {
	changed := &logFormats{map[string]slog.Handler{}, f.settings}
	for format, h := range f.handlers {
		changed.handlers[format] = change(h)
	}
	return changed
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
	var log slog.Handler = &logFormats{map[string]slog.Handler{"text": text, "json": json, "auto": auto}, settings}
	if o.Manager != nil {
		log = slog.NewMultiHandler(log, o.Manager.Log)
	}
	return slog.New(log)
}
