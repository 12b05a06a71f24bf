package engine

import "github.com/queuectl/queuectl/store/database"

// These limits apply to one transaction that removes attempts and dependencies. Later transactions remove the
// rest.
const (
	// maxRemovedWithJob limits how many attempts, and how many dependencies, are removed in the same
	// transaction as their job.
	maxRemovedWithJob = 200
	maxRemovedPerTx   = 1000 // attempts and dependencies that one transaction may remove
	removedPerStep    = 500  // attempts, or dependencies, of a removed job that one call of tidyRemoved removes
	// maxRemovedBytes limits how many bytes of output and results one call removes from the database. The
	// attempt with which the limit is reached is still removed.
	maxRemovedBytes = 1 << 20
)

// attemptRange describes the first attempts of a job.
type attemptRange struct {
	count       int   // number of attempts
	lastNumber  int64 // number (n) of the last attempt
	outputBytes int64 // bytes of outputs, in the database and in files
	storedBytes int64 // bytes of outputs and results in the database
	isComplete  bool  // the job has no further attempts
}

// firstAttempts reads the sizes of the first attempts of a job, until limit attempts or maxRemovedBytes bytes
// of output are reached.
func (t *Tx) firstAttempts(seq int64, limit int) (a attemptRange) {
	a.isComplete = true
	t.Query(func(r database.Row) (bool, error) {
		if a.count == limit || a.storedBytes >= maxRemovedBytes {
			a.isComplete = false
			return false, nil
		}
		a.count++
		a.lastNumber, a.outputBytes, a.storedBytes = r.Num(0), a.outputBytes+max(0, r.Num(1)), a.storedBytes+r.Num(2)
		return true, nil
	}, `SELECT n, output_bytes, coalesce(octet_length(output), 0) + coalesce(octet_length(result), 0) FROM attempts WHERE seq = ? ORDER BY n LIMIT ?`, seq, int64(limit)+1)
	return a
}

// removeAttempts deletes the first attempts of a job, as described by a. It adds their output files to the
// table garbage, which lists the files to delete.
func (t *Tx) removeAttempts(seq int64, a attemptRange) {
	if a.count == 0 {
		return
	}
	t.Exec(
		`INSERT INTO garbage SELECT output_ref, node FROM attempts WHERE seq = ? AND n <= ? AND output_ref <> '' ON CONFLICT DO NOTHING`, seq, a.lastNumber)
	t.Exec(`DELETE FROM attempts WHERE seq = ? AND n <= ?`, seq, a.lastNumber)
	t.engine.mem.outputBytes -= a.outputBytes
	t.removedRows += a.count
	t.readBytes += int(a.storedBytes)
}

// Remove implements rules.Jobs. It deletes a job, so that readers no longer see anything of it. If the job
// has many attempts or dependencies, tidyRemoved deletes the rest of them later.
func (t *Tx) Remove(seq int64) error {
	n, all, _ := t.DeleteSomeEdges(seq, min(maxRemovedWithJob, maxRemovedPerTx-t.removedRows))
	t.removedRows += n
	a := t.firstAttempts(seq, maxRemovedWithJob)
	if all && a.isComplete && t.removedRows+a.count <= maxRemovedPerTx {
		t.removeAttempts(seq, a)
	} else {
		t.Exec(`INSERT INTO removed (seq) VALUES (?)`, seq)
		t.WakeAt(t.startTime)
	}
	t.Exec(`DELETE FROM inputs WHERE seq = ?`, seq)
	return t.Exec(`DELETE FROM jobs WHERE seq = ?`, seq)
}

// tidyRemoved deletes the next attempts and dependencies of a removed job. more is true if it must be called
// again.
func (t *Tx) tidyRemoved() (more bool, err error) {
	seq := t.queryInt(`SELECT seq FROM removed ORDER BY seq LIMIT 1`)
	if seq == 0 {
		return false, t.err
	}
	n, all, err := t.DeleteSomeEdges(seq, removedPerStep)
	t.removedRows += n
	if err != nil || !all {
		return true, err
	}
	a := t.firstAttempts(seq, removedPerStep)
	if t.removeAttempts(seq, a); a.isComplete {
		t.Exec(`DELETE FROM removed WHERE seq = ?`, seq)
	}
	return true, t.err
}
