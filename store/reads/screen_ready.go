package reads

import (
	"maps"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// readyLane is a list of ready jobs of one queue and user: the unclaimed jobs of a lane, which need the same locks and
// other limits, or all claimed jobs of the user.
type readyLane struct {
	rules.ClosedLaneListKey            // the queue and the user
	laneID                  int64      // id of the lane; 0 if nextJobs contains all claimed jobs
	nextJobs                []readyJob // the next jobs of the lane, at least one
}

// readyJob is a job of a readyLane.
type readyJob struct {
	rules.Position
	priority int64
}

// readyJobsPerQuery is how many jobs of a lane one query reads after the first query.
const readyJobsPerQuery = 20

// readyJobsReader returns a function that reads the ready jobs in the order in which they would start if no limit
// held them back: first the claimed jobs, then the others. Users take turns; see store/rules/user_turns.go.
func (s *JobReader) readyJobsReader(fencesByReservedSeq map[int64]int64) positionReader {
	return func(r *ReadSnapshot, rows int) (list []rules.Position, err error) {
		lanes, err := r.readClaimedJobsAsLanes(fencesByReservedSeq, rows)
		if err != nil {
			return nil, err
		}
		turns := turnOrder{ignoresUserTurns: s.RankOrder().Scheduling == queue.SchedulingByArrival,
			lastChoiceByQueueUser: map[rules.ClosedLaneListKey]int64{}}
		if list, err = r.listJobsByUserTurns(lanes, &turns, rows, fencesByReservedSeq); err != nil || len(list) == rows {
			return list, err
		}
		if lanes, err = r.readLanesWithUnclaimedJobs(fencesByReservedSeq); err != nil {
			return nil, err
		}
		turns.lastTurnByQueueAndUID, turns.lastChoiceByQueueUser = s.lastTurnsByQueue(), map[rules.ClosedLaneListKey]int64{}
		others, err := r.listJobsByUserTurns(lanes, &turns, rows-len(list), fencesByReservedSeq)
		return append(list, others...), err
	}
}

// listJobsByUserTurns reads up to limit jobs of the lanes, in the order of the users' turns.
func (r *ReadSnapshot) listJobsByUserTurns(
	lanes []*readyLane, turns *turnOrder, limit int, fencesByReservedSeq map[int64]int64,
) (positions []rules.Position, err error) {
	for len(positions) < limit && len(lanes) > 0 && err == nil {
		at := turns.chooseNextLaneIndex(lanes)
		l := lanes[at]
		job := l.nextJobs[0].Position
		positions = append(positions, job)
		if l.nextJobs = l.nextJobs[1:]; len(l.nextJobs) == 0 && l.laneID != 0 {
			err = r.readNextJobsOfLane(l, job, readyJobsPerQuery, fencesByReservedSeq)
		}
		if len(l.nextJobs) == 0 {
			lanes = slices.Delete(lanes, at, at+1)
		}
	}
	return positions, err
}

// readClaimedJobsAsLanes returns the jobs that are claimed but have not started, as one readyLane for each queue and
// user. Some claimed jobs have left their lane in the database; of these jobs, it reads at most maxRows.
func (r *ReadSnapshot) readClaimedJobsAsLanes(fencesByReservedSeq map[int64]int64, maxRows int) (lanes []*readyLane,
	err error) {
	const columns = `queue, uid, rank, seq, priority`
	byName := map[rules.ClosedLaneListKey]*readyLane{}
	add := func(r database.Row) {
		name := rules.ClosedLaneListKey{Queue: r.Text(0), UID: int(r.Int64(1))}
		l := byName[name]
		if l == nil {
			l = &readyLane{ClosedLaneListKey: name}
			byName[name], lanes = l, append(lanes, l)
		}
		l.nextJobs = append(l.nextJobs, readyJob{rules.Position{Rank: r.Int64(2), Seq: r.Int64(3)}, r.Int64(4)})
	}
	err = database.ForEachRow(r, add, `SELECT `+columns+` FROM jobs INDEXED BY jobs_running
		WHERE place = 3 AND state < 5 ORDER BY seq LIMIT ?`, int64(maxRows))
	if err == nil && len(fencesByReservedSeq) > 0 {
		// The + keeps the database from using an index of waiting jobs.
		err = database.ForEachRow(r, add, `SELECT `+columns+` FROM jobs WHERE +place = 1 AND `+r.ColumnInNumbersSQL("seq"),
			database.JoinNumbers(maps.Keys(fencesByReservedSeq)))
	}
	for _, l := range lanes {
		slices.SortFunc(l.nextJobs, func(a, b readyJob) int { return a.Compare(b.Position) })
	}
	return lanes, err
}

// readLanesWithUnclaimedJobs returns up to MaxScreenLanes lanes with unclaimed jobs, each with its first unclaimed job.
func (r *ReadSnapshot) readLanesWithUnclaimedJobs(fencesByReservedSeq map[int64]int64) (lanes []*readyLane, err error) {
	for last := int64(-1); len(lanes) < MaxScreenLanes && err == nil; { // skips lanes without unclaimed jobs
		l := &readyLane{}
		var found bool
		found, err = database.ScanFirstRow(r, []any{&l.laneID, &l.Queue, &l.UID},
			`SELECT lane, queue, uid FROM jobs INDEXED BY jobs_ready WHERE place = 1 AND lane > ?
				ORDER BY lane, rank, seq LIMIT 1`, last)
		if err != nil || !found {
			break
		}
		last = l.laneID
		if err = r.readNextJobsOfLane(l, rules.MinPosition, 1, fencesByReservedSeq); len(l.nextJobs) > 0 {
			lanes = append(lanes, l)
		}
	}
	return lanes, err
}

// readNextJobsOfLane reads the next unclaimed jobs of a lane into l.nextJobs. If l.nextJobs is then empty, the lane has
// no further jobs.
func (r *ReadSnapshot) readNextJobsOfLane(l *readyLane, afterPosition rules.Position, limit int,
	fencesByReservedSeq map[int64]int64) error {
	for end := false; !end && len(l.nextJobs) == 0; limit = readyJobsPerQuery {
		n := 0
		err := database.ForEachRow(r, func(r database.Row) {
			n++
			afterPosition = rules.Position{Rank: r.Int64(0), Seq: r.Int64(1)}
			if _, claimed := fencesByReservedSeq[afterPosition.Seq]; !claimed {
				l.nextJobs = append(l.nextJobs, readyJob{afterPosition, r.Int64(2)})
			}
		}, `SELECT rank, seq, priority FROM jobs INDEXED BY jobs_ready
			WHERE place = 1 AND lane = ? AND (rank, seq) > (?, ?) ORDER BY rank, seq LIMIT ?`,
			l.laneID, afterPosition.Rank, afterPosition.Seq, int64(limit))
		if err != nil {
			return err
		}
		end = n < limit
	}
	return nil
}

// turnOrder holds the state that decides which user has the next turn.
type turnOrder struct {
	ignoresUserTurns      bool                     // users do not take turns
	lastTurnByQueueAndUID map[string]map[int]int64 // number of each user's last turn, by queue and uid
	// number of the last job of each user that chooseNextLaneIndex has chosen
	lastChoiceByQueueUser map[rules.ClosedLaneListKey]int64
	chosenJobCount        int64 // how many jobs chooseNextLaneIndex has chosen
}

// lastTurn returns the number of the last turn of a lane's user. Turns that chooseNextLaneIndex has given get higher
// numbers than all turns in lastTurnByQueueAndUID.
func (t *turnOrder) lastTurn(l *readyLane) int64 {
	if claim := t.lastChoiceByQueueUser[l.ClosedLaneListKey]; claim != 0 {
		return math.MaxInt64/2 + claim
	}
	return t.lastTurnByQueueAndUID[l.Queue][l.UID]
}

// chooseNextLaneIndex returns the index of the lane whose first job would start next, and counts a turn of its user.
// The list must not be empty.
func (t *turnOrder) chooseNextLaneIndex(lanes []*readyLane) int {
	before := func(i, j int) bool { return lanes[j].nextJobs[0].After(lanes[i].nextJobs[0].Position) }
	first := 0
	for i := range lanes {
		if before(i, first) {
			first = i
		}
	}
	if t.ignoresUserTurns {
		return first
	}
	bestOf := map[int]int{} // by uid, the index of the user's best lane among those of the queue of the first lane
	for i, l := range lanes {
		if l.Queue != lanes[first].Queue {
			continue
		}
		if other, known := bestOf[l.UID]; !known || before(i, other) {
			bestOf[l.UID] = i
		}
	}
	best := first
	for _, i := range bestOf {
		turn, bestTurn := t.lastTurn(lanes[i]), t.lastTurn(lanes[best])
		if lanes[i].nextJobs[0].priority == lanes[first].nextJobs[0].priority &&
			(turn < bestTurn || turn == bestTurn && before(i, best)) {
			best = i
		}
	}
	t.chosenJobCount++
	t.lastChoiceByQueueUser[lanes[best].ClosedLaneListKey] = t.chosenJobCount
	return best
}
