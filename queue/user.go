package queue

import (
	"context"
	"math"
)

// NoUser is the uid for actions that the service takes on its own, without a request of a user.
const NoUser = math.MinInt

type userContextKey struct{}

// WithUserID returns a context for a request of the user uid. The store serves users round robin, and reads the
// uid from this context.
func WithUserID(ctx context.Context, uid int) context.Context {
	return context.WithValue(ctx, userContextKey{}, uid)
}

// UserIDFromContext returns the uid in the context, or NoUser if the context has none.
func UserIDFromContext(ctx context.Context) int {
	if uid, named := ctx.Value(userContextKey{}).(int); named {
		return uid
	}
	return NoUser
}
