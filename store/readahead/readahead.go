// Package readahead keeps jobs that a transaction reads before it claims them. With it, a claim that takes jobs
// of many lanes needs few queries. A lane contains the jobs of one queue and user with the same demands.
//
// Start with Jobs.
package readahead

import (
	"maps"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// Jobs holds jobs that a transaction has read before it claims them. When users take turns, a claim takes each
// job from a different lane. One query for each job would cost a round trip for each, while the writer lock
// keeps all other nodes waiting. Instead, the first query reads the jobs that the whole claim will probably
// take, from all lanes that will probably have the next turns.
//
// For example, three users have 100 waiting jobs each, and a claim wants 30. The first query reads 10 jobs from
// each of the three lanes, and the position and priority of each lane's eleventh job. The claim's other 29
// turns find their jobs among these. If one of the lanes runs out of jobs, the claim takes more from the others
// than expected. The next query then reads twice as many jobs of a lane.
//
// Other nodes change nothing while this node holds the writer lock. The transaction itself can change jobs:
// NoteWrite records such a change, and Forget drops all rows. A nil *Jobs holds nothing.
type Jobs struct {
	lanes        map[int64]*laneRows
	departedSeqs map[int64]bool // by seq: jobs that have left their lanes since they were read
}

// laneRows holds the jobs of a lane that one query has read, and the position at which the query started.
type laneRows struct {
	LaneJobs
	start   rules.Position
	maxJobs int // number of jobs that the query asked for
}

// LaneJobs holds consecutive jobs of a lane.
type LaneJobs struct {
	Rows []database.Row // rows of records.WholeColumns, in the order of the lane; valid until the transaction ends
	Next *Head          // the job after the last row; nil at the end of the lane
}

// LaneStart is a position from which the jobs of a lane are read.
type LaneStart struct {
	Lane int64
	From rules.Position
}

// Head holds the fields of a lane's first job that decide the rank of the lane.
type Head struct {
	Position rules.Position
	Priority int64 // priority of the job, or rules.UnknownPriority; see the function priority
}

// HeadColumns lists the columns that ReadHead reads.
const HeadColumns = `lane, seq, rank, state, priority, expires_at`

// ReadHead reads a lane head from a row with HeadColumns.
func ReadHead(r database.Row) Head {
	return Head{rules.Position{Rank: r.Num(2), Seq: r.Num(1)}, priority(r.Num(3), r.Num(4), r.Num(5))}
}

// Position returns a job's position in its lane. The row has the columns records.HeadColumns.
func Position(r database.Row) rules.Position {
	return rules.Position{Rank: r.Num(records.RankColumn), Seq: r.Num(0)}
}

// HeadOf returns the head of a lane whose first job is in a row with records.HeadColumns.
func HeadOf(r database.Row) Head {
	return Head{Position(r),
		priority(r.Num(records.StateColumn), r.Num(records.PriorityColumn), r.Num(records.ExpiresColumn))}
}

// priority returns a lane's priority, given the state, priority and expiry of its first job; see
// rules.Lane. It returns UnknownPriority for a job that expires or may be damaged, so that each claim reads
// the job again.
func priority(state, priority, expiresAt int64) int64 {
	if expiresAt != 0 || !queue.State(state).Runnable() {
		return rules.UnknownPriority
	}
	return priority
}

// Following returns the position directly after p.
func Following(p rules.Position) rules.Position { return rules.Position{Rank: p.Rank, Seq: p.Seq + 1} }

// HasLeft reports whether a job has left its lane since it was read.
func (j *Jobs) HasLeft(seq int64) bool { return j != nil && j.departedSeqs[seq] }

// NoteWrite records that the transaction writes a job's row. It ignores writes of leased jobs, because these do
// not affect the rows that were read ahead.
func (j *Jobs) NoteWrite(job *rules.Job, leased bool) {
	switch {
	case j == nil || leased || len(j.lanes) == 0:
	case job.Slot == rules.Ready:
		j.Forget()
	default:
		if j.departedSeqs == nil {
			j.departedSeqs = map[int64]bool{}
		}
		j.departedSeqs[job.Seq] = true
	}
}

// Forget drops all rows.
func (j *Jobs) Forget() {
	if j != nil {
		*j = Jobs{}
	}
}

// Head returns a lane's first job at or after a position, or nil at the end of the lane. isCached is false if
// those jobs were not read ahead.
func (j *Jobs) Head(lane int64, from rules.Position) (h *Head, isCached bool) {
	if j == nil || !j.lanes[lane].covers(from) {
		return nil, false
	}
	l := j.lanes[lane]
	for _, r := range l.Rows {
		if head := HeadOf(r); !from.After(head.Position) {
			return &head, true
		}
	}
	return l.Next, true
}

// covers reports whether the rows in l show which job of the lane is the first at or after a position.
func (l *laneRows) covers(from rules.Position) bool {
	return l != nil && !l.start.After(from) && (l.Next == nil || !from.After(l.Next.Position))
}

// Reader reads the next jobs of several lanes: up to jobsPerLane jobs of each lane, and the head after these jobs.
// The result has one element for each start.
type Reader func(starts []LaneStart, jobsPerLane int) ([]LaneJobs, error)

// Find calls visit for a lane's jobs from l.NextPosition on. If necessary, it first reads at most maxJobs jobs,
// including those of lanes that will probably be served next. Find reports whether the lane has no further jobs.
// hasLeft is true for a job that has left the lane since its row was read.
func (j *Jobs) Find(l *rules.LaneScan, maxJobs int, read Reader,
	visit func(r database.Row, hasLeft bool) (more bool, err error)) (reachedEnd bool, err error) {
	from := l.NextPosition
	known := j.lanes[l.Lane.ID]
	if !known.covers(from) || known.Next != nil && !known.Next.Position.After(from) {
		if err := j.fill(l, known, maxJobs, read); err != nil {
			return false, err
		}
		known = j.lanes[l.Lane.ID]
	}
	for _, r := range known.Rows {
		if from.After(Position(r)) {
			continue
		}
		if more, err := visit(r, j.HasLeft(r.Num(0))); !more || err != nil {
			return false, err
		}
	}
	if known.Next != nil {
		l.NextPosition = known.Next.Position
	}
	return known.Next == nil, nil
}

// fill reads the next jobs of l's lane, and of the lanes that are likely to be served next. cached
// holds the rows that were already read from l's lane, or is nil.
func (j *Jobs) fill(l *rules.LaneScan, cached *laneRows, maxJobs int, read Reader) error {
	size := max(1, l.ExpectedJobs)
	if cached != nil {
		size = 2 * cached.maxJobs
	}
	size = min(size, maxJobs)
	starts := []LaneStart{{l.Lane.ID, l.NextPosition}}
	added := map[int64]bool{l.Lane.ID: true}
	for _, other := range l.UpcomingLanes(maxJobs / size) {
		if !added[other.ID] && !j.lanes[other.ID].covers(other.Head) {
			added[other.ID] = true
			starts = append(starts, LaneStart{other.ID, other.Head})
		}
	}
	list, err := read(starts, size)
	if err != nil {
		return err
	}
	lanes := make(map[int64]*laneRows, len(starts))
	for i, start := range starts {
		lanes[start.Lane] = &laneRows{list[i], start.From, size}
	}
	if j.lanes == nil {
		j.lanes = map[int64]*laneRows{}
	}
	maps.Copy(j.lanes, lanes)
	return nil
}

// Lanes returns the jobs that were read ahead, by lane. Only tests use it.
func (j *Jobs) Lanes() map[int64]LaneJobs {
	list := map[int64]LaneJobs{}
	for id, l := range j.lanes {
		list[id] = l.LaneJobs
	}
	return list
}
