// Package session detects, on Windows, that the user's session is ending. Other systems announce the
// end of a session by an ordinary signal, so ErrSessionEnding and ErrConsoleClosed occur only on
// Windows.
package session

import (
	"context"
	"errors"
	"time"
)

// ErrSessionEnding is the cause of a context's end if the session ends: the user logs off, or the
// machine shuts down. ErrConsoleClosed is the cause if the user closes the console window, which ends
// only the programs in it. In both cases Windows ends a process about 5 s after the notification.
var (
	ErrSessionEnding = errors.New("the user's session is ending")
	ErrConsoleClosed = errors.New("the console window was closed")
)

// GracePeriod is how long commands may take to end after CTRL_BREAK when the session ends. The rest of the 5
// s is for storing the results of the commands.
const GracePeriod = 3 * time.Second

// key is the key of the context value that WithSession sets.
type key struct{}

// WithSession marks ctx as the context that ends with the session. IsEnding, ConsoleClosed and
// EndingChannel also work with a context that is derived from ctx and has ended earlier for another
// reason.
func WithSession(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, ctx) }

// EndingChannel returns a channel that is closed when the context marked by WithSession ends, for
// example because the session ends. It returns nil if ctx is not derived from WithSession.
func EndingChannel(ctx context.Context) <-chan struct{} {
	if of, known := ctx.Value(key{}).(context.Context); known {
		return of.Done()
	}
	return nil
}

// IsEnding reports whether the session is ending, for a context derived from WithSession.
func IsEnding(ctx context.Context) bool { return endedWith(ctx, ErrSessionEnding) }

// ConsoleClosed reports whether the console window was closed, for a context derived from WithSession.
func ConsoleClosed(ctx context.Context) bool { return endedWith(ctx, ErrConsoleClosed) }

func endedWith(ctx context.Context, why error) bool {
	of, known := ctx.Value(key{}).(context.Context)
	return known && errors.Is(context.Cause(of), why)
}
