package sql

import (
	"cmp"
	"context"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// endedFrom is where the ended jobs of a state stand, in the order in which they ended, and the arguments.
func endedFrom(of *store.Ended, state queue.State) (from []string, args [][]any) {
	const all, kept = `jobs INDEXED BY jobs_ended WHERE kept = ? AND state = ? AND state > 5 AND ended_at < ?`, `jobs INDEXED BY jobs_kept WHERE queue = ? AND kept = 1 AND state = ? AND ended_at < ?`
	before := int64(of.Before)
	switch {
	case of.Of == nil:
		return []string{all, all}, [][]any{{int64(0), int64(state), before}, {int64(1), int64(state), before}}
	case *of.Of == "":
		return []string{all}, [][]any{{int64(0), int64(state), before}}
	}
	return []string{kept}, [][]any{{*of.Of, int64(state), before}}
}

// Purge removes jobs that have ended before an instant.
func (s *engine) Purge(ctx context.Context, of store.Ended, limit int, by *int) (removed int, err error) {
	detail := []byte(`{}`)
	if by != nil {
		detail = rules.ByUID(*by)
	}
	err = s.do(ctx, normal, func(t *tx) error {
		removed = 0
		var list []rules.Job
		for _, state := range of.States {
			from, args := endedFrom(&of, state)
			for i := range from {
				ended, err := t.jobs(limit, from[i]+` ORDER BY ended_at`, args[i]...)
				if err != nil {
					return err
				}
				list = append(list, ended...)
			}
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
func (s *engine) CountEnded(ctx context.Context, of store.Ended) (total int64, err error) {
	err = s.reading(ctx, func(r *reader) error {
		total = 0
		for _, state := range of.States {
			from, args := endedFrom(&of, state)
			for i := range from {
				n, err := r.number(`SELECT count(*) FROM `+from[i], args[i]...)
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

// Keeping lists queues with jobs that ended while they had a retention of their own.
func (s *engine) Keeping(ctx context.Context, after string, limit int) (list []string, err error) {
	err = s.reading(ctx, func(r *reader) error {
		list = nil
		for name := after; len(list) < limit; {
			found := false
			err := r.query(func(r row) (bool, error) {
				name, found = r.text(0), true
				return false, nil
			}, `SELECT queue FROM jobs INDEXED BY jobs_kept WHERE kept = 1 AND queue > ? ORDER BY queue LIMIT 1`, name)
			if err != nil || !found {
				return err
			}
			list = append(list, name)
		}
		return nil
	})
	return list, err
}

// TrimEvents forgets the oldest events.
func (s *engine) TrimEvents(ctx context.Context, before queue.Millis, keep int64) (more bool, err error) {
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
		}, `SELECT seq, at FROM events WHERE seq > 0 ORDER BY seq LIMIT ?`, int64(promoteStep))
		if err != nil || n == 0 {
			return err
		}
		more = n == promoteStep
		err = t.exec(`DELETE FROM events WHERE seq <= ?`, last)
		return err
	})
	return more, err
}

// TrimOutputs removes the oldest outputs while all take more than keep bytes.
func (s *engine) TrimOutputs(ctx context.Context, keep int64) (more bool, err error) {
	if s.counted().Outputs <= keep {
		return false, nil
	}
	err = s.do(ctx, normal, func(t *tx) error {
		over := t.s.mem.outputs - keep
		if over <= 0 {
			return nil
		}
		more, err = t.trim(over, `SELECT seq, n, output_bytes FROM attempts INDEXED BY attempts_output WHERE output_bytes > 0 AND ended_at >= 0 ORDER BY ended_at LIMIT ?`)
		return err
	})
	return more, err
}

// TrimOutputsOf does so with jobs of a queue.
func (s *engine) TrimOutputsOf(ctx context.Context, queue string, keep int64) (more bool, err error) {
	over := int64(0)
	err = s.reading(ctx, func(r *reader) error {
		all, err := r.number(`SELECT sum(outputs) FROM jobs INDEXED BY jobs_outputs WHERE queue = ? AND kept = 1 AND outputs > 0`, queue)
		over = all - keep
		return err
	})
	if err != nil || over <= 0 {
		return false, err
	}
	err = s.do(ctx, normal, func(t *tx) error {
		more, err = t.trim(over, `SELECT attempts.seq, n, output_bytes FROM jobs INDEXED BY jobs_outputs CROSS JOIN attempts ON attempts.seq = jobs.seq WHERE queue = ? AND kept = 1 AND outputs > 0 AND output_bytes > 0 ORDER BY jobs.ended_at LIMIT ?`, queue)
		return err
	})
	return more, err
}

// trim removes a step of outputs until so many bytes are gone; it reports whether there are more.
func (t *tx) trim(over int64, oldest string, args ...any) (more bool, err error) {
	type kept struct {
		seq, n, bytes int64
	}
	var list []kept
	err = t.query(func(r row) (bool, error) {
		list = append(list, kept{r.num(0), r.num(1), r.num(2)})
		over -= r.num(2)
		return over > 0 && len(list) < outputStep, nil
	}, oldest, append(slices.Clip(args), int64(outputStep))...)
	if err != nil {
		return false, err
	}
	for _, a := range list {
		if err := t.exec(`INSERT INTO garbage SELECT output_ref, node FROM attempts WHERE seq = ? AND n = ? AND output_ref <> '' ON CONFLICT DO NOTHING`, a.seq, a.n); err != nil {
			return false, err
		}
		if err := t.exec(`UPDATE attempts SET output = NULL, output_ref = NULL, result = NULL, output_bytes = -1 WHERE seq = ? AND n = ?`, a.seq, a.n); err != nil {
			return false, err
		}
		if err := t.forgetOutput(a.seq, a.bytes); err != nil {
			return false, err
		}
		t.s.mem.outputs -= a.bytes
	}
	return over > 0 && len(list) == outputStep, nil
}

// outputStep is how many outputs are removed in one transaction.
const outputStep = 50
