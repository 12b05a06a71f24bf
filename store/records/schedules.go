package records

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// ScheduleColumns lists the short columns of a schedule, and the draft of its jobs. AllScheduleColumns lists
// all columns. ReadSchedule reads rows of either list.
const (
	ScheduleColumns = `name, gen, uid, cron, zone, jitter, catch_up, overlap, at_boot, boot, at, last_at, next_at,
		due_at, paused_at, paused_by IS NULL, paused_by, note, draft`
	AllScheduleColumns       = ScheduleColumns + `, input, spec`
	ScheduleDraftColumnIndex = 18 // index of the draft in ScheduleColumns
)

// ReadSchedule reads a schedule from a row. hasAllColumns is true if the row has AllScheduleColumns. If the texts of
// the schedule are damaged, IsDamaged is true, and Note contains the reason.
func ReadSchedule(r database.Row, hasAllColumns bool) store.Schedule {
	n, t := r.Int64, r.Text
	s := store.Schedule{
		Name: t(0), Generation: n(1), OwnerUID: int(n(2)), CronLine: t(3), TimeZone: t(4),
		MaxJitter: time.Duration(n(5)) * time.Millisecond,
		CatchUp:   store.CatchUpPolicy(t(6)), Overlap: store.OverlapPolicy(t(7)), RunsAtBoot: n(8) != 0, LastBootID: t(9),
		CreatedAt: queue.UnixMillis(n(10)), LastOccurrenceAt: queue.UnixMillis(n(11)),
		NextOccurrenceAt: queue.UnixMillis(n(12)), NextDueAt: queue.UnixMillis(n(13)),
		PausedAt: queue.UnixMillis(n(14)), PauseOrDamageNote: t(17),
	}
	if n(15) == 0 {
		s.PausedByUID = new(int(n(16)))
	}
	var stored storedDraft
	err := json.Unmarshal([]byte(t(ScheduleDraftColumnIndex)), &stored)
	s.JobDraft = stored.Job
	for i := range min(len(s.JobDraft.DependsOn), len(stored.ParentIDs)) {
		s.JobDraft.DependsOn[i].ParentID = stored.ParentIDs[i]
	}
	if hasAllColumns && err == nil {
		s.SpecJSON = t(ScheduleDraftColumnIndex + 2)
		if input := t(ScheduleDraftColumnIndex + 1); input != "" {
			err = json.Unmarshal([]byte(input), &s.JobDraft.Execution)
		}
	}
	if err != nil {
		s.JobDraft, s.IsDamaged = queue.Job{}, true
		s.PauseOrDamageNote = fmt.Sprintf("the schedule cannot be read (%v); add it again with --replace", err)
	}
	return s
}

// storedDraft is the form in which the draft of a schedule's jobs is stored.
type storedDraft struct {
	queue.Job
	// ParentIDs are the ids of the jobs that the draft depends on, as the user wrote them.
	ParentIDs []string `json:"parent_ids,omitempty"`
}

// EncodeScheduleDraft encodes the draft of a schedule's jobs. input contains its env and stdin, and draft
// everything else.
func EncodeScheduleDraft(j queue.Job) (draft, input string, err error) {
	input = EncodeInput(&j.Execution)
	j.Env, j.Stdin = nil, ""
	kept := storedDraft{Job: j}
	for _, d := range j.DependsOn {
		kept.ParentIDs = append(kept.ParentIDs, d.ParentID)
	}
	raw, err := json.Marshal(kept)
	return string(raw), input, err
}
