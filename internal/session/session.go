// Package session detects on Windows that the user's session is ending. On other systems the process receives
// an ordinary signal instead, so ErrSessionEnding and ErrConsoleClosed occur only on Windows.
package session

import (
	"context"
	"errors"
	"time"
)

// ErrSessionEnding is the cause (context.Cause) of a context that ends with the session: the user logs off,
// or the machine shuts down. ErrConsoleClosed is the cause if the user closes the console window. Windows
// then ends only the programs in that window. In both cases Windows ends a process about 5 s after the
// notification.
var (
	ErrSessionEnding = errors.New("the user's session is ending")
	ErrConsoleClosed = errors.New("the console window was closed")
)

// GracePeriod is how long commands may take to end after CTRL_BREAK when the session ends. Windows ends the
// service about 2 s later, so it can still store the results of the commands.
const GracePeriod = 3 * time.Second

// sessionKey is the key of the context value that MarkSession sets.
type sessionKey struct{}

// MarkSession marks ctx as the context that ends with the session. IsEnding, ConsoleClosed and Done then work
// with every context that is derived from the result. They work even if the derived context has ended earlier
// for another reason.
func MarkSession(ctx context.Context) context.Context {
	return context.WithValue(ctx, sessionKey{}, ctx)
}

// Done returns a channel that is closed when the context of MarkSession ends, for example because the
// session ends. It returns nil if ctx is not derived from such a context.
func Done(ctx context.Context) <-chan struct{} {
	if marked, known := ctx.Value(sessionKey{}).(context.Context); known {
		return marked.Done()
	}
	return nil
}

// IsEnding reports whether the session is ending. ctx must be derived from the result of MarkSession.
func IsEnding(ctx context.Context) bool { return endedWith(ctx, ErrSessionEnding) }

// ConsoleClosed reports whether the user has closed the console window. ctx must be derived from the result
// of MarkSession.
func ConsoleClosed(ctx context.Context) bool { return endedWith(ctx, ErrConsoleClosed) }

// endedWith reports whether the context that MarkSession has marked ended with the given cause.
func endedWith(ctx context.Context, cause error) bool {
	marked, known := ctx.Value(sessionKey{}).(context.Context)
	return known && errors.Is(context.Cause(marked), cause)
}
