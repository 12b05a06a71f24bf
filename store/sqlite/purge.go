package sqlite

import (
	"cmp"
	"context"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/rules"
)

// Purge removes jobs that have ended before an instant.
func (s *Store) Purge(ctx context.Context, states []queue.State, before queue.Millis, limit int, uid *int) (removed int, err error) {
	detail := []byte(`{}`)
	if uid != nil {
		detail = rules.ByUID(*uid)
	}
	err = s.do(ctx, normal, func(t *tx) error {
		removed = 0
		var list []rules.Job
		for _, state := range states {
			ended, err := t.jobs(limit, `jobs INDEXED BY jobs_ended WHERE state = ? AND state > 5 AND ended_at < ? ORDER BY ended_at`, int64(state), int64(before))
			if err != nil {
				return err
			}
			list = append(list, ended...)
		}
		slices.SortStableFunc(list, func(a, b rules.Job) int { return cmp.Compare(a.EndedAt, b.EndedAt) })
		for i := range list[:min(limit, len(list))] {
			if err := t.rules.Remove(&list[i], detail); err != nil {
				return err
			}
			removed++
		}
		return nil
	})
	return removed, err
}

// CountEnded is how many jobs have ended in these states before an instant.
func (s *Store) CountEnded(ctx context.Context, states []queue.State, before queue.Millis) (total int64, err error) {
	err = s.reading(ctx, func(r *reader) error {
		for _, state := range states {
			n, err := r.number(`SELECT count(*) FROM jobs INDEXED BY jobs_ended WHERE state = ? AND state > 5 AND ended_at < ?`, int64(state), int64(before))
			if err != nil {
				return err
			}
			total += n
		}
		return nil
	})
	return total, err
}

// TrimEvents forgets the oldest events.
func (s *Store) TrimEvents(ctx context.Context, before queue.Millis, keep int64) (more bool, err error) {
	err = s.do(ctx, normal, func(t *tx) error {
		last, n := int64(0), 0
		newest := t.s.mem.nextEvent - 1
		err := t.query(func(r row) (bool, error) {
			if queue.Millis(r.num(1)) >= before && r.num(0) > newest-keep {
				return false, nil
			}
			last = r.num(0)
			n++
			return n < promoteStep, nil
		}, `SELECT seq, at FROM events WHERE seq > 0 ORDER BY seq`)
		if err != nil || n == 0 {
			return err
		}
		more = n == promoteStep
		_, err = t.exec(`DELETE FROM events WHERE seq <= ?`, last)
		return err
	})
	return more, err
}

// TrimOutputs removes the oldest outputs while all take more than keep bytes.
func (s *Store) TrimOutputs(ctx context.Context, keep int64) (more bool, err error) {
	if s.counted().Outputs <= keep {
		return false, nil
	}
	err = s.do(ctx, normal, func(t *tx) error {
		type kept struct {
			seq, n, bytes int64
		}
		var list []kept
		over := t.s.mem.outputs - keep
		if over <= 0 {
			return nil
		}
		err := t.query(func(r row) (bool, error) {
			list = append(list, kept{r.num(0), r.num(1), r.num(2)})
			over -= r.num(2)
			return over > 0 && len(list) < outputStep, nil
		}, `SELECT seq, n, output_bytes FROM attempts INDEXED BY attempts_output WHERE output_bytes > 0 AND ended_at >= 0 ORDER BY ended_at`)
		if err != nil {
			return err
		}
		for _, a := range list {
			if _, err := t.exec(`INSERT OR IGNORE INTO garbage SELECT output_ref FROM attempts WHERE seq = ? AND n = ? AND output_ref <> ''`, a.seq, a.n); err != nil {
				return err
			}
			if _, err := t.exec(`UPDATE attempts SET output = NULL, output_ref = NULL, result = NULL, output_bytes = -1 WHERE seq = ? AND n = ?`, a.seq, a.n); err != nil {
				return err
			}
			t.s.mem.outputs -= a.bytes
		}
		more = over > 0 && len(list) == outputStep
		return nil
	})
	return more, err
}

// outputStep is how many outputs are removed in one transaction.
const outputStep = 50
