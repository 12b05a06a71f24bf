package reads

import (
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
)

// GetSchedule returns a schedule and its newest occurrence records.
func (s *JobReader) GetSchedule(ctx context.Context, name string) (
	schedule store.Schedule, occurrences []store.OccurrenceRecord, err error,
) {
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		there, err := r.readSchedule(name, &schedule)
		if err != nil {
			return err
		}
		if !there {
			return ScheduleNotFoundError(name)
		}
		occurrences, err = database.ReadRows(r, func(r database.Row) (run store.OccurrenceRecord) {
			var hasNoRequester bool
			var requesterUID int
			database.ScanRow(r, &run.OccurrenceAt, &run.RecordedAt, &run.Outcome, &run.JobSeq, &run.JobID, &hasNoRequester,
				&requesterUID, &run.OutcomeNote)
			if !hasNoRequester {
				run.RequestedByUID = &requesterUID
			}
			return run
		}, `SELECT instant, at, outcome, job, id, asker IS NULL, asker, note FROM schedule_runs
			INDEXED BY schedule_runs_name WHERE name = ? ORDER BY n DESC`, name)
		return err
	})
	return schedule, occurrences, err
}

// readSchedule reads the schedule with a name into s, and reports whether it exists.
func (r *ReadSnapshot) readSchedule(name string, s *store.Schedule) (found bool, err error) {
	return database.ReadFirstRow(r, func(r database.Row) { *s = records.ReadSchedule(r, true) },
		`SELECT `+records.AllScheduleColumns+` FROM schedules WHERE name = ?`, name)
}

// ListSchedules returns up to limit schedules whose names come after afterName, sorted by name.
func (s *JobReader) ListSchedules(ctx context.Context, afterName string, limit int) (schedules []store.Schedule,
	err error) {
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		bytes := 0
		return r.Query(func(r database.Row) (bool, error) {
			schedules = append(schedules, records.ReadSchedule(r, false))
			bytes += len(r.BytesView(records.ScheduleDraftColumnIndex))
			return len(schedules) < limit && bytes < store.MaxPageTextBytes, nil
		}, `SELECT `+records.ScheduleColumns+` FROM schedules WHERE name > ? ORDER BY name LIMIT ?`,
			afterName, int64(limit))
	})
	return schedules, err
}

// maxDueSchedulesRead is how many due schedules one call of DueSchedules reads at most. It reads more
// schedules than it returns, so that it can return one schedule of each user in turn. See
// docs/decisions/0014.
const maxDueSchedulesRead = 10_000

// DueSchedules returns up to limit due schedules, and the time until the next one is due.
func (s *JobReader) DueSchedules(ctx context.Context, bootID string, limit int) (
	dueSchedules []store.Schedule, untilNext time.Duration, err error,
) {
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		now := s.Now()
		untilNext = time.Hour
		type named struct {
			name     string
			userTurn int // number of earlier schedules of the same user
		}
		var candidates []named
		turns := map[int64]int{} // number of schedules read for each user, by uid
		add := func(r database.Row) (bool, error) {
			candidates = append(candidates, named{r.Text(0), turns[r.Int64(1)]})
			turns[r.Int64(1)]++
			return len(candidates) < maxDueSchedulesRead, nil
		}
		if bootID != "" {
			for _, other := range []string{`boot < ?`, `boot > ?`} {
				if err := r.Query(add, `SELECT name, uid FROM schedules INDEXED BY schedules_boot
					WHERE at_boot = 1 AND paused_at = 0 AND `+other+` LIMIT ?`, bootID, int64(maxDueSchedulesRead)); err != nil {
					return err
				}
			}
		}
		err := r.Query(func(r database.Row) (bool, error) {
			if at := queue.UnixMillis(r.Int64(2)); at > now {
				untilNext = min(untilNext, time.Duration(at-now)*time.Millisecond)
				return false, nil
			}
			return add(r)
		}, `SELECT name, uid, due_at FROM schedules INDEXED BY schedules_due
			WHERE due_at > 0 AND paused_at = 0 ORDER BY due_at LIMIT ?`, int64(maxDueSchedulesRead))
		slices.SortStableFunc(candidates, func(a, b named) int { return a.userTurn - b.userTurn })
		for _, one := range candidates[:min(len(candidates), limit)] {
			if err == nil {
				var schedule store.Schedule
				var found bool
				if found, err = r.readSchedule(one.name, &schedule); found {
					dueSchedules = append(dueSchedules, schedule)
				}
			}
		}
		return err
	})
	if len(dueSchedules) == limit {
		untilNext = 0
	}
	return dueSchedules, untilNext, err
}

// ScheduleNotFoundError returns the error for a schedule that does not exist.
func ScheduleNotFoundError(name string) error {
	return queue.Errorf(queue.CodeNotFound, "there is no schedule %q; see: queuectl schedule list",
		queue.ClipForMessage(name))
}
