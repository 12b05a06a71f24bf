package records

import (
	"encoding/json"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/rules"
)

// JobColumnsFor returns the columns of the table jobs that a ReadScope selects.
func JobColumnsFor(scope rules.ReadScope) string {
	return [...]string{ShortJobColumns, JobColumns, AllJobColumns}[scope]
}

// jobRow holds the values of a job's row that engine.Tx.PutJob writes, in the order of the columns. Two of these values
// can be compared without memory for each argument of a statement: with four nodes on one PostgreSQL server, comparing
// the results of JobRowArgs took an eighth of the nodes' processor time.
type jobRow struct {
	numbers     [31]int64
	texts       [4]string
	newError    string
	hasNewError bool // false keeps the stored error
}

// updatedAtIndex is the index of UpdatedAt in jobRow.numbers.
const updatedAtIndex = 14

func jobRowOf(j *rules.Job) (row jobRow) {
	row.numbers = [...]int64{
		int64(j.UID), int64(j.State), int64(j.Slot), j.LaneID, j.Rank, j.Priority, int64(j.MaxAttempts), int64(j.Attempts),
		int64(j.StartedAttempts), int64(j.Deferrals), int64(j.Shortages), int64(j.RunnerCrashes),
		BoolToInt(j.NeedsIsolation), j.Fence,
		int64(j.UpdatedAt), int64(j.RunAt), int64(j.DueAt), int64(j.AgingSince), j.ArrivalNumber, int64(j.ExpiresAt),
		int64(j.StartedAt), int64(j.EndedAt), j.ExitCode, int64(j.Signal), int64(j.PID), int64(j.PausedAt),
		int64(j.PausedBy), BoolToInt(j.UsesQueueRetention), j.OutputBytes, j.LastLeasingNodeID, j.StoredBytes,
	}
	row.texts = [...]string{j.WorkerID, j.HeldUnits, string(j.Reason), j.EncodedLastAttempt}
	if j.NewError != nil {
		row.newError, row.hasNewError = *j.NewError, true
	}
	return row
}

// JobRowArgs returns the arguments of the statement with which engine.Tx.PutJob writes a job's row, in the order of the
// columns.
func JobRowArgs(j *rules.Job) []any {
	row := jobRowOf(j)
	const spareCapacity = 10 // capacity for the arguments that callers append
	args := make([]any, 0, len(row.numbers)+len(row.texts)+1+spareCapacity)
	for _, n := range row.numbers {
		args = append(args, n)
	}
	for _, text := range row.texts {
		args = append(args, text)
	}
	if row.hasNewError {
		return append(args, row.newError)
	}
	return append(args, nil)
}

// HaveEqualJobRows reports whether JobRowArgs returns the same arguments for both jobs, apart from UpdatedAt.
func HaveEqualJobRows(a, b *rules.Job) bool {
	rowOfA, rowOfB := jobRowOf(a), jobRowOf(b)
	rowOfA.numbers[updatedAtIndex] = rowOfB.numbers[updatedAtIndex]
	return rowOfA == rowOfB
}

// EncodeDemands encodes demands (locks and other limits that a job needs) for the job's row.
func EncodeDemands(demands []queue.Demand) (string, error) {
	if len(demands) == 0 {
		return "", nil
	}
	text, err := json.Marshal(demands)
	return string(text), err
}

// BoolToInt returns 1 for true and 0 for false, as the database stores booleans.
func BoolToInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
