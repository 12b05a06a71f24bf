package rules

import (
	"errors"
	"math"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Gate is the state of a gate.
type Gate struct {
	Free  int // free units
	Total int // all units
	// OpensAt is the time when a rate limit will have room again if no other job starts; 0 if it is not known.
	// Promote is called at that time.
	OpensAt queue.Millis
}

// Rule is the engine's record of a gate. Gates of user quotas have none.
type Rule struct {
	queue.Demand // the key and, for a lock or a rate, its limits
	// UsedUnits counts the units that leases hold. For a rate, it counts the leased jobs that are not known to
	// have started.
	UsedUnits int
}

var errUnknownGateKind = errors.New("a limit in the database (a gate) has a kind that this version of queuectl does " +
	"not know; install the newest version that has used the database")

// rateRoom caches, for one transaction, how much of a rate limit is left. starts is the number of starts in
// the current period, which begins at periodStart. usedUnits is the number of units that leases hold. Gate is
// the room that remains.
type rateRoom struct {
	periodStart  queue.Millis
	starts       int
	allowedUnits int // units that the rule allows in a period
	usedUnits    int
	Gate
}

// gatekeeper finds out how much room gates have.
type gatekeeper struct {
	clock    Clock
	settings Settings
	counters Counters
	gates    Gates
	rates    map[int64]rateRoom // the rate limits checked in this transaction
}

// Gate returns the state of a gate for a job of the user uid that has the given need.
func (k *gatekeeper) Gate(uid int, need Need) (g Gate, err error) {
	if need.Kind == queue.GateUser {
		if k.settings.Node().UnknownUIDs[uid] {
			return g, nil
		}
		if g.Free = math.MaxInt; k.settings.Quota() > 0 {
			g.Total = k.settings.Quota()
			g.Free = g.Total - k.counters.User(uid).Leased
		}
		return g, nil
	}
	rule, err := k.gates.Rule(need.Gate)
	if err != nil {
		return g, err
	}
	switch need.Kind {
	case queue.GateNode:
		if k.settings.Node().Matches(rule.Key) {
			g.Free = math.MaxInt
		}
	case queue.GateResource:
		g.Total = k.settings.Node().Resources[rule.Key]
		g.Free = g.Total - rule.UsedUnits
	case queue.GateRate:
		return k.rateGate(need.Gate, &rule)
	case queue.GateLock:
		g.Free, g.Total = rule.N-rule.UsedUnits, rule.N
	default:
		err = errUnknownGateKind
	}
	return g, err
}

// rateGate returns the state of a rate limit. It subtracts the starts in the current period, and the claimed
// jobs that are not known to have started. If there is no room, rateGate schedules a check for the time when
// a start leaves the period.
func (k *gatekeeper) rateGate(gate int64, rule *Rule) (Gate, error) {
	since := k.clock.Now() - queue.Millis(rule.Period.Milliseconds())
	cached, found := k.rates[gate]
	found = found && cached.periodStart == since
	if found && cached.allowedUnits == rule.N && cached.usedUnits == rule.UsedUnits {
		return cached.Gate, nil
	}
	starts := cached.starts
	var err error
	if !found {
		starts, err = k.gates.Starts(gate, since)
	}
	g := Gate{Free: rule.N - rule.UsedUnits - starts, Total: rule.N}
	if err == nil && g.Free <= 0 && starts > 0 {
		var first queue.Millis
		if first, err = k.gates.StartBefore(gate, since, max(0, rule.N-rule.UsedUnits-1)); err == nil && first != 0 {
			g.OpensAt = first.Add(rule.Period) + 1
			err = k.gates.SetOpens(gate, g.OpensAt)
		}
	}
	if err != nil {
		return g, err
	}
	if k.rates == nil {
		k.rates = map[int64]rateRoom{}
	}
	k.rates[gate] = rateRoom{periodStart: since, starts: starts, allowedUnits: rule.N, usedUnits: rule.UsedUnits, Gate: g}
	return g, nil
}

// Undone discards cached values after a part of the transaction was undone.
func (k *gatekeeper) Undone() { k.rates = nil }

// recordStart records a start for a rate limit.
func (k *gatekeeper) recordStart(gate int64, at queue.Millis) error {
	delete(k.rates, gate)
	return k.gates.RecordStart(gate, min(at, k.clock.Now()))
}

// applyDeclaredLimits sets the limits of locks and rates to those that a job states. If several jobs name the
// same key, the newest job decides.
func (k *laneKeeper) applyDeclaredLimits(j *Job) error {
	for _, d := range j.Demands {
		if !d.HasLimit() {
			continue
		}
		if err := k.recheckChanged(k.gates.SetRule(j, d)); err != nil {
			return err
		}
	}
	return nil
}

// recheckChanged calls Recheck for a gate whose rule has changed; 0 means that it has not. It returns err.
func (k *laneKeeper) recheckChanged(gate int64, err error) error {
	if err == nil && gate != 0 {
		k.Recheck(gate)
		k.recheckResources()
	}
	return err
}

// SetGate sets the rule of a shared lock or rate. Jobs cannot change it.
func (k *laneKeeper) SetGate(d queue.Demand) error {
	if err := checkGate(d); err != nil {
		return err
	}
	return k.recheckChanged(k.gates.KeepRule(d))
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
