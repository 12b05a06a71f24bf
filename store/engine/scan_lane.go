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
func (t *Tx) ScanLane(l *rules.LaneScan) error {
	l.NextPosition, l.NextPriority, l.Exhausted = l.Lane.Head, rules.UnknownPriority, true
	enough, full := false, false
	more := func() bool { l.Exhausted, enough = false, true; return false }
	each := func(r database.Row, hasLeft bool) (bool, error) {
		p := readahead.Position(r)
		leased := hasLeft || t.engine.mem.leases[p.Seq] != nil
		if p.After(l.StopAt) {
			if l.NextPosition = p; !leased {
				l.NextPriority = readahead.HeadOf(r).Priority
			}
			return more(), nil
		}
		l.NextPosition = readahead.Following(p)
		if leased {
			return true, nil
		}
		j := records.ReadRulesJob(r, records.ColumnsOf(l.Scope))
		if j.Damaged || !j.State.Runnable() {
			l.DamagedJobs = append(l.DamagedJobs, j)
			return len(l.DamagedJobs) < l.MaxDamagedJobs || more(), nil
		}
		if l.Jobs == nil {
			l.Jobs = make([]rules.Job, 0, min(l.WantedJobs, maxPreallocatedJobs))
		}
		l.Jobs = append(l.Jobs, j)
		taken := estimateJobBytes(&j.Job)
		l.BytesRead += taken
		t.engine.typicalJobBytes += (taken - t.engine.typicalJobBytes) / 8
		full = len(l.Jobs) >= l.WantedJobs || l.BytesRead >= rules.MaxClaimBytes
		return !full || more(), nil
	}
	if l.Scope == rules.ReadFull {
		t.engine.lastClaimQueue = l.Lane.Queue
	}
	for all := false; !all && !enough; {
		var err error
		if all, err = t.scanNextRows(l, each); err != nil {
			return err
		}
	}
	if !full || !l.PeekPriority {
		return nil
	}
	return t.peekNextPriority(l)
}

// peekNextPriority finds the first job of the lane that is not leased and that ScanLane has not returned. It
// reads only the columns that determine the lane's rank, because the job may have a large input. The claim
// that takes the job reads all columns.
func (t *Tx) peekNextPriority(l *rules.LaneScan) error {
	l.Exhausted = true
	found := func(h *readahead.Head) (more bool) {
		if t.readAhead.HasLeft(h.Position.Seq) || t.engine.mem.leases[h.Position.Seq] != nil {
			l.NextPosition = readahead.Following(h.Position)
			return true
		}
		l.NextPosition, l.NextPriority, l.Exhausted = h.Position, h.Priority, false
		return false
	}
	if h, known := t.readAhead.Head(l.Lane.ID, l.NextPosition); known && (h == nil || !found(h)) {
		return nil
	}
	for all := false; !all && l.Exhausted; {
		rows, piece := 0, t.ReadLimit(0, 0)
		err := t.Query(func(r database.Row) (bool, error) {
			rows++
			h := readahead.ReadHead(r)
			return found(&h), nil
		}, scanLaneSQL(readahead.HeadColumns), scanLaneArgs(l.Lane.ID, l.NextPosition, piece)...)
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
func scanLaneArgs(lane int64, start rules.Position, limit int) []any {
	return []any{lane, start.Rank, start.Seq, int64(limit)}
}

// scanNextRows reads the next jobs of a lane and passes their rows to handleRow. If a row was read earlier
// and its job is no longer in the lane, hasLeft is true. reachedEnd is true if the lane has no further jobs.
func (t *Tx) scanNextRows(l *rules.LaneScan, handleRow func(r database.Row, hasLeft bool) (more bool, err error)) (
	reachedEnd bool, err error) {
	rows, piece := 0, t.ReadLimit(l.WantedJobs-len(l.Jobs), t.engine.typicalJobBytes)
	counted := func(r database.Row, hasLeft bool) (bool, error) {
		rows++
		return handleRow(r, hasLeft)
	}
	args := scanLaneArgs(l.Lane.ID, l.NextPosition, piece)
	e := t.claimPrefetch
	t.claimPrefetch = nil
	if e != nil && l.Scope == rules.ReadFull && slices.Equal(e.queryArgs, args) {
		answered, err := e.rows.Each(func(r database.Row) (bool, error) { return counted(r, e.endedLeases[r.Num(0)]) })
		if answered || err != nil {
			return rows < piece, err
		}
	}
	if t.isRemote() && l.UpcomingLanes != nil {
		return t.readAhead.Find(l, t.ReadLimit(math.MaxInt32, t.engine.typicalJobBytes), t.readLanes, handleRow)
	}
	err = t.Query(func(r database.Row) (bool, error) { return counted(r, false) }, scanLaneSQL(records.ColumnsOf(l.Scope)),
		args...)
	return rows < piece, err
}

// readLanes reads the next jobs of several lanes from the server. It only reads jobs, so it need not first
// write lanes that the transaction has changed.
func (t *Tx) readLanes(starts []readahead.LaneStart, jobsPerLane int) ([]readahead.LaneJobs, error) {
	if err := t.EnsureBegun(); err != nil {
		return nil, err
	}
	return t.engine.shared.ReadLanes(t, starts, jobsPerLane)
}
