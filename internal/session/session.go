// Package session tells a process, on Windows, that the session of its user ends. Elsewhere that is a signal
// like any other, and ErrEnds is never met.
package session

import (
	"context"
	"errors"
	"time"
)

// ErrEnds is why a context has ended if the session ends: its user logs off, the machine goes down, or the
// window of the console is closed. Windows ends a process some 5 s after it was told.
var ErrEnds = errors.New("the user's session ends")

// Grace is the most time that a command gets then between CTRL_BREAK and its end: what it ended with has to be
// stored within the rest of the 5 s.
const Grace = 3 * time.Second

// Ends reports whether a context has ended because the session ends.
func Ends(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrEnds) }
