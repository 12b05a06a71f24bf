package sql

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/rules"
)

// expectation is what a claim is expected to ask. It is asked at the beginning of the turn, so that the server finds the jobs while this
// node records what has ended. In its turn nobody else changes anything; what the transaction itself does meanwhile is held against it.
// See docs/decisions/0028.
type expectation struct {
	of    *serverConn
	args  []any
	ended map[int64]bool // jobs whose leases have ended since
	rows  []serverRow    // that were read, nil if they are to come
}

// expectLeast is from how many wanted jobs on it is worth it.
const expectLeast = 64

// expect asks for the jobs that the group's first operation will want, if the lane that was looked into last is that of the next job too.
func (s *Server) expect(t *tx) error {
	q := s.mem.lanes.queues[s.looked]
	if t.wants < s.expects || q == nil || q.listed || q.best != nil || len(q.open) != 1 && s.mem.order.Scheduling != queue.ByArrival || len(q.open) == 0 {
		return nil
	}
	lane := q.open[0]
	e := &expectation{of: s.writer, args: findArgs(lane.ID, lane.Head, t.ahead(t.wants, s.typical)), ended: map[int64]bool{}}
	if t.foreseen != nil || len(t.ended) == 0 {
		t.expected = e
		return e.of.expect(findJobs(wholeColumns), e.args...)
	}
	// What has ended is written in this turn, and the server would not begin with that before somebody has read the jobs.
	e.rows = make([]serverRow, 0, t.wants)
	err := e.of.query(func(r row) (bool, error) {
		e.rows = append(e.rows, r.of.clone())
		return true, nil
	}, findJobs(wholeColumns), e.args...)
	t.expected = e
	return err
}

// answered tells the rows; ok is false if they are lost.
func (e *expectation) answered(each func(r row) (more bool, err error)) (ok bool, err error) {
	if e.rows == nil {
		return e.of.answered(each)
	}
	for i := range e.rows {
		if more, err := each(row{of: &e.rows[i]}); !more || err != nil {
			return true, err
		}
	}
	return true, nil
}

// putting holds against what is expected that a job is written: that of a leased one, or its end, changes no other, and all else may.
func (t *tx) putting(j *rules.Job) {
	switch last := len(t.leases) - 1; {
	case t.expected == nil, t.s.mem.leases[j.Seq] != nil:
	case j.Standing == rules.Nowhere && last >= 0 && t.leases[last] == j.Seq:
		t.expected.ended[j.Seq] = true
	default:
		t.expected = nil
	}
	t.readAhead.putting(j, t.s.mem.leases[j.Seq] != nil)
}

// forgetReads discards the rows that were read ahead.
func (t *tx) forgetReads() {
	t.expected = nil
	t.readAhead.forget()
}
