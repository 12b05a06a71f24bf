package store

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Ranking keeps the order in which waiting jobs start; see queue.RankOrder.
type Ranking interface {
	// RankOrder returns the settings that determine the ranks of jobs, as of the last commit.
	RankOrder() queue.RankOrder
	// SetRankOrder changes the settings that determine the ranks of jobs. Waiting jobs keep their ranks until
	// Rerank has changed them.
	SetRankOrder(ctx context.Context, o queue.RankOrder) error
	// RerankWaitingJobs computes the ranks of a limited number of waiting jobs from the current settings, and reports
	// whether another call must continue. If the store is closed before all jobs have new ranks, calls
	// continue after it is opened again.
	RerankWaitingJobs(ctx context.Context) (more bool, err error)
}
