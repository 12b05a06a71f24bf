package rules

import (
	"time"

	"github.com/queuectl/queuectl/queue"
)

// applyDeclaredLimits sets the limits of locks and rates to those that a job states. If several jobs name the
// same key, the newest job decides.
func (k *laneKeeper) applyDeclaredLimits(j *Job) error {
	for _, d := range j.Demands {
		if !d.HasLimit() {
			continue
		}
		gate, err := k.gates.SetRule(j, d)
		if err != nil {
			return err
		}
		if gate != 0 {
			k.Recheck(gate)
			k.recheckResources()
		}
	}
	return nil
}

// SetGate sets the rule of a shared lock or rate. Jobs cannot change it.
func (k *laneKeeper) SetGate(d queue.Demand) error {
	if err := checkGate(d); err != nil {
		return err
	}
	gate, err := k.gates.KeepRule(d)
	if err == nil && gate != 0 {
		k.Recheck(gate)
		k.recheckResources()
	}
	return err
}

func checkGate(d queue.Demand) error {
	if d.N == 0 {
		d.N = 1
		if d.Kind == queue.GateRate {
			d.Period = time.Second
		}
	}
	if err := queue.CheckDemands([]queue.Demand{d}); err != nil {
		return err
	}
	if !d.HasLimit() || d.Owner(0) != queue.SharedOwner {
		return queue.Invalid("key", "%q is not a shared key; shared keys begin with @", queue.Clip(d.Key))
	}
	return nil
}

// recountNamedGates updates the counts of the gates that an unfinished job names, after its demands or its
// user have changed.
func recountNamedGates(gates Gates, old, j *Job) error {
	if err := gates.CountNaming(old, -1); err != nil {
		return err
	}
	return gates.CountNaming(j, 1)
}

// recordRateStarts records a start for each rate limit among a lease's gates.
func (k *laneKeeper) recordRateStarts(l *Lease, at queue.Millis) error {
	for _, n := range l.Needs {
		if n.Kind != queue.GateRate {
			continue
		}
		if err := k.gatekeeper.recordStart(n.Gate, at); err != nil {
			return err
		}
		k.Recheck(n.Gate)
	}
	return nil
}
