// Package fault makes errors that say what is wrong with a command and what to do, and maps
// errors to exit codes.
//
// Start with Usage, Message and ExitCode.
package fault

import (
	"errors"
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// endError is an error with an exit code.
type endError struct {
	error
	code int
}

// WithExit returns an error with an exit code.
func WithExit(err error, code int) error { return &endError{err, code} }

// Unwrap returns the cause.
func (e *endError) Unwrap() error { return e.error }

// ExitsWith returns the exit code.
func (e *endError) ExitsWith() int { return e.code }

// UsageError is a mistake in the command line.
type UsageError struct{ text string }

// Error returns the message.
func (e *UsageError) Error() string { return e.text }

// Usage returns a UsageError with a formatted message for the user.
func Usage(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// ExitCode returns the process's exit code for an error.
func ExitCode(err error) int {
	type chosen interface {
		error
		ExitsWith() int
	}
	// A chosen exit code comes before the code for usage errors, because a usage error of serve can have
	// its own exit code.
	if e, ok := errors.AsType[chosen](err); ok {
		return e.ExitsWith()
	}
	if _, wrong := errors.AsType[*UsageError](err); wrong {
		return 2
	}
	return control.RowOf(err).Exit
}

// Message returns the text of an error for the user, as one line. If a denial does not begin with its
// subject, Message adds "denied: " in front.
func Message(err error) string {
	text := err.Error()
	if what, _, _ := strings.Cut(text, ";"); errors.Is(err, queue.ErrDenied) && !strings.Contains(what, ":") {
		text = "denied: " + text
	}
	if _, wrong := errors.AsType[*UsageError](err); wrong {
		text = strings.TrimPrefix(text, "queuectl ") // the program's name is already printed before the text
	}
	return strings.TrimSpace(text)
}

var ErrEmpty = errors.New("the value is empty; give one, or leave the flag out")
