package queue

import (
	"context"
	"math"
)

// NoUser is the uid for actions that the service takes on its own, without a request of a user.
const NoUser = math.MinInt

type userKey struct{}

// WithUser returns a context for a request of the user uid. The store serves users round robin, and reads the
// uid from this context.
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
