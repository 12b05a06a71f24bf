// Package logs writes what a service and its runners log: into a file that stays small, or
// for systemd's journal.
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

// maxLog is how large the log of a background service may grow, in bytes; then it
// becomes the old one, in place of the one before.
const maxLog = 1 << 20

// Bounded keeps a log, and one old one, at about maxLog each. The file stays
// open in runners too, so it is copied and cut short, not renamed: everybody
// appends to it.
type Bounded struct{ File *os.File }

// Write appends a message, and puts the log aside when it has grown too large. A
// log that cannot be put aside is cut short all the same.
func (l Bounded) Write(p []byte) (int, error) {
	n, err := l.File.Write(p)
	l.putAside()
	return n, err
}

// putAside copies a log that has grown too large, and cuts it short.
func (l Bounded) putAside() {
	info, err := l.File.Stat()
	if err != nil || info.Size() <= maxLog {
		return
	}
	if old, err := os.ReadFile(l.File.Name()); err == nil {
		os.WriteFile(l.File.Name()+".1", old, 0o600)
	}
	os.Truncate(l.File.Name(), 0) // what is opened to be appended to cannot be cut itself on Windows
}

// Open opens the log of a background service. One that has grown past 1 MiB
// is put aside, in place of the one put aside before.
func Open(path string) (*os.File, error) {
	if err := statedir.Make(filepath.Dir(path)); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the log: %w", err)
	}
	f.Chmod(0o600) // whatever the umask; on an error the log can be written to all the same
	Bounded{f}.putAside()
	return f, nil
}

// OfRunner is the log of a runner: text, or the journal's own, of what a person should
// know.
func OfRunner(w *os.File) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	if ToJournal(w) {
		return slog.New(NewJournal(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// journal writes records for systemd's journal: a message of all they tell but the time,
// which the journal notes itself, and each of their attributes as a field as well,
// QUEUECTL_JOB and so on. Where the journal does not take fields the message goes to
// its stream, after the priority that its level is there (sd-daemon(3)).
type journal struct {
	text   slog.Handler
	out    *journalOut
	fields map[string]string // of the attributes that all records have; never changed
	prefix string            // of groups, in the names of fields
}

// journalOut is what the handlers of one log share.
type journalOut struct {
	stream io.Writer

	mu   sync.Mutex
	line bytes.Buffer // guarded by mu
}

// NewJournal writes records as the journal takes them.
func NewJournal(w io.Writer, o *slog.HandlerOptions) slog.Handler {
	out := &journalOut{stream: w}
	timeless := slog.HandlerOptions{Level: o.Level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return a
	}}
	return &journal{text: slog.NewTextHandler(&out.line, &timeless), out: out, prefix: "QUEUECTL_"}
}

// Enabled reports whether records of the level are written.
func (j *journal) Enabled(ctx context.Context, l slog.Level) bool { return j.text.Enabled(ctx, l) }

// Handle writes a record.
func (j *journal) Handle(ctx context.Context, r slog.Record) error {
	fields := maps.Clone(j.fields)
	if fields == nil {
		fields = map[string]string{}
	}
	r.Attrs(func(a slog.Attr) bool {
		addField(fields, j.prefix, a)
		return true
	})
	j.out.mu.Lock()
	defer j.out.mu.Unlock()
	j.out.line.Reset()
	if err := j.text.Handle(ctx, r); err != nil {
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
	if systemd.Log(strings.TrimSuffix(j.out.line.String(), "\n"), priority, fields) == nil {
		return nil
	}
	_, err := fmt.Fprintf(j.out.stream, "<%d>%s", priority, j.out.line.Bytes())
	return err
}

// addField adds an attribute to the fields of a record. A field's name is of A-Z, 0-9
// and _.
func addField(fields map[string]string, prefix string, a slog.Attr) {
	name := prefix + strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' {
			return c - 'a' + 'A'
		}
		if c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, a.Key)
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		for _, inner := range value.Group() {
			addField(fields, name+"_", inner)
		}
		return
	}
	fields[name] = value.String()
}

// WithAttrs is the same with these attributes in each record.
func (j *journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	fields := maps.Clone(j.fields)
	if fields == nil {
		fields = map[string]string{}
	}
	for _, a := range attrs {
		addField(fields, j.prefix, a)
	}
	return &journal{j.text.WithAttrs(attrs), j.out, fields, j.prefix}
}

// WithGroup is the same with later attributes in a group.
func (j *journal) WithGroup(name string) slog.Handler {
	return &journal{j.text.WithGroup(name), j.out, j.fields, j.prefix + strings.ToUpper(name) + "_"}
}
