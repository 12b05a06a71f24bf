// Package session detects, on Windows, that the user's session is ending. Other systems announce
// that by an ordinary signal, so ErrEnds and ErrClosed occur only on Windows.
package session

import (
	"context"
	"errors"
	"time"
)

// ErrEnds is the cause of a context's end if the session ends: the user logs off, or the machine
// shuts down. ErrClosed is the cause if the console window is closed, which ends only the programs
// in it. In both cases Windows ends a process about 5 s after the notification.
var (
	ErrEnds   = errors.New("the user's session is ending")
	ErrClosed = errors.New("the console window was closed")
)

// Grace is how long commands may take to end after CTRL_BREAK when the session ends. The rest of
// the 5 s is for storing their results.
const Grace = 3 * time.Second

// key is the context key for the context that Under marks.
type key struct{}

// Under marks ctx as the context that ends with the session. Ends, Closed and Ending find it even
// if they get a context that was derived from it and has ended earlier for another reason.
func Under(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, ctx) }

// Ending returns a channel that is closed when the context that Under marked ends, for example because
// the session ends. It returns nil if ctx is not derived from Under.
func Ending(ctx context.Context) <-chan struct{} {
	if of, known := ctx.Value(key{}).(context.Context); known {
		return of.Done()
	}
	return nil
}

// Ends reports whether the session is ending, for a context derived from Under.
func Ends(ctx context.Context) bool { return endedWith(ctx, ErrEnds) }

// Closed reports whether the console window was closed, for a context derived from Under.
func Closed(ctx context.Context) bool { return endedWith(ctx, ErrClosed) }

func endedWith(ctx context.Context, why error) bool {
	of, known := ctx.Value(key{}).(context.Context)
	return known && errors.Is(context.Cause(of), why)
}
