package engine

import (
	"errors"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// prewrite holds the rows of ended attempts that a transaction writes before this node holds the writer lock.
// Their contents can be predicted, so the server can write them while another node still holds the lock.
//
// When the node holds the lock, the rules compute the actual rows. If an actual row differs from the written
// one, it is written again. If the rules produce no row where one was written, the transaction is rolled back
// and repeated without a prewrite. See docs/decisions/0028.
type prewrite struct {
	inProgress          bool                 // this node does not hold the writer lock yet
	unconfirmedJobs     map[int64]*rules.Job // nil if the transaction makes no prewrite
	unconfirmedAttempts map[int64]prewrittenAttempt
}

// prewrittenAttempt identifies a row of the table attempts that was written before the writer lock was held.
type prewrittenAttempt struct {
	settlement    *store.Settlement
	attemptNumber int // number of the attempt, which is the job's StartedAttempts
}

// errPrewriteMismatch is the error of a transaction that cannot keep the rows that it wrote before it held the writer
// lock: the rules did not confirm them, or the transaction would read one of them as final. The transaction
// is repeated without such rows.
var errPrewriteMismatch = prewriteError{errors.New("rows that were written ahead of the writer lock do not match " +
	"what the transaction must store; the transaction is repeated without them")}

// prewriteError makes the engine repeat the transaction, as after the error of a busy database.
type prewriteError struct{ error }

func (prewriteError) Kind() database.ErrorKind { return database.DatabaseBusy }

// PrewriteEndedAttempts writes the rows of ended attempts that are known before the transaction's first
// operation. It is called before this node holds the writer lock. If no other node is active, it writes
// nothing, because the lock is then free.
func (t *Tx) PrewriteEndedAttempts() error {
	if len(t.expectedSettlements) == 0 || !t.engine.HasOtherNodes() {
		return nil
	}
	f := &t.prewrite
	*f = prewrite{inProgress: true, unconfirmedJobs: map[int64]*rules.Job{},
		unconfirmedAttempts: map[int64]prewrittenAttempt{}}
	for i := range t.expectedSettlements {
		e := &t.expectedSettlements[i]
		if f.unconfirmedJobs[e.Seq] != nil {
			continue
		}
		// Skip jobs with outputs, to avoid a deadlock: the node that holds the writer lock may be removing
		// outputs of the job. It would wait for this row, while this transaction waits for the writer lock.
		if l := t.leases[e.Seq]; l != nil && l.Job.OutputBytes > 0 {
			continue
		}
		j := t.rules.PredictSettledRow(e, t.maxBytesPerUser)
		if j == nil || j.LastLeasingNodeID != t.engine.nodeID {
			continue
		}
		if err := t.AddAttempt(j, e); err != nil {
			return err
		}
		if err := t.PutJob(j); err != nil {
			return err
		}
	}
	f.inProgress = false
	return nil
}

// wasMade reports whether the transaction may have written rows before it held the writer lock.
func (p *prewrite) wasMade() bool { return p.unconfirmedJobs != nil }

// hasUnconfirmedJob reports whether the stored row of a job was written before the writer lock was held, and the rules
// have not confirmed it yet.
func (p *prewrite) hasUnconfirmedJob(seq int64) bool {
	return !p.inProgress && p.unconfirmedJobs[seq] != nil
}

// confirmJob reports whether a job's row need not be written, because the database already has it (apart from
// updated_at). Before the writer lock is held, confirmJob only records the job, which must not change afterwards,
// and returns false.
func (p *prewrite) confirmJob(j *rules.Job) bool {
	if p.inProgress {
		p.unconfirmedJobs[j.Seq] = j
		return false
	}
	written := p.unconfirmedJobs[j.Seq]
	if written == nil {
		return false
	}
	delete(p.unconfirmedJobs, j.Seq)
	return j.WriteScope == rules.WriteScopeRowOnly && records.HaveEqualJobRows(written, j)
}

// confirmAttempt reports whether the row of an attempt need not be written, because it was written before the
// writer lock was held. It returns errPrewriteMismatch if that row differs from the actual one.
func (p *prewrite) confirmAttempt(j *rules.Job, settlement *store.Settlement) (bool, error) {
	written, found := p.unconfirmedAttempts[settlement.Seq]
	if !found {
		return false, nil
	}
	if written.settlement != settlement || written.attemptNumber != j.StartedAttempts {
		return false, errPrewriteMismatch
	}
	delete(p.unconfirmedAttempts, settlement.Seq)
	return true, nil
}

// hasUnconfirmedPrewrite reports whether the transaction has written an attempt of one of the user's jobs
// before it held the writer lock, and the rules have not confirmed this attempt yet.
func (t *Tx) hasUnconfirmedPrewrite(uid int) bool {
	for seq := range t.prewrite.unconfirmedAttempts {
		if l := t.leases[seq]; l != nil && l.Job.UID == uid {
			return true
		}
	}
	return false
}

// checkAllConfirmed returns errPrewriteMismatch if a row was written before the writer lock was held and the rules
// have not confirmed it.
func (p *prewrite) checkAllConfirmed() error {
	if len(p.unconfirmedJobs)+len(p.unconfirmedAttempts) > 0 {
		return errPrewriteMismatch
	}
	return nil
}
