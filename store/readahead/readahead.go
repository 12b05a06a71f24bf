// Package readahead keeps jobs that a transaction reads before it claims them, so that a claim needs few queries even
// if it takes jobs of many users. A lane is the list of waiting jobs of one queue and user that need the same locks and
// other limits.
//
// Start with ReadAheadJobs.
package readahead

import (
	"maps"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// ReadAheadJobs holds jobs that a transaction has read before it claims them. When users take turns, a claim takes
// each job from a different lane. With one query for each job, the transaction would wait for a round trip
// each time, while the writer lock makes all other nodes wait. So the first query reads the jobs that the
// whole claim will probably take, from all lanes that will probably have the next turns.
//
// For example, three users have 100 waiting jobs each, and a claim wants 30. The first query reads 10 jobs from each of
// the three lanes, and the position and priority of the eleventh. The claim then finds all 30 jobs in memory. If a lane
// has fewer jobs, the claim needs more jobs of the other lanes. Then another query reads twice as many jobs of each
// lane.
//
// Other nodes change nothing while this node holds the writer lock. The transaction itself may change jobs:
// RecordJobWrite records such a change, and RemoveAllRows removes all rows. The zero value holds nothing.
type ReadAheadJobs struct {
	laneRowsByID    map[int64]*laneRows
	departedJobSeqs map[int64]bool // jobs that have left their lanes after they were read, by seq
}

// laneRows holds the jobs of a lane that one query has read, and the position at which the query started.
type laneRows struct {
	LaneJobs
	startPosition     rules.Position
	requestedJobCount int // number of jobs that the query asked for
}

// LaneJobs holds consecutive jobs of a lane, the list of waiting jobs of one queue and user that need the same locks
// and other limits.
type LaneJobs struct {
	// rows of records.AllJobColumns, in the order of the lane; valid until the end of the transaction
	JobRows  []database.Row
	NextHead *LaneHead // the job that follows the rows; nil at the end of the lane
}

// LaneStart is a position from which the jobs of a lane are read. A lane is the list of waiting jobs of one queue and
// user that need the same locks and other limits.
type LaneStart struct {
	LaneID       int64
	FromPosition rules.Position
}

// LaneHead holds the fields of a lane's first job that decide when the lane is served.
type LaneHead struct {
	Position rules.Position
	Priority int64 // priority of the job, or rules.UnknownLanePriority; see lanePriority
}

// LaneHeadColumns lists the columns that ReadLaneHead reads.
const LaneHeadColumns = `lane, seq, rank, state, priority, expires_at`

// ReadLaneHead reads the fields of a lane's first job from a row with LaneHeadColumns.
func ReadLaneHead(r database.Row) LaneHead {
	return LaneHead{rules.Position{Rank: r.Int64(2), Seq: r.Int64(1)}, lanePriority(r.Int64(3), r.Int64(4), r.Int64(5))}
}

// JobRowPosition returns the position of a job in its lane, from a row whose columns begin with
// records.ShortJobColumns.
func JobRowPosition(r database.Row) rules.Position {
	return rules.Position{Rank: r.Int64(records.RankColumnIndex), Seq: r.Int64(0)}
}

// LaneHeadOfJobRow returns the head of a lane from the row of its first job. The columns of the row begin with
// records.ShortJobColumns.
func LaneHeadOfJobRow(r database.Row) LaneHead {
	return LaneHead{JobRowPosition(r),
		lanePriority(r.Int64(records.StateColumnIndex), r.Int64(records.PriorityColumnIndex),
			r.Int64(records.ExpiresColumnIndex))}
}

// lanePriority returns the priority of a lane from the fields of its first job; see rules.Lane. For a job that
// expires or may be damaged, it returns UnknownLanePriority, so that each claim reads that job.
func lanePriority(jobState, jobPriority, expiresAt int64) int64 {
	if expiresAt != 0 || !queue.State(jobState).IsRunnable() {
		return rules.UnknownLanePriority
	}
	return jobPriority
}

// PositionAfter returns the position directly after p.
func PositionAfter(p rules.Position) rules.Position {
	return rules.Position{Rank: p.Rank, Seq: p.Seq + 1}
}

// HasJobLeftLane reports whether a job has left its lane after it was read.
func (j *ReadAheadJobs) HasJobLeftLane(jobSeq int64) bool {
	return j.departedJobSeqs[jobSeq]
}

// RecordJobWrite records that the transaction writes a job's row. It ignores writes of leased jobs, because such writes
// do not affect the rows that were read ahead.
func (j *ReadAheadJobs) RecordJobWrite(job *rules.Job, isLeased bool) {
	switch {
	case isLeased || len(j.laneRowsByID) == 0:
	case job.Slot == rules.SlotReady:
		j.RemoveAllRows()
	default:
		if j.departedJobSeqs == nil {
			j.departedJobSeqs = map[int64]bool{}
		}
		j.departedJobSeqs[job.Seq] = true
	}
}

// RemoveAllRows removes all rows.
func (j *ReadAheadJobs) RemoveAllRows() {
	*j = ReadAheadJobs{}
}

// FirstJobFrom returns the first job of a lane at or after a position, or nil if no such job is left in the lane.
// isCached is false if this part of the lane was not read ahead.
func (j *ReadAheadJobs) FirstJobFrom(laneID int64, from rules.Position) (firstJob *LaneHead, isCached bool) {
	if !j.laneRowsByID[laneID].coversPosition(from) {
		return nil, false
	}
	l := j.laneRowsByID[laneID]
	for _, r := range l.JobRows {
		if head := LaneHeadOfJobRow(r); !from.After(head.Position) {
			return &head, true
		}
	}
	return l.NextHead, true
}

// coversPosition reports whether the rows of l show which job of the lane is the first at or after a position.
func (l *laneRows) coversPosition(position rules.Position) bool {
	return l != nil && !l.startPosition.After(position) && (l.NextHead == nil || !position.After(l.NextHead.Position))
}

// LaneReader reads the next jobs of several lanes. For each start it returns up to jobsPerLane jobs, and the
// position and priority of the job that follows them.
type LaneReader func(starts []LaneStart, jobsPerLane int) ([]LaneJobs, error)

// VisitLaneJobs calls visit for the jobs of a lane from scan.NextPosition on. If these jobs were not read ahead,
// VisitLaneJobs first reads at most maxJobs jobs, including jobs of lanes that will probably be served next.
// hasLeftLane is true for a job that has left the lane after its row was read. reachedEnd reports whether the lane has
// no further jobs.
func (j *ReadAheadJobs) VisitLaneJobs(scan *rules.LaneScan, maxJobs int, readLanes LaneReader,
	visit func(r database.Row, hasLeftLane bool) (more bool, err error)) (reachedEnd bool, err error) {
	from := scan.NextPosition
	known := j.laneRowsByID[scan.Lane.ID]
	if !known.coversPosition(from) || known.NextHead != nil && !known.NextHead.Position.After(from) {
		if err := j.readNextLanes(scan, known, maxJobs, readLanes); err != nil {
			return false, err
		}
		known = j.laneRowsByID[scan.Lane.ID]
	}
	for _, r := range known.JobRows {
		if from.After(JobRowPosition(r)) {
			continue
		}
		if more, err := visit(r, j.HasJobLeftLane(r.Int64(0))); !more || err != nil {
			return false, err
		}
	}
	if known.NextHead != nil {
		scan.NextPosition = known.NextHead.Position
	}
	return known.NextHead == nil, nil
}

// readNextLanes reads the next jobs of the lane in scan, and of the lanes that will probably be served next. cached
// holds the rows of that lane that were read before, or is nil.
func (j *ReadAheadJobs) readNextLanes(scan *rules.LaneScan, cached *laneRows, maxJobs int, readLanes LaneReader) error {
	size := max(1, scan.ExpectedJobsPerLane)
	if cached != nil {
		size = 2 * cached.requestedJobCount
	}
	size = min(size, maxJobs)
	starts := []LaneStart{{scan.Lane.ID, scan.NextPosition}}
	added := map[int64]bool{scan.Lane.ID: true}
	for _, other := range scan.UpcomingLanes(maxJobs / size) {
		if !added[other.ID] && !j.laneRowsByID[other.ID].coversPosition(other.Head) {
			added[other.ID] = true
			starts = append(starts, LaneStart{other.ID, other.Head})
		}
	}
	list, err := readLanes(starts, size)
	if err != nil {
		return err
	}
	lanes := make(map[int64]*laneRows, len(starts))
	for i, start := range starts {
		lanes[start.LaneID] = &laneRows{list[i], start.FromPosition, size}
	}
	if j.laneRowsByID == nil {
		j.laneRowsByID = map[int64]*laneRows{}
	}
	maps.Copy(j.laneRowsByID, lanes)
	return nil
}

// JobsByLane returns the jobs that were read ahead, by the id of their lane. Only tests use it.
func (j *ReadAheadJobs) JobsByLane() map[int64]LaneJobs {
	list := map[int64]LaneJobs{}
	for id, l := range j.laneRowsByID {
		list[id] = l.LaneJobs
	}
	return list
}
