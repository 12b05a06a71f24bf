package store

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Ranking keeps the order in which waiting jobs start; see queue.Order.
type Ranking interface {
	// Order returns the settings that determine the ranks of jobs, as of the last commit.
	Order() queue.Order
	// SetOrder changes the settings that determine the ranks of jobs. Waiting jobs keep their ranks until
	// Rerank has changed them.
	SetOrder(ctx context.Context, o queue.Order) error
	// Rerank computes the ranks of a limited number of waiting jobs from the current settings, and reports
	// whether another call must continue. If the store is closed before all jobs have new ranks, calls
	// continue after it is opened again.
	Rerank(ctx context.Context) (more bool, err error)
}
