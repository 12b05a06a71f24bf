package rules

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Simulate claims up to n jobs to predict the next starts. The caller rolls the transaction back. Simulate
// stops after a limited number of steps and bytes, and then sets Incomplete.
func (r *Rules) Simulate(n int) (s store.Simulation, err error) {
	steps, bytes := 0, r.ClaimedBytes
	for more := true; more && len(s.Jobs) < n; {
		if steps >= simulationSteps || r.ClaimedBytes-bytes >= simulationBytes {
			s.Incomplete = true
			break
		}
		r.claimSteps, r.otherSteps = 0, 0
		var claimed []queue.Job
		if claimed, more, err = r.Claim(n - len(s.Jobs)); err != nil {
			return store.Simulation{}, err
		}
		s.Jobs = append(s.Jobs, claimed...)
		more = more || len(claimed) > 0
		steps += max(1, r.claimSteps+r.otherSteps)
	}
	r.otherSteps = steps
	return s, nil
}

// These constants limit the steps and bytes of a simulation. Its last claim may exceed them.
const (
	simulationSteps = 20 * MaxSteps
	simulationBytes = 20 * MaxClaimBytes
)

// WaitReasons returns the reasons why a claim does not take a waiting job. It changes nothing. Unlike a claim,
// it checks all gates (limits and locks) of the job, not only those up to the first full one. Free units of a
// resource may be kept for a better-ranked job, which is also a reason. For a job that is not due yet,
// WaitReasons reports only whether its queue is paused.
func (r *Rules) WaitReasons(seq int64) (reasons []store.WaitReason, err error) {
	j, err := r.tx.Job(seq, ReadSummary)
	if err != nil || j.Slot != Ready && j.Slot != Timed || r.tx.Lease(seq) != nil {
		return nil, err
	}
	if o := r.tx.QueueWaitReason(j.Queue); o.Paused || j.Slot == Ready && r.tx.Queue(j.Queue).Room <= 0 {
		reasons = append(reasons, o)
	}
	if j.Slot == Timed {
		return reasons, nil
	}
	l, err := r.tx.Lane(&j)
	r.recordErr(err)
	l.Head = j.Position()
	key := "" // the first gate is the user's quota, which has no key
	for i, need := range append([]Need{{Gate: UserGate(l.UID), Kind: queue.GateUser, Units: 1}}, l.Needs...) {
		g, err := r.GateRoom(l.UID, need)
		r.recordErr(err)
		if i > 0 {
			key = j.Demands[i-1].Key
		}
		o := store.WaitReason{GateKind: need.Kind, Key: key, Usage: g.Total - g.Free, Limit: g.Total, NeededUnits: need.Units}
		if g.Free < need.Units {
			o.OpensAt = g.OpensAt
			reasons = append(reasons, o)
			continue
		}
		if need.Kind != queue.GateResource {
			continue
		}
		first, found, err := r.tx.BestClosedInQueue(need.Gate, l.Queue)
		r.recordErr(err)
		if found && first.ID != l.ID && l.Head.After(first.Head) {
			o.KeptForOtherJob = true
			reasons = append(reasons, o)
		}
	}
	return reasons, r.err
}
