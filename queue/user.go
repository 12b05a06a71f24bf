package queue

import (
	"context"
	"math"
)

// NoUser stands for whatever the service does of itself.
const NoUser = math.MinInt

type userKey struct{}

// WithUser is ctx for what a user asks, so that whoever takes turns knows whose turn it is.
func WithUser(ctx context.Context, uid int) context.Context {
	return context.WithValue(ctx, userKey{}, uid)
}

// UserOf is the uid of who asks, NoUser if nobody was named.
func UserOf(ctx context.Context) int {
	if uid, named := ctx.Value(userKey{}).(int); named {
		return uid
	}
	return NoUser
}
