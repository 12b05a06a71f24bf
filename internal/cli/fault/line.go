package fault

import (
	"errors"
	"fmt"

	"github.com/queuectl/queuectl/queue"
)

// AtIndex adds the number n of the job to an error about one of several jobs.
func AtIndex(err error, n int) error {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		return e.WithIndex(n)
	}
	return err
}

// LineError is an error about one line of a file. It counts as a usage error. Line is 0 if the line is
// unknown.
type LineError struct {
	Part  string // "line", or another name for a part of the input
	Line  int
	Cause error
}

// Error returns the message with the line number.
func (e *LineError) Error() string {
	if e.Line == 0 {
		return e.Cause.Error()
	}
	return fmt.Sprintf("%s %d: %v", e.Part, e.Line, e.Cause)
}

// Unwrap returns the cause.
func (e *LineError) Unwrap() error { return e.Cause }

func AtLine(err error, line int) error {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		err = e.WithIndex(0)
	}
	return &LineError{"line", line, err}
}
