package rules

import (
	"errors"
	"math"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// GateRoom says how many units of a gate are free. A gate is a limited thing that a job needs in order to
// start: a user's quota, a lock, a rate, a resource or a node.
type GateRoom struct {
	FreeUnits  int // number of free units
	TotalUnits int // number of all units
	// OpensAt is when a rate limit next has a free unit, if no other job starts before, or 0 if this is not known. The
	// service then calls ApplyDueChanges, which lets waiting jobs start.
	OpensAt queue.UnixMillis
}

// GateRule contains what the engine stores about a gate. The gate of a user's quota has no GateRule.
type GateRule struct {
	queue.Demand // the key and, for a lock or a rate, its limits
	// UsedUnits counts the units that leases hold. For a rate, it counts only leases whose attempts are not
	// known to have started.
	UsedUnits int
}

var errUnknownGateKind = errors.New("a limit in the database (a gate) has a kind that this version of queuectl does " +
	"not know; install the newest version that has used the database")

// rateRoom caches, for one transaction, how many starts a rate still allows. startCount is the number of starts in the
// current period, which begins at periodStart. usedUnits is the number of units that leases hold. The embedded GateRoom
// contains the free units.
type rateRoom struct {
	periodStart           queue.UnixMillis
	startCount            int
	allowedUnitsPerPeriod int // units that the rule allows in a period
	usedUnits             int
	GateRoom
}

// gatekeeper computes how many units of gates are free.
type gatekeeper struct {
	clock     Clock
	settings  Settings
	counters  Counters
	gates     Gates
	rateRooms map[int64]rateRoom // rates that were checked in this transaction, by gate
}

// GateRoom returns how many units are free at the gate that a need names, for a job of the given user.
func (k *gatekeeper) GateRoom(uid int, need GateNeed) (room GateRoom, err error) {
	if need.Kind == queue.GateUser {
		if k.settings.ThisNode().UIDsWithoutAccount[uid] {
			return room, nil
		}
		if room.FreeUnits = math.MaxInt; k.settings.MaxLeasedPerUser() > 0 {
			room.TotalUnits = k.settings.MaxLeasedPerUser()
			room.FreeUnits = room.TotalUnits - k.counters.UserCounts(uid).LeasedJobs
		}
		return room, nil
	}
	rule, err := k.gates.GateRule(need.GateID)
	if err != nil {
		return room, err
	}
	switch need.Kind {
	case queue.GateNode:
		if k.settings.ThisNode().MatchesSelector(rule.GateKey) {
			room.FreeUnits = math.MaxInt
		}
	case queue.GateResource:
		room.TotalUnits = k.settings.ThisNode().ResourceUnits[rule.GateKey]
		room.FreeUnits = room.TotalUnits - rule.UsedUnits
	case queue.GateRate:
		return k.rateLimitRoom(need.GateID, &rule)
	case queue.GateLock:
		room.FreeUnits, room.TotalUnits = rule.Amount-rule.UsedUnits, rule.Amount
	default:
		err = errUnknownGateKind
	}
	return room, err
}

// rateLimitRoom returns how many starts a rate still allows. Starts in the current period count, and so do claimed jobs
// that are not known to have started. If no start is allowed, it schedules a check for the time at which enough of the
// recorded starts are older than the period.
func (k *gatekeeper) rateLimitRoom(gateID int64, rule *GateRule) (GateRoom, error) {
	since := k.clock.Now() - queue.UnixMillis(rule.RatePeriod.Milliseconds())
	cached, found := k.rateRooms[gateID]
	found = found && cached.periodStart == since
	if found && cached.allowedUnitsPerPeriod == rule.Amount && cached.usedUnits == rule.UsedUnits {
		return cached.GateRoom, nil
	}
	starts := cached.startCount
	var err error
	if !found {
		starts, err = k.gates.CountRateStarts(gateID, since)
	}
	g := GateRoom{FreeUnits: rule.Amount - rule.UsedUnits - starts, TotalUnits: rule.Amount}
	if err == nil && g.FreeUnits <= 0 && starts > 0 {
		var freeingStart queue.UnixMillis
		if freeingStart, err = k.gates.NthNewestRateStart(gateID, since, max(0, rule.Amount-rule.UsedUnits-1)); err == nil &&
			freeingStart != 0 {
			g.OpensAt = freeingStart.Add(rule.RatePeriod) + 1
			err = k.gates.ScheduleGateRecheck(gateID, g.OpensAt)
		}
	}
	if err != nil {
		return g, err
	}
	if k.rateRooms == nil {
		k.rateRooms = map[int64]rateRoom{}
	}
	k.rateRooms[gateID] = rateRoom{periodStart: since, startCount: starts, allowedUnitsPerPeriod: rule.Amount,
		usedUnits: rule.UsedUnits, GateRoom: g}
	return g, nil
}

// ClearRateCache discards the cached free units of rates. It must be called after a part of the transaction was
// undone.
func (k *gatekeeper) ClearRateCache() { k.rateRooms = nil }

// applyDeclaredLimits sets the limits of locks and rates to those that a job states. If several jobs of a
// user name the same key, the newest job decides. For keys that users share, see Gates.SetGateRuleFromJob.
func (k *laneKeeper) applyDeclaredLimits(j *Job) {
	for _, d := range j.Demands {
		if d.DeclaresLimit() {
			k.recordErr(k.recheckLanesOfGate(k.gates.SetGateRuleFromJob(j, d)))
		}
	}
}

// recheckLanesOfGate is called after the rule of a gate has changed. It makes OpenLanes check the lanes (lists of jobs)
// that this gate has closed. It does nothing if gateID is 0 or if err is not nil. It returns err.
func (k *laneKeeper) recheckLanesOfGate(gateID int64, err error) error {
	if err == nil && gateID != 0 {
		k.MarkGateDirty(gateID)
		k.markResourcesDirty()
	}
	return err
}

// SetFixedGateRule sets the rule of a shared lock or rate. Jobs cannot change this rule.
func (k *laneKeeper) SetFixedGateRule(d queue.Demand) error {
	if err := checkGateRule(d); err != nil {
		return err
	}
	return k.recheckLanesOfGate(k.gates.SetFixedGateRule(d))
}

// checkGateRule returns an error if d is not a valid rule of a shared lock or rate. The Amount may be 0: jobs
// can then change the rule.
func checkGateRule(d queue.Demand) error {
	if d.Amount == 0 {
		d.Amount = 1
		if d.Kind == queue.GateRate {
			d.RatePeriod = time.Second
		}
	}
	if err := queue.CheckDemands([]queue.Demand{d}); err != nil {
		return err
	}
	if !d.DeclaresLimit() || d.GateOwner(0) != queue.SharedGateOwner {
		return queue.InvalidFieldError("key", "%q is not a shared key; shared keys begin with @",
			queue.ClipForMessage(d.GateKey))
	}
	return nil
}

// recordRateStarts records a start for each rate that a leased job needs.
func (k *laneKeeper) recordRateStarts(l *Lease, startedAt queue.UnixMillis) {
	for _, n := range l.HeldGateUnits {
		if n.Kind == queue.GateRate {
			delete(k.rateRooms, n.GateID)
			k.recordErr(k.gates.RecordRateStart(n.GateID, min(startedAt, k.clock.Now())))
			k.MarkGateDirty(n.GateID)
		}
	}
}
