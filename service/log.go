package service

import (
	"context"
	"io"
	"log/slog"

	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/service/settings"
)

// formatHandler writes each record in the format that the settings define at that time.
type formatHandler struct {
	handlers map[string]slog.Handler // by the value of the setting log_format
	settings *settings.Keeper
}

func (f *formatHandler) current() slog.Handler { return f.handlers[f.settings.Current().LogFormat] }

// Enabled reports whether records of the level are written.
func (f *formatHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return f.current().Enabled(ctx, l)
}

// Handle writes a record.
func (f *formatHandler) Handle(ctx context.Context, r slog.Record) error {
	return f.current().Handle(ctx, r)
}

// WithAttrs returns a handler that adds the attributes to each record.
func (f *formatHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return f.each(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

// WithGroup returns a handler that puts later attributes into a group.
func (f *formatHandler) WithGroup(name string) slog.Handler {
	return f.each(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

// each returns a handler in which the function change has replaced the handler of each format.
func (f *formatHandler) each(change func(slog.Handler) slog.Handler) slog.Handler {
	changed := &formatHandler{map[string]slog.Handler{}, f.settings}
	for format, h := range f.handlers {
		changed.handlers[format] = change(h)
	}
	return changed
}

// newLogger returns the log, which writes to w. It follows changes of the settings.
func newLogger(o *Options, settings *settings.Keeper, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: &settings.LogLevel}
	text, json := slog.NewTextHandler(w, options), slog.NewJSONHandler(w, options)
	var auto slog.Handler = json
	switch {
	case o.LogIsTerminal || o.StartedOnDemand || o.Manager != nil:
		auto = text
	case logs.WritesToJournal(o.LogFile):
		auto = logs.NewJournal(w, options)
	}
	var log slog.Handler = &formatHandler{map[string]slog.Handler{"text": text, "json": json, "auto": auto}, settings}
	if o.Manager != nil {
		log = slog.NewMultiHandler(log, o.Manager.LogHandler)
	}
	return slog.New(log)
}
