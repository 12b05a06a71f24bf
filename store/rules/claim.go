package rules

import (
	"math"

	"github.com/queuectl/queuectl/queue"
)

// Claim leases the best jobs that all their gates have room for, in order. It stops after want jobs, or when
// the size of the jobs reaches MaxClaimBytes. If it leases none and more is true, the caller continues the
// claim in another transaction.
func (r *Rules) Claim(want int) (jobs []queue.Job, more bool, err error) {
	bytes := 0
	r.turnSteps = 0
	clear(r.skippedPriorities)
	for len(jobs) < want && bytes < MaxClaimBytes {
		if err := r.Reopen(); err != nil {
			return nil, false, err
		}
		q, scan, err := r.chooseQueue()
		if err != nil {
			return nil, false, err
		}
		if q == nil {
			more = r.mem.Left() > 0 // a gate that is still to be checked may open a lane
			break
		}
		if more = r.Steps >= StepsMost; more {
			break
		}
		r.Steps++
		n, err := r.pickLane(q, &scan, want-len(jobs))
		if err != nil {
			return nil, false, err
		}
		if n == 0 {
			continue
		}
		l := &scan.Lane
		scan.Likely = min(n, scan.Likely)
		scan.Part, scan.Want, scan.Steps, scan.Bytes = Whole, min(n, scan.Want, want-len(jobs), q.Room), StepsMost-r.Steps, bytes
		if err := r.limitScan(&scan); err != nil {
			return nil, false, err
		}
		if err := r.tx.Find(&scan); err != nil {
			return nil, false, err
		}
		bytes = scan.Bytes
		for i := range scan.Damaged {
			r.Steps++
			if err := r.HoldDamaged(&scan.Damaged[i]); err != nil {
				return nil, false, err
			}
		}
		closedBy := Open
		if scan.End {
			closedBy = Empty
		}
		l.Priority = scan.NextPriority
		if err := r.setHead(l, scan.Next, closedBy); err != nil {
			return nil, false, err
		}
		countBefore := len(jobs)
		if jobs, err = r.leaseFound(jobs, &scan, q); err != nil {
			return nil, false, err
		}
		if len(jobs)-countBefore == n { // the claim has taken all the room, so a gate is full now
			r.recheckResources()
		}
	}
	r.Bytes += bytes
	return jobs, (more || bytes >= MaxClaimBytes) && len(jobs) == 0, nil
}

// leaseFound leases the jobs that Find has found, except expired ones, which it cancels.
func (r *Rules) leaseFound(jobs []queue.Job, scan *Look, q *Queue) ([]queue.Job, error) {
	if jobs == nil && len(scan.Jobs) > 0 {
		jobs = make([]queue.Job, 0, len(scan.Jobs))
	}
	for i := range scan.Jobs {
		j := &scan.Jobs[i]
		if r.hasExpired(j) {
			r.Steps++
			if err := r.Expire(j); err != nil {
				return nil, err
			}
			continue
		}
		if err := r.leaseJob(j, &scan.Lane, r.tx.ServeUser(q, j.UID)); err != nil {
			return nil, err
		}
		r.advanceTurn(q)
		jobs = append(jobs, j.Job)
		last := &jobs[len(jobs)-1]
		last.Start = queue.Place(j.Position())
		if scan.Start != nil {
			last.Start = *scan.Start
		}
	}
	return jobs, nil
}

// chooseQueue returns the queue that has the next turn, and a scan of its best open lane. scan.Upto is the
// position from which on a job of another lane or queue goes first. While all queues have the same weight,
// queues are ordered by the rank of their best heads. While weights differ, stride scheduling chooses the
// queue for each job.
func (r *Rules) chooseQueue() (q *Queue, scan Look, err error) {
	weighted := r.tx.Weighted()
	nextHead := End
	err = r.tx.Queues(func(other *Queue) bool {
		switch {
		case q == nil:
			q = other
		case !weighted:
			nextHead = other.Head
			return false
		case r.queueTurn(other) < r.queueTurn(q), r.queueTurn(other) == r.queueTurn(q) && other.Name < q.Name:
			q = other
		}
		return true
	})
	if err != nil || q == nil {
		return nil, scan, err
	}
	scan.Lane, scan.Upto, err = r.tx.Best(q)
	scan.Want = math.MaxInt
	if weighted {
		scan.Want = 1
	} else if scan.Upto.After(nextHead) {
		scan.Upto = nextHead
	}
	return q, scan, err
}

// queueTurn returns the queue's turn. It is at least the turn that was served last, so a queue does not save
// up turns while it has no job to start.
func (r *Rules) queueTurn(q *Queue) int64 { return max(q.Pass, r.tx.Turn()) }

// stride is added to the turn of a queue of weight 1 for each job that it starts. A queue of weight w adds
// stride/w. The rounding error of stride divided by a weight is negligible for weights from 1 to 1000.
const stride = 1 << 30

// advanceTurn moves the turn of a queue after a start (Waldspurger and Weihl, Stride Scheduling, 1995).
func (r *Rules) advanceTurn(q *Queue) {
	if r.tx.Weighted() {
		turn := r.queueTurn(q)
		r.tx.Serve(q, turn, turn+stride/int64(max(1, q.Weight)))
	}
}

// limitScan lowers scan.Upto to the best head among the lanes that this lane's gates have closed. From that
// position on, the job of the closed lane ranks first, and may have room by then.
func (r *Rules) limitScan(scan *Look) error {
	l := &scan.Lane
	stopBefore := func(other Lane) {
		if scan.Upto.After(other.Head) && !l.Head.After(other.Head) {
			scan.Upto = other.Head
		}
	}
	limitAtGate := func(gate int64, sameQueueOnly bool) error {
		if sameQueueOnly {
			r.Steps++
			other, found, err := r.tx.FirstShut(gate, l.Queue)
			if found {
				stopBefore(other)
			}
			return err
		}
		return r.tx.Shut(gate, List{}, func(other Lane) (bool, error) {
			r.Steps++
			if other.Queue == l.Queue || r.tx.Queue(other.Queue).Room > 0 {
				stopBefore(other)
			}
			return true, nil
		})
	}
	weighted := r.tx.Weighted()
	err := limitAtGate(UserGate(l.UID), weighted)
	for i := 0; i < len(l.Needs) && err == nil; i++ {
		err = limitAtGate(l.Needs[i].Gate, weighted || l.Needs[i].Kind == queue.GateResource)
	}
	return err
}

// leaseJob leases a job. It writes the job's row only if the job takes units of resources, because the
// numbers of the units must be stored.
// See docs/decisions/0003.
func (r *Rules) leaseJob(j *Job, l *Lane, turn Turn) error {
	j.Fence += r.tx.FenceStep()
	j.Node = r.tx.Node().ID
	if _, reranking := r.tx.Order(); reranking {
		j.Rank = r.rankOf(&j.Job)
	}
	j.Units = ""
	for _, d := range j.Demands {
		if d.Kind == queue.GateResource {
			j.Units = queue.FormatUnits(j.Units, d.Key, queue.FreeUnits(d.N, r.tx.TakenUnits(d.Key)))
		}
	}
	lease := &Lease{Job: *j, Needs: l.Needs, Turn: turn}
	lease.Job.Execution = queue.Execution{}
	r.tx.Hold(lease)
	if len(l.Needs) > 0 { // the job has taken room at gates that other lanes need too
		clear(r.skippedPriorities)
	}
	if j.Units == "" {
		return nil
	}
	return r.tx.Put(j)
}
