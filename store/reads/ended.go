package reads

import (
	"context"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// EndedJobsFromClauses returns FROM clauses that together select the ended jobs of a state that match a filter, and the
// arguments of each clause. With ORDER BY ended_at, each clause reads its jobs from an index, without
// sorting.
func EndedJobsFromClauses(filter *store.EndedJobFilter, state queue.State) (fromClauses []string, argLists [][]any) {
	const (
		clauseForAll   = `jobs INDEXED BY jobs_ended WHERE kept = ? AND state = ? AND state > 5 AND ended_at < ?`
		clauseForQueue = `jobs INDEXED BY jobs_kept WHERE queue = ? AND kept = 1 AND state = ? AND ended_at < ?`
	)
	before := int64(filter.EndedBefore)
	switch {
	case filter.RetentionQueue == nil:
		return []string{clauseForAll, clauseForAll},
			[][]any{{int64(0), int64(state), before}, {int64(1), int64(state), before}}
	case *filter.RetentionQueue == "":
		return []string{clauseForAll}, [][]any{{int64(0), int64(state), before}}
	}
	return []string{clauseForQueue}, [][]any{{*filter.RetentionQueue, int64(state), before}}
}

// CountEndedJobs returns how many jobs match the filter.
func (s *JobReader) CountEndedJobs(ctx context.Context, filter store.EndedJobFilter) (total int64, err error) {
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		for _, state := range filter.States {
			from, args := EndedJobsFromClauses(&filter, state)
			for i := range from {
				n, err := r.QueryNumber(`SELECT count(*) FROM `+from[i], args[i]...)
				if err != nil {
					return err
				}
				total += n
			}
		}
		return nil
	})
	return total, err
}

// RemovableUserBytes implements store.Quotas. It knows the size of the outputs without reading them. It reads only
// inputs of more than MaxKeptInputBytes bytes, so it reads at most neededBytes/MaxKeptInputBytes+1 inputs.
func (s *JobReader) RemovableUserBytes(ctx context.Context, uid int, neededBytes int64) (removableBytes int64,
	err error) {
	outputs := s.userUsage(uid).OutputBytes
	if outputs >= neededBytes {
		return outputs, nil
	}
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		removableBytes = outputs
		return r.Query(func(r database.Row) (bool, error) {
			removableBytes += r.Int64(0)
			return removableBytes < neededBytes, nil
		}, `SELECT octet_length(i.input) FROM jobs INDEXED BY jobs_inputs CROSS JOIN inputs AS i ON i.seq = jobs.seq
			WHERE uid = ? AND state > 5 AND jobs.input IS NULL AND state <> 7 LIMIT ?`, int64(uid),
			(neededBytes-outputs)/store.MaxKeptInputBytes+1)
	})
	return removableBytes, err
}
