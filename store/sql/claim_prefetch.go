package sql

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// claimPrefetch is a claim prefetch: the query that the claim of a transaction will probably send. It is sent
// right after this node gets the writer lock, so that the server finds the jobs while the node records
// ended attempts.
//
// No other node changes anything while this node holds the lock. The transaction's own writes may
// invalidate the prefetched rows; noteWrite keeps track of them.
// See docs/decisions/0028.
type claimPrefetch struct {
	conn        *pgdb.Conn
	args        []any
	endedLeases map[int64]bool // jobs whose leases have ended since the query was sent
	rows        []pgdb.Row     // the rows, if they were read immediately; nil if the claim will read them
}

// minClaimPrefetch is the minimum number of wanted jobs for which a claim prefetch saves time.
const minClaimPrefetch = 64

// prefetchClaim sends the query for the jobs that the first operation of the group will claim. It does so
// only if the claim will probably use the same lane as the last claim.
func (s *Server) prefetchClaim(t *tx) error {
	q := s.mem.lanes.queues[s.lastClaimQueue]
	if t.wantedJobs < s.prefetchThreshold || q == nil || q.inStaleQueues || q.best != nil || len(q.openLanes) != 1 &&
		s.mem.order.Scheduling != queue.ByArrival || len(q.openLanes) == 0 {
		return nil
	}
	lane := q.openLanes[0]
	e := &claimPrefetch{conn: s.writer, args: findArgs(lane.ID, lane.Head, t.ReadLimit(t.wantedJobs, s.typicalJobBytes)),
		endedLeases: map[int64]bool{}}
	if t.prewrite != nil || len(t.endedAttempts) == 0 {
		t.claimPrefetch = e
		return e.conn.StartQuery(findJobs(records.WholeColumns), e.args...)
	}
	// This transaction still has to write the ended attempts, and the server executes these writes only
	// after the client has read the rows. So read them immediately.
	e.rows = make([]pgdb.Row, 0, t.wantedJobs)
	err := e.conn.Query(func(r database.Row) (bool, error) {
		e.rows = append(e.rows, r.(*pgdb.Row).Clone())
		return true, nil
	}, findJobs(records.WholeColumns), e.args...)
	t.claimPrefetch = e
	return err
}

// eachRow passes the prefetched rows to the callback each. ok is false if the rows are lost.
func (e *claimPrefetch) eachRow(each func(r database.Row) (more bool, err error)) (ok bool, err error) {
	if e.rows == nil {
		return e.conn.FinishQuery(each)
	}
	for i := range e.rows {
		if more, err := each(&e.rows[i]); !more || err != nil {
			return true, err
		}
	}
	return true, nil
}

// noteWrite notes that the transaction writes a job. Writing a leased job, or the end of a lease, does not
// affect the prefetched rows of other jobs. Any other write may, so it discards the claim prefetch.
func (t *tx) noteWrite(j *rules.Job) {
	switch last := len(t.leases) - 1; {
	case t.claimPrefetch == nil, t.s.mem.leases[j.Seq] != nil:
	case j.Slot == rules.NotQueued && last >= 0 && t.leases[last] == j.Seq:
		t.claimPrefetch.endedLeases[j.Seq] = true
	default:
		t.claimPrefetch = nil
	}
	t.readAhead.noteWrite(j, t.s.mem.leases[j.Seq] != nil)
}

// dropPrefetched discards the rows that were read ahead.
func (t *tx) dropPrefetched() {
	t.claimPrefetch = nil
	t.readAhead.forget()
}
