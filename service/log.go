package service

import (
	"context"
	"io"
	"log/slog"

	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/service/settings"
)

// formatHandler is a log handler for one log format. It drops records while the setting log_format selects
// another format.
type formatHandler struct {
	slog.Handler
	format   string // value of the setting log_format
	settings *settings.Keeper
}

// Enabled reports whether records of the level are written.
func (f formatHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return f.settings.Current().LogFormat == f.format && f.Handler.Enabled(ctx, l)
}

// WithAttrs returns a handler that adds the attributes to each record.
func (f formatHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return formatHandler{f.Handler.WithAttrs(attrs), f.format, f.settings}
}

// WithGroup returns a handler that puts later attributes into a group.
func (f formatHandler) WithGroup(name string) slog.Handler {
	return formatHandler{f.Handler.WithGroup(name), f.format, f.settings}
}

// newLogger returns the service's log, which writes to w. Changes of the log settings take effect immediately.
func newLogger(o *Options, settings *settings.Keeper, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: &settings.LogLevel}
	text, json := slog.NewTextHandler(w, options), slog.NewJSONHandler(w, options)
	var autoHandler slog.Handler = json
	switch {
	case o.LogIsTerminal || o.StartedOnDemand || o.Manager != nil:
		autoHandler = text
	case logs.WritesToJournal(o.LogFile):
		autoHandler = logs.NewJournal(w, options)
	}
	all := []slog.Handler{formatHandler{text, "text", settings}, formatHandler{json, "json", settings},
		formatHandler{autoHandler, "auto", settings}}
	if o.Manager != nil {
		all = append(all, o.Manager.LogHandler)
	}
	return slog.New(slog.NewMultiHandler(all...))
}
