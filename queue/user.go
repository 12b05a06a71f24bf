package queue

import (
	"context"
	"math"
)

// NoUser is used instead of a uid for actions that no user has requested.
const NoUser = math.MinInt

type userKey struct{}

// WithUser returns a context for a request of the user uid. The code that serves users round robin reads the
// uid from it.
func WithUser(ctx context.Context, uid int) context.Context {
	return context.WithValue(ctx, userKey{}, uid)
}

// UserOf returns the uid in the context, or NoUser if the context has none.
func UserOf(ctx context.Context) int {
	if uid, named := ctx.Value(userKey{}).(int); named {
		return uid
	}
	return NoUser
}
