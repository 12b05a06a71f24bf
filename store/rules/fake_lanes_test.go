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
	queueRules     map[string]store.QueueRule
	nextTurns      map[string]int64 // number of each queue's next turn
	lastServedTurn int64            // number of the turn that was served last

	lanes     map[int64]fakeLane
	turnCount int64                   // number of turns that users have had
	lastTurns map[ClosedListKey]int64 // number of the last turn of each user in each queue

	gates map[int64]fakeGate
}

type fakeQueues struct{ data *fakeData }

// Queue returns a copy of a queue's state.
func (f fakeQueues) Queue(name string) *Queue {
	rule, found := f.data.queueRules[name]
	if !found {
		rule = store.DefaultQueueRule
	}
	q := &Queue{Name: name, Weight: rule.Weight, Room: math.MaxInt, Head: EndPosition, NextTurn: f.data.nextTurns[name]}
	q.MaxWaiting, q.HasOwnRetention = rule.MaxPending, rule.Retention != store.Retention{}
	if rule.Concurrency > 0 {
		q.Room = max(0, rule.Concurrency-f.countLeased(name))
	}
	if rule.Paused {
		q.Room = 0
	}
	for _, j := range f.data.jobs {
		q.Waiting += int64(boolToInt(j.Queue == name && j.State.Waiting()))
	}
	if open := f.data.sortedLanes(func(l *Lane) bool { return l.ClosedBy == Open && l.Queue == name }); len(open) > 0 {
		q.Head = open[0].Head
	}
	return q
}

func (f fakeQueues) countLeased(name string) (n int) {
	for _, l := range f.data.leases {
		n += boolToInt(l.Job.Queue == name)
	}
	return n
}

func (f fakeQueues) Queues(visit func(*Queue) bool) error {
	seen := map[string]bool{}
	for _, l := range f.data.sortedLanes(func(l *Lane) bool { return l.ClosedBy == Open }) {
		if q := f.Queue(l.Queue); !seen[l.Queue] && q.Room > 0 && !visit(q) {
			return nil
		}
		seen[l.Queue] = true
	}
	return nil
}

func (f fakeQueues) QueueWaitReason(name string) store.WaitReason {
	rule := f.data.queueRules[name]
	return store.WaitReason{Key: name, Usage: f.countLeased(name), Limit: rule.Concurrency, NeededUnits: 1,
		Paused: rule.Paused}
}

func (f fakeQueues) WeightsDiffer() bool {
	for _, rule := range f.data.queueRules {
		if rule.Weight != 1 {
			return true
		}
	}
	return false
}

func (f fakeQueues) LastServedTurn() int64 { return f.data.lastServedTurn }
func (f fakeQueues) RecordQueueTurn(q *Queue, turn, nextTurn int64) {
	f.data.nextTurns[q.Name], f.data.lastServedTurn = nextTurn, turn
}

// fakeLane is a lane with its demands as a text.
type fakeLane struct {
	Lane
	demands string
}

// sortedLanes returns the lanes for which matches returns true, those with the best head first.
func (d *fakeData) sortedLanes(matches func(*Lane) bool) (list []Lane) {
	for _, id := range slices.Sorted(maps.Keys(d.lanes)) {
		if l := d.lanes[id].Lane; matches(&l) {
			list = append(list, l)
		}
	}
	slices.SortStableFunc(list,
		func(a, b Lane) int { return boolToInt(a.Head.After(b.Head)) - boolToInt(b.Head.After(a.Head)) })
	return list
}

// firstLane returns the first lane of a list. found is false if the list is empty.
func firstLane(lanes []Lane) (l Lane, found bool, err error) {
	if len(lanes) > 0 {
		return lanes[0], true, nil
	}
	return l, false, nil
}

type fakeLanes struct{ data *fakeData }

func (f fakeLanes) Lane(j *Job) (Lane, error) {
	demands := queue.GateSignature(j.Demands)
	for _, l := range f.data.lanes {
		if l.Queue == j.Queue && l.UID == j.UID && l.demands == demands {
			return l.Lane, nil
		}
	}
	l := Lane{ID: f.data.newID(), Queue: j.Queue, UID: j.UID, Head: EndPosition, Priority: UnknownPriority,
		ClosedBy: Empty, HeapIndex: -1}
	for _, d := range j.Demands {
		l.Needs = append(l.Needs, Need{Gate: fakeGates(f).findOrAddGate(j.UID, d), Kind: d.Kind, Units: d.Units()})
	}
	f.data.lanes[l.ID] = fakeLane{l, demands}
	return l, nil
}

func (f fakeLanes) SetLane(l Lane) error {
	f.data.lanes[l.ID] = fakeLane{l, f.data.lanes[l.ID].demands}
	return nil
}

func (f fakeLanes) BestLane(q *Queue) (Lane, Position, error) {
	list := f.data.sortedLanes(func(l *Lane) bool { return l.ClosedBy == Open && l.Queue == q.Name })
	if len(list) > 1 {
		return list[0], list[1].Head, nil
	}
	return list[0], EndPosition, nil
}

// readyJobs returns the ready jobs of a lane from a position on, in the order of their positions.
func (f fakeLanes) readyJobs(lane int64, start Position) []Job {
	list := f.data.sortedJobs(func(j *Job) bool {
		return j.Slot == Ready && j.Lane == lane && !start.After(j.Position())
	})
	slices.SortFunc(list, func(a, b Job) int {
		return boolToInt(a.Position().After(b.Position())) - boolToInt(b.Position().After(a.Position()))
	})
	return list
}

func (f fakeLanes) ScanLane(l *LaneScan) error {
	l.NextPosition, l.NextPriority, l.Exhausted = l.Lane.Head, UnknownPriority, true
	full := false
	for _, j := range f.readyJobs(l.Lane.ID, l.Lane.Head) {
		p, leased := j.Position(), f.data.leases[j.Seq] != nil
		if p.After(l.StopAt) || full && !leased {
			if l.NextPosition, l.Exhausted = p, false; !leased {
				l.NextPriority = priorityToStore(&j)
			}
			return nil
		}
		l.NextPosition = Position{p.Rank, p.Seq + 1}
		switch {
		case leased:
			continue
		case j.Damaged || !j.State.Runnable():
			l.DamagedJobs = append(l.DamagedJobs, withReadScope(j, l.Scope))
			if len(l.DamagedJobs) >= l.MaxDamagedJobs {
				l.Exhausted = false
				return nil
			}
			continue
		}
		l.Jobs = append(l.Jobs, withReadScope(j, l.Scope))
		l.BytesRead += len(j.Command) + len(j.Stdin)
		if full = len(l.Jobs) >= l.WantedJobs || l.BytesRead >= MaxClaimBytes; full && !l.PeekPriority {
			l.Exhausted = false
			return nil
		}
	}
	return nil
}

func (f fakeLanes) EachClosedList(gate int64, afterList ClosedListKey, visit func(Lane) (bool, error)) error {
	best := map[ClosedListKey]Lane{}
	for _, l := range f.data.sortedLanes(func(l *Lane) bool {
		return l.ClosedBy == gate && l.ClosedListKey().Compare(afterList) > 0
	}) {
		if _, found := best[l.ClosedListKey()]; !found {
			best[l.ClosedListKey()] = l
		}
	}
	for _, list := range slices.SortedFunc(maps.Keys(best), ClosedListKey.Compare) {
		if more, err := visit(best[list]); !more || err != nil {
			return err
		}
	}
	return nil
}

func (f fakeLanes) BestClosedInList(gate int64, key ClosedListKey) (Lane, bool, error) {
	return firstLane(f.data.sortedLanes(func(l *Lane) bool { return l.ClosedBy == gate && l.ClosedListKey() == key }))
}

func (f fakeLanes) BestClosedInQueue(gate int64, name string) (Lane, bool, error) {
	return firstLane(f.data.sortedLanes(func(l *Lane) bool { return l.ClosedBy == gate && l.Queue == name }))
}

type fakeUserTurns struct{ data *fakeData }

func (f fakeUserTurns) HasSeveralUsers(q *Queue) bool {
	users := 0
	f.EachContender(q, func(*Lane, int64) { users++ })
	return users > 1
}

func (f fakeUserTurns) EachContender(q *Queue, visit func(l *Lane, lastTurn int64)) {
	seen := map[int]bool{}
	for _, l := range f.data.sortedLanes(func(l *Lane) bool { return l.ClosedBy == Open && l.Queue == q.Name }) {
		if !seen[l.UID] {
			visit(&l, f.data.lastTurns[l.ClosedListKey()])
		}
		seen[l.UID] = true
	}
}

func (f fakeUserTurns) RecordUserTurn(q *Queue, uid int) UserTurn {
	f.data.turnCount++
	turn := UserTurn{Number: f.data.turnCount, Previous: f.data.lastTurns[ClosedListKey{q.Name, uid}]}
	f.data.lastTurns[ClosedListKey{q.Name, uid}] = turn.Number
	return turn
}

func (f fakeUserTurns) UndoUserTurn(q *Queue, uid int, t UserTurn) {
	f.data.lastTurns[ClosedListKey{q.Name, uid}] = min(f.data.lastTurns[ClosedListKey{q.Name, uid}], t.Previous)
}

// fakeGate is a gate with its owner. It also holds the number of unfinished jobs that name the gate, and
// whether SetFixedRule has set its limit.
type fakeGate struct {
	queue.Demand
	ownerUID  int
	jobCount  int
	isFixed   bool
	starts    []queue.Millis
	recheckAt queue.Millis // time passed to ScheduleRecheck
}

type fakeGates struct{ data *fakeData }

// findOrAddGate returns the id of the gate that a user's demand names, and creates the gate if necessary.
func (f fakeGates) findOrAddGate(uid int, d queue.Demand) int64 {
	for id, g := range f.data.gates {
		if g.ownerUID == d.Owner(uid) && g.Kind == d.Kind && g.Key == d.Key {
			return id
		}
	}
	id := f.data.newID()
	f.data.gates[id] = fakeGate{Demand: d, ownerUID: d.Owner(uid)}
	return id
}

// change passes a copy of a gate to the given function, and stores the changed copy.
func (f fakeGates) change(gate int64, change func(*fakeGate)) {
	g := f.data.gates[gate]
	change(&g)
	f.data.gates[gate] = g
}

// GateRule returns the rule of a gate, and counts the units that leases hold. For a rate it ignores leases
// whose attempt has started, because RecordStart has counted that start.
func (f fakeGates) GateRule(gate int64) (GateRule, error) {
	rule := GateRule{Demand: f.data.gates[gate].Demand}
	for _, l := range f.data.leases {
		for _, n := range l.Needs {
			if n.Gate == gate && (n.Kind != queue.GateRate || !l.Running) {
				rule.UsedUnits += n.Units
			}
		}
	}
	return rule, nil
}

func (f fakeGates) TakenUnits(name string) map[int]bool {
	taken := map[int]bool{}
	for _, l := range f.data.leases {
		queue.ParseUnits(l.Job.HeldUnits, func(resource string, units []int) {
			for _, u := range units {
				taken[u] = taken[u] || resource == name
			}
		})
	}
	return taken
}

func (f fakeGates) ResourceGates() (gates []int64) {
	for id, g := range f.data.gates {
		if g.Kind == queue.GateResource {
			gates = append(gates, id)
		}
	}
	return gates
}

func (f fakeGates) RecordStart(gate int64, startedAt queue.Millis) error {
	f.change(gate, func(g *fakeGate) { g.starts = append(g.starts, startedAt) })
	return nil
}

// startsSince returns the starts of a gate at or after a time, newest first.
func (f fakeGates) startsSince(gate int64, since queue.Millis) []queue.Millis {
	list := slices.DeleteFunc(slices.Clone(f.data.gates[gate].starts), func(at queue.Millis) bool { return at < since })
	slices.Sort(list)
	slices.Reverse(list)
	return list
}

func (f fakeGates) CountStarts(gate int64, since queue.Millis) (int, error) {
	return len(f.startsSince(gate, since)), nil
}

func (f fakeGates) NthNewestStart(gate int64, since queue.Millis, newerStarts int) (queue.Millis, error) {
	if list := f.startsSince(gate, since); newerStarts < len(list) {
		return list[newerStarts], nil
	}
	return 0, nil
}

func (f fakeGates) ScheduleRecheck(gate int64, recheckAt queue.Millis) error {
	f.change(gate, func(g *fakeGate) { g.recheckAt = recheckAt })
	return nil
}

func (f fakeGates) SetRuleFromJob(j *Job, d queue.Demand) (int64, error) {
	id := f.findOrAddGate(j.UID, d)
	g := f.data.gates[id]
	if g.isFixed || g.ownerUID == queue.SharedOwner && g.jobCount > 0 || g.Amount == d.Amount && g.Period == d.Period {
		return 0, nil
	}
	f.change(id, func(g *fakeGate) { g.Amount, g.Period = d.Amount, d.Period })
	return id, nil
}

func (f fakeGates) SetFixedRule(d queue.Demand) (int64, error) {
	id := f.findOrAddGate(queue.SharedOwner, d)
	if d.Amount == 0 {
		f.change(id, func(g *fakeGate) { g.isFixed = false })
		return 0, nil
	}
	f.change(id, func(g *fakeGate) { g.Amount, g.Period, g.isFixed = d.Amount, d.Period, true })
	return id, nil
}

func (f fakeGates) AdjustNamingCounts(j *Job, delta int) error {
	for _, d := range j.Demands {
		if d.HasLimit() {
			f.change(f.findOrAddGate(j.UID, d), func(g *fakeGate) { g.jobCount += delta })
		}
	}
	return nil
}
