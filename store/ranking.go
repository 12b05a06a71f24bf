package store

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Ranking keeps the order in which waiting jobs start; see queue.Order.
type Ranking interface {
	// Order returns the settings from which ranks are computed, as of the last commit.
	Order() queue.Order
	// SetOrder changes the order by which jobs are ranked, and ranks all waiting jobs again, which takes
	// about ten seconds for a million jobs. The service calls it when it starts, before it claims jobs.
	SetOrder(ctx context.Context, o queue.Order) error
}
