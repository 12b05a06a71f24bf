// Package gates stores the limits of locks, rates and resources, which jobs need in order to start. It also
// stores the starts that count for rate limits, and how many jobs name each limit. A limit stays stored while
// a job needs it.
//
// Start with Tables.
package gates

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// Tx is the transaction that reads and changes the tables. After a statement has failed, later statements do
// nothing and return the same error. So a function that executes several statements returns the error of the
// last one.
type Tx interface {
	database.Statements
	rules.Clock
}

// State is the part of the gates that the engine keeps in memory. If a transaction is rolled back, the engine
// restores the state.
type State struct {
	HasGates     bool    // the database contains gates (locks, rates or resources); if not, no job needs one
	ResourceList []int64 // ids of the gates that are resources; to change it, a transaction assigns a new list
	// UsedUnits counts the units that leases hold, by gate (a lock, rate or resource). For a rate it counts
	// only leases whose attempts are not known to have started. The package engine updates it.
	UsedUnits map[int64]int
}

// Read adds to the batch the statements that read the state, except UsedUnits.
func (s *State) Read(batch *database.QueryBatch) {
	batch.AddEach(func(r database.Row) { s.ResourceList = append(s.ResourceList, r.Num(0)) },
		`SELECT id FROM gates WHERE uid = ? AND kind = ?`, int64(queue.SharedOwner), int64(queue.GateResource))
	batch.AddEach(func(database.Row) { s.HasGates = true }, `SELECT 1 FROM gates LIMIT 1`)
}

// Tables implements rules.Gates, except TakenUnits, on the tables "gates" and "starts". It belongs to one
// transaction.
type Tables struct {
	tx            Tx
	state         *State
	gateRules     map[int64]rules.GateRule // rules that the transaction has read, by gate; UsedUnits is not set
	namingChanges map[gateName]int64       // unwritten changes of the number of jobs that name a lock or rate
}

// gateName identifies a lock or rate that jobs name.
type gateName struct {
	ownerUID int
	kind     queue.GateKind
	key      string
}

// New returns the tables for one transaction.
func New(tx Tx, s *State) Tables { return Tables{tx: tx, state: s} }

// Forget discards the rules that the transaction has read and the changes that it has not written. It is
// called when a part of the transaction is undone.
func (t *Tables) Forget() { t.gateRules, t.namingChanges = nil, nil }

// EnsureGate returns the id of the gate (the lock, rate or resource) that a user's job demands. It creates
// the gate, with the demand's rule, if it does not exist.
func (t *Tables) EnsureGate(uid int, d queue.Demand) (id int64, err error) {
	owner := int64(d.Owner(uid))
	id, err = t.tx.QueryNumber(`SELECT id FROM gates WHERE uid = ? AND kind = ? AND key = ?`, owner, int64(d.Kind), d.Key)
	if err != nil || id != 0 {
		return id, err
	}
	id, err = t.tx.QueryNumber(`INSERT INTO gates (uid, kind, key, n, per) VALUES (?, ?, ?, ?, ?) RETURNING id`, owner,
		int64(d.Kind), d.Key, int64(d.Amount), d.Period.Milliseconds())
	t.state.HasGates = true
	if d.Kind == queue.GateResource {
		t.state.ResourceList = append(slices.Clip(t.state.ResourceList), id)
	}
	return id, err
}

// ResourceGates implements rules.Gates. It returns the gates that are resources.
func (t *Tables) ResourceGates() []int64 { return t.state.ResourceList }

// AdjustLaneCount adds delta to the stored number of lanes that need a gate. A lane is the list of a user's
// waiting jobs in a queue with the same demands.
func (t *Tables) AdjustLaneCount(gate int64, delta int) error {
	return t.tx.Exec(`UPDATE gates SET lanes = lanes + ? WHERE id = ?`, int64(delta), gate)
}

// RemoveUnneeded removes up to limit gates (locks and other limits) that no job names and no lane needs. It
// keeps a rate while the rate's period contains a recorded start. more reports whether the limit was reached.
func (t *Tables) RemoveUnneeded(limit int) (more bool, err error) {
	if !t.state.HasGates {
		return false, nil
	}
	t.WriteNamingCounts()
	periods := map[int64]int64{} // for each rate that no lane or job needs: its period in milliseconds
	err = database.EachRow(t.tx, func(r database.Row) { periods[r.Num(0)] = r.Num(1) },
		`SELECT id, per FROM gates INDEXED BY gates_idle WHERE lanes = 0 AND jobs = 0 AND opens = 0 AND kept = 0 LIMIT ?`,
		int64(limit))
	for _, id := range slices.Sorted(maps.Keys(periods)) {
		last, _ := t.tx.QueryNumber(`SELECT max(at) FROM starts WHERE gate = ?`, id)
		if opens := last + periods[id] + 1; opens > int64(t.tx.Now()) && last > 0 {
			err = t.setOpeningTime(id, opens)
		} else {
			err = t.removeGate(id)
		}
	}
	return len(periods) == limit, err
}

// removeGate deletes a gate (a lock, rate or resource) and its recorded starts.
func (t *Tables) removeGate(id int64) error {
	delete(t.gateRules, id)
	if at := slices.Index(t.state.ResourceList, id); at >= 0 {
		t.state.ResourceList = slices.Delete(slices.Clone(t.state.ResourceList), at, at+1)
	}
	t.tx.Exec(`DELETE FROM starts WHERE gate = ?`, id)
	return t.tx.Exec(`DELETE FROM gates WHERE id = ?`, id)
}

// GateRule implements rules.Gates. It returns the rule of a gate (a lock, rate or resource) and the units in
// use.
func (t *Tables) GateRule(gate int64) (rules.GateRule, error) {
	rule, found := t.gateRules[gate]
	if !found {
		found, err := database.FirstRow(t.tx, func(r database.Row) {
			rule.Amount, rule.Period, rule.Key = int(r.Num(0)), time.Duration(r.Num(1))*time.Millisecond, r.Text(2)
		}, `SELECT n, per, key FROM gates WHERE id = ?`, gate)
		if err == nil && !found {
			err = database.DamageError(fmt.Sprintf(`the table "gates" lacks the row with the id %d`, gate))
		}
		if err != nil {
			return rule, err
		}
		if t.gateRules == nil {
			t.gateRules = map[int64]rules.GateRule{}
		}
		t.gateRules[gate] = rule
	}
	rule.UsedUnits = t.state.UsedUnits[gate]
	return rule, nil
}

// CountStarts implements rules.Gates. It counts the recorded starts of a rate at or after the time since.
func (t *Tables) CountStarts(gate int64, since queue.Millis) (n int, err error) {
	// A start in the future means that the clock was set back. Treat it as a start at the current time.
	now := int64(t.tx.Now())
	t.tx.Exec(`UPDATE starts SET at = ? WHERE gate = ? AND at > ?`, now, gate, now)
	starts, err := t.tx.QueryNumber(`SELECT count(*) FROM starts WHERE gate = ? AND at >= ?`, gate, int64(since))
	return int(starts), err
}

// NthNewestStart implements rules.Gates. Of the starts of a rate at or after the time since, it skips the
// newerStarts newest ones and returns the time of the next one. It returns 0 if no start is left.
func (t *Tables) NthNewestStart(gate int64, since queue.Millis, newerStarts int) (queue.Millis, error) {
	at, err := t.tx.QueryNumber(`SELECT at FROM starts WHERE gate = ? AND at >= ? ORDER BY at DESC LIMIT 1 OFFSET ?`, gate,
		int64(since), int64(newerStarts))
	return queue.Millis(at), err
}

// ScheduleRecheck implements rules.Gates. It makes Promote check at the given time whether waiting jobs may
// start.
func (t *Tables) ScheduleRecheck(gate int64, recheckAt queue.Millis) error {
	t.tx.WakeAt(recheckAt)
	return t.setOpeningTime(gate, int64(recheckAt))
}

// setOpeningTime stores the time when Promote must check again whether a rate allows starts; 0 means never.
func (t *Tables) setOpeningTime(gate, openingTime int64) error {
	return t.tx.Exec(`UPDATE gates SET opens = ? WHERE id = ?`, openingTime, gate)
}

// TakeDue returns up to limit gates (rate limits) whose opening time has come, and deletes these opening
// times. If the clock was set back, TakeDue first lowers opening times that are too far ahead, so that no
// rate holds jobs back for longer than its period.
func (t *Tables) TakeDue(limit int, clockWasSetBack bool) (gates []int64, err error) {
	now := int64(t.tx.Now())
	if clockWasSetBack {
		t.tx.Exec(`UPDATE gates SET opens = ? WHERE id IN (SELECT id FROM gates INDEXED BY gates_opens
			WHERE opens > 0 AND opens > ? + per + 1)`, now, now)
	}
	gates, err = database.Rows(t.tx, database.NumOf,
		`SELECT id FROM gates INDEXED BY gates_opens WHERE opens > 0 AND opens <= ? LIMIT ?`, now, int64(limit))
	for _, id := range gates {
		err = t.setOpeningTime(id, 0)
	}
	return gates, err
}

// NextDue returns the earliest time when a rate must be checked again, or 0 if no rate has such a time.
func (t *Tables) NextDue() (openingTime int64, err error) {
	if t.state.HasGates {
		openingTime, err = t.tx.QueryNumber(
			`SELECT opens FROM gates INDEXED BY gates_opens WHERE opens > 0 ORDER BY opens LIMIT 1`)
	}
	return openingTime, err
}

// RecordStart implements rules.Gates. It stores a start for a rate limit, and deletes starts that are too old
// to count.
func (t *Tables) RecordStart(gate int64, startedAt queue.Millis) error {
	t.deleteOldStarts(gate)
	return t.tx.Exec(`INSERT INTO starts (gate, at) VALUES (?, ?)`, gate, int64(startedAt))
}

// SetRuleFromJob implements rules.Gates. It sets the limit and period of a lock or rate to what a job
// demands. See docs/decisions/0018.
func (t *Tables) SetRuleFromJob(j *rules.Job, d queue.Demand) (int64, error) {
	id, _ := t.EnsureGate(j.UID, d)
	n, per := int64(d.Amount), d.Period.Milliseconds()
	fixed, err := t.tx.QueryNumber(
		`SELECT kept = 1 OR uid = ? AND jobs + ? > 0 OR n = ? AND per = ? FROM gates WHERE id = ?`,
		int64(queue.SharedOwner), t.namingChanges[gateName{d.Owner(j.UID), d.Kind, d.Key}], n, per, id)
	if err != nil || fixed == 1 {
		return 0, err
	}
	return id, t.putRule(id, n, per)
}

// putRule changes the limit and the period of a lock or rate.
func (t *Tables) putRule(gate, limit, periodMillis int64) error {
	delete(t.gateRules, gate)
	t.deleteOldStarts(gate) // otherwise a longer period would count starts that no longer counted
	return t.tx.Exec(`UPDATE gates SET n = ?, per = ? WHERE id = ?`, limit, periodMillis, gate)
}

// SetFixedRule implements rules.Gates. It stores the rule of a shared lock or rate. Jobs cannot change this
// rule. If d.Amount is 0, it keeps the rule as it is, but jobs can then change it.
func (t *Tables) SetFixedRule(d queue.Demand) (id int64, err error) {
	if d.Amount == 0 {
		err = t.tx.Exec(`UPDATE gates SET kept = 0 WHERE uid = ? AND kind = ? AND key = ?`, int64(queue.SharedOwner),
			int64(d.Kind), d.Key)
		t.tx.WakeAt(t.tx.Now()) // run upkeep, which removes the gate if no job needs it any more
		return 0, err
	}
	others, err := t.tx.QueryNumber(
		`SELECT count(*) FROM gates INDEXED BY gates_kept WHERE kept = 1 AND (kind, key) <> (?, ?)`,
		int64(d.Kind), d.Key)
	if err == nil && others >= store.MaxGatesPage {
		err = queue.Errorf(queue.CodeQueueFull,
			"%d shared keys already have limits, which is the maximum; remove a limit that "+
				"queuectl gate list shows: queuectl gate set @KEY --unset lock (or rate)", store.MaxGatesPage)
	}
	if err != nil {
		return 0, err
	}
	id, _ = t.EnsureGate(queue.SharedOwner, d)
	t.tx.Exec(`UPDATE gates SET kept = 1 WHERE id = ?`, id)
	return id, t.putRule(id, int64(d.Amount), d.Period.Milliseconds())
}

// deleteOldStarts deletes the starts of a rate that are older than its period.
func (t *Tables) deleteOldStarts(gate int64) {
	t.tx.Exec(`DELETE FROM starts WHERE gate = ? AND at < ? - (SELECT per FROM gates WHERE id = ?)`, gate,
		int64(t.tx.Now()), gate)
}

// AdjustNamingCounts implements rules.Gates. For each lock and rate that the job j names, it adds delta to
// the number of jobs that name it.
func (t *Tables) AdjustNamingCounts(j *rules.Job, delta int) (err error) {
	for _, d := range j.Demands {
		if !d.HasLimit() {
			continue
		}
		if delta > 0 {
			_, err = t.EnsureGate(j.UID, d)
		}
		if t.namingChanges == nil {
			t.namingChanges = map[gateName]int64{}
		}
		t.namingChanges[gateName{d.Owner(j.UID), d.Kind, d.Key}] += int64(delta)
	}
	return err
}

// WriteNamingCounts stores the numbers of jobs that AdjustNamingCounts has changed. It writes the row of each
// lock or rate once, however many jobs have changed.
func (t *Tables) WriteNamingCounts() (err error) {
	for g, by := range t.namingChanges {
		if by != 0 {
			err = t.tx.Exec(`UPDATE gates SET jobs = jobs + ? WHERE uid = ? AND kind = ? AND key = ?`, by, int64(g.ownerUID),
				int64(g.kind), g.key)
		}
	}
	clear(t.namingChanges)
	return err
}
