package engine

import (
	"maps"
	"math"

	"github.com/queuectl/queuectl/store/database"
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

// laneRows holds the jobs of a lane that one query has read, and the position from which it has read them.
type laneRows struct {
	LaneRows
	start rules.Position
	size  int // number of jobs that the query asked for
}

// LaneRows holds consecutive jobs of a lane.
type LaneRows struct {
	Rows []database.Row // with records.WholeColumns, in the order of the lane; valid until the transaction ends
	Next *LaneHead      // the job after the last row; nil at the end of the lane
}

// LaneStart is a position from which the jobs of a lane are read.
type LaneStart struct {
	Lane int64
	From rules.Position
}

// LaneHead holds those fields of a lane's first job that decide the rank of the lane.
type LaneHead struct {
	Position rules.Position
	Priority int64
}

// LaneHeadColumns lists the columns that ReadLaneHead reads.
const LaneHeadColumns = `lane, seq, rank, state, priority, expires_at`

// ReadLaneHead reads a lane head from a row with LaneHeadColumns.
func ReadLaneHead(r database.Row) LaneHead {
	return LaneHead{rules.Position{Rank: r.Num(2), Seq: r.Num(1)}, headPriority(r.Num(3), r.Num(4), r.Num(5))}
}

// following returns the position directly after p.
func following(p rules.Position) rules.Position { return rules.Position{Rank: p.Rank, Seq: p.Seq + 1} }

// hasLeftLane reports whether a job has left its lane since it was read ahead.
func (t *Tx) hasLeftLane(seq int64) bool { return t.remote() && t.readAhead.leftLane[seq] }

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
func (a *readAhead) head(lane int64, from rules.Position) (h *LaneHead, known bool) {
	if a == nil || !a.lanes[lane].covers(from) {
		return nil, false
	}
	l := a.lanes[lane]
	for _, r := range l.Rows {
		if at := LanePosition(r); !from.After(at) {
			return &LaneHead{at, headPriority(r.Num(records.StateColumn), r.Num(records.PriorityColumn), r.Num(records.ExpiresColumn))}, true
		}
	}
	return l.Next, true
}

// LanePosition returns the position in its lane of a row with records.WholeColumns.
func LanePosition(r database.Row) rules.Position {
	return rules.Position{Rank: r.Num(records.RankColumn), Seq: r.Num(0)}
}

// covers reports whether l includes a lane's first job at or after a position.
func (l *laneRows) covers(from rules.Position) bool {
	return l != nil && !l.start.After(from) && (l.Next == nil || !from.After(l.Next.Position))
}

// findAhead passes a lane's jobs from l.Next on to each, and first reads them if necessary. It reports
// whether the lane has no further jobs.
func (t *Tx) findAhead(l *rules.LaneScan, each func(r database.Row, gone bool) (more bool, err error)) (all bool, err error) {
	from := l.Next
	known := t.readAhead.lanes[l.Lane.ID]
	if !known.covers(from) || known.Next != nil && !known.Next.Position.After(from) {
		if err := t.fillAhead(l, known); err != nil {
			return false, err
		}
		known = t.readAhead.lanes[l.Lane.ID]
	}
	for _, r := range known.Rows {
		if from.After(LanePosition(r)) {
			continue
		}
		if more, err := each(r, t.hasLeftLane(r.Num(0))); !more || err != nil {
			return false, err
		}
	}
	if known.Next != nil {
		l.Next = known.Next.Position
	}
	return known.Next == nil, nil
}

// fillAhead prefetches the next jobs of l's lane, and of the lanes that are likely to be served next. The
// parameter known holds the rows that were already read from l's lane; nil means none.
func (t *Tx) fillAhead(l *rules.LaneScan, known *laneRows) error {
	limit, size := t.ReadLimit(math.MaxInt32, t.s.typicalJobBytes), max(1, l.ExpectedJobs)
	if known != nil {
		size = 2 * known.size
	}
	size = min(size, limit)
	starts := []LaneStart{{l.Lane.ID, l.Next}}
	added := map[int64]bool{l.Lane.ID: true}
	for _, other := range l.UpcomingLanes(limit / size) {
		if !added[other.ID] && !t.readAhead.lanes[other.ID].covers(other.Head) {
			added[other.ID] = true
			starts = append(starts, LaneStart{other.ID, other.Head})
		}
	}
	if err := t.EnsureBegun(); err != nil {
		return err
	}
	list, err := t.s.shared.ReadLanes(t, starts, size)
	if err != nil {
		return err
	}
	lanes := make(map[int64]*laneRows, len(starts))
	for i, start := range starts {
		lanes[start.Lane] = &laneRows{list[i], start.From, size}
	}
	if t.readAhead.lanes == nil {
		t.readAhead.lanes = map[int64]*laneRows{}
	}
	maps.Copy(t.readAhead.lanes, lanes)
	return nil
}
