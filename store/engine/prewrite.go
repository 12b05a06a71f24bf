package engine

import (
	"errors"
	"slices"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// prewrite holds the rows that a transaction writes before this node holds the writer lock, for attempts of
// this node that have ended. Their contents are predictable, so the server can execute the writes while
// another node holds the lock.
//
// Once the node holds the lock, each row is compared with the result of the rules. A row that differs is
// written again. If the rules produce no such row at all, the prewrite cannot be corrected: the transaction
// is rolled back and repeated without a prewrite. See docs/decisions/0028.
type prewrite struct {
	beforeLock bool // this node does not hold the writer lock yet
	jobs       map[int64]*rules.Job
	attempts   map[int64]prewrittenAttempt
}

// prewrittenAttempt identifies a row of the table attempts that was written as a prediction.
type prewrittenAttempt struct {
	settlement    *store.Settlement
	attemptNumber int // number of the attempt, which is the job's StartedAttempts
}

// errPrewrite ends a transaction whose prewritten rows the rules did not confirm, or that would read such a
// row as final. The transaction is repeated without a prewrite.
var errPrewrite = prewriteError{errors.New("rows that were written ahead of the writer lock do not match what the " +
	"transaction must store; the transaction is repeated without them")}

// prewriteError makes the engine repeat the transaction, like the error of a busy database.
type prewriteError struct{ error }

func (prewriteError) Kind() database.ErrorKind { return database.DatabaseBusy }

// PrewriteEndedAttempts writes the rows of the ended attempts that are known before the transaction's first
// operation, and before this node holds the writer lock. If no other node is active, the lock is free,
// and PrewriteEndedAttempts writes nothing.
func (t *Tx) PrewriteEndedAttempts() error {
	if len(t.endedAttempts) == 0 || !t.engine.HasOtherNodes() {
		return nil
	}
	f := &prewrite{beforeLock: true, jobs: map[int64]*rules.Job{}, attempts: map[int64]prewrittenAttempt{}}
	t.prewrite = f
	for i := range t.endedAttempts {
		e := &t.endedAttempts[i]
		if f.jobs[e.Seq] != nil {
			continue
		}
		// Skip jobs with outputs. The node that holds the writer lock may be removing outputs of this job. That
		// node would wait for the lock on the row while this transaction waits for the writer lock, which is a
		// deadlock.
		if l := t.engine.mem.leases[e.Seq]; l != nil && l.Job.OutputBytes > 0 {
			continue
		}
		j := t.rules.PredictRow(e, t.maxUserBytes)
		if j == nil || j.Node != t.engine.node {
			continue
		}
		if err := t.AddAttempt(j, e); err != nil {
			return err
		}
		if err := t.Put(j); err != nil {
			return err
		}
	}
	f.beforeLock = false
	return nil
}

// inProgress reports whether the transaction is still writing its prewritten rows, before it takes the
// writer lock.
func (p *prewrite) inProgress() bool { return p != nil && p.beforeLock }

// covers reports whether the stored row of a job is a prewritten one that the rules have not confirmed yet.
func (p *prewrite) covers(seq int64) bool { return p != nil && !p.beforeLock && p.jobs[seq] != nil }

// confirmJob reports whether the database already has the row of a job, apart from updated_at, so that the
// row need not be written. During the prewrite, confirmJob remembers the job instead and returns false.
func (p *prewrite) confirmJob(j *rules.Job) bool {
	switch {
	case p == nil:
		return false
	case p.beforeLock:
		p.jobs[j.Seq] = new(*j)
		return false
	}
	written := p.jobs[j.Seq]
	if written == nil {
		return false
	}
	delete(p.jobs, j.Seq)
	written.UpdatedAt = j.UpdatedAt
	return j.WriteScope == rules.WriteRow && slices.Equal(records.RowArgs(written), records.RowArgs(j))
}

// confirmAttempt reports whether the row of an attempt was prewritten, and so need not be written again. It
// returns errPrewrite if the prewritten row differs.
func (p *prewrite) confirmAttempt(j *rules.Job, settlement *store.Settlement) (bool, error) {
	if p == nil {
		return false, nil
	}
	written, found := p.attempts[settlement.Seq]
	if !found {
		return false, nil
	}
	if written.settlement != settlement || written.attemptNumber != j.StartedAttempts {
		return false, errPrewrite
	}
	delete(p.attempts, settlement.Seq)
	return true, nil
}

// hasUnconfirmedPrewrite reports whether the database has a prewritten attempt of one of the user's jobs that
// the rules have not confirmed yet.
func (t *Tx) hasUnconfirmedPrewrite(uid int) bool {
	if t.prewrite == nil {
		return false
	}
	for seq := range t.prewrite.attempts {
		if l := t.engine.mem.leases[seq]; l != nil && l.Job.UID == uid {
			return true
		}
	}
	return false
}

// checkAllConfirmed returns errPrewrite if the rules have not confirmed every prewritten row.
func (p *prewrite) checkAllConfirmed() error {
	if p != nil && len(p.jobs)+len(p.attempts) > 0 {
		return errPrewrite
	}
	return nil
}
