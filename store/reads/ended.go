package reads

import (
	"context"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// EndedFrom returns FROM clauses that together select the ended jobs of a state that match a filter, and the
// arguments of each clause. With ORDER BY ended_at, each clause reads its jobs from an index, without
// sorting.
func EndedFrom(ended *store.EndedFilter, state queue.State) (fromClauses []string, argLists [][]any) {
	const (
		clauseForAll   = `jobs INDEXED BY jobs_ended WHERE kept = ? AND state = ? AND state > 5 AND ended_at < ?`
		clauseForQueue = `jobs INDEXED BY jobs_kept WHERE queue = ? AND kept = 1 AND state = ? AND ended_at < ?`
	)
	before := int64(ended.Cutoff)
	switch {
	case ended.RetentionQueue == nil:
		return []string{clauseForAll, clauseForAll},
			[][]any{{int64(0), int64(state), before}, {int64(1), int64(state), before}}
	case *ended.RetentionQueue == "":
		return []string{clauseForAll}, [][]any{{int64(0), int64(state), before}}
	}
	return []string{clauseForQueue}, [][]any{{*ended.RetentionQueue, int64(state), before}}
}

// CountEnded returns how many jobs match the filter.
func (s *Reads) CountEnded(ctx context.Context, ended store.EndedFilter) (total int64, err error) {
	err = s.Read(ctx, func(r *Reader) error {
		total = 0
		for _, state := range ended.States {
			from, args := EndedFrom(&ended, state)
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

// RemovableBytes implements store.Quotas. It knows the size of the outputs without reading them. It reads
// only inputs of more than MaxKeptInputBytes bytes, so it reads at most neededBytes/MaxKeptInputBytes+1 of
// them.
func (s *Reads) RemovableBytes(ctx context.Context, uid int, neededBytes int64) (bytes int64, err error) {
	outputs := s.userUsage(uid).OutputBytes
	if outputs >= neededBytes {
		return outputs, nil
	}
	err = s.Read(ctx, func(r *Reader) error {
		bytes = outputs
		return r.Query(func(r database.Row) (bool, error) {
			bytes += r.Num(0)
			return bytes < neededBytes, nil
		}, `SELECT octet_length(i.input) FROM jobs INDEXED BY jobs_inputs CROSS JOIN inputs AS i ON i.seq = jobs.seq
			WHERE uid = ? AND state > 5 AND jobs.input IS NULL AND state <> 7 LIMIT ?`, int64(uid),
			(neededBytes-outputs)/store.MaxKeptInputBytes+1)
	})
	return bytes, err
}
