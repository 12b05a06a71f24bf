package engine

import (
	"context"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// PutSchedule implements store.Schedules. It stores a new schedule, or replaces one.
func (e *Engine) PutSchedule(ctx context.Context, request store.SchedulePutRequest) (newSchedule store.Schedule,
	err error) {
	put := request.Schedule
	draft, input, err := records.EncodeScheduleDraft(put.JobDraft)
	if err != nil {
		return put, err
	}
	bytes := int64(len(draft)+len(input)+len(put.SpecJSON)) + store.QuotaBytesPerJob
	err = e.RunAndCommit(ctx, PromptClass, func(t *Tx) error {
		if err := t.engine.diskSpace.CheckDiskSpace(); err != nil {
			return err
		}
		old := t.readStoredSchedule(put.Name)
		own := t.queryInt(`SELECT count(*) FROM schedules INDEXED BY schedules_uid WHERE uid = ? AND name <> ?`,
			put.OwnerUID, put.Name)
		switch {
		case old.generation != request.ReplacedGeneration:
			return store.ErrScheduleChanged
		case own >= store.MaxSchedulesPerUser:
			return store.ErrTooManySchedules
		}
		more := bytes
		if old.uid == put.OwnerUID {
			more -= old.storedBytes
		}
		if err := rules.CheckUserByteLimit(t, put.OwnerUID, more, request.MaxBytesPerUser); err != nil {
			return err
		}
		first := put.JobDraft
		first.DependsOn = slices.Clone(first.DependsOn)
		if err := t.rules.CheckDraftDependencies([]queue.Job{first}, put.OwnerUID); err != nil {
			return err
		}
		newSchedule = put
		newSchedule.Generation = t.NextEventNumber
		t.Exec(`INSERT INTO schedules (name, gen, uid, cron, zone, jitter, catch_up, overlap, at_boot, boot, at, last_at,
				next_at, due_at, draft, input, spec, stored)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET gen = excluded.gen, uid = excluded.uid, cron = excluded.cron,
			zone = excluded.zone, jitter = excluded.jitter, catch_up = excluded.catch_up, overlap = excluded.overlap,
			at_boot = excluded.at_boot, boot = excluded.boot, at = excluded.at, last_at = excluded.last_at,
			next_at = excluded.next_at, due_at = excluded.due_at, paused_at = 0, paused_by = NULL, note = '',
			draft = excluded.draft, input = excluded.input, spec = excluded.spec, stored = excluded.stored`,
			put.Name, newSchedule.Generation, put.OwnerUID, put.CronLine, put.TimeZone, put.MaxJitter.Milliseconds(),
			string(put.CatchUp), string(put.Overlap), put.RunsAtBoot, put.LastBootID,
			put.CreatedAt, put.LastOccurrenceAt, put.NextOccurrenceAt, put.NextDueAt, draft, input,
			put.SpecJSON,
			bytes)
		t.AdjustUserBytes(old.uid, -old.storedBytes, 0)
		t.AdjustUserBytes(put.OwnerUID, bytes, 0)
		if put.PausedAt != 0 {
			t.SetScheduleState(&put)
		}
		t.WakeServiceAt(put.NextDueAt)
		return t.recordEvent(queue.EventScheduleAdded, nil, queue.EventDetail{CausedByUID: &request.RequestedByUID,
			ScheduleName: put.Name})
	})
	return newSchedule, err
}

// storedSchedule holds those columns of a stored schedule that are needed to change or replace it.
type storedSchedule struct {
	generation  int64 // generation of the schedule; 0 if there is no schedule with the name
	uid         int
	storedBytes int64 // bytes that count toward the user's quota
}

// readStoredSchedule reads the columns in storedSchedule for the schedule with a name.
func (t *Tx) readStoredSchedule(name string) (s storedSchedule) {
	database.ReadFirstRow(t, func(r database.Row) { s = storedSchedule{r.Int64(0), int(r.Int64(1)), r.Int64(2)} },
		`SELECT gen, uid, stored FROM schedules WHERE name = ?`, name)
	return s
}

// Schedule implements rules.Schedules. It reads a schedule.
func (t *Tx) Schedule(name string) (s store.Schedule, err error) {
	found, err := database.ReadFirstRow(t, func(r database.Row) { s = records.ReadSchedule(r, true) },
		`SELECT `+records.AllScheduleColumns+` FROM schedules WHERE name = ?`, name)
	if err == nil && !found {
		err = reads.ScheduleNotFoundError(name)
	}
	return s, err
}

// SetScheduleState implements rules.Schedules. It writes a schedule's times, boot id and pause.
func (t *Tx) SetScheduleState(s *store.Schedule) error {
	return t.Exec(
		`UPDATE schedules SET last_at = ?, next_at = ?, due_at = ?, boot = ?, paused_at = ?, paused_by = ?, note = ?
			WHERE name = ?`,
		s.LastOccurrenceAt, s.NextOccurrenceAt, s.NextDueAt, s.LastBootID, s.PausedAt,
		uidOrNull(s.PausedByUID), s.PauseOrDamageNote, s.Name)
}

// UnfinishedJobs implements rules.Schedules. It lists unfinished jobs of a user's schedule, newest first.
func (t *Tx) UnfinishedJobs(scheduleName string, uid, limit int) ([]rules.Job, error) {
	return t.readJobs(limit, `jobs INDEXED BY jobs_schedule
		WHERE schedule = ? AND uid = ? AND schedule <> '' AND state < 6 ORDER BY seq DESC`, scheduleName, uid)
}

// AddOccurrenceRecord implements rules.Schedules. It records what happened at a planned start (an occurrence)
// of a schedule. If there are too many records, it deletes the oldest.
func (t *Tx) AddOccurrenceRecord(scheduleName string, r store.OccurrenceRecord) error {
	t.Exec(
		`INSERT INTO schedule_runs (name, instant, at, outcome, job, id, asker, note) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		scheduleName, r.OccurrenceAt, t.startTime, string(r.Outcome), r.JobSeq, r.JobID,
		uidOrNull(r.RequestedByUID),
		r.OutcomeNote)
	return t.Exec(
		`DELETE FROM schedule_runs WHERE name = ?
			AND n <= (SELECT n FROM schedule_runs WHERE name = ? ORDER BY n DESC LIMIT 1 OFFSET ?)`,
		scheduleName, scheduleName, store.MaxRecordsPerSchedule)
}

// IsJobIDTaken implements rules.Jobs. It reports whether a job has the id. Jobs of batches that are not committed
// count too.
func (t *Tx) IsJobIDTaken(id string) (bool, error) {
	taken, err := t.takenIDs([]string{id})
	return taken[id], err
}

// RemoveSchedule removes a schedule and the records of its occurrences.
func (e *Engine) RemoveSchedule(ctx context.Context, name string, generation int64, requestedByUID int) error {
	return e.RunAndCommit(ctx, PromptClass, func(t *Tx) error {
		old := t.readStoredSchedule(name)
		switch {
		case old.generation == 0:
			return reads.ScheduleNotFoundError(name)
		case old.generation != generation:
			return store.ErrScheduleChanged
		}
		t.AdjustUserBytes(old.uid, -old.storedBytes, 0)
		t.Exec(`DELETE FROM schedules WHERE name = ?`, name)
		t.Exec(`DELETE FROM schedule_runs WHERE name = ?`, name)
		return t.recordEvent(queue.EventScheduleRemoved, nil, queue.EventDetail{CausedByUID: &requestedByUID,
			ScheduleName: name})
	})
}

// PauseSchedule pauses or resumes a schedule. A paused schedule creates no jobs.
func (e *Engine) PauseSchedule(ctx context.Context, request store.SchedulePauseRequest) error {
	return e.RunAndCommit(ctx, PromptClass, func(t *Tx) error {
		current, err := t.Schedule(request.ScheduleName)
		switch {
		case err != nil:
			return err
		case current.Generation != request.Generation:
			return store.ErrScheduleChanged
		case request.Paused == (current.PausedAt != 0):
			return nil
		case request.Paused:
			current.PausedAt, current.PausedByUID, current.PauseOrDamageNote = t.startTime, request.RequestedByUID,
				request.PauseNote
			current.NextOccurrenceAt, current.NextDueAt = 0, 0
		default:
			current.PausedAt, current.PausedByUID, current.PauseOrDamageNote = 0, nil, ""
			current.LastOccurrenceAt, current.NextOccurrenceAt, current.NextDueAt, current.LastBootID =
				max(current.LastOccurrenceAt, request.LastOccurrenceAt), request.NextOccurrenceAt, request.NextDueAt,
				request.LastBootID
			t.WakeServiceAt(request.NextDueAt)
		}
		t.SetScheduleState(&current)
		kind := queue.EventScheduleResumed
		if request.Paused {
			kind = queue.EventSchedulePaused
		}
		return t.recordEvent(kind, nil, queue.EventDetail{CausedByUID: request.RequestedByUID,
			ScheduleName: request.ScheduleName, ActionTarget: request.PauseNote})
	})
}

// RunOccurrences enqueues the jobs of planned starts (occurrences) of a schedule, and records the outcomes.
func (e *Engine) RunOccurrences(ctx context.Context, request store.OccurrenceRequest) (result store.OccurrenceResult,
	err error) {
	return executeWithResult(ctx, e, PromptClass,
		func(t *Tx) (result store.OccurrenceResult, err error) {
			if err := t.engine.diskSpace.CheckDiskSpace(); err != nil && len(request.OccurrencesToRun) > 0 {
				return result, err
			}
			return t.rules.RunOccurrences(&request, func(draft queue.Job) (int64, string, error) {
				return t.enqueueScheduledJob(&request, draft)
			})
		})
}

// enqueueScheduledJob enqueues a job of a schedule. If another job has the job's unique key, it returns an error and
// stores nothing.
func (t *Tx) enqueueScheduledJob(request *store.OccurrenceRequest, draft queue.Job) (seq int64, id string, err error) {
	drafts := []queue.Job{draft}
	list, err := encodeDraftTexts(drafts)
	if err != nil {
		return 0, "", err
	}
	receipt, err := t.enqueueDrafts(store.EnqueueRequest{Drafts: drafts, UID: draft.UID,
		MaxPendingJobs:        request.MaxPendingJobs,
		MaxPendingJobsPerUser: request.MaxPendingJobsPerUser, MaxBytesPerUser: request.MaxBytesPerUser}, list)
	if err != nil {
		return 0, "", err
	}
	if receipt.IsExisting != nil {
		return 0, "", queue.Errorf(queue.CodeExists, "the schedule enqueued no job, because job %s already has the unique "+
			"key %q; to see its state: queuectl show %[1]s", receipt.IDs[0], drafts[0].Unique)
	}
	// Record the owner only now, because a job that is rejected must not record one.
	return receipt.Seqs[0], receipt.IDs[0], t.recordOwnerName(draft.UID, request.OwnerName)
}
