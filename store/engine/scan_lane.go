package engine

import (
	"math"
	"slices"

	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/readahead"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// ScanLane implements rules.Lanes. It reads the next jobs of a lane. A job that cannot be read, or does not
// belong in the lane, is added to DamagedJobs, because it would otherwise block the jobs behind it. ScanLane
// reads a limited number of rows at a time, because a server sends all rows of a result, even those that are
// not needed.
func (t *Tx) ScanLane(scan *rules.LaneScan) error {
	scan.NextPosition, scan.NextPriority, scan.ReachedLaneEnd = scan.Lane.Head, rules.UnknownLanePriority, true
	enough, full := false, false
	more := func() bool { scan.ReachedLaneEnd, enough = false, true; return false }
	each := func(r database.Row, hasLeft bool) (bool, error) {
		p := readahead.JobRowPosition(r)
		leased := hasLeft || t.leases[p.Seq] != nil
		if p.After(scan.StopPosition) {
			if scan.NextPosition = p; !leased {
				scan.NextPriority = readahead.LaneHeadOfJobRow(r).Priority
			}
			return more(), nil
		}
		scan.NextPosition = readahead.PositionAfter(p)
		if leased {
			return true, nil
		}
		scan.Jobs = append(scan.Jobs, rules.Job{})
		j := &scan.Jobs[len(scan.Jobs)-1]
		records.ReadRulesJob(r, records.JobColumnsFor(scan.JobReadScope), j)
		if j.IsDamaged || !j.State.IsRunnable() {
			scan.DamagedJobs = append(scan.DamagedJobs, *j)
			*j = rules.Job{}
			scan.Jobs = scan.Jobs[:len(scan.Jobs)-1]
			return len(scan.DamagedJobs) < scan.MaxDamagedJobs || more(), nil
		}
		taken := estimateJobBytes(&j.Job)
		scan.ClaimBytesRead += taken
		t.engine.typicalJobBytes += (taken - t.engine.typicalJobBytes) / 8
		full = len(scan.Jobs) >= scan.MaxJobs || scan.ClaimBytesRead >= rules.MaxBytesReadPerClaim
		return !full || more(), nil
	}
	if scan.JobReadScope == rules.ReadScopeFull {
		t.engine.lastClaimQueue = scan.Lane.Queue
		// Only claims read jobs in full. A claim uses the jobs of one lane before it reads the next lane.
		t.engine.clearClaimBuffer()
		scan.Jobs = t.engine.claimBuffer
		defer func() { t.engine.claimBuffer = scan.Jobs }()
	}
	for all := false; !all && !enough; {
		var err error
		if all, err = t.scanNextRows(scan, each); err != nil {
			return err
		}
	}
	if !full || !scan.MustReadNextPriority {
		return nil
	}
	return t.peekNextPriority(scan)
}

// maxClaimBufferJobs is the largest capacity, in jobs, with which the claim buffer is kept between transactions.
const maxClaimBufferJobs = 2048

// clearClaimBuffer removes the jobs from the claim buffer, so that they do not stay in memory.
func (e *Engine) clearClaimBuffer() {
	clear(e.claimBuffer)
	if e.claimBuffer = e.claimBuffer[:0]; cap(e.claimBuffer) > maxClaimBufferJobs {
		e.claimBuffer = nil
	}
}

// peekNextPriority finds the first job of the lane that is not leased and that ScanLane has not returned. It
// reads only the columns that determine the lane's rank, because the job may have a large input. The claim
// that takes the job reads all columns.
func (t *Tx) peekNextPriority(scan *rules.LaneScan) error {
	scan.ReachedLaneEnd = true
	found := func(h *readahead.LaneHead) (more bool) {
		if t.readAhead.HasJobLeftLane(h.Position.Seq) || t.leases[h.Position.Seq] != nil {
			scan.NextPosition = readahead.PositionAfter(h.Position)
			return true
		}
		scan.NextPosition, scan.NextPriority, scan.ReachedLaneEnd = h.Position, h.Priority, false
		return false
	}
	if h, known := t.readAhead.FirstJobFrom(scan.Lane.ID, scan.NextPosition); known && (h == nil || !found(h)) {
		return nil
	}
	for all := false; !all && scan.ReachedLaneEnd; {
		rows, piece := 0, t.QueryRowLimit(0, 0)
		err := t.Query(func(r database.Row) (bool, error) {
			rows++
			h := readahead.ReadLaneHead(r)
			return found(&h), nil
		}, scanLaneSQL(readahead.LaneHeadColumns), scanLaneArgs(scan.Lane.ID, scan.NextPosition, piece)...)
		if err != nil {
			return err
		}
		all = rows < piece
	}
	return nil
}

// scanLaneSQL returns the statement that reads the next jobs of a lane.
func scanLaneSQL(columns string) string {
	return `SELECT ` + columns + ` FROM jobs INDEXED BY jobs_ready
		WHERE place = 1 AND lane = ? AND (rank, seq) >= (?, ?) ORDER BY rank, seq LIMIT ?`
}

// scanLaneArgs returns the arguments for scanLaneSQL to read up to limit jobs of a lane, beginning at a
// position.
func scanLaneArgs(laneID int64, start rules.Position, limit int) []any {
	return []any{laneID, start.Rank, start.Seq, limit}
}

// scanNextRows reads the next jobs of a lane and passes their rows to handleRow. If a row was read earlier
// and its job is no longer in the lane, hasLeftLane is true. reachedEnd is true if the lane has no further jobs.
func (t *Tx) scanNextRows(scan *rules.LaneScan, handleRow func(r database.Row, hasLeftLane bool) (more bool,
	err error)) (
	reachedEnd bool, err error) {
	rows, piece := 0, t.QueryRowLimit(scan.MaxJobs-len(scan.Jobs), t.engine.typicalJobBytes)
	counted := func(r database.Row, hasLeftLane bool) (bool, error) {
		rows++
		return handleRow(r, hasLeftLane)
	}
	args := scanLaneArgs(scan.Lane.ID, scan.NextPosition, piece)
	e := t.claimPrefetch
	t.claimPrefetch = nil
	if e != nil && scan.JobReadScope == rules.ReadScopeFull && slices.Equal(e.queryArgs, args) {
		answered, err := e.rows.ForEachRow(func(r database.Row) (bool, error) {
			return counted(r, e.endedLeaseJobSeqs[r.Int64(0)])
		})
		if answered || err != nil {
			return rows < piece, err
		}
	}
	if t.usesDatabaseServer() && scan.UpcomingLanes != nil {
		return t.readAhead.VisitLaneJobs(scan, t.QueryRowLimit(math.MaxInt32, t.engine.typicalJobBytes), t.readLaneJobs,
			handleRow)
	}
	err = t.Query(func(r database.Row) (bool, error) { return counted(r, false) },
		scanLaneSQL(records.JobColumnsFor(scan.JobReadScope)),
		args...)
	return rows < piece, err
}

// readLaneJobs reads the next jobs of several lanes from the server. It only reads jobs, so it need not first
// write lanes that the transaction has changed.
func (t *Tx) readLaneJobs(laneStarts []readahead.LaneStart, jobsPerLane int) ([]readahead.LaneJobs, error) {
	if err := t.EnsureBegun(); err != nil {
		return nil, err
	}
	return t.engine.sharedDatabase.ReadLaneJobs(t, laneStarts, jobsPerLane)
}
