package reads

import (
	"maps"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// readyLane is a lane whose jobs a reader is going through. The claimed jobs of one user in one queue are
// treated as an additional lane.
type readyLane struct {
	queue string
	uid   int
	id    int64      // 0 if list contains all jobs
	list  []readyJob // the next jobs, at least one
}

// readyJob is a job of a readyLane.
type readyJob struct {
	rankedJob
	priority int64
}

// readyPiece is the number of jobs of a lane that one query reads, after the first job.
const readyPiece = 20

// readyJobs returns a function that reads the ready jobs. It returns them in the order in which they start if
// no gate is full: first the claimed jobs, then the others. Users take turns, see store/rules/user_turns.go.
func (s *Reads) readyJobs(reserved map[int64]int64) func(*Reader, int) ([]rankedJob, error) {
	return func(r *Reader, rows int) (list []rankedJob, err error) {
		lanes, err := r.claimedLanes(reserved, rows)
		if err != nil {
			return nil, err
		}
		turns := turnOrder{
			byArrival: s.Order().Scheduling == queue.ByArrival, lastTurns: map[string]map[int]int64{},
			copiedQueues: map[string]bool{},
		}
		if list, err = r.takeTurns(lanes, &turns, rows, reserved); err != nil || len(list) == rows {
			return list, err
		}
		if lanes, err = r.readyLanes(reserved); err != nil {
			return nil, err
		}
		turns.lastTurns, turns.copiedQueues = s.turns(), map[string]bool{}
		others, err := r.takeTurns(lanes, &turns, rows-len(list), reserved)
		return append(list, others...), err
	}
}

// takeTurns reads the jobs of lanes in the order of turns, up to limit of them.
func (r *Reader) takeTurns(
	lanes []*readyLane, turns *turnOrder, limit int, reserved map[int64]int64,
) (list []rankedJob, err error) {
	for len(list) < limit && len(lanes) > 0 && err == nil {
		at := turns.next(lanes)
		l := lanes[at]
		job := l.list[0].rankedJob
		list = append(list, job)
		if l.list = l.list[1:]; len(l.list) == 0 && l.id != 0 {
			err = r.readNextJobs(l, rules.Position{Rank: job.rank, Seq: job.seq}, readyPiece, reserved)
		}
		if len(l.list) == 0 {
			lanes = slices.Delete(lanes, at, at+1)
		}
	}
	return list, err
}

// laneOwner identifies the only lane without demands of a user in a queue.
type laneOwner struct {
	queue string
	uid   int
}

// claimedLanes reads the claimed jobs that have not started. It reads up to rows of the jobs that have left
// their lanes.
func (r *Reader) claimedLanes(reserved map[int64]int64, rows int) (lanes []*readyLane, err error) {
	const (
		columns  = `queue, uid, rank, seq, priority, place`
		laneless = 3
		inLane   = 1
	)
	byName := map[laneOwner]*readyLane{}
	add := func(place int64) func(database.Row) (bool, error) {
		return func(r database.Row) (bool, error) {
			if r.Num(5) != place {
				return true, nil
			}
			name := laneOwner{r.Text(0), int(r.Num(1))}
			l := byName[name]
			if l == nil {
				l = &readyLane{queue: name.queue, uid: name.uid}
				byName[name], lanes = l, append(lanes, l)
			}
			l.list = append(l.list, readyJob{rankedJob{r.Num(2), r.Num(3)}, r.Num(4)})
			return true, nil
		}
	}
	err = r.Query(add(laneless), `SELECT `+columns+` FROM jobs INDEXED BY jobs_running
		WHERE place = 3 AND state < 5 ORDER BY seq LIMIT ?`, int64(rows))
	if err == nil && len(reserved) > 0 {
		err = r.Query(add(inLane), `SELECT `+columns+` FROM jobs WHERE `+r.IsOneOf("seq"),
			database.JoinNumbers(maps.Keys(reserved)))
	}
	for _, l := range lanes {
		slices.SortFunc(l.list, func(a, b readyJob) int { return a.compare(b.rankedJob) })
	}
	return lanes, err
}

// readyLanes returns up to MaxScreenLanes lanes that have jobs which are not claimed, each with its first
// such job.
func (r *Reader) readyLanes(reserved map[int64]int64) (lanes []*readyLane, err error) {
	for last := int64(-1); len(lanes) < MaxScreenLanes && err == nil; { // skips lanes whose jobs are all claimed
		l := &readyLane{id: -1}
		err = r.Query(func(r database.Row) (bool, error) {
			l.id, l.queue, l.uid = r.Num(0), r.Text(1), int(r.Num(2))
			return false, nil
		}, `SELECT lane, queue, uid FROM jobs INDEXED BY jobs_ready WHERE place = 1 AND lane > ? ORDER BY lane, rank, seq LIMIT 1`, last)
		if err != nil || l.id < 0 {
			break
		}
		last = l.id
		if err = r.readNextJobs(l, rules.Start, 1, reserved); len(l.list) > 0 {
			lanes = append(lanes, l)
		}
	}
	return lanes, err
}

// readNextJobs reads the next jobs of a lane that are not claimed, at least one if there is one.
func (r *Reader) readNextJobs(l *readyLane, after rules.Position, limit int, reserved map[int64]int64) error {
	for end := false; !end && len(l.list) == 0; limit = readyPiece {
		n := 0
		err := r.Query(func(r database.Row) (bool, error) {
			n++
			after = rules.Position{Rank: r.Num(0), Seq: r.Num(1)}
			if _, claimed := reserved[after.Seq]; !claimed {
				l.list = append(l.list, readyJob{rankedJob{after.Rank, after.Seq}, r.Num(2)})
			}
			return true, nil
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

// turnOrder holds a reader's knowledge of the turns of users.
type turnOrder struct {
	byArrival    bool // users do not take turns
	lastTurns    map[string]map[int]int64
	copiedQueues map[string]bool // queues whose map in lastTurns is a copy that may be changed
	claims       int64           // number of claims counted by next
}

// next returns the index of the lane whose first job is next, and counts its claim. There is at least one
// lane.
func (t *turnOrder) next(lanes []*readyLane) int {
	before := func(i, j int) bool { return lanes[i].list[0].compare(lanes[j].list[0].rankedJob) < 0 }
	first := 0
	for i := range lanes {
		if before(i, first) {
			first = i
		}
	}
	if t.byArrival {
		return first
	}
	bestOf := map[int]int{} // by uid: the best lane in the first lane's queue
	for i, l := range lanes {
		if l.queue != lanes[first].queue {
			continue
		}
		if other, known := bestOf[l.uid]; !known || before(i, other) {
			bestOf[l.uid] = i
		}
	}
	name := lanes[first].queue
	if !t.copiedQueues[name] {
		t.copiedQueues[name] = true
		if t.lastTurns[name] = maps.Clone(t.lastTurns[name]); t.lastTurns[name] == nil {
			t.lastTurns[name] = map[int]int64{}
		}
	}
	turns := t.lastTurns[name]
	best := first
	for uid, i := range bestOf {
		if turn, bestTurn := turns[uid], turns[lanes[best].uid]; lanes[i].list[0].priority == lanes[first].list[0].priority &&
			(turn < bestTurn || turn == bestTurn && before(i, best)) {
			best = i
		}
	}
	t.claims++
	turns[lanes[best].uid] = math.MaxInt64/2 + t.claims
	return best
}
