package reads

import (
	"maps"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// readyLane is a list of ready jobs of one queue and user: the unclaimed jobs of a lane, which have the same
// demands, or all claimed jobs of the user.
type readyLane struct {
	rules.ClosedListKey            // the queue and the user
	id                  int64      // id of the lane; 0 if jobs contains all claimed jobs
	jobs                []readyJob // the next jobs of the lane, at least one
}

// readyJob is a job of a readyLane.
type readyJob struct {
	rules.Position
	priority int64
}

// readyJobsPerQuery is how many jobs of a lane one query reads after the first query.
const readyJobsPerQuery = 20

// readyJobs returns a function that reads the ready jobs in the order in which they would start if no limit
// held them back: first the claimed jobs, then the others. Users take turns; see store/rules/user_turns.go.
func (s *Reads) readyJobs(reservedFences map[int64]int64) func(*Reader, int) ([]rules.Position, error) {
	return func(r *Reader, rows int) (list []rules.Position, err error) {
		lanes, err := r.claimedLanes(reservedFences, rows)
		if err != nil {
			return nil, err
		}
		turns := turnOrder{byArrival: s.Order().Scheduling == queue.ByArrival, claims: map[rules.ClosedListKey]int64{}}
		if list, err = r.takeTurns(lanes, &turns, rows, reservedFences); err != nil || len(list) == rows {
			return list, err
		}
		if lanes, err = r.readyLanes(reservedFences); err != nil {
			return nil, err
		}
		turns.lastTurns, turns.claims = s.lastTurns(), map[rules.ClosedListKey]int64{}
		others, err := r.takeTurns(lanes, &turns, rows-len(list), reservedFences)
		return append(list, others...), err
	}
}

// takeTurns reads up to limit jobs of the lanes, in the order of the users' turns.
func (r *Reader) takeTurns(
	lanes []*readyLane, turns *turnOrder, limit int, reservedFences map[int64]int64,
) (list []rules.Position, err error) {
	for len(list) < limit && len(lanes) > 0 && err == nil {
		at := turns.nextLane(lanes)
		l := lanes[at]
		job := l.jobs[0].Position
		list = append(list, job)
		if l.jobs = l.jobs[1:]; len(l.jobs) == 0 && l.id != 0 {
			err = r.readNextJobs(l, job, readyJobsPerQuery, reservedFences)
		}
		if len(l.jobs) == 0 {
			lanes = slices.Delete(lanes, at, at+1)
		}
	}
	return list, err
}

// claimedLanes returns the jobs that are claimed but have not started, as one readyLane for each queue and
// user. Some claimed jobs have left their lane in the database; of these, it reads at most rows.
func (r *Reader) claimedLanes(reservedFences map[int64]int64, rows int) (lanes []*readyLane, err error) {
	const (
		columns       = `queue, uid, rank, seq, priority, place`
		lanelessPlace = 3
		inLanePlace   = 1
	)
	byName := map[rules.ClosedListKey]*readyLane{}
	add := func(place int64) func(database.Row) {
		return func(r database.Row) {
			if r.Num(5) != place {
				return
			}
			name := rules.ClosedListKey{Queue: r.Text(0), UID: int(r.Num(1))}
			l := byName[name]
			if l == nil {
				l = &readyLane{ClosedListKey: name}
				byName[name], lanes = l, append(lanes, l)
			}
			l.jobs = append(l.jobs, readyJob{rules.Position{Rank: r.Num(2), Seq: r.Num(3)}, r.Num(4)})
		}
	}
	err = database.EachRow(r, add(lanelessPlace), `SELECT `+columns+` FROM jobs INDEXED BY jobs_running
		WHERE place = 3 AND state < 5 ORDER BY seq LIMIT ?`, int64(rows))
	if err == nil && len(reservedFences) > 0 {
		err = database.EachRow(r, add(inLanePlace), `SELECT `+columns+` FROM jobs WHERE `+r.InNumbersSQL("seq"),
			database.JoinNumbers(maps.Keys(reservedFences)))
	}
	for _, l := range lanes {
		slices.SortFunc(l.jobs, func(a, b readyJob) int { return a.Compare(b.Position) })
	}
	return lanes, err
}

// readyLanes returns up to MaxScreenLanes lanes with unclaimed jobs, each with its first unclaimed job.
func (r *Reader) readyLanes(reservedFences map[int64]int64) (lanes []*readyLane, err error) {
	for last := int64(-1); len(lanes) < MaxScreenLanes && err == nil; { // skips lanes without unclaimed jobs
		l := &readyLane{}
		var found bool
		found, err = database.FirstRow(r, func(r database.Row) { l.id, l.Queue, l.UID = r.Num(0), r.Text(1), int(r.Num(2)) },
			`SELECT lane, queue, uid FROM jobs INDEXED BY jobs_ready WHERE place = 1 AND lane > ?
				ORDER BY lane, rank, seq LIMIT 1`, last)
		if err != nil || !found {
			break
		}
		last = l.id
		if err = r.readNextJobs(l, rules.StartPosition, 1, reservedFences); len(l.jobs) > 0 {
			lanes = append(lanes, l)
		}
	}
	return lanes, err
}

// readNextJobs reads the next unclaimed jobs of a lane into l.jobs. If l.jobs is then empty, the lane has no
// further jobs.
func (r *Reader) readNextJobs(l *readyLane, after rules.Position, limit int, reservedFences map[int64]int64) error {
	for end := false; !end && len(l.jobs) == 0; limit = readyJobsPerQuery {
		n := 0
		err := database.EachRow(r, func(r database.Row) {
			n++
			after = rules.Position{Rank: r.Num(0), Seq: r.Num(1)}
			if _, claimed := reservedFences[after.Seq]; !claimed {
				l.jobs = append(l.jobs, readyJob{after, r.Num(2)})
			}
		}, `SELECT rank, seq, priority FROM jobs INDEXED BY jobs_ready
			WHERE place = 1 AND lane = ? AND (rank, seq) > (?, ?) ORDER BY rank, seq LIMIT ?`,
			l.id, after.Rank, after.Seq, int64(limit))
		if err != nil {
			return err
		}
		end = n < limit
	}
	return nil
}

// turnOrder holds the state that decides which user has the next turn.
type turnOrder struct {
	byArrival  bool                          // users do not take turns
	lastTurns  map[string]map[int]int64      // number of each user's last turn, by queue and uid
	claims     map[rules.ClosedListKey]int64 // number of the last job of each user that nextLane has chosen
	claimCount int64                         // how many jobs nextLane has chosen
}

// lastTurn returns the number of the last turn of a lane's user. Turns that nextLane has given get higher
// numbers than all turns in lastTurns.
func (t *turnOrder) lastTurn(l *readyLane) int64 {
	if claim := t.claims[l.ClosedListKey]; claim != 0 {
		return math.MaxInt64/2 + claim
	}
	return t.lastTurns[l.Queue][l.UID]
}

// nextLane returns the index of the lane whose first job would start next, and counts a turn of its user. The
// list must not be empty.
func (t *turnOrder) nextLane(lanes []*readyLane) int {
	before := func(i, j int) bool { return lanes[j].jobs[0].After(lanes[i].jobs[0].Position) }
	first := 0
	for i := range lanes {
		if before(i, first) {
			first = i
		}
	}
	if t.byArrival {
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
		if lanes[i].jobs[0].priority == lanes[first].jobs[0].priority &&
			(turn < bestTurn || turn == bestTurn && before(i, best)) {
			best = i
		}
	}
	t.claimCount++
	t.claims[lanes[best].ClosedListKey] = t.claimCount
	return best
}
