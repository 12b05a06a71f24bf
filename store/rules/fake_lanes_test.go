package rules

import (
	"maps"
	"math"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// fakeLaneTables stores queues, lanes and gates.
type fakeLaneTables struct {
	queueRules          map[string]store.QueueRule
	nextQueueTurns      map[string]int64 // number of each queue's next turn
	lastServedQueueTurn int64            // number of the turn that was served last

	lanes         map[int64]fakeLane
	userTurnCount int64                       // number of turns that users have had
	lastUserTurns map[ClosedLaneListKey]int64 // number of the last turn of each user in each queue

	gates map[int64]fakeGate
}

type fakeQueues struct{ data *fakeData }

// Queue returns a copy of a queue's state.
func (f fakeQueues) Queue(name string) *Queue {
	rule, found := f.data.queueRules[name]
	if !found {
		rule = store.DefaultQueueRule
	}
	q := &Queue{Name: name, Weight: rule.Weight, LeasableJobs: math.MaxInt, BestHead: MaxPosition,
		NextTurn: f.data.nextQueueTurns[name]}
	q.MaxWaitingJobs, q.HasOwnRetention = rule.MaxPendingJobs, rule.Retention != store.Retention{}
	if rule.Concurrency > 0 {
		q.LeasableJobs = max(0, rule.Concurrency-f.countLeasedJobs(name))
	}
	if rule.Paused {
		q.LeasableJobs = 0
	}
	for _, j := range f.data.jobs {
		q.WaitingJobs += int64(boolToInt(j.Queue == name && j.State.IsWaiting()))
	}
	if open := f.data.lanesSortedByHead(func(l *Lane) bool {
		return l.ClosedBy == Open &&
			l.Queue == name
	}); len(open) > 0 {
		q.BestHead = open[0].Head
	}
	return q
}

func (f fakeQueues) countLeasedJobs(queueName string) (leasedJobCount int) {
	for _, l := range f.data.leases {
		leasedJobCount += boolToInt(l.Job.Queue == queueName)
	}
	return leasedJobCount
}

func (f fakeQueues) EachReadyQueue(visit func(*Queue) bool) error {
	seen := map[string]bool{}
	for _, l := range f.data.lanesSortedByHead(func(l *Lane) bool { return l.ClosedBy == Open }) {
		if q := f.Queue(l.Queue); !seen[l.Queue] && q.LeasableJobs > 0 && !visit(q) {
			return nil
		}
		seen[l.Queue] = true
	}
	return nil
}

func (f fakeQueues) QueueWaitReason(name string) store.WaitReason {
	rule := f.data.queueRules[name]
	return store.WaitReason{GateKeyOrQueueName: name, UsedUnits: f.countLeasedJobs(name), MaxUnits: rule.Concurrency,
		NeededUnits: 1, QueuePaused: rule.Paused}
}

func (f fakeQueues) QueueWeightsDiffer() bool {
	for _, rule := range f.data.queueRules {
		if rule.Weight != 1 {
			return true
		}
	}
	return false
}

func (f fakeQueues) LastServedQueueTurn() int64 { return f.data.lastServedQueueTurn }
func (f fakeQueues) RecordQueueTurn(q *Queue, usedTurn, nextTurn int64) {
	f.data.nextQueueTurns[q.Name], f.data.lastServedQueueTurn = nextTurn, usedTurn
}

// fakeLane is a lane with its demands as a text.
type fakeLane struct {
	Lane
	demandsSignature string
}

// lanesSortedByHead returns the lanes for which matches returns true, those with the best head first.
func (d *fakeData) lanesSortedByHead(matches func(*Lane) bool) (lanes []Lane) {
	for _, id := range slices.Sorted(maps.Keys(d.lanes)) {
		if l := d.lanes[id].Lane; matches(&l) {
			lanes = append(lanes, l)
		}
	}
	slices.SortStableFunc(lanes,
		func(a, b Lane) int { return boolToInt(a.Head.After(b.Head)) - boolToInt(b.Head.After(a.Head)) })
	return lanes
}

// firstLane returns the first lane of a list. found is false if the list is empty.
func firstLane(lanes []Lane) (l Lane, found bool, err error) {
	if len(lanes) > 0 {
		return lanes[0], true, nil
	}
	return l, false, nil
}

type fakeLanes struct{ data *fakeData }

func (f fakeLanes) FindOrAddLane(j *Job) (Lane, error) {
	demands := queue.DemandsSignature(j.Demands)
	for _, l := range f.data.lanes {
		if l.Queue == j.Queue && l.UID == j.UID && l.demandsSignature == demands {
			return l.Lane, nil
		}
	}
	l := Lane{ID: f.data.nextRowID(), Queue: j.Queue, UID: j.UID, Head: MaxPosition, Priority: UnknownLanePriority,
		ClosedBy: Empty, HeapIndex: -1}
	for _, d := range j.Demands {
		l.GateNeeds = append(l.GateNeeds, GateNeed{GateID: fakeGates(f).findOrAddGate(j.UID, d), Kind: d.Kind,
			Units: d.UnitsWhileRunning()})
	}
	f.data.lanes[l.ID] = fakeLane{l, demands}
	return l, nil
}

func (f fakeLanes) SetLane(l Lane) error {
	f.data.lanes[l.ID] = fakeLane{l, f.data.lanes[l.ID].demandsSignature}
	return nil
}

func (f fakeLanes) BestLane(q *Queue) (Lane, Position, error) {
	list := f.data.lanesSortedByHead(func(l *Lane) bool { return l.ClosedBy == Open && l.Queue == q.Name })
	if len(list) > 1 {
		return list[0], list[1].Head, nil
	}
	return list[0], MaxPosition, nil
}

// readyJobs returns the ready jobs of a lane from a position on, in the order of their positions.
func (f fakeLanes) readyJobs(laneID int64, start Position) []Job {
	list := f.data.sortedJobs(func(j *Job) bool {
		return j.Slot == SlotReady && j.LaneID == laneID && !start.After(j.Position())
	})
	slices.SortFunc(list, func(a, b Job) int {
		return boolToInt(a.Position().After(b.Position())) - boolToInt(b.Position().After(a.Position()))
	})
	return list
}

func (f fakeLanes) ScanLane(l *LaneScan) error {
	l.NextPosition, l.NextPriority, l.ReachedLaneEnd = l.Lane.Head, UnknownLanePriority, true
	full := false
	for _, j := range f.readyJobs(l.Lane.ID, l.Lane.Head) {
		p, leased := j.Position(), f.data.leases[j.Seq] != nil
		if p.After(l.StopPosition) || full && !leased {
			if l.NextPosition, l.ReachedLaneEnd = p, false; !leased {
				l.NextPriority = lanePriorityToStore(&j)
			}
			return nil
		}
		l.NextPosition = Position{p.Rank, p.Seq + 1}
		switch {
		case leased:
			continue
		case j.IsDamaged || !j.State.IsRunnable():
			l.DamagedJobs = append(l.DamagedJobs, limitToReadScope(j, l.JobReadScope))
			if len(l.DamagedJobs) >= l.MaxDamagedJobs {
				l.ReachedLaneEnd = false
				return nil
			}
			continue
		}
		l.Jobs = append(l.Jobs, limitToReadScope(j, l.JobReadScope))
		l.ClaimBytesRead += len(j.Command) + len(j.Stdin)
		if full = len(l.Jobs) >= l.MaxJobs || l.ClaimBytesRead >= MaxBytesReadPerClaim; full && !l.MustReadNextPriority {
			l.ReachedLaneEnd = false
			return nil
		}
	}
	return nil
}

func (f fakeLanes) EachClosedLaneList(gateID int64, afterList ClosedLaneListKey, visit func(Lane) (bool, error)) error {
	best := map[ClosedLaneListKey]Lane{}
	for _, l := range f.data.lanesSortedByHead(func(l *Lane) bool {
		return l.ClosedBy == gateID && l.ClosedLaneListKey().Compare(afterList) > 0
	}) {
		if _, found := best[l.ClosedLaneListKey()]; !found {
			best[l.ClosedLaneListKey()] = l
		}
	}
	for _, list := range slices.SortedFunc(maps.Keys(best), ClosedLaneListKey.Compare) {
		if more, err := visit(best[list]); !more || err != nil {
			return err
		}
	}
	return nil
}

func (f fakeLanes) BestClosedLaneInList(gateID int64, key ClosedLaneListKey) (Lane, bool, error) {
	return firstLane(f.data.lanesSortedByHead(func(l *Lane) bool {
		return l.ClosedBy == gateID &&
			l.ClosedLaneListKey() == key
	}))
}

func (f fakeLanes) BestClosedLaneInQueue(gateID int64, queueName string) (Lane, bool, error) {
	return firstLane(f.data.lanesSortedByHead(func(l *Lane) bool { return l.ClosedBy == gateID && l.Queue == queueName }))
}

type fakeUserTurns struct{ data *fakeData }

func (f fakeUserTurns) HasSeveralUsers(q *Queue) bool {
	users := 0
	f.EachContendingLane(q, func(*Lane, int64) { users++ })
	return users > 1
}

func (f fakeUserTurns) EachContendingLane(q *Queue, visit func(l *Lane, lastTurn int64)) {
	seen := map[int]bool{}
	for _, l := range f.data.lanesSortedByHead(func(l *Lane) bool { return l.ClosedBy == Open && l.Queue == q.Name }) {
		if !seen[l.UID] {
			visit(&l, f.data.lastUserTurns[l.ClosedLaneListKey()])
		}
		seen[l.UID] = true
	}
}

func (f fakeUserTurns) RecordUserTurn(q *Queue, uid int) UserTurn {
	f.data.userTurnCount++
	turn := UserTurn{TurnNumber: f.data.userTurnCount, PreviousTurnNumber: f.data.lastUserTurns[ClosedLaneListKey{q.Name,
		uid}]}
	f.data.lastUserTurns[ClosedLaneListKey{q.Name, uid}] = turn.TurnNumber
	return turn
}

func (f fakeUserTurns) UndoUserTurn(q *Queue, uid int, t UserTurn) {
	f.data.lastUserTurns[ClosedLaneListKey{q.Name, uid}] = min(f.data.lastUserTurns[ClosedLaneListKey{q.Name, uid}],
		t.PreviousTurnNumber)
}

// fakeGate is a gate with its owner. It also holds the number of unfinished jobs that name the gate, and
// whether SetFixedGateRule has set its limit.
type fakeGate struct {
	queue.Demand
	ownerUID             int
	limitStatingJobCount int
	hasFixedLimit        bool
	rateStartTimes       []queue.UnixMillis
	recheckAt            queue.UnixMillis // time passed to ScheduleGateRecheck
}

type fakeGates struct{ data *fakeData }

// findOrAddGate returns the id of the gate that a user's demand names, and creates the gate if necessary.
func (f fakeGates) findOrAddGate(uid int, d queue.Demand) int64 {
	for id, g := range f.data.gates {
		if g.ownerUID == d.GateOwner(uid) && g.Kind == d.Kind && g.GateKey == d.GateKey {
			return id
		}
	}
	id := f.data.nextRowID()
	f.data.gates[id] = fakeGate{Demand: d, ownerUID: d.GateOwner(uid)}
	return id
}

// changeGate passes a copy of a gate to the given function, and stores the changed copy.
func (f fakeGates) changeGate(gateID int64, change func(*fakeGate)) {
	g := f.data.gates[gateID]
	change(&g)
	f.data.gates[gateID] = g
}

// GateRule returns the rule of a gate, and counts the units that leases hold. For a rate it ignores leases
// whose attempt has started, because RecordRateStart has counted that start.
func (f fakeGates) GateRule(gateID int64) (GateRule, error) {
	rule := GateRule{Demand: f.data.gates[gateID].Demand}
	for _, l := range f.data.leases {
		for _, n := range l.HeldGateUnits {
			if n.GateID == gateID && (n.Kind != queue.GateRate || !l.AttemptStarted) {
				rule.UsedUnits += n.Units
			}
		}
	}
	return rule, nil
}

func (f fakeGates) LeasedUnitNumbers(resourceName string) map[int]bool {
	taken := map[int]bool{}
	for _, l := range f.data.leases {
		queue.ParseResourceUnits(l.Job.HeldUnits, func(resource string, units []int) {
			for _, u := range units {
				taken[u] = taken[u] || resource == resourceName
			}
		})
	}
	return taken
}

func (f fakeGates) ResourceGateIDs() (gateIDs []int64) {
	for id, g := range f.data.gates {
		if g.Kind == queue.GateResource {
			gateIDs = append(gateIDs, id)
		}
	}
	return gateIDs
}

func (f fakeGates) RecordRateStart(gateID int64, startedAt queue.UnixMillis) error {
	f.changeGate(gateID, func(g *fakeGate) { g.rateStartTimes = append(g.rateStartTimes, startedAt) })
	return nil
}

// startsSince returns the starts of a gate at or after a time, newest first.
func (f fakeGates) startsSince(gateID int64, since queue.UnixMillis) []queue.UnixMillis {
	list := slices.DeleteFunc(slices.Clone(f.data.gates[gateID].rateStartTimes),
		func(at queue.UnixMillis) bool { return at < since })
	slices.Sort(list)
	slices.Reverse(list)
	return list
}

func (f fakeGates) CountRateStarts(gateID int64, since queue.UnixMillis) (int, error) {
	return len(f.startsSince(gateID, since)), nil
}

func (f fakeGates) NthNewestRateStart(gateID int64, since queue.UnixMillis, newerStarts int) (queue.UnixMillis, error) {
	if list := f.startsSince(gateID, since); newerStarts < len(list) {
		return list[newerStarts], nil
	}
	return 0, nil
}

func (f fakeGates) ScheduleGateRecheck(gateID int64, recheckAt queue.UnixMillis) error {
	f.changeGate(gateID, func(g *fakeGate) { g.recheckAt = recheckAt })
	return nil
}

func (f fakeGates) SetGateRuleFromJob(j *Job, d queue.Demand) (int64, error) {
	id := f.findOrAddGate(j.UID, d)
	g := f.data.gates[id]
	if g.hasFixedLimit || g.ownerUID == queue.SharedGateOwner && g.limitStatingJobCount > 0 || g.Amount == d.Amount &&
		g.RatePeriod == d.RatePeriod {
		return 0, nil
	}
	f.changeGate(id, func(g *fakeGate) { g.Amount, g.RatePeriod = d.Amount, d.RatePeriod })
	return id, nil
}

func (f fakeGates) SetFixedGateRule(d queue.Demand) (int64, error) {
	id := f.findOrAddGate(queue.SharedGateOwner, d)
	if d.Amount == 0 {
		f.changeGate(id, func(g *fakeGate) { g.hasFixedLimit = false })
		return 0, nil
	}
	f.changeGate(id, func(g *fakeGate) { g.Amount, g.RatePeriod, g.hasFixedLimit = d.Amount, d.RatePeriod, true })
	return id, nil
}

func (f fakeGates) AdjustGateJobCounts(j *Job, delta int) error {
	for _, d := range j.Demands {
		if d.DeclaresLimit() {
			f.changeGate(f.findOrAddGate(j.UID, d), func(g *fakeGate) { g.limitStatingJobCount += delta })
		}
	}
	return nil
}
