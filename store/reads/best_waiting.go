package reads

import (
	"context"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// MaxLanesSearchedForBest is the maximum number of lanes that BestWaitingPriority searches, and lanesPerSearchQuery is
// the number of lanes that one query reads. A lane is the list of a user's waiting jobs in a queue that need the same
// locks and other limits.
const (
	MaxLanesSearchedForBest = 1000
	lanesPerSearchQuery     = 32
)

// BestWaitingPriority returns the effective priority of a user's best-ranked job that is due or waits for a
// retry.
//
// No index holds exactly these jobs, because such an index took 20 % of the time of an enqueue. So BestWaitingPriority
// compares the first job that waits for a retry with the first jobs of the user's lanes. A lane is the list of waiting
// jobs with the same demands (locks and other limits). In each queue, the user has one lane for jobs without demands.
// The row of a lane with demands stores a position at or before the lane's first job. The search takes the lanes in the
// order of these positions, and ends at the first position behind the best job found.
//
// The search stops after MaxLanesSearchedForBest lanes. No job of the other lanes ranks before the position of the last
// searched lane. Unless the best job found ranks before this position, the result is the effective priority
// at this position, which is an upper bound.
func (s *JobReader) BestWaitingPriority(ctx context.Context, uid int) (best store.WaitingPriority, err error) {
	waiting, counts := s.userUsage(uid).WaitingJobs, s.Counts()
	if waiting == 0 {
		return best, nil
	}
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		b := bestWaitingJobSearch{snapshot: r, uid: int64(uid), fencesByReservedSeq: s.fencesByReservedSeq()}
		err := b.considerFirstJobOf(`jobs_retried WHERE place = 2 AND state = 4 AND uid = ?`, b.uid)
		if err == nil {
			err = b.searchDemandFreeLanes()
		}
		if err == nil {
			err = b.searchLanesWithDemands()
		}
		if err != nil {
			return err
		}
		order, now := s.RankOrder(), s.Now()
		if b.foundBest {
			best.Priority, best.JobFound = b.bestPriority+order.AgingPoints(b.bestAgeingStart, now, b.bestArrivalNumber,
				counts.JobsEverEnqueued), true
		}
		if b.stoppedAtLaneLimit && (!b.foundBest || b.bestPosition.After(b.firstUnsearchedPosition)) {
			if counts.IsRerankUnfinished { // ranks from different settings cannot be compared
				b.firstUnsearchedPosition = rules.MinPosition
			}
			bound := order.MaxEffectivePriority(b.firstUnsearchedPosition.Rank, now, counts.JobsEverEnqueued)
			best = store.WaitingPriority{Priority: max(bound, best.Priority), JobFound: true, IsUpperBound: true}
		}
		best.Priority = min(best.Priority, store.MaxWaitingPriority)
		return nil
	})
	return best, err
}

// bestWaitingJobSearch searches the best-ranked waiting job of a user that is not leased.
type bestWaitingJobSearch struct {
	snapshot            *ReadSnapshot
	uid                 int64
	fencesByReservedSeq map[int64]int64 // fences of the leases whose attempts are not known to have started, by seq

	// These fields describe the best job found; they are set if foundBest is true.
	foundBest                       bool
	bestPosition                    rules.Position
	bestPriority, bestArrivalNumber int64
	bestAgeingStart                 queue.UnixMillis

	stoppedAtLaneLimit bool // the search stopped after MaxLanesSearchedForBest lanes
	// if stoppedAtLaneLimit: the lanes that were not searched have no job before this position
	firstUnsearchedPosition rules.Position
}

// considerFirstJobOf reads the jobs that a part of an SQL query selects, up to the first that is not leased. It
// takes this job if it ranks before the best job found.
func (b *bestWaitingJobSearch) considerFirstJobOf(indexAndCondition string, args ...any) error {
	return b.snapshot.Query(func(r database.Row) (bool, error) {
		p := rules.Position{Rank: r.Int64(0), Seq: r.Int64(1)}
		if _, leased := b.fencesByReservedSeq[p.Seq]; leased {
			return true, nil
		}
		if !b.foundBest || b.bestPosition.After(p) {
			b.foundBest, b.bestPosition = true, p
			b.bestPriority, b.bestArrivalNumber, b.bestAgeingStart = r.Int64(2), r.Int64(3), queue.UnixMillis(r.Int64(4))
		}
		return false, nil
	}, `SELECT rank, seq, priority, arrival, since FROM jobs INDEXED BY `+indexAndCondition+` ORDER BY rank, seq LIMIT ?`,
		append(args, int64(len(b.fencesByReservedSeq)+1))...)
}

// searchLane searches the jobs of one lane (the user's waiting jobs in a queue that need the same locks and other
// limits).
func (b *bestWaitingJobSearch) searchLane(laneID int64) error {
	return b.considerFirstJobOf(`jobs_ready WHERE place = 1 AND lane = ?`, laneID)
}

// searchDemandFreeLanes searches the user's jobs that need no lock or other limit, one lane for each queue.
func (b *bestWaitingJobSearch) searchDemandFreeLanes() error {
	lanes, err := database.ReadRows(b.snapshot, database.FirstColumnInt64,
		`SELECT id FROM lanes INDEXED BY lanes_plain WHERE demands = '' AND uid = ? LIMIT ?`, b.uid,
		int64(MaxLanesSearchedForBest+1))
	if len(lanes) > MaxLanesSearchedForBest {
		lanes, b.stoppedAtLaneLimit, b.firstUnsearchedPosition = lanes[:MaxLanesSearchedForBest], true, rules.MinPosition
	}
	for i := 0; i < len(lanes) && err == nil; i++ {
		err = b.searchLane(lanes[i])
	}
	return err
}

// searchLanesWithDemands searches the user's lanes of jobs that need locks or other limits, in the order of the
// positions that are stored in the lanes' rows.
func (b *bestWaitingJobSearch) searchLanesWithDemands() error {
	type laneHead struct {
		id   int64
		head rules.Position
	}
	var last rules.Position
	for offset := 0; offset < MaxLanesSearchedForBest; offset += lanesPerSearchQuery {
		page, err := database.ReadRows(b.snapshot, func(r database.Row) laneHead {
			return laneHead{r.Int64(0), rules.Position{Rank: r.Int64(1), Seq: r.Int64(2)}}
		}, `SELECT id, head_rank, head_seq FROM lanes INDEXED BY lanes_user WHERE demands <> '' AND uid = ? AND shut <> ?
			ORDER BY head_rank, head_seq LIMIT ? OFFSET ?`, b.uid, rules.Empty, int64(lanesPerSearchQuery), int64(offset))
		if err != nil {
			return err
		}
		for _, l := range page {
			if b.foundBest && l.head.After(b.bestPosition) {
				return nil
			}
			if err := b.searchLane(l.id); err != nil {
				return err
			}
			last = l.head
		}
		if len(page) < lanesPerSearchQuery {
			return nil
		}
	}
	if !b.stoppedAtLaneLimit {
		b.stoppedAtLaneLimit, b.firstUnsearchedPosition = true, last
	}
	return nil
}
