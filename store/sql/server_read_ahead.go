package sql

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sort"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/pgdb"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// readAhead holds jobs that a transaction has read before it claims them. When users take turns, a claim
// takes each job from a different lane. One query for each job would cost a round trip for each, while the
// writer lock keeps all other nodes waiting. Instead, the first query reads the jobs that the whole claim
// will probably take, from all lanes that will probably have the next turns.
//
// For example, three users have 100 waiting jobs each, and a claim wants 30. The first query reads 10 jobs
// from each of the three lanes, and the position and priority of the eleventh. The claim's other 29 turns
// find their jobs here. If another lane runs out of jobs, the claim takes more from this lane than expected.
// Then the next query reads twice as many.
//
// Other nodes change nothing while this node holds the writer lock. The transaction's own changes are handled
// by noteWrite, which records them, and by forget, which drops all rows.
type readAhead struct {
	lanes    map[int64]*laneRows
	leftLane map[int64]bool // jobs that have left their lanes since they were read
}

// laneRows holds consecutive jobs of a lane.
type laneRows struct {
	from rules.Position
	rows []pgdb.Row // with WholeColumns
	next *laneHead  // the job after the last row; nil at the end of the lane
	size int        // how many jobs the query asked for
}

// laneHead holds those fields of a lane's first job that decide the rank of the lane.
type laneHead struct {
	position rules.Position
	priority int64
}

// laneHeadColumns lists the columns that readLaneHead reads.
const laneHeadColumns = `lane, seq, rank, state, priority, expires_at`

func readLaneHead(r database.Row) laneHead {
	return laneHead{rules.Position{Rank: r.Num(2), Seq: r.Num(1)}, headPriority(r.Num(3), r.Num(4), r.Num(5))}
}

func comparePositions(a, b rules.Position) int {
	return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Seq, b.Seq))
}

// following returns the position directly after p.
func following(p rules.Position) rules.Position { return rules.Position{Rank: p.Rank, Seq: p.Seq + 1} }

// hasLeftLane reports whether a job has left its lane since it was read ahead.
func (t *tx) hasLeftLane(seq int64) bool { return t.remote() && t.readAhead.leftLane[seq] }

// noteWrite records that the transaction writes a job's row. It ignores the rows of leased jobs, because such
// a write does not affect the rows that were read ahead.
func (a *readAhead) noteWrite(j *rules.Job, leased bool) {
	switch {
	case a == nil || leased || len(a.lanes) == 0:
	case j.Slot == rules.Ready:
		a.forget()
	default:
		if a.leftLane == nil {
			a.leftLane = map[int64]bool{}
		}
		a.leftLane[j.Seq] = true
	}
}

func (a *readAhead) forget() {
	if a != nil {
		*a = readAhead{}
	}
}

// head returns a lane's first job at or after a position, or nil at the end of the lane. known is false if
// those jobs were not read ahead.
func (a *readAhead) head(lane int64, from rules.Position) (h *laneHead, known bool) {
	if a == nil || !a.lanes[lane].covers(from) {
		return nil, false
	}
	l := a.lanes[lane]
	for i := range l.rows {
		r := &l.rows[i]
		if at := position(r); !from.After(at) {
			return &laneHead{at, headPriority(r.Num(records.StateColumn), r.Num(records.PriorityColumn), r.Num(records.ExpiresColumn))}, true
		}
	}
	return l.next, true
}

// position returns the lane position of a row that was read with WholeColumns.
func position(r database.Row) rules.Position {
	return rules.Position{Rank: r.Num(records.RankColumn), Seq: r.Num(0)}
}

// covers reports whether l includes a lane's first job at or after a position.
func (l *laneRows) covers(from rules.Position) bool {
	return l != nil && !l.from.After(from) && (l.next == nil || !from.After(l.next.position))
}

// findAhead passes a lane's jobs from l.Next on to each, and first reads them if necessary. It reports
// whether the lane has no further jobs.
func (t *tx) findAhead(l *rules.LaneScan, each func(r database.Row, gone bool) (more bool, err error)) (all bool, err error) {
	from := l.Next
	known := t.readAhead.lanes[l.Lane.ID]
	if !known.covers(from) || known.next != nil && !known.next.position.After(from) {
		if err := t.fillAhead(l, known); err != nil {
			return false, err
		}
		known = t.readAhead.lanes[l.Lane.ID]
	}
	for i := range known.rows {
		r := &known.rows[i]
		if from.After(position(r)) {
			continue
		}
		if more, err := each(r, t.hasLeftLane(r.Num(0))); !more || err != nil {
			return false, err
		}
	}
	if known.next != nil {
		l.Next = known.next.position
	}
	return known.next == nil, nil
}

// fillAhead prefetches the next jobs of l's lane, and of the lanes that are likely to be served next. The
// parameter known holds the rows that were already read from l's lane; nil means none.
func (t *tx) fillAhead(l *rules.LaneScan, known *laneRows) error {
	limit, size := t.ReadLimit(math.MaxInt32, t.s.typicalJobBytes), max(1, l.ExpectedJobs)
	if known != nil {
		size = 2 * known.size
	}
	size = min(size, limit)
	lanes := map[int64]*laneRows{}
	var ids, ranks, seqs []int64
	add := func(id int64, from rules.Position) {
		lanes[id] = &laneRows{from: from, size: size}
		ids, ranks, seqs = append(ids, id), append(ranks, from.Rank), append(seqs, from.Seq)
	}
	add(l.Lane.ID, l.Next)
	for _, other := range l.Upcoming(limit / size) {
		if lanes[other.ID] == nil && !t.readAhead.lanes[other.ID].covers(other.Head) {
			add(other.ID, other.Head)
		}
	}
	if err := t.beginOnce(); err != nil {
		return err
	}
	const from = ` FROM unnest(string_to_array(?1, ' ')::bigint[], string_to_array(?2, ' ')::bigint[],
		string_to_array(?3, ' ')::bigint[]) AS l (of_lane, from_rank, from_seq), LATERAL (SELECT `
	const where = ` FROM jobs WHERE place = 1 AND lane = of_lane AND (rank, seq) >= (from_rank, from_seq)
		ORDER BY rank, seq `
	var args []any
	for _, list := range [][]int64{ids, ranks, seqs} {
		args = append(args, database.JoinNumbers(slices.Values(list)))
	}
	args = append(args, int64(size))
	var batch database.Batch
	batch.Add(func(r database.Row) (bool, error) {
		rows := lanes[r.Num(records.LaneColumn)]
		rows.rows = append(rows.rows, r.(*pgdb.Row).Clone())
		return true, nil
	}, `SELECT j.*`+from+records.WholeColumns+where+`LIMIT ?4) AS j`, args...)
	batch.Add(func(r database.Row) (bool, error) {
		lanes[r.Num(0)].next = new(readLaneHead(r))
		return true, nil
	}, `SELECT j.*`+from+laneHeadColumns+where+`LIMIT 1 OFFSET ?4) AS j`, args...)
	if err := t.Conn.Queries(batch.Queries); err != nil {
		return err
	}
	for _, rows := range lanes { // sort the rows, because a join returns them in no defined order
		sort.Slice(rows.rows, func(i, j int) bool { // without a copy of each compared row
			return comparePositions(position(&rows.rows[i]), position(&rows.rows[j])) < 0
		})
	}
	if t.readAhead.lanes == nil {
		t.readAhead.lanes = map[int64]*laneRows{}
	}
	maps.Copy(t.readAhead.lanes, lanes)
	return nil
}
