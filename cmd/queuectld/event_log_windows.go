package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc/eventlog"

	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/logs"
	"github.com/queuectl/queuectl/internal/osservice/install"
)

// At most maxEventsPerWindow events are written to the event log in each eventLimitWindow, and each event has at most
// maxEventBytes bytes. Without these limits, a flood of warnings could fill the event log, which all programs share.
const (
	maxEventsPerWindow = 100
	eventLimitWindow   = time.Minute
	maxEventBytes      = 8 << 10
)

// eventLogHandler is a slog.Handler for the event log of Windows. It writes the start and the end of the service,
// and its warnings and errors. Its methods may be called concurrently.
type eventLogHandler struct {
	formatter slog.Handler // formats a record and writes it to log.lineBuffer
	log       *eventLog
}

// eventLog is the shared state of all handlers that WithAttrs and WithGroup derive from one handler.
type eventLog struct {
	mu              sync.Mutex
	writeEvent      func(eventType uint16, text string) error // writes an event; called while mu is held
	lineBuffer      bytes.Buffer                              // scratch space for an event; guarded by mu
	eventsInWindow  int                                       // events written in the current window; guarded by mu
	omittedInWindow int                                       // events omitted in the current window; guarded by mu
	windowEnd       time.Time                                 // end of the current window; guarded by mu
}

// openEventLog returns a handler for the event log. The handler opens the log at its first event, because at
// boot the event log may start later than the service.
func openEventLog() *eventLogHandler {
	var log *eventlog.Log
	return newEventLogHandler(func(kind uint16, text string) (err error) {
		if log == nil {
			if log, err = eventlog.Open(install.ServiceName); err != nil {
				return fmt.Errorf("cannot open the event log: %w", err)
			}
		}
		switch kind {
		case windows.EVENTLOG_ERROR_TYPE:
			return log.Error(3, text)
		case windows.EVENTLOG_WARNING_TYPE:
			return log.Warning(2, text)
		}
		return log.Info(1, text)
	})
}

// newEventLogHandler returns a handler that passes each event to a function.
func newEventLogHandler(writeEvent func(eventType uint16, text string) error) *eventLogHandler {
	shared := &eventLog{writeEvent: writeEvent}
	return &eventLogHandler{formatter: logs.NewUntimedHandler(&shared.lineBuffer, slog.LevelWarn), log: shared}
}

// Enabled reports whether records of this level are written to the event log.
func (e *eventLogHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return e.formatter.Enabled(ctx, l)
}

// Handle writes a record to the event log.
func (e *eventLogHandler) Handle(ctx context.Context, r slog.Record) error {
	e.log.mu.Lock()
	defer e.log.mu.Unlock()
	e.log.lineBuffer.Reset()
	if err := e.formatter.Handle(ctx, r); err != nil {
		return err
	}
	kind := uint16(windows.EVENTLOG_WARNING_TYPE)
	if r.Level >= slog.LevelError {
		kind = windows.EVENTLOG_ERROR_TYPE
	}
	return e.log.reportWithinLimit(kind, strings.TrimSuffix(e.log.lineBuffer.String(), "\n"))
}

// WithAttrs returns a handler that adds these attributes to each record.
func (e *eventLogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &eventLogHandler{e.formatter.WithAttrs(attrs), e.log}
}

// WithGroup returns a handler that puts later attributes into a group.
func (e *eventLogHandler) WithGroup(name string) slog.Handler {
	return &eventLogHandler{e.formatter.WithGroup(name), e.log}
}

// reportServiceStart writes an event that says that the service has started.
func (e *eventLogHandler) reportServiceStart() {
	e.reportWithoutLimit(windows.EVENTLOG_INFORMATION_TYPE, "queuectl "+cli.Version+" started")
}

// reportServiceEnd writes an event that says that the service has ended. The event contains err if err is not nil.
func (e *eventLogHandler) reportServiceEnd(err error) {
	if err != nil {
		e.reportWithoutLimit(windows.EVENTLOG_ERROR_TYPE, fmt.Sprintf("the queuectl service ended with exit code %d: %s",
			fault.ExitCode(err), fault.UserMessage(err)))
		return
	}
	e.reportWithoutLimit(windows.EVENTLOG_INFORMATION_TYPE, "queuectl stopped")
}

// reportWithoutLimit writes an event even if maxEventsPerWindow is reached.
func (e *eventLogHandler) reportWithoutLimit(eventType uint16, eventText string) {
	e.log.mu.Lock()
	defer e.log.mu.Unlock()
	// Write the number of omitted events now, because the process may end before the timer that reportWithinLimit starts.
	e.log.reportOmittedCount()
	e.log.writeEvent(eventType, truncateEventText(eventText))
}

// reportWithinLimit writes an event, or counts it as omitted if maxEventsPerWindow is reached. The caller holds mu.
func (l *eventLog) reportWithinLimit(eventType uint16, eventText string) error {
	if now := time.Now(); now.After(l.windowEnd) {
		l.reportOmittedCount()
		l.eventsInWindow, l.windowEnd = 0, now.Add(eventLimitWindow)
	}
	if l.eventsInWindow == maxEventsPerWindow {
		if l.omittedInWindow++; l.omittedInWindow == 1 {
			time.AfterFunc(time.Until(l.windowEnd), func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.reportOmittedCount()
			})
		}
		return nil
	}
	l.eventsInWindow++
	return l.writeEvent(eventType, truncateEventText(eventText))
}

// reportOmittedCount writes an event with the number of omitted events, if there are any. The caller holds mu.
func (l *eventLog) reportOmittedCount() {
	if l.omittedInWindow > 0 {
		l.writeEvent(windows.EVENTLOG_WARNING_TYPE, fmt.Sprintf("%d more warnings and errors are not shown here; "+
			"see the service's log", l.omittedInWindow))
	}
	l.omittedInWindow = 0
}

// truncateEventText shortens a text to the maximum size of an event, and replaces NUL characters.
func truncateEventText(text string) string {
	text = strings.ReplaceAll(text, "\x00", " ")
	if len(text) <= maxEventBytes {
		return text
	}
	end := maxEventBytes
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
