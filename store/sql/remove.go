package sql

// Limits of one transaction that removes attempts and edges; the rest goes in later transactions.
const (
	removeNow   = 200     // attempts of one job that go with it, and as many of its edges
	removeMost  = 1000    // of all jobs that one transaction removes
	removeStep  = 500     // of a job that was removed before
	removeBytes = 1 << 20 // of output in the database; the attempt that reaches it is the last
)

// attemptRange are the first attempts of a job.
type attemptRange struct {
	n       int   // how many
	last    int64 // the number of the last one
	outputs int64 // bytes of their outputs, wherever these are
	stored  int64 // of them, in the database
	all     bool  // there are no others
}

// firstAttempts looks at up to most attempts of a job, or removeBytes of their outputs.
func (t *tx) firstAttempts(seq int64, most int) (a attemptRange, err error) {
	a.all = true
	err = t.query(func(r row) (bool, error) {
		if a.n == most || a.stored >= removeBytes {
			a.all = false
			return false, nil
		}
		a.n++
		a.last, a.outputs, a.stored = r.num(0), a.outputs+max(0, r.num(1)), a.stored+r.num(2)
		return true, nil
	}, `SELECT n, output_bytes, coalesce(octet_length(output), 0) + coalesce(octet_length(result), 0) FROM attempts WHERE seq = ? ORDER BY n LIMIT ?`, seq, int64(most)+1)
	return a, err
}

// removeAttempts deletes attempts of a job; their output files are garbage.
func (t *tx) removeAttempts(seq int64, a attemptRange) error {
	if a.n == 0 {
		return nil
	}
	if err := t.exec(`INSERT INTO garbage SELECT output_ref, node FROM attempts WHERE seq = ? AND n <= ? AND output_ref <> '' ON CONFLICT DO NOTHING`, seq, a.last); err != nil {
		return err
	}
	if err := t.exec(`DELETE FROM attempts WHERE seq = ? AND n <= ?`, seq, a.last); err != nil {
		return err
	}
	t.s.mem.outputs -= a.outputs
	t.removed += a.n
	t.read += int(a.stored)
	return nil
}

// Remove implements rules.Tx. A long history, and many jobs that it has waited for, are deleted
// later, by tidyRemoved; no reader sees them meanwhile.
func (t *tx) Remove(seq int64) error {
	all, err := t.dropEdgesOf(seq, min(removeNow, removeMost-t.removed))
	if err != nil {
		return err
	}
	a, err := t.firstAttempts(seq, removeNow)
	if err != nil {
		return err
	}
	if all && a.all && t.removed+a.n <= removeMost {
		err = t.removeAttempts(seq, a)
	} else {
		err = t.exec(`INSERT INTO removed (seq) VALUES (?)`, seq)
		t.wakeAt(t.now)
	}
	if err != nil {
		return err
	}
	if err := t.exec(`DELETE FROM inputs WHERE seq = ?`, seq); err != nil {
		return err
	}
	err = t.exec(`DELETE FROM jobs WHERE seq = ?`, seq)
	return err
}

// tidyRemoved deletes a step of what is left of a job that was removed. It reports whether
// there is more.
func (t *tx) tidyRemoved() (more bool, err error) {
	var seq int64
	err = t.query(func(r row) (bool, error) {
		seq, more = r.num(0), true
		return false, nil
	}, `SELECT seq FROM removed ORDER BY seq LIMIT 1`)
	if err != nil || !more {
		return false, err
	}
	all, err := t.dropEdgesOf(seq, removeStep)
	if err != nil || !all {
		return true, err
	}
	a, err := t.firstAttempts(seq, removeStep)
	if err == nil {
		err = t.removeAttempts(seq, a)
	}
	if err == nil && a.all {
		err = t.exec(`DELETE FROM removed WHERE seq = ?`, seq)
	}
	return true, err
}
