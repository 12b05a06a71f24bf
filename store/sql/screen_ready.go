package sql

import (
	"maps"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/rules"
)

// readyLane is a lane as a reader goes through it. A claimed job that is in no lane counts as a lane.
type readyLane struct {
	queue string
	uid   int
	id    int64      // 0 if list is complete
	list  []readyJob // the next ones, at least one
}

// readyJob is a job of a readyLane.
type readyJob struct {
	ranked
	priority int64
	claimed  bool
}

// readyPiece is how many jobs of a lane are read with one query, after the first one.
const readyPiece = 20

// readyJobs returns a function that reads the jobs that are ready in the order in which they start if no gate is full:
// first what is claimed, then the others. Users take turns, see store/rules/turns.go.
func (s *engine) readyJobs(reserved map[int64]int64) func(*reader, int) ([]ranked, error) {
	return func(r *reader, rows int) (list []ranked, err error) {
		lanes, err := r.readyLanes(reserved, rows)
		turns := turnsSeen{byArrival: s.Order().Scheduling == queue.ByArrival, served: map[string]map[int]int64{}, claimed: true}
		for len(list) < rows && len(lanes) > 0 && err == nil {
			at := turns.next(lanes)
			if at < 0 { // nothing claimed is left
				turns.claimed, turns.served = false, s.servedCopy()
				continue
			}
			l := lanes[at]
			job := l.list[0].ranked
			list = append(list, job)
			if l.list = l.list[1:]; len(l.list) == 0 && l.id != 0 {
				err = r.readOn(l, rules.Position{Rank: job.at, Seq: job.seq}, readyPiece, reserved)
			}
			if len(l.list) == 0 {
				lanes = slices.Delete(lanes, at, at+1)
			}
		}
		return list, err
	}
}

// readyLanes finds the lanes that have jobs, up to maxScreenLanes, each with its first job, and what is claimed and in no
// lane.
func (r *reader) readyLanes(reserved map[int64]int64, rows int) (lanes []*readyLane, err error) {
	err = r.query(func(r row) (bool, error) {
		job := readyJob{ranked{r.num(2), r.num(3)}, r.num(4), true}
		lanes = append(lanes, &readyLane{queue: r.text(0), uid: int(r.num(1)), list: []readyJob{job}})
		return true, nil
	}, `SELECT queue, uid, rank, seq, priority FROM jobs INDEXED BY jobs_running WHERE place = 3 AND state < 5 ORDER BY seq LIMIT ?`, int64(rows))
	for last := int64(-1); len(lanes) < maxScreenLanes && err == nil; { // from one lane with jobs to the next
		l := &readyLane{id: -1}
		err = r.query(func(r row) (bool, error) {
			l.id, l.queue, l.uid = r.num(0), r.text(1), int(r.num(2))
			return false, nil
		}, `SELECT lane, queue, uid FROM jobs INDEXED BY jobs_ready WHERE place = 1 AND lane > ? ORDER BY lane, rank, seq LIMIT 1`, last)
		if err != nil || l.id < 0 {
			break
		}
		last = l.id
		if err = r.readOn(l, rules.Start, 1, reserved); len(l.list) > 0 {
			lanes = append(lanes, l)
		}
	}
	return lanes, err
}

// readOn reads the next jobs of a lane.
func (r *reader) readOn(l *readyLane, after rules.Position, most int, reserved map[int64]int64) error {
	return r.query(func(r row) (bool, error) {
		_, claimed := reserved[r.num(1)]
		l.list = append(l.list, readyJob{ranked{r.num(0), r.num(1)}, r.num(2), claimed})
		return true, nil
	}, `SELECT rank, seq, priority FROM jobs INDEXED BY jobs_ready WHERE place = 1 AND lane = ? AND (rank, seq) > (?, ?) ORDER BY rank, seq LIMIT ?`,
		l.id, after.Rank, after.Seq, int64(most))
}

// servedCopy returns when users were served last, by queue.
func (s *engine) servedCopy() map[string]map[int]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]map[int]int64{}
	for name, served := range s.servedSeen {
		all[name] = maps.Clone(served)
	}
	return all
}

// turnsSeen is what a reader knows of the turns of users.
type turnsSeen struct {
	byArrival bool // there are no turns
	claimed   bool // only what is claimed counts, else only what is not
	served    map[string]map[int]int64
	claims    int64 // that were counted here
}

// next returns the index of the lane whose first job is next, and counts its claim; -1 if no job counts.
func (t *turnsSeen) next(lanes []*readyLane) int {
	before := func(i, j int) bool { return j < 0 || lanes[i].list[0].compare(lanes[j].list[0].ranked) < 0 }
	first := -1
	for i, l := range lanes {
		if l.list[0].claimed == t.claimed && before(i, first) {
			first = i
		}
	}
	if first < 0 || t.byArrival {
		return first
	}
	best := map[int]int{} // by uid: the best lane in the queue of the first one
	for i, l := range lanes {
		if l.list[0].claimed != t.claimed || l.queue != lanes[first].queue {
			continue
		}
		if other, known := best[l.uid]; !known || before(i, other) {
			best[l.uid] = i
		}
	}
	served := t.served[lanes[first].queue]
	if served == nil {
		served = map[int]int64{}
		t.served[lanes[first].queue] = served
	}
	at := first
	for uid, i := range best {
		if was, than := served[uid], served[lanes[at].uid]; lanes[i].list[0].priority == lanes[first].list[0].priority &&
			(was < than || was == than && before(i, at)) {
			at = i
		}
	}
	t.claims++
	served[lanes[at].uid] = math.MaxInt64/2 + t.claims
	return at
}
