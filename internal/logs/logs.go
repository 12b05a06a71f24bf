// Package logs writes the logs of the service and its runners, to a file of bounded size or to
// systemd's journal.
package logs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/queuectl/queuectl/internal/statedir"
	"github.com/queuectl/queuectl/internal/systemd"
)

// maxLogBytes is the size in bytes above which the log of a background service is rotated. Rotation copies
// the log to a second file, which overwrites the previous copy, and then truncates the log.
const maxLogBytes = 1 << 20

// RotatingFile keeps a log and one rotated log, of about maxLogBytes bytes each. To rotate, it copies and truncates the
// log instead of renaming it, because runners also have the file open and append to it.
type RotatingFile struct{ File *os.File }

// Write appends a message, and rotates the log if it is too large. It truncates the log even if the
// copy fails.
func (l RotatingFile) Write(p []byte) (int, error) {
	n, err := l.File.Write(p)
	l.rotate()
	return n, err
}

// rotate copies the log to a second file and truncates it, if it is larger than maxLogBytes.
func (l RotatingFile) rotate() {
	info, err := l.File.Stat()
	if err != nil || info.Size() <= maxLogBytes {
		return
	}
	if old, err := os.ReadFile(l.File.Name()); err == nil {
		os.WriteFile(l.File.Name()+".1", old, 0o600)
	}
	// Truncate the file by name, because Windows cannot truncate a file that is open for appending.
	os.Truncate(l.File.Name(), 0)
}

// OpenServiceLog opens the log of a background service. It rotates a log that is larger than maxLogBytes.
func OpenServiceLog(path string) (*os.File, error) {
	if err := statedir.Create(filepath.Dir(path)); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the log: %w", err)
	}
	// Set the mode regardless of the umask. Ignore an error, because the log is still usable.
	f.Chmod(0o600)
	RotatingFile{f}.rotate()
	return f, nil
}

// NewRunnerLogger returns the logger of a runner, as text or for systemd's journal. It omits records below
// level Info.
func NewRunnerLogger(w *os.File) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	if WritesToJournal(w) {
		return slog.New(NewJournalHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// journalHandler is a slog.Handler for systemd's journal. Each record is one journal message. The text of the message
// contains everything except the time, which the journal adds. Each attribute of the record is also a field of the
// message, such as QUEUECTL_JOB.
//
// If the journal does not accept messages with fields, the handler writes the text to a stream instead, with a priority
// prefix (sd-daemon(3)).
type journalHandler struct {
	textHandler  slog.Handler // formats the message
	sharedOutput *journalOutput
	recordFields map[string]string // fields of every record, from WithAttrs; handlers share the map, so it never changes
	fieldPrefix  string            // prefix of field names; it includes the names of the groups
}

// journalOutput is the state that the handlers of one log share.
type journalOutput struct {
	fallbackWriter io.Writer

	mu            sync.Mutex
	messageBuffer bytes.Buffer // scratch space for a message; guarded by mu
}

// NewJournalHandler returns a handler that writes records to systemd's journal. If the journal does not accept them,
// the handler writes them to w.
func NewJournalHandler(w io.Writer, o *slog.HandlerOptions) slog.Handler {
	out := &journalOutput{fallbackWriter: w}
	return &journalHandler{textHandler: NewUntimedHandler(&out.messageBuffer, o.Level), sharedOutput: out,
		recordFields: map[string]string{}, fieldPrefix: "QUEUECTL_"}
}

// NewUntimedHandler returns a handler that writes records as text without their time and level. It is for a log that
// stores the time and the level separately.
func NewUntimedHandler(w io.Writer, minLevel slog.Leveler) slog.Handler {
	options := slog.HandlerOptions{Level: minLevel, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return a
	}}
	return slog.NewTextHandler(w, &options)
}

// Enabled reports whether records of the level are written.
func (j *journalHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return j.textHandler.Enabled(ctx, l)
}

// Handle writes a record.
func (j *journalHandler) Handle(ctx context.Context, r slog.Record) error {
	fields := maps.Clone(j.recordFields)
	r.Attrs(func(a slog.Attr) bool {
		addField(fields, j.fieldPrefix, a)
		return true
	})
	j.sharedOutput.mu.Lock()
	defer j.sharedOutput.mu.Unlock()
	j.sharedOutput.messageBuffer.Reset()
	if err := j.textHandler.Handle(ctx, r); err != nil {
		return err
	}
	priority := 7
	switch {
	case r.Level >= slog.LevelError:
		priority = 3
	case r.Level >= slog.LevelWarn:
		priority = 4
	case r.Level >= slog.LevelInfo:
		priority = 6
	}
	if systemd.LogToJournal(strings.TrimSuffix(j.sharedOutput.messageBuffer.String(), "\n"), priority, fields) == nil {
		return nil
	}
	_, err := fmt.Fprintf(j.sharedOutput.fallbackWriter, "<%d>%s", priority, j.sharedOutput.messageBuffer.Bytes())
	return err
}

// addField adds an attribute to the fields of a record. It converts the attribute's name to the characters A-Z, 0-9 and
// _, which the journal allows.
func addField(fields map[string]string, prefix string, a slog.Attr) {
	name := prefix + strings.Map(func(c rune) rune {
		if c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, strings.ToUpper(a.Key))
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		for _, inner := range value.Group() {
			addField(fields, name+"_", inner)
		}
		return
	}
	fields[name] = value.String()
}

// WithAttrs returns a handler that adds these attributes to each record.
func (j *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	fields := maps.Clone(j.recordFields)
	for _, a := range attrs {
		addField(fields, j.fieldPrefix, a)
	}
	return &journalHandler{j.textHandler.WithAttrs(attrs), j.sharedOutput, fields, j.fieldPrefix}
}

// WithGroup returns a handler that puts later attributes into a group.
func (j *journalHandler) WithGroup(name string) slog.Handler {
	return &journalHandler{j.textHandler.WithGroup(name), j.sharedOutput, j.recordFields, j.fieldPrefix +
		strings.ToUpper(name) + "_"}
}
