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
	"github.com/queuectl/queuectl/internal/register"
)

// These constants bound the event log to maxEvents events within eventSpan, of at most maxEvent
// bytes each. All programs share the event log, so a flood of warnings must not fill it.
const (
	maxEvents = 100
	eventSpan = time.Minute
	maxEvent  = 8 << 10
)

// events is a slog.Handler for the event log of Windows. It reports the start and the end of the
// service, and its warnings and errors. The methods may be called concurrently.
type events struct {
	text slog.Handler // writes to the book's line
	book *eventBook
}

// eventBook is the state that the handlers of one event log share.
type eventBook struct {
	mu     sync.Mutex
	report func(kind uint16, text string) error // called under mu
	line   bytes.Buffer                         // scratch space for an event; guarded by mu
	told   int                                  // events reported in this span; guarded by mu
	left   int                                  // events omitted in this span; guarded by mu
	over   time.Time                            // end of this span; guarded by mu
}

// openEvents returns the event log, under the source that was added when the service was installed.
// It opens the log at the first event, because at boot the service may start before the event log.
func openEvents() *events {
	var log *eventlog.Log
	return newEvents(func(kind uint16, text string) (err error) {
		if log == nil {
			if log, err = eventlog.Open(register.Name); err != nil {
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

func newEvents(report func(kind uint16, text string) error) *events {
	book := &eventBook{report: report}
	plain := slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		// An event has its own time and level.
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return a
	}}
	return &events{text: slog.NewTextHandler(&book.line, &plain), book: book}
}

// Enabled reports whether records of the level are reported.
func (e *events) Enabled(ctx context.Context, l slog.Level) bool { return e.text.Enabled(ctx, l) }

// Handle reports a record.
func (e *events) Handle(ctx context.Context, r slog.Record) error {
	e.book.mu.Lock()
	defer e.book.mu.Unlock()
	e.book.line.Reset()
	if err := e.text.Handle(ctx, r); err != nil {
		return err
	}
	kind := uint16(windows.EVENTLOG_WARNING_TYPE)
	if r.Level >= slog.LevelError {
		kind = windows.EVENTLOG_ERROR_TYPE
	}
	return e.book.tell(kind, strings.TrimSuffix(e.book.line.String(), "\n"))
}

// WithAttrs returns a handler that adds these attributes to each record.
func (e *events) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &events{e.text.WithAttrs(attrs), e.book}
}

// WithGroup returns a handler that puts later attributes into a group.
func (e *events) WithGroup(name string) slog.Handler { return &events{e.text.WithGroup(name), e.book} }

// started reports that the service has started.
func (e *events) started() {
	e.say(windows.EVENTLOG_INFORMATION_TYPE, "queuectl "+cli.Version+" started")
}

// ended reports that the service has ended, with the error if there is one.
func (e *events) ended(err error) {
	if err != nil {
		e.say(windows.EVENTLOG_ERROR_TYPE, fmt.Sprintf("the queuectl service ended with exit code %d: %s", cli.ExitCode(err), cli.Message(err)))
		return
	}
	e.say(windows.EVENTLOG_INFORMATION_TYPE, "queuectl stopped")
}

func (e *events) say(kind uint16, text string) {
	e.book.mu.Lock()
	defer e.book.mu.Unlock()
	e.book.leftOut() // the process may end before the timer reports it
	e.book.report(kind, fits(text))
}

// tell reports an event, or counts it if the limit is reached. The caller holds mu.
func (b *eventBook) tell(kind uint16, text string) error {
	if now := time.Now(); now.After(b.over) {
		b.leftOut()
		b.told, b.over = 0, now.Add(eventSpan)
	}
	if b.told == maxEvents {
		if b.left++; b.left == 1 {
			time.AfterFunc(time.Until(b.over), func() {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.leftOut()
			})
		}
		return nil
	}
	b.told++
	return b.report(kind, fits(text))
}

// leftOut reports how many events were omitted, if any. The caller holds mu.
func (b *eventBook) leftOut() {
	if b.left > 0 {
		b.report(windows.EVENTLOG_WARNING_TYPE, fmt.Sprintf("%d more warnings and errors are not shown here; see the service's log", b.left))
	}
	b.left = 0
}

// fits shortens a text to the size of an event and replaces NUL characters.
func fits(text string) string {
	text = strings.ReplaceAll(text, "\x00", " ")
	if len(text) <= maxEvent {
		return text
	}
	end := maxEvent
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
