// Package session detects that the user's Windows session is ending. On other systems, an ordinary signal ends the
// process when the session ends, so ErrSessionEnding and ErrConsoleClosed occur only on Windows.
package session

import (
	"context"
	"errors"
	"time"
)

// ErrSessionEnding is the cause (context.Cause) of a context that ends because the session ends: the user logs off, or
// the machine shuts down. ErrConsoleClosed is the cause if the user closes the console window. Then Windows ends only
// the programs in that window. In both cases, Windows ends a process about 5 s after it has notified the process.
var (
	ErrSessionEnding = errors.New("the user's session is ending")
	ErrConsoleClosed = errors.New("the console window was closed")
)

// CommandGracePeriod is how long commands may take to end after CTRL_BREAK when the session ends. Windows ends the
// service about 2 s after this period. In these 2 s the service stores the results of the commands.
const CommandGracePeriod = 3 * time.Second

// sessionContextKey is the key of the context value that MarkSessionContext sets.
type sessionContextKey struct{}

// MarkSessionContext marks ctx as the context that ends with the session. The functions IsEnding, ConsoleClosed and
// Done then accept every context that is derived from the result, even one that has ended earlier for another reason.
func MarkSessionContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, sessionContextKey{}, ctx)
}

// Done returns a channel that is closed when the context that MarkSessionContext has marked ends, for example because
// the session ends. It returns nil if ctx is not derived from such a context.
func Done(ctx context.Context) <-chan struct{} {
	if marked, known := ctx.Value(sessionContextKey{}).(context.Context); known {
		return marked.Done()
	}
	return nil
}

// IsEnding reports whether the session is ending. ctx must be derived from the result of MarkSessionContext.
func IsEnding(ctx context.Context) bool { return sessionEndedWith(ctx, ErrSessionEnding) }

// ConsoleClosed reports whether the user has closed the console window. ctx must be derived from the result
// of MarkSessionContext.
func ConsoleClosed(ctx context.Context) bool { return sessionEndedWith(ctx, ErrConsoleClosed) }

// sessionEndedWith reports whether the context that MarkSessionContext has marked ended with the given cause.
func sessionEndedWith(ctx context.Context, cause error) bool {
	marked, known := ctx.Value(sessionContextKey{}).(context.Context)
	return known && errors.Is(context.Cause(marked), cause)
}
