package records

import (
	"encoding/json"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/rules"
)

// ColumnsOf returns the columns that hold a part of a job.
func ColumnsOf(part rules.ReadScope) string {
	return [...]string{HeadColumns, JobColumns, WholeColumns}[part]
}

// JobRow holds the values that Put writes for a job, in the order of its columns.
type JobRow struct {
	Numbers   [31]int64
	texts     [4]string
	errorText string // text of the job's new error; set only if hasError is true
	hasError  bool
}

// RowUpdatedAt is the index of updated_at in JobRow.numbers.
const RowUpdatedAt = 14

// RowOf returns the row of a job.
func RowOf(j *rules.Job) JobRow {
	row := JobRow{
		Numbers: [...]int64{int64(j.UID), int64(j.State), int64(j.Slot), j.Lane, j.Rank, j.Priority, int64(j.MaxAttempts),
			int64(j.Attempts), int64(j.Runs), int64(j.Deferred), int64(j.Refunds), int64(j.Crashes), Bit(j.Suspect), j.Fence,
			int64(j.UpdatedAt), int64(j.RunAt), int64(j.DueAt), int64(j.Since), j.Arrival, int64(j.ExpiresAt),
			int64(j.StartedAt), int64(j.EndedAt), j.ExitCode, int64(j.Signal), int64(j.PID), int64(j.PausedAt),
			int64(j.PausedBy), Bit(j.OwnRetention), j.Outputs, j.Node, j.Stored},
		texts:    [...]string{j.WorkerID, j.Units, string(j.Reason), j.LastAttempt},
		hasError: j.NewError != nil,
	}
	if row.hasError {
		row.errorText = *j.NewError
	}
	return row
}

// Args returns the row's values as arguments, followed by the job's seq.
func (row *JobRow) Args(seq int64) []any {
	args := make([]any, 0, len(row.Numbers)+len(row.texts)+11)
	for _, n := range row.Numbers {
		args = append(args, n)
	}
	for _, text := range row.texts {
		args = append(args, text)
	}
	if row.hasError {
		return append(args, row.errorText, seq)
	}
	return append(args, nil, seq)
}

// DemandsText returns demands as a job's row stores them.
func DemandsText(list []queue.Demand) (string, error) {
	if len(list) == 0 {
		return "", nil
	}
	text, err := json.Marshal(list)
	return string(text), err
}

// Bit returns a boolean as the database stores it.
func Bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
