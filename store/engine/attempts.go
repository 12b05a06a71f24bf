package engine

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// insertLastAttemptRow gives the last attempt of a completed job its own row. It is called when the job changes
// to another state. Until then, the attempt is stored in the job's row.
func (t *Tx) insertLastAttemptRow(j *rules.Job) {
	var a queue.Attempt
	found := false
	database.ReadFirstRow(t, func(r database.Row) { a, found = records.ReadLastAttempt(r) },
		`SELECT `+records.LastAttemptColumns+` FROM jobs WHERE seq = ?`, j.Seq)
	if found {
		t.insertAttemptRow(j.Seq, &a)
	}
	j.EncodedLastAttempt = ""
}

func (t *Tx) insertAttemptRow(jobSeq int64, a *queue.Attempt) error {
	t.WriteRow(`INSERT INTO attempts (seq, n, fence, worker, node, pid, started_at, ended_at, exit_code, signal, reason, error,
		counted, cpu_us, peak_rss, leftovers, dropped, output, output_ref, output_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		jobSeq, a.Number, a.Fence, a.Worker, a.Node, a.PID, a.StartedAt, a.EndedAt, a.ExitCode,
		a.Signal,
		string(a.Reason), a.Error, a.CountsTowardMaxAttempts, a.CPUTime.Microseconds(), a.PeakRSSBytes,
		a.LeftoverProcesses,
		a.DroppedBytes,
		textOrNull(a.Output), textOrNull(a.OutputFileRef), a.OutputBytes)
	// Few attempts have a result, an error about the result or a peak number of tasks, so a second statement writes these
	// values only if needed.
	if len(a.Result) > 0 || a.ResultError != "" || a.PeakTasks != 0 {
		t.Exec(`UPDATE attempts SET result = ?, result_error = ?, peak_tasks = ? WHERE seq = ? AND n = ?`,
			textOrNull(string(a.Result)), textOrNull(a.ResultError), a.PeakTasks, jobSeq, a.Number)
	}
	return t.statementErr
}
