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
func ReadSchedule(r database.Row, hasAllColumns bool) (s store.Schedule) {
	var jitterMillis int64
	var hasNoPauser bool
	var pausedByUID int
	database.ScanRow(r, &s.Name, &s.Generation, &s.OwnerUID, &s.CronLine, &s.TimeZone, &jitterMillis, &s.CatchUp,
		&s.Overlap, &s.RunsAtBoot, &s.LastBootID, &s.CreatedAt, &s.LastOccurrenceAt, &s.NextOccurrenceAt, &s.NextDueAt,
		&s.PausedAt, &hasNoPauser, &pausedByUID, &s.PauseOrDamageNote)
	s.MaxJitter = time.Duration(jitterMillis) * time.Millisecond
	if !hasNoPauser {
		s.PausedByUID = &pausedByUID
	}
	var stored storedDraft
	err := json.Unmarshal([]byte(r.Text(ScheduleDraftColumnIndex)), &stored)
	s.JobDraft = stored.Job
	for i := range min(len(s.JobDraft.DependsOn), len(stored.ParentIDs)) {
		s.JobDraft.DependsOn[i].ParentID = stored.ParentIDs[i]
	}
	if hasAllColumns && err == nil {
		s.SpecJSON = r.Text(ScheduleDraftColumnIndex + 2)
		if input := r.Text(ScheduleDraftColumnIndex + 1); input != "" {
			err = json.Unmarshal([]byte(input), &s.JobDraft.ExecutionSettings)
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
	input = EncodeInput(&j.ExecutionSettings)
	j.Env, j.Stdin = nil, ""
	kept := storedDraft{Job: j}
	for _, d := range j.DependsOn {
		kept.ParentIDs = append(kept.ParentIDs, d.ParentID)
	}
	raw, err := json.Marshal(kept)
	return string(raw), input, err
}
