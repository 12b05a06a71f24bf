// Package fault makes errors that say what is wrong with a command and what to do, and maps
// errors to exit codes.
//
// Start with Usagef, UserMessage and ExitCode.
package fault

import (
	"errors"
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// exitError is an error with an exit code.
type exitError struct {
	error
	exitCode int
}

// WithExitCode returns an error with the text of err. If the command fails with this error, the process exits with the
// given code.
func WithExitCode(err error, code int) error { return &exitError{err, code} }

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.error }

// ExitsWith returns the exit code.
func (e *exitError) ExitsWith() int { return e.exitCode }

// UsageError is a mistake in the command line.
type UsageError struct{ text string }

// Error returns the message.
func (e *UsageError) Error() string { return e.text }

// Usagef returns a UsageError with a formatted message for the user.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// ExitCode returns the process's exit code for an error.
func ExitCode(err error) int {
	type chosen interface {
		error
		ExitsWith() int
	}
	// An exit code that was set with WithExitCode takes precedence even over a usage error: "queuectl serve" sets a code
	// for some usage errors.
	if e, ok := errors.AsType[chosen](err); ok {
		return e.ExitsWith()
	}
	if _, wrong := errors.AsType[*UsageError](err); wrong {
		return 2
	}
	return control.ErrorCodeInfoOf(err).ExitStatus
}

// UserMessage returns the text of an error for the user, as one line. If err matches queue.ErrDenied, the text begins
// with "denied: ", unless it already begins with a subject, such as "--user: ".
func UserMessage(err error) string {
	text := err.Error()
	if what, _, _ := strings.Cut(text, ";"); errors.Is(err, queue.ErrDenied) && !strings.Contains(what, ":") {
		text = "denied: " + text
	}
	if _, wrong := errors.AsType[*UsageError](err); wrong {
		text = strings.TrimPrefix(text, "queuectl ") // the program's name is already printed before the text
	}
	return strings.TrimSpace(text)
}

// ErrEmptyFlagValue is the error about a flag with an empty value.
var ErrEmptyFlagValue = errors.New("the value is empty; give one, or leave the flag out")

// LineError is an error about one line of a file. It counts as a usage error. LineNumber is 0 if the number is unknown.
type LineError struct {
	InputUnitName string // "line", or another word for the part of the input with the error
	LineNumber    int
	Cause         error
}

// Error returns the message with the line number.
func (e *LineError) Error() string {
	if e.LineNumber == 0 {
		return e.Cause.Error()
	}
	return fmt.Sprintf("%s %d: %v", e.InputUnitName, e.LineNumber, e.Cause)
}

// Unwrap returns the cause.
func (e *LineError) Unwrap() error { return e.Cause }

// WithLineNumber returns err as an error about the line of a file with the given number.
func WithLineNumber(err error, lineNumber int) error {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		err = e.WithBatchIndex(0)
	}
	return &LineError{"line", lineNumber, err}
}

// These are the exit codes of "queuectl run" and "queuectl wait" if no job's exit code applies.
const (
	ExitCodeTimeout  = 124 // the job or the command has timed out
	ExitCodeFailure  = 125 // queuectl itself has failed
	ExitCodeDetached = 130 // the user has interrupted the command, or the job was cancelled
)
