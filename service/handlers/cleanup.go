package handlers

import (
	"context"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// maxJobsPerCleanupStep is the number of jobs that cleanup removes in one transaction.
const maxJobsPerCleanupStep = 200

// RemoveOldJobs implements control.API.
func (h *API) RemoveOldJobs(ctx context.Context, p control.CleanupParams,
	reportProgress func(control.RemovalCount) error) (removedTotal control.RemovalCount, err error) {
	days := 7.0
	if p.MinAgeDays != nil {
		days = *p.MinAgeDays
	}
	states, err := parseStates(p.States)
	if err != nil {
		return removedTotal, err
	}
	if len(states) == 0 {
		states = []queue.State{queue.Completed, queue.Cancelled}
	}
	ended := store.EndedJobFilter{States: states,
		EndedBefore: h.Store.Now().Add(-time.Duration(days*24*float64(time.Hour)) + time.Millisecond),
		MinKeptJobs: p.KeepNewestJobs}
	old, err := withReadSlot(ctx, h.UserLimits, control.ClassManyJobsRead,
		func() (int64, error) { return h.Store.CountEndedJobs(ctx, ended) })
	if err != nil {
		return removedTotal, err
	}
	all := int64(0)
	for _, state := range states {
		all += h.Store.Counts().JobsByState[state]
	}
	remaining := max(0, min(old, all-p.KeepNewestJobs))
	if p.DryRun {
		return control.RemovalCount{SelectedCount: new(int(remaining))}, nil
	}
	if err := h.Guard.RecordAudit(ctx, "cleanup", fmt.Sprintf("%d jobs", remaining), nil); err != nil {
		return removedTotal, err
	}
	uid := control.PeerFrom(ctx).UID
	for lastReport := time.Now(); remaining > 0; {
		n, err := h.Store.PurgeEndedJobs(ctx, ended, int(min(remaining, maxJobsPerCleanupStep)), &uid)
		if err != nil {
			return removedTotal, err
		}
		if n == 0 {
			break // another request has removed the remaining jobs
		}
		removedTotal.RemovedJobs += n
		remaining -= int64(n)
		if time.Since(lastReport) > 100*time.Millisecond {
			lastReport = time.Now()
			if err := reportProgress(control.RemovalCount{RemovedJobs: removedTotal.RemovedJobs,
				JobsToRemove: removedTotal.RemovedJobs +
					int(remaining)}); err != nil {
				return removedTotal, err
			}
		}
	}
	return removedTotal, nil
}
