package store

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Ranking keeps the order in which waiting jobs start; see queue.Order.
type Ranking interface {
	// Order returns the settings from which ranks are computed, as of the last commit.
	Order() queue.Order
	// SetOrder changes the settings from which the ranks of jobs are computed. Waiting jobs keep their ranks
	// until Rerank has reached them.
	SetOrder(ctx context.Context, o queue.Order) error
	// Rerank gives a limited number of waiting jobs their ranks under the current order, and reports whether
	// there may be more. It can continue after the store was closed and opened again.
	Rerank(ctx context.Context) (more bool, err error)
}
