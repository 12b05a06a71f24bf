package service

import (
	"context"
	"io"
	"log/slog"

	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/service/settings"
)

// logFormatHandler is a log handler for one log format. It drops records while the setting log_format selects
// another format.
type logFormatHandler struct {
	slog.Handler
	format   string // value of the setting log_format
	settings *settings.Keeper
}

// Enabled reports whether records of the level are written.
func (f logFormatHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return f.settings.CurrentConfig().LogFormat == f.format && f.Handler.Enabled(ctx, l)
}

// WithAttrs returns a handler that adds the attributes to each record.
func (f logFormatHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logFormatHandler{f.Handler.WithAttrs(attrs), f.format, f.settings}
}

// WithGroup returns a handler that puts later attributes into a group.
func (f logFormatHandler) WithGroup(name string) slog.Handler {
	return logFormatHandler{f.Handler.WithGroup(name), f.format, f.settings}
}

// newLogger returns the service's log, which writes to w. Changes of the log settings take effect immediately.
func newLogger(o *Options, settings *settings.Keeper, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: &settings.LogLevel}
	text, json := slog.NewTextHandler(w, options), slog.NewJSONHandler(w, options)
	var autoHandler slog.Handler = json
	switch {
	case o.LogIsTerminal || o.StartedOnDemand || o.ServiceManager != nil:
		autoHandler = text
	case logs.WritesToJournal(o.LogFile):
		autoHandler = logs.NewJournalHandler(w, options)
	}
	all := []slog.Handler{logFormatHandler{text, "text", settings}, logFormatHandler{json, "json", settings},
		logFormatHandler{autoHandler, "auto", settings}}
	if o.ServiceManager != nil {
		all = append(all, o.ServiceManager.LogHandler)
	}
	return slog.New(slog.NewMultiHandler(all...))
}
