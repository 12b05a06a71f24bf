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

// Cleanup implements control.API.
func (h *API) Cleanup(ctx context.Context, p control.Cleanup,
	reportProgress func(control.RemovalCount) error) (removedTotal control.RemovalCount, err error) {
	days := 7.0
	if p.Days != nil {
		days = *p.Days
	}
	states, err := parseStates(p.State)
	if err != nil {
		return removedTotal, err
	}
	if len(states) == 0 {
		states = []queue.State{queue.Completed, queue.Cancelled}
	}
	ended := store.EndedFilter{States: states,
		Cutoff: h.Store.Now().Add(-time.Duration(days*24*float64(time.Hour)) + time.Millisecond)}
	old, err := readInSlot(ctx, h.UserLimits, control.ClassManyJobs,
		func() (int64, error) { return h.Store.CountEnded(ctx, ended) })
	if err != nil {
		return removedTotal, err
	}
	all := int64(0)
	for _, state := range states {
		all += h.Store.Counts().States[state]
	}
	remaining := max(0, min(old, all-p.Keep))
	if p.DryRun {
		return control.RemovalCount{MatchCount: new(int(remaining))}, nil
	}
	if err := h.Guard.Audit(ctx, "cleanup", fmt.Sprintf("%d jobs", remaining), nil); err != nil {
		return removedTotal, err
	}
	uid := control.PeerFrom(ctx).UID
	for lastReport := time.Now(); remaining > 0; {
		n, err := h.Store.Purge(ctx, ended, int(min(remaining, maxJobsPerCleanupStep)), &uid)
		if err != nil {
			return removedTotal, err
		}
		if n == 0 {
			break // another request has removed the remaining jobs
		}
		removedTotal.Count += n
		remaining -= int64(n)
		if time.Since(lastReport) > 100*time.Millisecond {
			lastReport = time.Now()
			if err := reportProgress(control.RemovalCount{Count: removedTotal.Count, TotalJobs: removedTotal.Count +
				int(remaining)}); err != nil {
				return removedTotal, err
			}
		}
	}
	return removedTotal, nil
}
