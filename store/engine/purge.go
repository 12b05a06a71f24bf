package engine

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/rules"
)

// noUserDetail is the detail of an event that no user caused.
var noUserDetail = []byte(`{}`)

// Purge implements store.Cleanup. It removes jobs that ended before a given time.
func (e *Engine) Purge(ctx context.Context, ended store.EndedFilter, limit int, by *int) (removed int, err error) {
	detail := noUserDetail
	if by != nil {
		detail = rules.UserDetail(*by)
	}
	return resultOf(ctx, e, newRemoval(Normal), func(t *Tx) (int, error) { return t.purge(&ended, limit, detail) })
}

// purge removes up to limit jobs, starting with those that ended first.
func (t *Tx) purge(ended *store.EndedFilter, limit int, detail []byte) (removed int, err error) {
	var list []rules.Job
	for _, state := range ended.States {
		from, args := reads.EndedFrom(ended, state)
		for i := range from {
			ended, err := t.readJobs(limit, from[i]+` ORDER BY ended_at`, args[i]...)
			if err != nil {
				return 0, err
			}
			list = append(list, ended...)
		}
	}
	slices.SortStableFunc(list, func(a, b rules.Job) int { return cmp.Compare(a.EndedAt, b.EndedAt) })
	list = list[:min(limit, len(list))]
	for i := range list {
		if err := t.rules.Remove(&list[i], detail); err != nil {
			return i, err
		}
	}
	return len(list), nil
}

// TrimJobs implements store.Cleanup. While the number of ended jobs is above keep, it removes the job that ended
// first. It uses the counts that every transaction maintains, so a step costs the same for any number of stored
// jobs.
func (e *Engine) TrimJobs(ctx context.Context, queueName string, keep int64, limit int) (more bool, err error) {
	if queueName == "" && e.Reads.Counts().UnderGeneralRetention() <= keep {
		return false, nil
	}
	return resultOf(ctx, e, newRemoval(Normal), func(t *Tx) (more bool, err error) {
		excess := t.endedCount(queueName) - keep
		if excess <= 0 {
			return false, nil
		}
		ended := store.EndedFilter{States: store.RetentionStates, Cutoff: math.MaxInt64, RetentionQueue: &queueName}
		removed, err := t.purge(&ended, int(min(excess, int64(limit))), noUserDetail)
		return removed > 0 && int64(removed) < excess, err
	})
}

// endedCount returns the number of ended jobs that TrimJobs compares with the number to keep.
func (t *Tx) endedCount(queueName string) int64 {
	m := &t.s.mem
	if queueName == "" {
		return store.Counts{States: m.counts, UnderOwnRetention: m.retainedJobs}.UnderGeneralRetention()
	}
	return m.lanes.Queue(queueName).RetainedJobs
}

// OwnRetentionQueues lists the queues with jobs that ended while the queue had its own retention.
func (e *Engine) OwnRetentionQueues(ctx context.Context) (list []store.OwnRetentionQueue, err error) {
	if e.Reads.Counts().UnderOwnRetention == 0 {
		return nil, nil
	}
	list, err = resultOf(ctx, e, &op{class: Normal}, func(t *Tx) (list []store.OwnRetentionQueue, err error) {
		for _, q := range t.s.mem.lanes.Queues {
			if q.RetainedJobs > 0 {
				list = append(list, store.OwnRetentionQueue{Name: q.Name, Jobs: q.RetainedJobs, OutputBytes: q.RetainedBytes})
			}
		}
		return list, nil
	})
	slices.SortFunc(list, func(a, b store.OwnRetentionQueue) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

// TrimEvents implements store.Cleanup. It deletes a limited number of events, oldest first: events before the
// given time, and the oldest ones if there are more than keep.
func (e *Engine) TrimEvents(ctx context.Context, before queue.Millis, keep int64) (more bool, err error) {
	return resultOf(ctx, e, newRemoval(Normal), func(t *Tx) (more bool, err error) {
		last, n := int64(0), 0
		newest := t.s.mem.nextEvent - 1
		t.Query(func(r database.Row) (bool, error) {
			if queue.Millis(r.Num(1)) >= before && r.Num(0) > newest-keep {
				return false, nil
			}
			last = r.Num(0)
			n++
			return n < promoteStep, nil
		}, `SELECT seq, at FROM events WHERE seq > 0 ORDER BY seq LIMIT ?`, int64(promoteStep))
		if n > 0 {
			t.Exec(`DELETE FROM events WHERE seq <= ?`, last)
		}
		return n == promoteStep, t.err
	})
}

// TrimOutputs implements store.Cleanup. It removes a limited number of outputs while their total size in bytes is
// above keep.
func (e *Engine) TrimOutputs(ctx context.Context, keep int64) (more bool, err error) {
	if e.Reads.Counts().OutputBytes <= keep {
		return false, nil
	}
	return resultOf(ctx, e, newRemoval(Normal), func(t *Tx) (more bool, err error) {
		excess, limit := t.s.mem.outputBytes-keep, maxOutputsPerStep
		if excess <= 0 {
			return false, nil
		}
		above, share := t.usersAboveShare(excess)
		for _, u := range above {
			n, bytes := t.trim(min(excess, u.Bytes-share), limit, queue.OutputOverRetention,
				`SELECT jobs.seq, n, output_bytes
				FROM jobs INDEXED BY jobs_user_outputs CROSS JOIN attempts INDEXED BY attempts_output ON attempts.seq = jobs.seq
				WHERE uid = ? AND outputs > 0 AND output_bytes > 0 ORDER BY jobs.ended_at, jobs.seq, n LIMIT ?`, int64(u.UID))
			excess, limit = excess-bytes, limit-n
			if excess <= 0 || limit == 0 {
				break
			}
		}
		return excess > 0 && limit == 0, t.err
	})
}

// usersAboveShare returns, as share, how many bytes of outputs each user may keep if the total must decrease by
// excess bytes. It also lists the users that hold more, with the bytes that they hold, most bytes first.
func (t *Tx) usersAboveShare(excess int64) (above []store.UserBytes, share int64) {
	for uid, u := range t.s.mem.users {
		if u.outputBytes > 0 {
			above = append(above, store.UserBytes{UID: uid, Bytes: u.outputBytes})
		}
	}
	store.SortUserBytes(above)
	all := int64(0)
	for i := range above { // assume that only the first i+1 users lose outputs
		all += above[i].Bytes
		share = max(0, (all-excess)/int64(i+1))
		if i+1 == len(above) || share >= above[i+1].Bytes {
			return above[:i+1], share
		}
	}
	return above, share
}

// TrimQueueOutputs does the same as TrimOutputs for jobs of a queue that ended while the queue had its own retention.
func (e *Engine) TrimQueueOutputs(ctx context.Context, name string, keep int64) (more bool, err error) {
	return resultOf(ctx, e, newRemoval(Normal), func(t *Tx) (more bool, err error) {
		excess := t.s.mem.lanes.Queue(name).RetainedBytes - keep
		if excess <= 0 {
			return false, nil
		}
		n, bytes := t.trim(excess, maxOutputsPerStep, queue.OutputOverRetention,
			`SELECT jobs.seq, n, output_bytes
			FROM jobs INDEXED BY jobs_outputs CROSS JOIN attempts INDEXED BY attempts_output ON attempts.seq = jobs.seq
			WHERE queue = ? AND kept = 1 AND outputs > 0 AND output_bytes > 0 ORDER BY jobs.ended_at LIMIT ?`, name)
		return n == maxOutputsPerStep && bytes < excess, t.err
	})
}

// trim removes the outputs that a query returns, in its order, until their bytes reach excess or their number
// reaches limit. The query must select job, number and size. newSize is stored as the size of a removed output.
// trim returns the number of removed outputs, and their bytes.
func (t *Tx) trim(excess int64, limit int, newSize int64, query string, args ...any) (n int, bytes int64) {
	var list []removablePart
	t.Query(func(r database.Row) (bool, error) {
		list = append(list, removablePart{seq: r.Num(0), attempt: r.Num(1), bytes: r.Num(2)})
		bytes += r.Num(2)
		return bytes < excess, nil
	}, query, append(slices.Clip(args), int64(limit))...)
	for _, output := range list {
		t.removeOutputPart(output, newSize)
	}
	return len(list), bytes
}

// removeOutputPart removes the output of an attempt, and stores newSize, which encodes the reason, as its size.
func (t *Tx) removeOutputPart(output removablePart, newSize int64) {
	t.Exec(`INSERT INTO garbage SELECT output_ref, node FROM attempts
		WHERE seq = ? AND n = ? AND output_ref <> '' ON CONFLICT DO NOTHING`, output.seq, output.attempt)
	t.Exec(`UPDATE attempts SET output = NULL, output_ref = NULL, result = NULL, output_bytes = ?
		WHERE seq = ? AND n = ?`, newSize, output.seq, output.attempt)
	t.subtractOutput(output.seq, output.bytes)
	t.s.mem.outputBytes -= output.bytes
}

// maxOutputsPerStep is the maximum number of outputs and inputs that one operation of upkeep removes.
const maxOutputsPerStep = 50
