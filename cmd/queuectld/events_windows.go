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

// The event log gets maxEvents within eventSpan at most, of maxEvent bytes each: whoever
// floods the service does not flood what all programs share.
const (
	maxEvents = 100
	eventSpan = time.Minute
	maxEvent  = 8 << 10
)

// events tells the event log of Windows what an administrator should know of: that the
// service has started and ended, and its warnings and errors. Its methods may be called at
// once.
type events struct {
	text slog.Handler // writes to the book's line
	book *eventBook
}

// eventBook is what handlers of one event log share.
type eventBook struct {
	mu     sync.Mutex
	report func(kind uint16, text string) error // called under mu
	line   bytes.Buffer                         // guarded by mu
	told   int                                  // in this span; guarded by mu
	left   int                                  // left out of it; guarded by mu
	over   time.Time                            // when it ends; guarded by mu
}

// openEvents is the event log, under the source that was made when the service was
// installed. It is opened when there is something to tell: at boot the service may be there
// before it.
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
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) { // an event has its own
			return slog.Attr{}
		}
		return a
	}}
	return &events{text: slog.NewTextHandler(&book.line, &plain), book: book}
}

// Enabled reports whether records of the level are told.
func (e *events) Enabled(ctx context.Context, l slog.Level) bool { return e.text.Enabled(ctx, l) }

// Handle tells a record.
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

// WithAttrs is the same with these attributes in each record.
func (e *events) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &events{e.text.WithAttrs(attrs), e.book}
}

// WithGroup is the same with later attributes in a group.
func (e *events) WithGroup(name string) slog.Handler { return &events{e.text.WithGroup(name), e.book} }

// started tells that the service has.
func (e *events) started() {
	e.say(windows.EVENTLOG_INFORMATION_TYPE, "queuectl "+cli.Version+" started")
}

// ended tells that the service has, and why if that was not asked for.
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
	e.book.leftOut() // nobody may be there to say it later
	e.book.report(kind, fits(text))
}

// tell reports an event, or counts it where there were too many. The caller holds mu.
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

// leftOut says how many events were, if any. The caller holds mu.
func (b *eventBook) leftOut() {
	if b.left > 0 {
		b.report(windows.EVENTLOG_WARNING_TYPE, fmt.Sprintf("%d more warnings and errors are not shown here; see the service's log", b.left))
	}
	b.left = 0
}

// fits is a text as an event can have it.
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
