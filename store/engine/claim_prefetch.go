package engine

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// claimPrefetch is the query that the claim in a transaction will probably need. It is sent right after this
// node gets the writer lock, so that the server finds the jobs while the node records ended attempts.
//
// While this node holds the lock, no other node changes anything. But writes of this transaction may
// invalidate the rows; recordJobWrite keeps track of this. See docs/decisions/0028.
type claimPrefetch struct {
	queryArgs         []any
	endedLeaseJobSeqs map[int64]bool // by seq: jobs whose leases have ended since the query was sent
	rows              PrefetchedRows
}

// PrefetchedRows are the rows of a query that was sent before they were needed.
type PrefetchedRows interface {
	// ForEachRow passes the rows to the callback, until the callback returns false. ok is false if the rows are
	// lost, because the result of a later statement was read first. ForEachRow is called at most once, by the
	// goroutine with the right to write.
	ForEachRow(visit func(r database.Row) (more bool, err error)) (rowsAvailable bool, err error)
}

// minJobsForClaimPrefetch is the minimum number of wanted jobs for which sending the query early saves time.
const minJobsForClaimPrefetch = 64

// prefetchClaim sends the query for the jobs that the first operation of the group will claim. It sends
// nothing if it cannot predict which jobs these are.
func (t *Tx) prefetchClaim() error {
	s := t.engine
	q := t.lanes.Queues[s.lastClaimQueue]
	if t.expectedClaimJobs < s.minJobsForPrefetch || q == nil {
		return nil
	}
	lane := q.PredictedNextLane(t.order.Scheduling == queue.SchedulingByArrival)
	if lane == nil {
		return nil
	}
	e := &claimPrefetch{queryArgs: scanLaneArgs(lane.ID, lane.Head,
		t.QueryRowLimit(t.expectedClaimJobs, s.typicalJobBytes)), endedLeaseJobSeqs: map[int64]bool{}}
	// Read the rows now if this transaction still has to write ended attempts. Otherwise the server would
	// execute these writes only after the rows were read.
	readNow := !t.prewrite.wasMade() && len(t.expectedSettlements) > 0
	var err error
	e.rows, err = s.sharedDatabase.SendLaneQuery(scanLaneSQL(records.AllJobColumns), e.queryArgs, t.expectedClaimJobs,
		readNow)
	t.claimPrefetch = e
	return err
}

// recordJobWrite records that the transaction writes a job's row. A write of a leased job, or the end of its
// lease, does not affect the rows of waiting jobs that were read early. Any other write may, so those rows
// are discarded.
func (t *Tx) recordJobWrite(j *rules.Job) {
	switch last := len(t.changedLeaseJobSeqs) - 1; {
	case t.claimPrefetch == nil, t.leases[j.Seq] != nil:
	case j.Slot == rules.SlotNotQueued && last >= 0 && t.changedLeaseJobSeqs[last] == j.Seq:
		t.claimPrefetch.endedLeaseJobSeqs[j.Seq] = true
	default:
		t.claimPrefetch = nil
	}
	t.readAhead.RecordJobWrite(j, t.leases[j.Seq] != nil)
}

// discardPrefetchedRows discards the rows that were read ahead.
func (t *Tx) discardPrefetchedRows() {
	t.claimPrefetch = nil
	t.readAhead.RemoveAllRows()
}
