package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// scheduleColumns lists the short columns of a schedule, and the draft of its jobs. scheduleWhole lists all
// columns. readSchedule reads rows of either list.
const (
	scheduleColumns = `name, gen, uid, cron, zone, jitter, catch_up, overlap, at_boot, boot, at, last_at, next_at, due_at, paused_at, paused_by IS NULL, paused_by, note, draft`
	scheduleWhole   = scheduleColumns + `, input, spec`
	scheduleDraft   = 18 // index of the draft in scheduleColumns
)

// readSchedule reads a schedule from a row. If its texts are damaged, its Note says so.
func readSchedule(r database.Row, whole bool) store.Schedule {
	n, t := r.Num, r.Text
	s := store.Schedule{
		Name: t(0), Gen: n(1), UID: int(n(2)), Cron: t(3), Zone: t(4), Jitter: time.Duration(n(5)) * time.Millisecond,
		CatchUp: store.CatchUp(t(6)), Overlap: store.Overlap(t(7)), AtBoot: n(8) != 0, Boot: t(9),
		CreatedAt: queue.Millis(n(10)), LastAt: queue.Millis(n(11)), NextAt: queue.Millis(n(12)), DueAt: queue.Millis(n(13)),
		PausedAt: queue.Millis(n(14)), Note: t(17),
	}
	if n(15) == 0 {
		by := int(n(16))
		s.PausedBy = &by
	}
	var kept keptDraft
	err := json.Unmarshal([]byte(t(scheduleDraft)), &kept)
	s.Draft = kept.Job
	for i := range min(len(s.Draft.DependsOn), len(kept.ParentIDs)) {
		s.Draft.DependsOn[i].ID = kept.ParentIDs[i]
	}
	if whole && err == nil {
		s.Spec = t(scheduleDraft + 2)
		if input := t(scheduleDraft + 1); input != "" {
			err = json.Unmarshal([]byte(input), &s.Draft.Execution)
		}
	}
	if err != nil {
		s.Draft, s.Damaged = queue.Job{}, true
		s.Note = fmt.Sprintf("the schedule cannot be read (%v); add it again with --replace", err)
	}
	return s
}

// keptDraft is the stored form of the draft of a schedule's jobs.
type keptDraft struct {
	queue.Job
	// ParentIDs are the ids of the jobs that the draft depends on, as the user wrote them.
	ParentIDs []string `json:"parent_ids,omitempty"`
}

// draftTexts encodes the draft of a schedule's jobs.
func draftTexts(j queue.Job) (draft, input string, err error) {
	input = records.InputOf(&j.Execution)
	j.Env, j.Stdin = nil, ""
	kept := keptDraft{Job: j}
	for _, d := range j.DependsOn {
		kept.ParentIDs = append(kept.ParentIDs, d.ID)
	}
	raw, err := json.Marshal(kept)
	return string(raw), input, err
}

// PutSchedule implements store.Schedules.
func (s *Engine) PutSchedule(ctx context.Context, p store.SchedulePut) (stored store.Schedule, err error) {
	put := p.Schedule
	draft, input, err := draftTexts(put.Draft)
	if err != nil {
		return put, err
	}
	bytes := int64(len(draft)+len(input)+len(put.Spec)) + store.JobBytes
	err = s.Do(ctx, Prompt, func(t *Tx) error {
		if err := t.s.space.CheckSpace(); err != nil {
			return err
		}
		old, err := t.storedSchedule(put.Name)
		if err != nil {
			return err
		} else if old.gen != p.Replaces {
			return store.ErrScheduleChanged
		}
		own, err := t.Number(`SELECT count(*) FROM schedules INDEXED BY schedules_uid WHERE uid = ? AND name <> ?`,
			int64(put.UID), put.Name)
		if err != nil {
			return err
		}
		if own >= store.MaxSchedules {
			return store.ErrManySchedules
		}
		more := bytes
		if old.uid == put.UID {
			more -= old.bytes
		}
		if err := rules.AdmitBytes(t, put.UID, more, p.MaxBytesUser); err != nil {
			return err
		}
		first := put.Draft
		first.DependsOn = slices.Clone(first.DependsOn)
		if err := t.rules.Check([]queue.Job{first}, put.UID); err != nil {
			return err
		}
		stored = put
		stored.Gen = t.s.mem.nextEvent
		if err := t.Exec(`INSERT INTO schedules (name, gen, uid, cron, zone, jitter, catch_up, overlap, at_boot, boot, at, last_at, next_at, due_at, draft, input, spec, stored)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET gen = excluded.gen, uid = excluded.uid, cron = excluded.cron, zone = excluded.zone, jitter = excluded.jitter, catch_up = excluded.catch_up, overlap = excluded.overlap,
			at_boot = excluded.at_boot, boot = excluded.boot, at = excluded.at, last_at = excluded.last_at, next_at = excluded.next_at, due_at = excluded.due_at, paused_at = 0, paused_by = NULL, note = '',
			draft = excluded.draft, input = excluded.input, spec = excluded.spec, stored = excluded.stored`,
			put.Name, stored.Gen, int64(put.UID), put.Cron, put.Zone, put.Jitter.Milliseconds(), string(put.CatchUp),
			string(put.Overlap), records.Bit(put.AtBoot), put.Boot,
			int64(put.CreatedAt), int64(put.LastAt), int64(put.NextAt), int64(put.DueAt), draft, input, put.Spec,
			bytes); err != nil {
			return err
		}
		t.Holds(old.uid, -old.bytes, 0)
		t.Holds(put.UID, bytes, 0)
		if put.PausedAt != 0 {
			if err := t.SetTimes(&put); err != nil {
				return err
			}
		}
		t.wakeAt(put.DueAt)
		return t.recordScheduleEvent(queue.EventScheduleAdded, queue.EventDetail{UID: &p.RequestedBy, Schedule: put.Name})
	})
	return stored, err
}

// storedSchedule holds the columns of a schedule that are needed to change it.
type storedSchedule struct {
	gen   int64 // generation of the schedule; 0 if there is no schedule with the name
	uid   int
	bytes int64 // bytes charged to the user
}

func (t *Tx) storedSchedule(name string) (s storedSchedule, err error) {
	err = t.Query(func(r database.Row) (bool, error) {
		s = storedSchedule{r.Num(0), int(r.Num(1)), r.Num(2)}
		return false, nil
	}, `SELECT gen, uid, stored FROM schedules WHERE name = ?`, name)
	return s, err
}

// recordScheduleEvent records an event about a schedule.
func (t *Tx) recordScheduleEvent(kind queue.EventKind, d queue.EventDetail) error {
	raw, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return t.AddEvent(kind, nil, 0, raw)
}

// errNoSchedule returns the error for a schedule that does not exist.
func errNoSchedule(name string) error {
	return queue.Errorf(queue.CodeNotFound, "there is no schedule %q; see: queuectl schedule list", queue.Clip(name))
}

// Schedule implements rules.Tx.
func (t *Tx) Schedule(name string) (s store.Schedule, err error) {
	err = t.Query(func(r database.Row) (bool, error) {
		s = readSchedule(r, true)
		return false, nil
	}, `SELECT `+scheduleWhole+` FROM schedules WHERE name = ?`, name)
	if err == nil && s.Gen == 0 {
		err = errNoSchedule(name)
	}
	return s, err
}

// SetTimes implements rules.Tx.
func (t *Tx) SetTimes(s *store.Schedule) error {
	var by any
	if s.PausedBy != nil {
		by = int64(*s.PausedBy)
	}
	return t.Exec(`UPDATE schedules SET last_at = ?, next_at = ?, due_at = ?, boot = ?, paused_at = ?, paused_by = ?, note = ? WHERE name = ?`,
		int64(s.LastAt), int64(s.NextAt), int64(s.DueAt), s.Boot, int64(s.PausedAt), by, s.Note, s.Name)
}

// Unfinished implements rules.Tx.
func (t *Tx) Unfinished(schedule string, limit int) ([]rules.Job, error) {
	return t.jobs(limit, `jobs INDEXED BY jobs_schedule WHERE schedule = ? AND schedule <> '' AND state < 6 ORDER BY seq DESC`, schedule)
}

// AddRun implements rules.Tx.
func (t *Tx) AddRun(schedule string, r store.ScheduleRun) error {
	var by any
	if r.RequestedBy != nil {
		by = int64(*r.RequestedBy)
	}
	if err := t.Exec(`INSERT INTO schedule_runs (name, instant, at, outcome, job, id, asker, note) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		schedule, int64(r.Instant), int64(t.now), string(r.Outcome), r.Job, r.ID, by, r.Note); err != nil {
		return err
	}
	return t.Exec(`DELETE FROM schedule_runs WHERE name = ? AND n <= (SELECT n FROM schedule_runs WHERE name = ? ORDER BY n DESC LIMIT 1 OFFSET ?)`, schedule, schedule, int64(store.MaxScheduleRuns))
}

// Taken implements rules.Tx.
func (t *Tx) Taken(id string) (bool, error) {
	taken, err := t.takenIDs([]string{id})
	return taken[id], err
}

// Schedule returns a schedule and its newest runs.
func (s *Engine) Schedule(ctx context.Context, name string) (found store.Schedule, runs []store.ScheduleRun,
	err error) {
	err = s.Read(ctx, func(r *reads.Reader) error {
		runs = nil
		if err := r.Query(func(r database.Row) (bool, error) {
			found = readSchedule(r, true)
			return false, nil
		}, `SELECT `+scheduleWhole+` FROM schedules WHERE name = ?`, name); err != nil {
			return err
		}
		if found.Gen == 0 {
			return errNoSchedule(name)
		}
		return r.Query(func(r database.Row) (bool, error) {
			run := store.ScheduleRun{Instant: queue.Millis(r.Num(0)), At: queue.Millis(r.Num(1)),
				Outcome: store.Outcome(r.Text(2)), Job: r.Num(3), ID: r.Text(4), Note: r.Text(7)}
			if r.Num(5) == 0 {
				by := int(r.Num(6))
				run.RequestedBy = &by
			}
			runs = append(runs, run)
			return true, nil
		}, `SELECT instant, at, outcome, job, id, asker IS NULL, asker, note FROM schedule_runs INDEXED BY schedule_runs_name WHERE name = ? ORDER BY n DESC`, name)
	})
	return found, runs, err
}

// Schedules returns a page of schedules, sorted by name.
func (s *Engine) Schedules(ctx context.Context, after string, limit int) (list []store.Schedule, err error) {
	err = s.Read(ctx, func(r *reads.Reader) error {
		list = nil
		bytes := 0
		return r.Query(func(r database.Row) (bool, error) {
			list = append(list, readSchedule(r, false))
			bytes += len(r.View(scheduleDraft))
			return len(list) < limit && bytes < store.MaxPageBytes, nil
		}, `SELECT `+scheduleColumns+` FROM schedules WHERE name > ? ORDER BY name LIMIT ?`, after, int64(limit))
	})
	return list, err
}

// RemoveSchedule removes a schedule and its runs.
func (s *Engine) RemoveSchedule(ctx context.Context, name string, gen int64, by int) error {
	return s.Do(ctx, Prompt, func(t *Tx) error {
		old, err := t.storedSchedule(name)
		switch {
		case err != nil:
			return err
		case old.gen == 0:
			return errNoSchedule(name)
		case old.gen != gen:
			return store.ErrScheduleChanged
		}
		t.Holds(old.uid, -old.bytes, 0)
		if err := t.Exec(`DELETE FROM schedules WHERE name = ?`, name); err != nil {
			return err
		}
		if err := t.Exec(`DELETE FROM schedule_runs WHERE name = ?`, name); err != nil {
			return err
		}
		return t.recordScheduleEvent(queue.EventScheduleRemoved, queue.EventDetail{UID: &by, Schedule: name})
	})
}

// PauseSchedule pauses or resumes a schedule. A paused schedule creates no jobs.
func (s *Engine) PauseSchedule(ctx context.Context, p store.SchedulePause) error {
	return s.Do(ctx, Prompt, func(t *Tx) error {
		is, err := t.Schedule(p.Name)
		switch {
		case err != nil:
			return err
		case is.Gen != p.Gen:
			return store.ErrScheduleChanged
		case p.Pause == (is.PausedAt != 0):
			return nil
		case p.Pause:
			is.PausedAt, is.PausedBy, is.Note = t.now, p.RequestedBy, p.Note
			is.NextAt, is.DueAt = 0, 0
		default:
			is.PausedAt, is.PausedBy, is.Note = 0, nil, ""
			is.LastAt, is.NextAt, is.DueAt, is.Boot = max(is.LastAt, p.LastAt), p.NextAt, p.DueAt, p.Boot
			t.wakeAt(p.DueAt)
		}
		if err := t.SetTimes(&is); err != nil {
			return err
		}
		kind := queue.EventScheduleResumed
		if p.Pause {
			kind = queue.EventSchedulePaused
		}
		return t.recordScheduleEvent(kind, queue.EventDetail{UID: p.RequestedBy, Schedule: p.Name, Target: p.Note})
	})
}

// maxDue is the number of due schedules that are read, so that users can take turns.
// See docs/decisions/0014.
const maxDue = 10_000

// DueSchedules returns up to limit due schedules, and how long to wait until the next one is due.
func (s *Engine) DueSchedules(ctx context.Context, boot string, limit int) (due []store.Schedule, next time.Duration,
	err error) {
	err = s.Read(ctx, func(r *reads.Reader) error {
		now := s.now()
		due, next = nil, time.Hour
		type named struct {
			name string
			turn int // number of earlier schedules of the same user
		}
		var list []named
		turns := map[int64]int{} // by uid
		add := func(r database.Row) (bool, error) {
			list = append(list, named{r.Text(0), turns[r.Num(1)]})
			turns[r.Num(1)]++
			return len(list) < maxDue, nil
		}
		if boot != "" {
			for _, other := range []string{`boot < ?`, `boot > ?`} {
				if err := r.Query(
					add, `SELECT name, uid FROM schedules INDEXED BY schedules_boot WHERE at_boot = 1 AND paused_at = 0 AND `+other+
						` LIMIT ?`, boot, int64(maxDue)); err != nil {
					return err
				}
			}
		}
		err := r.Query(func(r database.Row) (bool, error) {
			if at := queue.Millis(r.Num(2)); at > now {
				next = min(next, time.Duration(at-now)*time.Millisecond)
				return false, nil
			}
			return add(r)
		}, `SELECT name, uid, due_at FROM schedules INDEXED BY schedules_due WHERE due_at > 0 AND paused_at = 0 ORDER BY due_at LIMIT ?`, int64(maxDue))
		slices.SortStableFunc(list, func(a, b named) int { return a.turn - b.turn })
		for _, one := range list[:min(len(list), limit)] {
			if err == nil {
				err = r.Query(func(r database.Row) (bool, error) {
					due = append(due, readSchedule(r, true))
					return false, nil
				}, `SELECT `+scheduleWhole+` FROM schedules WHERE name = ?`, one.name)
			}
		}
		return err
	})
	if len(due) == limit {
		next = 0
	}
	return due, next, err
}

// Fire carries out and records the plan for occurrences of a schedule.
func (s *Engine) Fire(ctx context.Context, f store.OccurrenceRequest) (fired store.OccurrenceResult, err error) {
	err = s.Do(ctx, Prompt, func(t *Tx) (err error) {
		if err := t.s.space.CheckSpace(); err != nil && len(f.Runs) > 0 {
			return err
		}
		fired, err = t.rules.Fire(&f, func(draft queue.Job) (int64, string, error) { return t.enqueueFor(&f, draft) })
		return err
	})
	return fired, err
}

// enqueueFor enqueues a job of a schedule.
func (t *Tx) enqueueFor(f *store.OccurrenceRequest, draft queue.Job) (seq int64, id string, err error) {
	drafts := []queue.Job{draft}
	list, err := allTexts(drafts)
	if err != nil {
		return 0, "", err
	}
	if err := rules.Admit(t, draft.UID, 1, f.MaxPending, f.MaxPendingUser); err != nil {
		return 0, "", err
	}
	if err := rules.AdmitBytes(t, draft.UID, records.TotalSize(drafts, list), f.MaxBytesUser); err != nil {
		return 0, "", err
	}
	if err := t.admitQueues(draft.UID, rules.PerQueue(drafts)); err != nil {
		return 0, "", err
	}
	receipt, err := t.admitDrafts(drafts, draft.UID)
	if err != nil {
		return 0, "", err
	}
	if receipt.Found != nil {
		return 0, "", queue.Errorf(queue.CodeExists, "the schedule enqueued no job, because job %s already has the unique "+
			"key %q; to see its state: queuectl show %[1]s", receipt.IDs[0], drafts[0].Unique)
	}
	if _, err := t.rules.Replace(&drafts[0]); err != nil {
		return 0, "", err
	}
	if err := t.recordOwner(draft.UID, f.Owner); err != nil {
		return 0, "", err
	}
	t.drafts = list
	return receipt.Seqs[0], receipt.IDs[0], t.rules.Insert(&drafts[0], 0, draft.UID, receipt.Seqs[0], receipt.IDs[0])
}
