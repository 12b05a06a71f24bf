package sql

import (
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// plainAttempt returns the value of a job's column ran for its last attempt: WORKER PID CPU_US PEAK_RSS
// NODE. The other values of the attempt are in other columns of the job. Most jobs complete without output
// or errors, so their attempts need no row in the table attempts. plainAttempt returns "" for an attempt
// that needs one.
// See docs/decisions/0025.
func plainAttempt(e *store.Settlement) string {
	d, a := &e.Decision, &e.Attempt
	if d.State != queue.Completed || !d.UsesAttempt || d.Reason != "" || d.Error != "" || a.ExitCode != 0 ||
		a.Signal != 0 || a.EndedAt <= 0 || a.Leftovers != 0 || a.Dropped != 0 || a.PeakTasks != 0 ||
		len(a.Output) > 0 || a.OutputRef != "" || a.OutputBytes < 0 || len(a.Result) > 0 || a.ResultError != "" ||
		strings.Contains(a.Worker, " ") {
		return ""
	}
	b := make([]byte, 0, 64)
	b = append(append(b, a.Worker...), ' ')
	for _, n := range [...]int64{int64(a.PID), a.CPU.Microseconds(), a.PeakRSS} {
		b = append(strconv.AppendInt(b, n, 10), ' ')
	}
	return string(append(b, a.Node...))
}

// jobAttemptColumns are the columns of a job's row that describe its last attempt, in the order of
// readJobAttempt.
const jobAttemptColumns = `ran, runs, fence, started_at, ended_at`

// readJobAttempt converts a row of jobAttemptColumns. found is false if the attempt has its own row in the
// table attempts. Unreadable values are left out.
func readJobAttempt(r database.Row) (a queue.Attempt, found bool) {
	text := r.Text(0)
	if text == "" {
		return a, false
	}
	words := append(strings.SplitN(text, " ", 5), make([]string, 4)...)
	n := func(i int) int64 { n, _ := strconv.ParseInt(words[i], 10, 64); return n }
	return queue.Attempt{N: int(r.Num(1)), Fence: r.Num(2), Worker: words[0], Node: words[4], PID: int(n(1)),
		StartedAt: queue.Millis(r.Num(3)), EndedAt: queue.Millis(r.Num(4)),
		Counted: true, CPU: time.Duration(n(2)) * time.Microsecond, PeakRSS: n(3)}, true
}

// insertLastAttempt inserts a row for the last attempt of a completed job that changes to another state.
func (t *tx) insertLastAttempt(j *rules.Job) error {
	var a queue.Attempt
	found := false
	err := t.Query(func(r database.Row) (bool, error) {
		a, found = readJobAttempt(r)
		return false, nil
	}, `SELECT `+jobAttemptColumns+` FROM jobs WHERE seq = ?`, j.Seq)
	if err == nil && found {
		err = t.insertAttempt(j.Seq, &a)
	}
	j.LastAttempt = ""
	return err
}

// insertAttempt inserts a row for an attempt.
func (t *tx) insertAttempt(seq int64, a *queue.Attempt) error {
	err := t.WriteRow(`INSERT INTO attempts (seq, n, fence, worker, node, pid, started_at, ended_at, exit_code, signal, reason, error,
		counted, cpu_us, peak_rss, leftovers, dropped, output, output_ref, output_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		seq, int64(a.N), a.Fence, a.Worker, a.Node, int64(a.PID), int64(a.StartedAt), int64(a.EndedAt), a.ExitCode,
		int64(a.Signal),
		string(a.Reason), a.Error, bit(a.Counted), a.CPU.Microseconds(), a.PeakRSS, int64(a.Leftovers), a.Dropped,
		blob(a.Output), text(a.OutputRef), a.OutputBytes)
	// Write these values with a second statement, because few jobs have them.
	if err == nil && (len(a.Result) > 0 || a.ResultError != "" || a.PeakTasks != 0) {
		err = t.Exec(`UPDATE attempts SET result = ?, result_error = ?, peak_tasks = ? WHERE seq = ? AND n = ?`,
			text(string(a.Result)), text(a.ResultError), a.PeakTasks, seq, int64(a.N))
	}
	return err
}
