package engine

import "github.com/queuectl/queuectl/store/database"

// These limits apply to one transaction that removes attempts and dependencies. Later transactions remove the other
// attempts and dependencies.
const (
	// maxRowsRemovedWithJob limits how many attempts, and how many dependencies, are removed in the same
	// transaction as their job.
	maxRowsRemovedWithJob = 200
	maxRowsRemovedPerTx   = 1000 // maximum number of attempts and dependencies that one transaction removes
	// attempts, or dependencies, of a removed job that one call of continueJobRemovals removes
	maxRowsRemovedPerJobStep = 500
	// maxBytesRemovedPerStep limits how many bytes of outputs and results of one job are removed from the database in one
	// step: with the job itself, or in one call of continueJobRemovals. The attempt that reaches the limit is still
	// removed.
	maxBytesRemovedPerStep = 1 << 20
)

// attemptRange describes the first attempts of a job.
type attemptRange struct {
	attemptCount        int   // number of attempts
	lastAttemptNumber   int64 // number (n) of the last attempt
	outputBytes         int64 // bytes of outputs, in the database and in files
	storedBytes         int64 // bytes of outputs and results in the database
	includesLastAttempt bool  // the job has no further attempts
}

// measureFirstAttempts reads the sizes of the first attempts of a job, until limit attempts or maxBytesRemovedPerStep
// bytes of output are reached.
func (t *Tx) measureFirstAttempts(jobSeq int64, limit int) (a attemptRange) {
	a.includesLastAttempt = true
	t.Query(func(r database.Row) (bool, error) {
		if a.attemptCount == limit || a.storedBytes >= maxBytesRemovedPerStep {
			a.includesLastAttempt = false
			return false, nil
		}
		a.attemptCount++
		a.lastAttemptNumber, a.outputBytes, a.storedBytes = r.Int64(0), a.outputBytes+max(0, r.Int64(1)), a.storedBytes+
			r.Int64(2)
		return true, nil
	},
		`SELECT n, output_bytes, coalesce(octet_length(output), 0) + coalesce(octet_length(result), 0) FROM attempts WHERE seq = ? ORDER BY n LIMIT ?`, jobSeq, limit+1)
	return a
}

// removeAttempts deletes the first attempts of a job, as described by a. It adds their output files to the
// table garbage, which lists the files to delete.
func (t *Tx) removeAttempts(jobSeq int64, a attemptRange) {
	if a.attemptCount == 0 {
		return
	}
	t.Exec(
		`INSERT INTO garbage SELECT output_ref, node FROM attempts WHERE seq = ? AND n <= ? AND output_ref <> '' ON CONFLICT DO NOTHING`, jobSeq, a.lastAttemptNumber)
	t.Exec(`DELETE FROM attempts WHERE seq = ? AND n <= ?`, jobSeq, a.lastAttemptNumber)
	t.OutputBytes -= a.outputBytes
	t.removedRows += a.attemptCount
	t.readJobBytes += int(a.storedBytes)
}

// RemoveJob implements rules.Jobs. It deletes a job, so that readers no longer see anything of it. If the job
// has many attempts or dependencies, continueJobRemovals deletes the rest of them later.
func (t *Tx) RemoveJob(jobSeq int64) error {
	n, all, _ := t.DeleteSomeEdges(jobSeq, min(maxRowsRemovedWithJob, maxRowsRemovedPerTx-t.removedRows))
	t.removedRows += n
	a := t.measureFirstAttempts(jobSeq, maxRowsRemovedWithJob)
	if all && a.includesLastAttempt && t.removedRows+a.attemptCount <= maxRowsRemovedPerTx {
		t.removeAttempts(jobSeq, a)
	} else {
		t.Exec(`INSERT INTO removed (seq) VALUES (?)`, jobSeq)
		t.WakeServiceAt(t.startTime)
	}
	t.Exec(`DELETE FROM inputs WHERE seq = ?`, jobSeq)
	return t.Exec(`DELETE FROM jobs WHERE seq = ?`, jobSeq)
}

// continueJobRemovals deletes the next attempts and dependencies of a removed job. more is true if it must be called
// again.
func (t *Tx) continueJobRemovals() (more bool, err error) {
	seq := t.queryInt(`SELECT seq FROM removed ORDER BY seq LIMIT 1`)
	if seq == 0 {
		return false, t.statementErr
	}
	n, all, err := t.DeleteSomeEdges(seq, maxRowsRemovedPerJobStep)
	t.removedRows += n
	if err != nil || !all {
		return true, err
	}
	a := t.measureFirstAttempts(seq, maxRowsRemovedPerJobStep)
	if t.removeAttempts(seq, a); a.includesLastAttempt {
		t.Exec(`DELETE FROM removed WHERE seq = ?`, seq)
	}
	return true, t.statementErr
}
