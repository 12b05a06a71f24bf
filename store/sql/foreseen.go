package sql

import (
	"errors"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/rules"
)

// foreseen are rows that a transaction writes before its turn: those of the node's own attempts that have ended. What they will hold is
// known, and while another node has the turn the server is done with them. In the turn each is compared with what the rules say. What
// differs is written again; if one did not come about, the transaction is undone and tried again without.
// See docs/decisions/0028.
type foreseen struct {
	early    bool // the turn has not come yet
	jobs     map[int64]*jobRow
	attempts map[int64]foreseenAttempt
}

// foreseenAttempt is a row of attempts.
type foreseenAttempt struct {
	of   *store.Settlement
	runs int
}

// errForeseen is met by a transaction that has written what did not come about, or would take it for what is so. It is tried again,
// and writes nothing before its turn.
var errForeseen = notForeseen{errors.New("the database is busy: another node has taken over this node's jobs")}

type notForeseen struct{ error }

func (notForeseen) kind() kind { return busy }

// foresee writes the rows for attempts that have ended, before the group that records them holds the writer lock.
// Each user's jobs may hold mostBytes.
func (t *tx) foresee(ended []store.Settlement, mostBytes int64) error {
	f := &foreseen{early: true, jobs: map[int64]*jobRow{}, attempts: map[int64]foreseenAttempt{}}
	t.foreseen = f
	for i := range ended {
		e := &ended[i]
		if f.jobs[e.Seq] != nil {
			continue
		}
		// A node that holds the writer lock may remove outputs of this job. It would wait for the lock on the row, while this
		// transaction waits for the writer lock: a deadlock.
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

// writing reports whether what is written is only foreseen.
func (f *foreseen) writing() bool { return f != nil && f.early }

// holds reports whether a job's row is what was foreseen.
func (f *foreseen) holds(seq int64) bool { return f != nil && !f.early && f.jobs[seq] != nil }

// has reports whether a job's row is there as it is to be, but for the instant: then it need not be written. One that is foreseen is
// remembered.
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

// hasAttempt reports whether the row of an attempt is there.
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

// foreseenOf reports whether the database has an attempt of one of the user's jobs that the rules have not recorded
// yet.
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

// left is an error if something was written that did not come about.
func (f *foreseen) left() error {
	if f != nil && len(f.jobs)+len(f.attempts) > 0 {
		return errForeseen
	}
	return nil
}
