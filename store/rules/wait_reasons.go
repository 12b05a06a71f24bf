package rules

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// SimulateClaims claims up to maxJobs jobs to predict the next starts. The caller rolls the transaction back.
// SimulateClaims stops after a limited number of steps and bytes, and then sets Incomplete.
func (r *Rules) SimulateClaims(maxJobs int) (simulation store.ClaimSimulation, err error) {
	steps, bytes := 0, r.ClaimBytesRead
	for more := true; more && len(simulation.StartingJobs) < maxJobs; {
		if steps >= maxSimulationSteps || r.ClaimBytesRead-bytes >= maxSimulationBytes {
			simulation.IsIncomplete = true
			break
		}
		r.claimSteps, r.nonClaimSteps = 0, 0
		var claimed []queue.Job
		if claimed, more, err = r.Claim(maxJobs - len(simulation.StartingJobs)); err != nil {
			return store.ClaimSimulation{}, err
		}
		simulation.StartingJobs = append(simulation.StartingJobs, claimed...)
		more = more || len(claimed) > 0
		steps += max(1, r.claimSteps+r.nonClaimSteps)
	}
	r.nonClaimSteps = steps
	return simulation, nil
}

// These constants limit the steps and bytes of a simulation. The last claim of a simulation may exceed these limits.
const (
	maxSimulationSteps = 20 * MaxLaneStepsPerTx
	maxSimulationBytes = 20 * MaxBytesReadPerClaim
)

// WaitReasons returns the reasons why a claim does not take a waiting job. It changes nothing. Unlike a claim,
// it checks all gates (limits and locks) of the job, not only those up to the first full one. Free units of a
// resource may be kept for a better-ranked job, which is also a reason. For a job that is not due yet,
// WaitReasons reports only whether its queue is paused.
func (r *Rules) WaitReasons(jobSeq int64) (reasons []store.WaitReason, err error) {
	j, err := r.tx.Job(jobSeq, ReadScopeSummary)
	if err != nil || j.Slot != SlotReady && j.Slot != SlotWaitingUntilDue || r.tx.Lease(jobSeq) != nil {
		return nil, err
	}
	if o := r.tx.QueueWaitReason(j.Queue); o.QueuePaused || j.Slot == SlotReady && r.tx.Queue(j.Queue).LeasableJobs <= 0 {
		reasons = append(reasons, o)
	}
	if j.Slot == SlotWaitingUntilDue {
		return reasons, nil
	}
	l, err := r.tx.FindOrAddLane(&j)
	r.recordErr(err)
	l.Head = j.Position()
	key := "" // the first gate is the user's quota, which has no key
	for i, need := range append([]GateNeed{{GateID: UserQuotaGateID(l.UID), Kind: queue.GateUser, Units: 1}},
		l.GateNeeds...) {
		g, err := r.GateRoom(l.UID, need)
		r.recordErr(err)
		if i > 0 {
			key = j.Demands[i-1].GateKey
		}
		o := store.WaitReason{GateKind: need.Kind, GateKeyOrQueueName: key, UsedUnits: g.TotalUnits - g.FreeUnits,
			MaxUnits: g.TotalUnits, NeededUnits: need.Units}
		if g.FreeUnits < need.Units {
			o.RateOpensAt = g.OpensAt
			reasons = append(reasons, o)
			continue
		}
		if need.Kind != queue.GateResource {
			continue
		}
		first, found, err := r.tx.BestClosedLaneInQueue(need.GateID, l.Queue)
		r.recordErr(err)
		if found && first.ID != l.ID && l.Head.After(first.Head) {
			o.UnitsKeptForOtherJob = true
			reasons = append(reasons, o)
		}
	}
	return reasons, r.err
}
