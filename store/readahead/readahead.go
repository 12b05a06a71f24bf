// Package readahead keeps jobs that a transaction reads before it claims them, so that a claim needs few
// queries even if it takes jobs of many users. A lane is the list of waiting jobs of one queue and user that
// have the same demands.
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

// Jobs holds jobs that a transaction has read before it claims them. When users take turns, a claim takes
// each job from a different lane. With one query for each job, the transaction would wait for a round trip
// each time, while the writer lock makes all other nodes wait. So the first query reads the jobs that the
// whole claim will probably take, from all lanes that will probably have the next turns.
//
// For example, three users have 100 waiting jobs each, and a claim wants 30. The first query reads 10 jobs
// from each of the three lanes, and the position and priority of the eleventh. The claim then finds all 30
// jobs in memory. If a lane has fewer jobs, the claim needs more jobs of the other lanes. Another query then
// reads twice as many jobs of a lane.
//
// Other nodes change nothing while this node holds the writer lock. The transaction itself may change jobs:
// NoteWrite records such a change, and Forget removes all rows. A nil *Jobs holds nothing.
type Jobs struct {
	lanes        map[int64]*laneRows
	departedSeqs map[int64]bool // jobs that have left their lanes after they were read, by seq
}

// laneRows holds the jobs of a lane that one query has read, and the position at which the query started.
type laneRows struct {
	LaneJobs
	start   rules.Position
	maxJobs int // number of jobs that the query asked for
}

// LaneJobs holds consecutive jobs of a lane, the list of waiting jobs of one queue and user with the same
// demands.
type LaneJobs struct {
	Rows []database.Row // rows of records.WholeColumns, in the order of the lane; valid until the end of the transaction
	Next *Head          // the job that follows the rows; nil at the end of the lane
}

// LaneStart is a position from which the jobs of a lane are read. A lane is the list of waiting jobs of one
// queue and user with the same demands.
type LaneStart struct {
	Lane int64
	From rules.Position
}

// Head holds the fields of a lane's first job that decide when the lane is served.
type Head struct {
	Position rules.Position
	Priority int64 // priority of the job, or rules.UnknownPriority; see the function priority
}

// HeadColumns lists the columns that ReadHead reads.
const HeadColumns = `lane, seq, rank, state, priority, expires_at`

// ReadHead reads the fields of a lane's first job from a row with HeadColumns.
func ReadHead(r database.Row) Head {
	return Head{rules.Position{Rank: r.Num(2), Seq: r.Num(1)}, priority(r.Num(3), r.Num(4), r.Num(5))}
}

// Position returns the position of a job in its lane, from a row with records.HeadColumns.
func Position(r database.Row) rules.Position {
	return rules.Position{Rank: r.Num(records.RankColumn), Seq: r.Num(0)}
}

// HeadOf returns the head of a lane from the row of its first job, which has records.HeadColumns.
func HeadOf(r database.Row) Head {
	return Head{Position(r),
		priority(r.Num(records.StateColumn), r.Num(records.PriorityColumn), r.Num(records.ExpiresColumn))}
}

// priority returns the priority of a lane from the fields of its first job; see rules.Lane. For a job that
// expires or may be damaged, it returns UnknownPriority, so that each claim reads that job.
func priority(state, priority, expiresAt int64) int64 {
	if expiresAt != 0 || !queue.State(state).Runnable() {
		return rules.UnknownPriority
	}
	return priority
}

// Following returns the position directly after p.
func Following(p rules.Position) rules.Position { return rules.Position{Rank: p.Rank, Seq: p.Seq + 1} }

// HasLeft reports whether a job has left its lane after it was read.
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

// Forget removes all rows.
func (j *Jobs) Forget() {
	if j != nil {
		*j = Jobs{}
	}
}

// Head returns the first job of a lane at or after a position, or nil if no such job is left in the lane.
// isCached is false if this part of the lane was not read ahead.
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

// covers reports whether the rows of l show which job of the lane is the first at or after a position.
func (l *laneRows) covers(from rules.Position) bool {
	return l != nil && !l.start.After(from) && (l.Next == nil || !from.After(l.Next.Position))
}

// Reader reads the next jobs of several lanes. For each start it returns up to jobsPerLane jobs, and the
// position and priority of the job that follows them.
type Reader func(starts []LaneStart, jobsPerLane int) ([]LaneJobs, error)

// Find calls visit for the jobs of a lane from l.NextPosition on. If these jobs were not read ahead, Find
// first reads at most maxJobs jobs, including jobs of lanes that will probably be served next. hasLeft is
// true for a job that has left the lane after its row was read. reachedEnd reports whether the lane has no
// further jobs.
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

// fill reads the next jobs of the lane of l, and of the lanes that will probably be served next. cached holds
// the rows of that lane that were read before, or is nil.
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

// Lanes returns the jobs that were read ahead, by the id of their lane. Only tests use it.
func (j *Jobs) Lanes() map[int64]LaneJobs {
	list := map[int64]LaneJobs{}
	for id, l := range j.lanes {
		list[id] = l.LaneJobs
	}
	return list
}
