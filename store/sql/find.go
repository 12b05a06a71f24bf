package sql

import (
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/rules"
)

// Find implements rules.Tx. A job that cannot be read, or does not belong into the lane, would keep all others from
// being claimed, so it goes to Damaged. Jobs are read a piece at a time: a server sends all rows, also those that are
// not used.
func (t *tx) Find(l *rules.Look) error {
	l.Next, l.NextPriority, l.End = l.Lane.Head, rules.Unknown, true
	enough, full := false, false
	more := func() bool { l.End, enough = false, true; return false }
	each := func(r row, gone bool) (bool, error) {
		p := rules.Position{Rank: r.num(rankColumn), Seq: r.num(0)}
		leased := gone || t.s.mem.leases[p.Seq] != nil
		if p.After(l.Upto) {
			if l.Next = p; !leased {
				l.NextPriority = headPriority(r.num(stateColumn), r.num(priorityColumn), r.num(expiresColumn))
			}
			return more(), nil
		}
		l.Next = following(p)
		if leased {
			return true, nil
		}
		j := readMoved(r, columnsOf(l.Part))
		if j.Damaged || !j.State.Runnable() {
			l.Damaged = append(l.Damaged, j)
			return len(l.Damaged) < l.Steps || more(), nil
		}
		if l.Jobs == nil {
			l.Jobs = make([]rules.Job, 0, min(l.Want, usualBlock))
		}
		l.Jobs = append(l.Jobs, j)
		took := weight(&j.Job)
		l.Bytes += took
		t.s.typical += (took - t.s.typical) / 8
		full = len(l.Jobs) >= l.Want || l.Bytes >= rules.MaxClaimBytes
		return !full || more(), nil
	}
	if l.Part == rules.Whole {
		t.s.looked = l.Lane.Queue
	}
	for all := false; !all && !enough; {
		var err error
		if all, err = t.findPiece(l, each); err != nil {
			return err
		}
	}
	if !full || !l.Peek {
		return nil
	}
	return t.peek(l)
}

// peek finds the lane's next job that is not leased, after those that Find has found. Of that job it reads only what
// the lane needs to know, since it may have a large input, and another claim will read it.
func (t *tx) peek(l *rules.Look) error {
	l.End = true
	found := func(h *laneHead) (more bool) {
		if t.gone(h.at.Seq) || t.s.mem.leases[h.at.Seq] != nil {
			l.Next = following(h.at)
			return true
		}
		l.Next, l.NextPriority, l.End = h.at, h.priority, false
		return false
	}
	if h, known := t.readAhead.head(l.Lane.ID, l.Next); known && (h == nil || !found(h)) {
		return nil
	}
	for all := false; !all && l.End; {
		rows, piece := 0, t.ahead(0, 0)
		err := t.query(func(r row) (bool, error) {
			rows++
			h := readLaneHead(r)
			return found(&h), nil
		}, findJobs(laneHeadColumns), findArgs(l.Lane.ID, l.Next, piece)...)
		if err != nil {
			return err
		}
		all = rows < piece
	}
	return nil
}

// headPriority returns the priority of a lane whose first job has this state, priority and expiry; see rules.Lane. It
// is unknown for a job that expires or that may be damaged, so that each claim reads the job again.
func headPriority(state, priority, expiresAt int64) int64 {
	if expiresAt != 0 || !queue.State(state).Runnable() {
		return rules.Unknown
	}
	return priority
}

// findJobs returns the statement that reads the jobs of a lane, and findArgs its arguments.
func findJobs(columns string) string {
	return `SELECT ` + columns + ` FROM jobs INDEXED BY jobs_ready
		WHERE place = 1 AND lane = ? AND (rank, seq) >= (?, ?) ORDER BY rank, seq LIMIT ?`
}

func findArgs(lane int64, from rules.Position, most int) []any {
	return []any{lane, from.Rank, from.Seq, int64(most)}
}

// findPiece reads the next jobs of a lane and passes them to each; gone is true if the job has left the lane since its
// row was read. It reports whether the lane has no others.
func (t *tx) findPiece(l *rules.Look, each func(r row, gone bool) (more bool, err error)) (all bool, err error) {
	rows, piece := 0, t.ahead(l.Want-len(l.Jobs), t.s.typical)
	counted := func(r row, gone bool) (bool, error) {
		rows++
		return each(r, gone)
	}
	args := findArgs(l.Lane.ID, l.Next, piece)
	e := t.expected
	t.expected = nil
	if e != nil && l.Part == rules.Whole && slices.Equal(e.args, args) {
		answered, err := e.answered(func(r row) (bool, error) { return counted(r, e.ended[r.num(0)]) })
		if answered || err != nil {
			return rows < piece, err
		}
	}
	if t.remote() && l.Upcoming != nil {
		return t.findAhead(l, each)
	}
	err = t.query(func(r row) (bool, error) { return counted(r, false) }, findJobs(columnsOf(l.Part)), args...)
	return rows < piece, err
}
