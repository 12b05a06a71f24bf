package records

import (
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// EncodeAttemptForJobRow encodes a job's last attempt for the column "ran" of the job's row: WORKER PID CPU_US
// PEAK_RSS NODE. The other values of the attempt are in other columns of that row. Most jobs complete without
// output or errors, so their attempts need no row in the table attempts. For an attempt that needs such a
// row, it returns "". See docs/decisions/0025.
func EncodeAttemptForJobRow(settlement *store.Settlement) string {
	d, a := &settlement.Decision, &settlement.Attempt
	if d.NextState != queue.Completed || !d.CountsTowardMaxAttempts || d.Reason != "" || d.Error != "" ||
		a.ExitCode != 0 ||
		a.Signal != 0 || a.EndedAt <= 0 || a.LeftoverProcesses != 0 || a.DroppedBytes != 0 || a.PeakTasks != 0 ||
		len(a.Output) > 0 || a.OutputFileRef != "" || a.OutputBytes < 0 || len(a.Result) > 0 || a.ResultError != "" ||
		strings.Contains(a.Worker, " ") {
		return ""
	}
	b := append(make([]byte, 0, 64), a.Worker...)
	for _, n := range [...]int64{int64(a.PID), a.CPUTime.Microseconds(), a.PeakRSSBytes} {
		b = strconv.AppendInt(append(b, ' '), n, 10)
	}
	return string(append(append(b, ' '), a.Node...))
}

// LastAttemptColumns are the columns of a job's row that describe its last attempt, in the order of
// ReadLastAttempt.
const LastAttemptColumns = `ran, runs, fence, started_at, ended_at`

// ReadLastAttempt reads the last attempt of a job from the columns LastAttemptColumns of the job's row. If the
// attempt is stored in the table attempts instead, found is false. Values that cannot be read are zero.
func ReadLastAttempt(r database.Row) (attempt queue.Attempt, found bool) {
	text := r.Text(0)
	if text == "" {
		return attempt, false
	}
	words := append(strings.SplitN(text, " ", 5), make([]string, 4)...)
	n := func(i int) int64 { n, _ := strconv.ParseInt(words[i], 10, 64); return n }
	return queue.Attempt{Number: int(r.Int64(1)), Fence: r.Int64(2), Worker: words[0], Node: words[4], PID: int(n(1)),
		StartedAt: queue.UnixMillis(r.Int64(3)), EndedAt: queue.UnixMillis(r.Int64(4)),
		CountsTowardMaxAttempts: true, CPUTime: time.Duration(n(2)) * time.Microsecond, PeakRSSBytes: n(3)}, true
}
