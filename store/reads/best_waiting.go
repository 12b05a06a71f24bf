package reads

import (
	"context"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// MaxBestLanes is the maximum number of lanes that BestWaitingPriority searches, and bestLanesPage is the number
// of lanes that one query reads. A lane is the list of a user's waiting jobs in a queue with the same demands.
const (
	MaxBestLanes  = 1000
	bestLanesPage = 32
)

// BestWaitingPriority returns the effective priority of a user's best-ranked job that is due or waits for a
// retry.
//
// No index holds exactly these jobs, because such an index took 20 % of the time of an enqueue. So
// BestWaitingPriority compares the first job that waits for a retry with the first jobs of the user's lanes.
// A lane is the list of waiting jobs with the same demands. In each queue, the user has one lane for jobs
// without demands. The row of a lane with demands stores a position at or before the lane's first job. The
// search takes the lanes in the order of these positions, and ends at the first position behind the best job
// found.
//
// The search stops after MaxBestLanes lanes. No job of the other lanes ranks before the position of the last
// searched lane. Unless the best job found ranks before this position, the result is the effective priority
// at this position, which is an upper bound.
func (s *Reads) BestWaitingPriority(ctx context.Context, uid int) (best store.WaitingPriority, err error) {
	waiting, counts := s.userUsage(uid).Waiting, s.Counts()
	if waiting == 0 {
		return best, nil
	}
	err = s.Read(ctx, func(r *Reader) error {
		b := bestSearch{reader: r, uid: int64(uid), leasedFences: s.reservedFences()}
		err := b.takeFirstOf(`jobs_retried WHERE place = 2 AND state = 4 AND uid = ?`, b.uid)
		if err == nil {
			err = b.searchPlainLanes()
		}
		if err == nil {
			err = b.searchDemandLanes()
		}
		if err != nil {
			return err
		}
		order, now := s.Order(), s.Now()
		if b.found {
			best.Priority, best.Found = b.priority+order.AgingPoints(b.ageingStart, now, b.arrival, counts.EnqueuedTotal), true
		}
		if b.stoppedAtLimit && (!b.found || b.bestPosition.After(b.unsearchedFrom)) {
			if counts.Reranking { // ranks from different settings cannot be compared
				b.unsearchedFrom = rules.StartPosition
			}
			bound := order.EffectivePriority(b.unsearchedFrom.Rank, now, counts.EnqueuedTotal)
			best = store.WaitingPriority{Priority: max(bound, best.Priority), Found: true, IsUpperBound: true}
		}
		best.Priority = min(best.Priority, store.MaxWaitingPriority)
		return nil
	})
	return best, err
}

// bestSearch searches the best-ranked waiting job of a user that is not leased.
type bestSearch struct {
	reader       *Reader
	uid          int64
	leasedFences map[int64]int64 // fences of the leases whose attempts are not known to have started, by seq

	// These fields describe the best job found; they are set if found is true.
	found             bool
	bestPosition      rules.Position
	priority, arrival int64
	ageingStart       queue.Millis

	stoppedAtLimit bool           // the search stopped after MaxBestLanes lanes
	unsearchedFrom rules.Position // if stoppedAtLimit: the jobs of lanes that were not searched are here or later
}

// takeFirstOf reads the jobs that a part of an SQL query selects, up to the first that is not leased. It
// takes this job if it ranks before the best job found.
func (b *bestSearch) takeFirstOf(indexAndCondition string, args ...any) error {
	return b.reader.Query(func(r database.Row) (bool, error) {
		p := rules.Position{Rank: r.Num(0), Seq: r.Num(1)}
		if _, leased := b.leasedFences[p.Seq]; leased {
			return true, nil
		}
		if !b.found || b.bestPosition.After(p) {
			b.found, b.bestPosition = true, p
			b.priority, b.arrival, b.ageingStart = r.Num(2), r.Num(3), queue.Millis(r.Num(4))
		}
		return false, nil
	}, `SELECT rank, seq, priority, arrival, since FROM jobs INDEXED BY `+indexAndCondition+` ORDER BY rank, seq LIMIT ?`,
		append(args, int64(len(b.leasedFences)+1))...)
}

// searchLane searches the jobs of one lane (the user's waiting jobs in a queue with the same demands).
func (b *bestSearch) searchLane(id int64) error {
	return b.takeFirstOf(`jobs_ready WHERE place = 1 AND lane = ?`, id)
}

// searchPlainLanes searches the user's jobs that need no lock or other limit, one lane for each queue.
func (b *bestSearch) searchPlainLanes() error {
	lanes, err := database.Rows(b.reader, database.NumOf,
		`SELECT id FROM lanes INDEXED BY lanes_plain WHERE demands = '' AND uid = ? LIMIT ?`, b.uid, int64(MaxBestLanes+1))
	if len(lanes) > MaxBestLanes {
		lanes, b.stoppedAtLimit, b.unsearchedFrom = lanes[:MaxBestLanes], true, rules.StartPosition
	}
	for i := 0; i < len(lanes) && err == nil; i++ {
		err = b.searchLane(lanes[i])
	}
	return err
}

// searchDemandLanes searches the user's lanes of jobs that need locks or other limits, in the order of the
// positions that are stored in the lanes' rows.
func (b *bestSearch) searchDemandLanes() error {
	type laneHead struct {
		id   int64
		head rules.Position
	}
	var last rules.Position
	for offset := 0; offset < MaxBestLanes; offset += bestLanesPage {
		page, err := database.Rows(b.reader, func(r database.Row) laneHead {
			return laneHead{r.Num(0), rules.Position{Rank: r.Num(1), Seq: r.Num(2)}}
		}, `SELECT id, head_rank, head_seq FROM lanes INDEXED BY lanes_user WHERE demands <> '' AND uid = ? AND shut <> ?
			ORDER BY head_rank, head_seq LIMIT ? OFFSET ?`, b.uid, rules.Empty, int64(bestLanesPage), int64(offset))
		if err != nil {
			return err
		}
		for _, l := range page {
			if b.found && l.head.After(b.bestPosition) {
				return nil
			}
			if err := b.searchLane(l.id); err != nil {
				return err
			}
			last = l.head
		}
		if len(page) < bestLanesPage {
			return nil
		}
	}
	if !b.stoppedAtLimit {
		b.stoppedAtLimit, b.unsearchedFrom = true, last
	}
	return nil
}
