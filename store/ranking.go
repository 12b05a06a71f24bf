package store

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// Ranking keeps the order in which waiting jobs start; see queue.RankPolicy.
type Ranking interface {
	// RankOrder returns the settings that determine the ranks of jobs, as of the last commit.
	RankOrder() queue.RankPolicy
	// SetRankOrder changes the settings that determine the ranks of jobs. Each waiting job keeps its rank until
	// RerankWaitingJobs has changed it.
	SetRankOrder(ctx context.Context, o queue.RankPolicy) error
	// RerankWaitingJobs computes the ranks of a limited number of waiting jobs from the current settings. more reports
	// whether further jobs need new ranks, so that another call is needed. If the store is closed before all jobs have new
	// ranks, calls continue the work after the store is opened again.
	RerankWaitingJobs(ctx context.Context) (more bool, err error)
}
