package rules

import (
	"math"

	"github.com/queuectl/queuectl/queue"
)

// Claim leases the best jobs that all their gates have room for, in order. It leases up to want jobs, or
// until their size reaches MaxClaimBytes. If it leases none and more is true, the caller continues the claim
// in another transaction.
func (r *Rules) Claim(want int) (jobs []queue.Job, more bool, err error) {
	bytes := 0
	r.turnSteps = 0
	clear(r.roomy)
	for len(jobs) < want && bytes < MaxClaimBytes {
		if err := r.Reopen(); err != nil {
			return nil, false, err
		}
		q, look, err := r.choose()
		if err != nil {
			return nil, false, err
		}
		if q == nil {
			more = r.mem.Left() > 0 // lanes that are still closed may have room
			break
		}
		if more = r.Steps >= StepsMost; more {
			break
		}
		r.Steps++
		n, err := r.pick(q, &look, want-len(jobs))
		if err != nil {
			return nil, false, err
		}
		if n == 0 {
			continue
		}
		l := &look.Lane
		look.Likely = min(n, look.Likely)
		look.Part, look.Want, look.Steps, look.Bytes = Whole, min(n, look.Want, want-len(jobs), q.Room), StepsMost-r.Steps, bytes
		if err := r.limit(&look); err != nil {
			return nil, false, err
		}
		if err := r.tx.Find(&look); err != nil {
			return nil, false, err
		}
		bytes = look.Bytes
		for i := range look.Damaged {
			r.Steps++
			if err := r.HoldDamaged(&look.Damaged[i]); err != nil {
				return nil, false, err
			}
		}
		shut := Open
		if look.End {
			shut = Empty
		}
		l.Priority = look.NextPriority
		if err := r.setHead(l, look.Next, shut); err != nil {
			return nil, false, err
		}
		before := len(jobs)
		if jobs, err = r.takeAll(jobs, &look, q); err != nil {
			return nil, false, err
		}
		if len(jobs)-before == n { // the jobs have filled a gate
			r.recheckResources()
		}
	}
	r.Bytes += bytes
	return jobs, (more || bytes >= MaxClaimBytes) && len(jobs) == 0, nil
}

// takeAll leases the jobs that Find has found, except expired ones, which it cancels.
func (r *Rules) takeAll(jobs []queue.Job, look *Look, q *Queue) ([]queue.Job, error) {
	if jobs == nil && len(look.Jobs) > 0 {
		jobs = make([]queue.Job, 0, len(look.Jobs))
	}
	for i := range look.Jobs {
		j := &look.Jobs[i]
		if r.late(j) {
			r.Steps++
			if err := r.Expire(j); err != nil {
				return nil, err
			}
			continue
		}
		if err := r.take(j, &look.Lane, r.tx.ServeUser(q, j.UID)); err != nil {
			return nil, err
		}
		r.serve(q)
		jobs = append(jobs, j.Job)
		last := &jobs[len(jobs)-1]
		last.Start = queue.Place(j.Position())
		if look.Start != nil {
			last.Start = *look.Start
		}
	}
	return jobs, nil
}

// choose returns the queue that has the next turn, and a look with its best open lane. look.Upto is the
// position from which another queue goes first. While all queues have the same weight, queues are ordered by
// the rank of their best heads. While weights differ, stride scheduling chooses the queue for each job.
func (r *Rules) choose() (q *Queue, look Look, err error) {
	weighted := r.tx.Weighted()
	next := End
	err = r.tx.Queues(func(other *Queue) bool {
		switch {
		case q == nil:
			q = other
		case !weighted:
			next = other.Head
			return false
		case r.turn(other) < r.turn(q), r.turn(other) == r.turn(q) && other.Name < q.Name:
			q = other
		}
		return true
	})
	if err != nil || q == nil {
		return nil, look, err
	}
	look.Lane, look.Upto, err = r.tx.Best(q)
	look.Want = math.MaxInt
	if weighted {
		look.Want = 1
	} else if look.Upto.After(next) {
		look.Upto = next
	}
	return q, look, err
}

// turn returns the queue's turn. A queue that had no job to start saves up no turns.
func (r *Rules) turn(q *Queue) int64 { return max(q.Pass, r.tx.Turn()) }

// stride is the distance by which one start moves the turn of a queue of weight 1. The rounding error of
// stride divided by a weight is negligible for weights from 1 to 1000.
const stride = 1 << 30

// serve moves the turn of a queue after a start (Waldspurger and Weihl, Stride Scheduling, 1995).
func (r *Rules) serve(q *Queue) {
	if r.tx.Weighted() {
		turn := r.turn(q)
		r.tx.Serve(q, turn, turn+stride/int64(max(1, q.Weight)))
	}
}

// limit lowers look.Upto to the best head among the lanes that this lane's gates have closed. Once this
// lane's head has passed that position, the other lane may go first.
func (r *Rules) limit(look *Look) error {
	l := &look.Lane
	before := func(other Lane) {
		if look.Upto.After(other.Head) && !l.Head.After(other.Head) {
			look.Upto = other.Head
		}
	}
	at := func(gate int64, alone bool) error {
		if alone {
			r.Steps++
			other, found, err := r.tx.FirstShut(gate, l.Queue)
			if found {
				before(other)
			}
			return err
		}
		return r.tx.Shut(gate, List{}, func(other Lane) (bool, error) {
			r.Steps++
			if other.Queue == l.Queue || r.tx.Queue(other.Queue).Room > 0 {
				before(other)
			}
			return true, nil
		})
	}
	weighted := r.tx.Weighted()
	err := at(UserGate(l.UID), weighted)
	for i := 0; i < len(l.Needs) && err == nil; i++ {
		err = at(l.Needs[i].Gate, weighted || l.Needs[i].Kind == queue.GateResource)
	}
	return err
}

// take leases a job. It writes the job's row only if the job takes units of resources, because the numbers of
// the units must be stored.
// See docs/decisions/0003.
func (r *Rules) take(j *Job, l *Lane, turn Turn) error {
	j.Fence += r.tx.FenceStep()
	j.Node = r.tx.Node().ID
	if _, changing := r.tx.Order(); changing {
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
	if len(l.Needs) > 0 { // other lanes may have lost their room
		clear(r.roomy)
	}
	if j.Units == "" {
		return nil
	}
	return r.tx.Put(j)
}
