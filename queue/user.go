package queue

import (
	"context"
	"math"
)

// NoUserUID is the uid for actions that no user has requested, but that the service takes by itself.
const NoUserUID = math.MinInt

type userContextKey struct{}

// WithUserID returns a context for a request of the user uid. The store reads the uid from this context, to serve users
// round robin.
func WithUserID(ctx context.Context, uid int) context.Context {
	return context.WithValue(ctx, userContextKey{}, uid)
}

// UserIDFromContext returns the uid in the context, or NoUserUID if the context has none.
func UserIDFromContext(ctx context.Context) int {
	if uid, named := ctx.Value(userContextKey{}).(int); named {
		return uid
	}
	return NoUserUID
}
