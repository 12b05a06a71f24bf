package engine

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// gate returns the id of the gate that a user's job demands. It creates the gate, with the demand's rule,
// if it does not exist.
func (t *Tx) gate(uid int, d queue.Demand) (id int64, err error) {
	owner := int64(d.Owner(uid))
	id, err = t.Number(`SELECT id FROM gates WHERE uid = ? AND kind = ? AND key = ?`, owner, int64(d.Kind), d.Key)
	if err != nil || id != 0 {
		return id, err
	}
	id, err = t.Number(`INSERT INTO gates (uid, kind, key, n, per) VALUES (?, ?, ?, ?, ?) RETURNING id`, owner,
		int64(d.Kind), d.Key, int64(d.N), d.Period.Milliseconds())
	t.s.mem.lanes.hasGates = t.s.mem.lanes.hasGates || err == nil
	if err == nil && d.Kind == queue.GateResource {
		t.saveResources()
		t.s.mem.lanes.resourceGates = append(t.s.mem.lanes.resourceGates, id)
	}
	return id, err
}

// saveResources replaces the list of resources with a copy, and restores the old list if the transaction is
// rolled back.
func (t *Tx) saveResources() {
	t.requireReload()
	ls := t.s.mem.lanes
	old := ls.resourceGates
	ls.resourceGates = slices.Clone(old)
	t.undo = append(t.undo, func() { ls.resourceGates = old })
}

// TakenUnits implements rules.Tx.
func (t *Tx) TakenUnits(name string) map[int]bool {
	taken := map[int]bool{}
	for seq, l := range t.s.mem.leases {
		if l.Job.Node != t.s.node {
			continue
		}
		if l = t.Lease(seq); l == nil {
			continue
		}
		queue.ParseUnits(l.Job.Units, func(of string, units []int) {
			for _, u := range units {
				taken[u] = taken[u] || of == name
			}
		})
	}
	return taken
}

// Resources implements rules.Tx.
func (t *Tx) Resources() []int64 { return t.s.mem.lanes.resourceGates }

// forgetResource removes a gate from the list of resources.
func (t *Tx) forgetResource(gate int64) {
	t.saveResources()
	ls := t.s.mem.lanes
	ls.resourceGates = slices.DeleteFunc(ls.resourceGates, func(id int64) bool { return id == gate })
}

// tidyGates removes one step of the gates that no lane needs and no job names. It keeps a rate while a
// recorded start lies within the rate's period. It reports whether there is more to do.
func (t *Tx) tidyGates() (more bool, err error) {
	if !t.s.mem.lanes.hasGates {
		return false, nil
	}
	if err := t.writeGateJobs(); err != nil {
		return false, err
	}
	type gate struct{ id, per int64 }
	var idle []gate
	err = t.Query(func(r database.Row) (bool, error) {
		idle = append(idle, gate{r.Num(0), r.Num(1)})
		return len(idle) < moveStep, nil
	}, `SELECT id, per FROM gates INDEXED BY gates_idle WHERE lanes = 0 AND jobs = 0 AND opens = 0 AND kept = 0 LIMIT ?`,
		int64(moveStep))
	if err != nil {
		return false, err
	}
	for _, g := range idle {
		last, err := t.Number(`SELECT max(at) FROM starts WHERE gate = ?`, g.id)
		if opens := last + g.per + 1; err == nil && opens > int64(t.startTime) && last > 0 {
			err = t.Exec(`UPDATE gates SET opens = ? WHERE id = ?`, opens, g.id)
		} else if err == nil {
			err = t.removeGate(g.id)
		}
		if err != nil {
			return false, err
		}
	}
	return len(idle) == moveStep, nil
}

// removeGate deletes a gate and its starts.
func (t *Tx) removeGate(id int64) error {
	t.forgetResource(id)
	delete(t.gateRules, id)
	err := t.Exec(`DELETE FROM starts WHERE gate = ?`, id)
	if err == nil {
		err = t.Exec(`DELETE FROM gates WHERE id = ?`, id)
	}
	return err
}

// Quota implements rules.Tx.
func (t *Tx) Quota() int { return t.s.mem.maxLeasedPerUser }

// Node implements rules.Tx.
func (t *Tx) Node() *store.Node { return &t.s.mem.lanes.node }

// Rule implements rules.Tx.
func (t *Tx) Rule(gate int64) (rules.Rule, error) {
	rule, found := t.gateRules[gate]
	if !found {
		err := t.Query(func(r database.Row) (bool, error) {
			found = true
			rule.N, rule.Period, rule.Key = int(r.Num(0)), time.Duration(r.Num(1))*time.Millisecond, r.Text(2)
			return false, nil
		}, `SELECT n, per, key FROM gates WHERE id = ?`, gate)
		if err != nil {
			return rule, err
		}
		if !found {
			return rule, database.Damage(fmt.Sprintf(`the table "gates" lacks the row with the id %d`, gate))
		}
		if t.gateRules == nil {
			t.gateRules = map[int64]rules.Rule{}
		}
		t.gateRules[gate] = rule
	}
	rule.UsedUnits = t.s.mem.usedUnits[gate]
	return rule, nil
}

// Starts implements rules.Tx.
func (t *Tx) Starts(gate int64, since queue.Millis) (n int, err error) {
	// A start in the future means that the clock was set back. Treat it as a start at the current time.
	if err := t.Exec(`UPDATE starts SET at = ? WHERE gate = ? AND at > ?`, int64(t.startTime), gate,
		int64(t.startTime)); err != nil {
		return 0, err
	}
	starts, err := t.Number(`SELECT count(*) FROM starts WHERE gate = ? AND at >= ?`, gate, int64(since))
	return int(starts), err
}

// StartBefore implements rules.Tx.
func (t *Tx) StartBefore(gate int64, since queue.Millis, n int) (queue.Millis, error) {
	at, err := t.Number(`SELECT at FROM starts WHERE gate = ? AND at >= ? ORDER BY at DESC LIMIT 1 OFFSET ?`, gate,
		int64(since), int64(n))
	return queue.Millis(at), err
}

// SetOpens implements rules.Tx.
func (t *Tx) SetOpens(gate int64, at queue.Millis) error {
	t.wakeAt(at)
	return t.Exec(`UPDATE gates SET opens = ? WHERE id = ?`, int64(at), gate)
}

// RecordStart implements rules.Tx.
func (t *Tx) RecordStart(gate int64, at queue.Millis) error {
	if err := t.forgetStarts(gate); err != nil {
		return err
	}
	return t.Exec(`INSERT INTO starts (gate, at) VALUES (?, ?)`, gate, int64(at))
}

// SetRule implements rules.Tx.
// See docs/decisions/0018.
func (t *Tx) SetRule(j *rules.Job, d queue.Demand) (int64, error) {
	id, err := t.gate(j.UID, d)
	if err != nil {
		return 0, err
	}
	n, per := int64(d.N), d.Period.Milliseconds()
	fixed, err := t.Number(`SELECT kept = 1 OR uid = ? AND jobs + ? > 0 OR n = ? AND per = ? FROM gates WHERE id = ?`,
		int64(queue.SharedOwner), t.gateJobs[namedGate{d.Owner(j.UID), d.Kind, d.Key}], n, per, id)
	if err != nil || fixed == 1 {
		return 0, err
	}
	return id, t.putRule(id, n, per)
}

// putRule changes the limit and the period of a lock or rate.
func (t *Tx) putRule(gate, n, per int64) error {
	delete(t.gateRules, gate)
	if err := t.forgetStarts(gate); err != nil { // a longer period must not count them later
		return err
	}
	return t.Exec(`UPDATE gates SET n = ?, per = ? WHERE id = ?`, n, per, gate)
}

// KeepRule implements rules.Tx.
func (t *Tx) KeepRule(d queue.Demand) (id int64, err error) {
	if d.N == 0 {
		err = t.Exec(`UPDATE gates SET kept = 0 WHERE uid = ? AND kind = ? AND key = ?`, int64(queue.SharedOwner),
			int64(d.Kind), d.Key)
		t.wakeAt(t.startTime) // run upkeep: it removes the gate if no job needs it any more
		return 0, err
	}
	others, err := t.Number(`SELECT count(*) FROM gates INDEXED BY gates_kept WHERE kept = 1 AND (kind, key) <> (?, ?)`,
		int64(d.Kind), d.Key)
	if err == nil && others >= store.MaxGates {
		err = queue.Errorf(queue.CodeFull, "%d shared keys already have limits, which is the maximum; remove a limit that "+
			"queuectl gate list shows: queuectl gate set @KEY --unset lock (or rate)", store.MaxGates)
	}
	if err != nil {
		return 0, err
	}
	if id, err = t.gate(queue.SharedOwner, d); err != nil {
		return 0, err
	}
	if err := t.Exec(`UPDATE gates SET kept = 1 WHERE id = ?`, id); err != nil {
		return 0, err
	}
	return id, t.putRule(id, int64(d.N), d.Period.Milliseconds())
}

// SetGate sets the rule of a shared lock or rate.
func (s *Engine) SetGate(ctx context.Context, rule queue.Demand) error {
	return s.Do(ctx, Prompt, func(t *Tx) error { return t.rules.SetGate(rule) })
}

// Gates lists locks, rates and resources. It runs in the writer, because only the writer's memory holds how
// many units of each are in use.
func (s *Engine) Gates(ctx context.Context, uid int, after store.GateState) ([]store.GateState, error) {
	return readInWriter(ctx, s, func(t *Tx) (list []store.GateState, err error) {
		for _, owner := range slices.Compact([]int{queue.SharedOwner, uid}) {
			if after.Kind != 0 && after.UID > owner {
				continue
			}
			kind, key := int64(queue.GateNode), "\x7f" // skip all gates of kind node, because they are not listed
			if after.UID == owner && after.Kind != 0 {
				kind, key = int64(after.Kind), after.Key
			}
			if err := t.gatesOf(owner, kind, key, &list); err != nil {
				return nil, err
			}
		}
		return list, nil
	})
}

// maxGatesRead limits how many gates of an owner are read for one list. Many gates may be unneeded but not
// yet removed by upkeep.
const maxGatesRead = 5 * store.MaxGates

// gatesOf appends the gates of an owner that follow the given kind and key.
func (t *Tx) gatesOf(owner int, kind int64, key string, list *[]store.GateState) error {
	var ids []int64
	first, scanned := len(*list), 0
	err := t.Query(func(r database.Row) (bool, error) {
		// Skip a gate that no job, lane or setting needs. Upkeep will remove it.
		if scanned++; r.Num(5) == 0 && r.Num(6) == 0 && (r.Num(1) != int64(queue.GateResource) || r.Num(7) == 0) {
			return scanned < maxGatesRead, nil
		}
		ids = append(ids, r.Num(0))
		*list = append(*list, store.GateState{Demand: queue.Demand{Kind: queue.GateKind(r.Num(1)), Key: r.Text(2),
			N: int(r.Num(3)), Period: time.Duration(r.Num(4)) * time.Millisecond}, UID: owner, Jobs: r.Num(5),
			Set: r.Num(6) == 1})
		return len(*list) < store.MaxGates && scanned < maxGatesRead, nil
	}, `SELECT id, kind, key, n, per, jobs, kept, lanes FROM gates INDEXED BY gates_key WHERE uid = ? AND (kind, key) > (?, ?) ORDER BY kind, key LIMIT ?`, int64(owner), kind, key, int64(maxGatesRead))
	steps := maxStartsCounted
	for i, id := range ids {
		g := &(*list)[first+i]
		if err == nil {
			g.Usage, err = t.heldOf(id, g, &steps)
		}
	}
	return err
}

// maxStartsCounted limits how many starts are counted for one list. For rates beyond that limit, the list
// shows only leases that are not known to have started.
const maxStartsCounted = 20_000

// heldOf returns how many units of a gate are held. For a rate it counts at most steps starts, and
// subtracts them from steps.
func (t *Tx) heldOf(gate int64, g *store.GateState, steps *int) (int, error) {
	used := t.s.mem.usedUnits[gate]
	switch g.Kind {
	case queue.GateResource:
		g.N, g.Period = t.s.mem.lanes.node.Resources[g.Key], 0
	case queue.GateRate:
		starts, err := t.Number(`SELECT count(*) FROM (SELECT 1 FROM starts WHERE gate = ? AND at >= ? LIMIT ?) AS counted`,
			gate, int64(t.startTime)-g.Period.Milliseconds(), int64(*steps))
		*steps -= int(starts)
		return used + int(starts), err
	}
	return used, nil
}

// forgetStarts deletes the starts that are older than a rate's period.
func (t *Tx) forgetStarts(gate int64) error {
	return t.Exec(`DELETE FROM starts WHERE gate = ? AND at < ? - (SELECT per FROM gates WHERE id = ?)`, gate,
		int64(t.startTime), gate)
}

// CountNaming implements rules.Tx.
func (t *Tx) CountNaming(j *rules.Job, by int) error {
	for _, d := range j.Demands {
		if !d.HasLimit() {
			continue
		}
		if by > 0 {
			if _, err := t.gate(j.UID, d); err != nil {
				return err
			}
		}
		if t.gateJobs == nil {
			t.gateJobs = map[namedGate]int64{}
		}
		t.gateJobs[namedGate{d.Owner(j.UID), d.Kind, d.Key}] += int64(by)
	}
	return nil
}

// namedGate identifies a lock or rate that jobs name.
type namedGate struct {
	owner int
	kind  queue.GateKind
	key   string
}

// writeGateJobs writes the changed numbers of jobs per gate. It writes each gate once per transaction,
// however many jobs changed.
func (t *Tx) writeGateJobs() error {
	for g, by := range t.gateJobs {
		if by == 0 {
			continue
		}
		if err := t.Exec(`UPDATE gates SET jobs = jobs + ? WHERE uid = ? AND kind = ? AND key = ?`, by, int64(g.owner),
			int64(g.kind), g.key); err != nil {
			return err
		}
	}
	clear(t.gateJobs)
	return nil
}

// openGates rechecks the gates whose opening time has come. It reports whether there are more.
func (t *Tx) openGates() (more bool, err error) {
	if !t.s.mem.lanes.hasGates {
		return false, nil
	}
	// The clock was set back. No rate stays closed for longer than its period, so limit the opening times to that.
	if t.startTime < t.s.mem.lastPromote {
		if err := t.Exec(`UPDATE gates SET opens = ? WHERE id IN (SELECT id FROM gates INDEXED BY gates_opens WHERE opens > 0 AND opens > ? + per + 1)`, int64(t.startTime), int64(t.startTime)); err != nil {
			return false, err
		}
	}
	t.s.mem.lastPromote = t.startTime
	var list []int64
	err = t.Query(func(r database.Row) (bool, error) {
		list = append(list, r.Num(0))
		return len(list) < moveStep, nil
	}, `SELECT id FROM gates INDEXED BY gates_opens WHERE opens > 0 AND opens <= ? LIMIT ?`, int64(t.startTime),
		int64(moveStep))
	for _, id := range list {
		if err == nil {
			err = t.Exec(`UPDATE gates SET opens = 0 WHERE id = ?`, id)
		}
		t.rules.Recheck(id)
	}
	return len(list) == moveStep, err
}

// RecheckClosedLanes starts a recheck of all gates that close a lane. It is called when it is unknown which
// of these gates have room. Each call of Promote rechecks some of them.
func (t *Tx) RecheckClosedLanes() error {
	if !t.s.mem.lanes.hasGates {
		return nil
	}
	t.recheckClosedHere()
	t.s.mem.recheckedUpTo = math.MinInt64 + 1
	t.wakeAt(t.startTime)
	return nil
}

// recheckClosedHereIfStale rechecks the lanes that are closed for this node alone, if another node's changes may
// have affected them. It does so at most once per foreignTimerGrace, since a recheck of many queues takes long.
func (t *Tx) recheckClosedHereIfStale() {
	s := t.s
	if !s.closedHereStale {
		return
	}
	if s.closedHereCheckedAt <= t.startTime && t.startTime < s.closedHereCheckedAt.Add(foreignTimerGrace) {
		s.watchForeignTimer(t.startTime, t.startTime)
		return
	}
	checked := s.closedHereCheckedAt
	t.undo = append(t.undo, func() { s.closedHereStale, s.closedHereCheckedAt = true, checked })
	s.closedHereStale, s.closedHereCheckedAt = false, t.startTime
	t.recheckClosedHere()
}

// recheckClosedHere rechecks the gates that close lanes for this node alone.
func (t *Tx) recheckClosedHere() {
	for _, gate := range t.s.mem.lanes.closedHere {
		t.rules.Recheck(gate)
	}
}

// continueRecheck continues the recheck that RecheckClosedLanes started. It reports whether there are more gates.
func (t *Tx) continueRecheck() (more bool, err error) {
	m := &t.s.mem
	for n := 0; m.recheckedUpTo != 0; n++ {
		if n == moveStep {
			return true, nil
		}
		gate, err := t.Number(
			`SELECT shut FROM lanes INDEXED BY lanes_shut WHERE demands <> '' AND shut <> 0 AND shut > ? ORDER BY shut LIMIT 1`,
			m.recheckedUpTo)
		if err != nil {
			return false, err
		}
		if m.recheckedUpTo = gate; gate != 0 {
			t.rules.Recheck(gate)
		}
	}
	return false, nil
}

// resumeLanes computes which gates the leases hold, and rechecks all gates that close lanes. Rules may have
// changed while the engine was closed.
func (s *Engine) resumeLanes(ctx context.Context) error {
	if !s.mem.lanes.hasGates {
		return nil
	}
	return s.Do(ctx, Urgent, func(t *Tx) error {
		if err := t.setNeedsOfLeases(nil); err != nil {
			return err
		}
		return t.RecheckClosedLanes()
	})
}

// setNeedsOfLeases computes which gates the leases hold. It reuses the gates of leases that have not changed
// since the map before was made.
func (t *Tx) setNeedsOfLeases(before map[int64]*rules.Lease) error {
	leased, leases := t.leased, len(t.leases)
	defer func() { t.leased, t.leases = leased, t.leases[:leases] }() // the leases did not change
	for seq, l := range t.s.mem.leases {
		if len(l.Job.Demands) == 0 {
			continue
		}
		if was := before[seq]; was != nil && was.Job.Fence == l.Job.Fence {
			t.Hold(&rules.Lease{Job: l.Job, Running: l.Running, Needs: was.Needs})
			continue
		}
		var lane rules.Lane
		err := t.Query(func(r database.Row) (_ bool, err error) {
			lane, err = records.ReadLane(r)
			return false, err
		}, `SELECT `+records.LaneColumns+` FROM lanes WHERE id = ?`, l.Job.Lane)
		if err == nil && lane.ID == 0 {
			lane, err = t.Lane(&l.Job)
		}
		if err != nil {
			return err
		}
		t.Hold(&rules.Lease{Job: l.Job, Running: l.Running, Needs: lane.Needs})
	}
	return nil
}
