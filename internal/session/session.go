// Package session tells a process, on Windows, that the session of its user ends. Elsewhere that is a signal
// like any other, and ErrEnds is never met.
package session

import (
	"context"
	"errors"
	"time"
)

// ErrEnds is why a context has ended if the session ends: its user logs off, or the machine goes down; ErrClosed if the
// window of the console is closed, which ends nothing but the programs in it. Windows ends a process some 5 s after
// it was told.
var (
	ErrEnds   = errors.New("the user's session is ending")
	ErrClosed = errors.New("the console window was closed")
)

// Grace is the most time that a command gets then between CTRL_BREAK and its end: what it ended with has to be
// stored within the rest of the 5 s.
const Grace = 3 * time.Second

// key is under which a context has the one that ends with the session.
type key struct{}

// Under is a context of which Ends and Ending know, from those that are made of it too, when it has ended with ErrEnds: they may
// have ended before, for another reason.
func Under(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, ctx) }

// Ending is closed once the session ends, of a context below Under; nil of any other.
func Ending(ctx context.Context) <-chan struct{} {
	if of, known := ctx.Value(key{}).(context.Context); known {
		return of.Done()
	}
	return nil
}

// Ends reports whether the session ends, of a context below Under.
func Ends(ctx context.Context) bool { return endedWith(ctx, ErrEnds) }

// Closed reports whether the window of the console is closed, of a context below Under.
func Closed(ctx context.Context) bool { return endedWith(ctx, ErrClosed) }

func endedWith(ctx context.Context, why error) bool {
	of, known := ctx.Value(key{}).(context.Context)
	return known && errors.Is(context.Cause(of), why)
}
