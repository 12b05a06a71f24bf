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

// noUserDetail is the detail of an event that was not caused by a user.
var noUserDetail = []byte(`{}`)

// Purge implements store.Cleanup. It removes jobs that ended before a given time.
func (e *Engine) Purge(ctx context.Context, filter store.EndedFilter, limit int,
	byUID *int) (removedJobs int, err error) {
	detail := noUserDetail
	if byUID != nil {
		detail = rules.UserDetail(*byUID)
	}
	return doWithResult(ctx, e, newRemoval(Normal), func(t *Tx) (int, error) { return t.purge(&filter, limit, detail) })
}

// purge removes up to limit jobs, starting with those that ended first.
func (t *Tx) purge(filter *store.EndedFilter, limit int, detail []byte) (removedJobs int, err error) {
	var endedJobs []rules.Job
	for _, state := range filter.States {
		from, args := reads.EndedFrom(filter, state)
		for i := range from {
			ended, err := t.readJobs(limit, from[i]+` ORDER BY ended_at`, args[i]...)
			if err != nil {
				return 0, err
			}
			endedJobs = append(endedJobs, ended...)
		}
	}
	slices.SortStableFunc(endedJobs, func(a, b rules.Job) int { return cmp.Compare(a.EndedAt, b.EndedAt) })
	endedJobs = endedJobs[:min(limit, len(endedJobs))]
	for i := range endedJobs {
		if err := t.rules.Remove(&endedJobs[i], detail); err != nil {
			return i, err
		}
	}
	return len(endedJobs), nil
}

// TrimJobs implements store.Cleanup. While there are more than maxJobs ended jobs, it removes the one that
// ended first. It uses counts that every transaction updates, so its cost does not depend on the number of
// stored jobs.
func (e *Engine) TrimJobs(ctx context.Context, queueName string, maxJobs int64, limit int) (more bool, err error) {
	if queueName == "" && e.Reads.Counts().UnderGeneralRetention() <= maxJobs {
		return false, nil
	}
	return doWithResult(ctx, e, newRemoval(Normal), func(t *Tx) (more bool, err error) {
		excess := t.endedCount(queueName) - maxJobs
		if excess <= 0 {
			return false, nil
		}
		ended := store.EndedFilter{States: store.RetentionStates, Cutoff: math.MaxInt64, RetentionQueue: &queueName}
		removed, err := t.purge(&ended, int(min(excess, int64(limit))), noUserDetail)
		return removed > 0 && int64(removed) < excess, err
	})
}

// endedCount returns the number of ended jobs that TrimJobs compares with its maximum.
func (t *Tx) endedCount(queueName string) int64 {
	m := &t.engine.mem
	if queueName == "" {
		return store.Counts{States: m.jobCounts, UnderOwnRetention: m.retainedJobs}.UnderGeneralRetention()
	}
	return m.lanes.Queue(queueName).RetainedJobs
}

// OwnRetentionQueues implements store.Cleanup. It lists the queues with jobs that ended while the queue had
// its own retention settings.
func (e *Engine) OwnRetentionQueues(ctx context.Context) (list []store.OwnRetentionQueue, err error) {
	if e.Reads.Counts().UnderOwnRetention == 0 {
		return nil, nil
	}
	list, err = doWithResult(ctx, e, &op{priorityClass: Normal}, func(t *Tx) (list []store.OwnRetentionQueue, err error) {
		for _, q := range t.engine.mem.lanes.Queues {
			if q.RetainedJobs > 0 {
				list = append(list, store.OwnRetentionQueue{Name: q.Name, Jobs: q.RetainedJobs, OutputBytes: q.RetainedBytes})
			}
		}
		return list, nil
	})
	slices.SortFunc(list, func(a, b store.OwnRetentionQueue) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

// TrimEvents implements store.Cleanup. It deletes a limited number of events, oldest first: events before
// beforeTime, and the oldest ones if there are more than maxEvents.
func (e *Engine) TrimEvents(ctx context.Context, beforeTime queue.Millis, maxEvents int64) (more bool, err error) {
	return doWithResult(ctx, e, newRemoval(Normal), func(t *Tx) (more bool, err error) {
		last, n := int64(0), 0
		newest := t.engine.mem.nextEvent - 1
		t.Query(func(r database.Row) (bool, error) {
			if queue.Millis(r.Num(1)) >= beforeTime && r.Num(0) > newest-maxEvents {
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

// TrimOutputs implements store.Cleanup. It removes a limited number of outputs if all outputs together have
// more than maxBytes bytes.
func (e *Engine) TrimOutputs(ctx context.Context, maxBytes int64) (more bool, err error) {
	if e.Reads.Counts().OutputBytes <= maxBytes {
		return false, nil
	}
	return doWithResult(ctx, e, newRemoval(Normal), func(t *Tx) (more bool, err error) {
		excess, limit := t.engine.mem.outputBytes-maxBytes, maxOutputsPerStep
		if excess <= 0 {
			return false, nil
		}
		above, share := t.usersAboveShare(excess)
		for _, u := range above {
			n, bytes := t.trimOutputs(min(excess, u.Bytes-share), limit, queue.OutputOverRetention,
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

// usersAboveShare computes how the total size of outputs can be reduced by excessBytes. share is how many
// bytes of outputs each user may keep. usersAbove lists the users who have more, with their bytes, most bytes
// first.
func (t *Tx) usersAboveShare(excessBytes int64) (usersAbove []store.UserBytes, share int64) {
	for uid, u := range t.engine.mem.users {
		if u.outputBytes > 0 {
			usersAbove = append(usersAbove, store.UserBytes{UID: uid, Bytes: u.outputBytes})
		}
	}
	store.SortUserBytes(usersAbove)
	all := int64(0)
	for i := range usersAbove { // assume that only the first i+1 users lose outputs
		all += usersAbove[i].Bytes
		share = max(0, (all-excessBytes)/int64(i+1))
		if i+1 == len(usersAbove) || share >= usersAbove[i+1].Bytes {
			return usersAbove[:i+1], share
		}
	}
	return usersAbove, share
}

// TrimQueueOutputs implements store.Cleanup. It removes outputs like TrimOutputs, but only of jobs that ended
// while the queue had its own retention settings.
func (e *Engine) TrimQueueOutputs(ctx context.Context, name string, maxBytes int64) (more bool, err error) {
	return doWithResult(ctx, e, newRemoval(Normal), func(t *Tx) (more bool, err error) {
		excess := t.engine.mem.lanes.Queue(name).RetainedBytes - maxBytes
		if excess <= 0 {
			return false, nil
		}
		n, bytes := t.trimOutputs(excess, maxOutputsPerStep, queue.OutputOverRetention,
			`SELECT jobs.seq, n, output_bytes
			FROM jobs INDEXED BY jobs_outputs CROSS JOIN attempts INDEXED BY attempts_output ON attempts.seq = jobs.seq
			WHERE queue = ? AND kept = 1 AND outputs > 0 AND output_bytes > 0 ORDER BY jobs.ended_at LIMIT ?`, name)
		return n == maxOutputsPerStep && bytes < excess, t.err
	})
}

// trimOutputs removes the outputs that a query returns, in the order of the query, until excessBytes bytes or
// limit outputs are removed. The query selects the job, number and size of each output. newSize is stored as
// the size of each removed output. trimOutputs returns the number and the bytes of the removed outputs.
func (t *Tx) trimOutputs(excessBytes int64, limit int, newSize int64, query string, args ...any) (n int, bytes int64) {
	var parts []removablePart
	t.Query(func(r database.Row) (bool, error) {
		parts = append(parts, removablePart{seq: r.Num(0), attempt: r.Num(1), bytes: r.Num(2)})
		bytes += r.Num(2)
		return bytes < excessBytes, nil
	}, query, append(slices.Clip(args), int64(limit))...)
	for _, output := range parts {
		t.removeOutputPart(output, newSize)
	}
	return len(parts), bytes
}

// removeOutputPart removes the output of an attempt. It stores newSize as the size of the output, which says
// why the output was removed.
func (t *Tx) removeOutputPart(output removablePart, newSize int64) {
	t.Exec(`INSERT INTO garbage SELECT output_ref, node FROM attempts
		WHERE seq = ? AND n = ? AND output_ref <> '' ON CONFLICT DO NOTHING`, output.seq, output.attempt)
	t.Exec(`UPDATE attempts SET output = NULL, output_ref = NULL, result = NULL, output_bytes = ?
		WHERE seq = ? AND n = ?`, newSize, output.seq, output.attempt)
	t.subtractOutput(output.seq, output.bytes)
	t.engine.mem.outputBytes -= output.bytes
}

// maxOutputsPerStep is the maximum number of outputs and inputs that one operation of upkeep removes.
const maxOutputsPerStep = 50
