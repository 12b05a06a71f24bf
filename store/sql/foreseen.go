package sql

import (
	"errors"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// foreseen is a prewrite: rows that a transaction writes before this node holds the writer lock, for
// attempts of this node that have ended. Their contents are predictable, so the server can execute the
// writes while another node holds the lock.
//
// Once the node holds the lock, each row is compared with the result of the rules. A row that differs is
// written again. If a prewritten row turns out to be wrong altogether, because the rules do not produce it,
// the transaction is rolled back and repeated without a prewrite.
// See docs/decisions/0028.
type foreseen struct {
	early    bool // this node does not hold the writer lock yet
	jobs     map[int64]*jobRow
	attempts map[int64]foreseenAttempt
}

// foreseenAttempt identifies a prewritten row of the table attempts.
type foreseenAttempt struct {
	of   *store.Settlement
	runs int
}

// errForeseen is met by a transaction that has written what did not come about, or would take it for what is so. It is tried again,
// and writes nothing before its turn.
var errForeseen = notForeseen{errors.New("rows that were written before the node held the writer lock do not match the final result; the transaction is repeated without them")}

type notForeseen struct{ error }

func (notForeseen) kind() kind { return busy }

// foresee writes the rows for attempts that have ended, before the group that records them holds the writer
// lock. Each user's jobs may hold mostBytes.
func (t *tx) foresee(ended []store.Settlement, mostBytes int64) error {
	f := &foreseen{early: true, jobs: map[int64]*jobRow{}, attempts: map[int64]foreseenAttempt{}}
	t.foreseen = f
	for i := range ended {
		e := &ended[i]
		if f.jobs[e.Seq] != nil {
			continue
		}
		// Skip jobs with outputs. The node that holds the writer lock may be removing outputs of this job.
		// It would wait for the lock on the row while this transaction waits for the writer lock: a
		// deadlock.
		if l := t.s.mem.leases[e.Seq]; l != nil && l.Job.Outputs > 0 {
			continue
		}
		j := t.rules.Foresee(e, mostBytes)
		if j == nil || j.Node != t.s.node {
			continue
		}
		if err := t.AddAttempt(j, e); err != nil {
			return err
		}
		if err := t.Put(j); err != nil {
			return err
		}
	}
	f.early = false
	return nil
}

// writing reports whether the transaction is writing its prewrite.
func (f *foreseen) writing() bool { return f != nil && f.early }

// holds reports whether the row of a job in the database is a prewritten one.
func (f *foreseen) holds(seq int64) bool { return f != nil && !f.early && f.jobs[seq] != nil }

// has reports whether the database already has the row of a job, apart from updated_at, so that the row
// need not be written. During the prewrite, has remembers the row instead and returns false.
func (f *foreseen) has(j *rules.Job, row *jobRow) bool {
	switch {
	case f == nil:
		return false
	case f.early:
		f.jobs[j.Seq] = new(*row)
		return false
	}
	was := f.jobs[j.Seq]
	if was == nil {
		return false
	}
	delete(f.jobs, j.Seq)
	was.numbers[rowUpdatedAt] = row.numbers[rowUpdatedAt]
	return j.Rewrite == rules.RowAlone && *was == *row
}

// hasAttempt reports whether the row of an attempt was prewritten.
func (f *foreseen) hasAttempt(j *rules.Job, e *store.Settlement) (bool, error) {
	if f == nil {
		return false, nil
	}
	was, there := f.attempts[e.Seq]
	if !there {
		return false, nil
	}
	if was.of != e || was.runs != j.Runs {
		return false, errForeseen
	}
	delete(f.attempts, e.Seq)
	return true, nil
}

// foreseenOf reports whether the database has a prewritten attempt of one of the user's jobs that the rules
// have not recorded yet.
func (t *tx) foreseenOf(uid int) bool {
	if t.foreseen == nil {
		return false
	}
	for seq := range t.foreseen.attempts {
		if l := t.s.mem.leases[seq]; l != nil && l.Job.UID == uid {
			return true
		}
	}
	return false
}

// left returns errForeseen if a prewritten row was not confirmed by the rules.
func (f *foreseen) left() error {
	if f != nil && len(f.jobs)+len(f.attempts) > 0 {
		return errForeseen
	}
	return nil
}
