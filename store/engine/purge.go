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

// noUserEventDetail is the detail of an event that was not caused by a user.
var noUserEventDetail = []byte(`{}`)

// PurgeEndedJobs implements store.Cleanup. It removes jobs that ended before a given time.
func (e *Engine) PurgeEndedJobs(ctx context.Context, filter store.EndedJobFilter, limit int,
	requestedByUID *int) (removedJobs int, err error) {
	detail := noUserEventDetail
	if requestedByUID != nil {
		detail = rules.UserEventDetail(*requestedByUID)
	}
	return doOpWithResult(ctx, e, newRemovalOperation(NormalClass),
		func(t *Tx) (int, error) { return t.purgeEndedJobs(&filter, limit, detail) })
}

// purgeEndedJobs removes up to limit jobs, starting with those that ended first.
func (t *Tx) purgeEndedJobs(filter *store.EndedJobFilter, limit int, detail []byte) (removedJobs int, err error) {
	if filter.MinKeptJobs > 0 {
		removable := -filter.MinKeptJobs
		for _, state := range filter.States {
			removable += t.JobCountByState[state]
		}
		if limit = int(min(int64(limit), removable)); limit <= 0 {
			return 0, nil
		}
	}
	var endedJobs []rules.Job
	for _, state := range filter.States {
		from, args := reads.EndedJobsFromClauses(filter, state)
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
		if err := t.rules.RemoveUnleasedJob(&endedJobs[i], detail); err != nil {
			return i, err
		}
	}
	return len(endedJobs), nil
}

// TrimEndedJobs implements store.Cleanup. While there are more than maxJobs ended jobs, it removes the one that
// ended first. It uses counts that every transaction updates, so its cost does not depend on the number of
// stored jobs.
func (e *Engine) TrimEndedJobs(ctx context.Context, queueName string, maxJobs int64, limit int) (more bool, err error) {
	if queueName == "" && e.JobReader.Counts().JobsUnderGeneralRetention() <= maxJobs {
		return false, nil
	}
	return doOpWithResult(ctx, e, newRemovalOperation(NormalClass), func(t *Tx) (more bool, err error) {
		excess := t.endedJobCount(queueName) - maxJobs
		if excess <= 0 {
			return false, nil
		}
		ended := store.EndedJobFilter{States: store.StatesWithRetention, EndedBefore: math.MaxInt64,
			RetentionQueue: &queueName}
		removed, err := t.purgeEndedJobs(&ended, int(min(excess, int64(limit))), noUserEventDetail)
		return removed > 0 && int64(removed) < excess, err
	})
}

// endedJobCount returns the number of ended jobs that TrimEndedJobs compares with its maximum.
func (t *Tx) endedJobCount(queueName string) int64 {
	if queueName == "" {
		return t.counts().JobsUnderGeneralRetention()
	}
	return t.lanes.FindOrAddQueue(queueName).RetainedJobs
}

// QueuesWithOwnRetention implements store.Cleanup. It lists the queues with jobs that ended while the queue had
// its own retention settings.
func (e *Engine) QueuesWithOwnRetention(ctx context.Context) (queues []store.OwnRetentionQueue, err error) {
	if e.JobReader.Counts().JobsUnderQueueRetention == 0 {
		return nil, nil
	}
	queues, err = executeWithResult(ctx, e, NormalClass,
		func(t *Tx) (list []store.OwnRetentionQueue, err error) {
			for _, q := range t.lanes.Queues {
				if q.RetainedJobs > 0 {
					list = append(list, store.OwnRetentionQueue{Name: q.Name, EndedJobCount: q.RetainedJobs,
						OutputBytes: q.RetainedOutputBytes})
				}
			}
			return list, nil
		})
	slices.SortFunc(queues, func(a, b store.OwnRetentionQueue) int { return cmp.Compare(a.Name, b.Name) })
	return queues, err
}

// TrimEvents implements store.Cleanup. It deletes a limited number of events, oldest first: events before
// beforeTime, and the oldest ones if there are more than maxEvents.
func (e *Engine) TrimEvents(ctx context.Context, beforeTime queue.UnixMillis, maxEvents int64) (more bool, err error) {
	return doOpWithResult(ctx, e, newRemovalOperation(NormalClass), func(t *Tx) (more bool, err error) {
		last, n := int64(0), 0
		newest := t.NextEventNumber - 1
		t.Query(func(r database.Row) (bool, error) {
			if queue.UnixMillis(r.Int64(1)) >= beforeTime && r.Int64(0) > newest-maxEvents {
				return false, nil
			}
			last = r.Int64(0)
			n++
			return n < maxDeletedRowsPerStep, nil
		}, `SELECT seq, at FROM events WHERE seq > 0 ORDER BY seq LIMIT ?`, maxDeletedRowsPerStep)
		if n > 0 {
			t.Exec(`DELETE FROM events WHERE seq <= ?`, last)
		}
		return n == maxDeletedRowsPerStep, t.statementErr
	})
}

// TrimOutputs implements store.Cleanup. It removes a limited number of outputs if all outputs together have
// more than maxBytes bytes.
func (e *Engine) TrimOutputs(ctx context.Context, maxBytes int64) (more bool, err error) {
	if e.JobReader.Counts().OutputBytes <= maxBytes {
		return false, nil
	}
	return doOpWithResult(ctx, e, newRemovalOperation(NormalClass), func(t *Tx) (more bool, err error) {
		excess, limit := t.OutputBytes-maxBytes, maxRemovedOutputsPerStep
		if excess <= 0 {
			return false, nil
		}
		above, share := t.usersAboveOutputLimit(excess)
		for _, u := range above {
			n, bytes := t.trimOutputs(min(excess, u.StoredBytes-share), limit, queue.OutputRemovedByRetention,
				`SELECT jobs.seq, n, output_bytes
				FROM jobs INDEXED BY jobs_user_outputs CROSS JOIN attempts INDEXED BY attempts_output ON attempts.seq = jobs.seq
				WHERE uid = ? AND outputs > 0 AND output_bytes > 0 ORDER BY jobs.ended_at, jobs.seq, n LIMIT ?`, u.UID)
			excess, limit = excess-bytes, limit-n
			if excess <= 0 || limit == 0 {
				break
			}
		}
		return excess > 0 && limit == 0, t.statementErr
	})
}

// usersAboveOutputLimit computes how the total size of outputs can be reduced by excessBytes. share is how many
// bytes of outputs each user may keep. usersAboveLimit lists the users who have more, with their bytes, most bytes
// first.
func (t *Tx) usersAboveOutputLimit(excessBytes int64) (usersAboveLimit []store.UserStoredBytes,
	maxOutputBytesPerUser int64) {
	for uid, u := range t.users {
		if u.OutputBytes > 0 {
			usersAboveLimit = append(usersAboveLimit, store.UserStoredBytes{UID: uid, StoredBytes: u.OutputBytes})
		}
	}
	store.SortByStoredBytes(usersAboveLimit)
	all := int64(0)
	for i := range usersAboveLimit { // assume that only the first i+1 users lose outputs
		all += usersAboveLimit[i].StoredBytes
		maxOutputBytesPerUser = max(0, (all-excessBytes)/int64(i+1))
		if i+1 == len(usersAboveLimit) || maxOutputBytesPerUser >= usersAboveLimit[i+1].StoredBytes {
			return usersAboveLimit[:i+1], maxOutputBytesPerUser
		}
	}
	return usersAboveLimit, maxOutputBytesPerUser
}

// TrimQueueOutputs implements store.Cleanup. It removes outputs like TrimOutputs, but only of jobs that ended
// while the queue had its own retention settings.
func (e *Engine) TrimQueueOutputs(ctx context.Context, name string, maxBytes int64) (more bool, err error) {
	return doOpWithResult(ctx, e, newRemovalOperation(NormalClass), func(t *Tx) (more bool, err error) {
		excess := t.lanes.FindOrAddQueue(name).RetainedOutputBytes - maxBytes
		if excess <= 0 {
			return false, nil
		}
		n, bytes := t.trimOutputs(excess, maxRemovedOutputsPerStep, queue.OutputRemovedByRetention,
			`SELECT jobs.seq, n, output_bytes
			FROM jobs INDEXED BY jobs_outputs CROSS JOIN attempts INDEXED BY attempts_output ON attempts.seq = jobs.seq
			WHERE queue = ? AND kept = 1 AND outputs > 0 AND output_bytes > 0 ORDER BY jobs.ended_at LIMIT ?`, name)
		return n == maxRemovedOutputsPerStep && bytes < excess, t.statementErr
	})
}

// trimOutputs removes the outputs that a query returns, in the order of the query, until excessBytes bytes or
// limit outputs are removed. The query selects the job, number and size of each output. removalReason is stored as
// the size of each removed output. trimOutputs returns the number and the bytes of the removed outputs.
func (t *Tx) trimOutputs(excessBytes int64, limit int, removalReason int64, query string,
	args ...any) (removedCount int,
	removedBytes int64) {
	var parts []removableJobPart
	t.Query(func(r database.Row) (bool, error) {
		parts = append(parts, removableJobPart{jobSeq: r.Int64(0), attemptNumber: r.Int64(1), partBytes: r.Int64(2)})
		removedBytes += r.Int64(2)
		return removedBytes < excessBytes, nil
	}, query, append(slices.Clip(args), limit)...)
	for _, output := range parts {
		t.removeAttemptOutput(output, removalReason)
	}
	return len(parts), removedBytes
}

// removeAttemptOutput removes the output of an attempt. It stores removalReason as the size of the output, which says
// why the output was removed.
func (t *Tx) removeAttemptOutput(output removableJobPart, removalReason int64) {
	t.Exec(`INSERT INTO garbage SELECT output_ref, node FROM attempts
		WHERE seq = ? AND n = ? AND output_ref <> '' ON CONFLICT DO NOTHING`, output.jobSeq, output.attemptNumber)
	t.Exec(`UPDATE attempts SET output = NULL, output_ref = NULL, result = NULL, output_bytes = ?
		WHERE seq = ? AND n = ?`, removalReason, output.jobSeq, output.attemptNumber)
	t.subtractOutputSize(output.jobSeq, output.partBytes)
	t.OutputBytes -= output.partBytes
}

// maxRemovedOutputsPerStep is the maximum number of outputs and inputs that one operation of upkeep removes.
const maxRemovedOutputsPerStep = 50
