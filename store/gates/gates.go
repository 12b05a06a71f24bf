// Package gates stores the limits of locks, rates and resources, which jobs need in order to start. It also
// stores the starts that count for rate limits, and how many jobs name each limit. A limit stays stored while
// a job needs it.
//
// Start with GateTables.
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

// CachedState is the part of the state of gates (locks, rates and resources) that the engine keeps in memory. If a
// transaction is rolled back, the engine restores the state.
type CachedState struct {
	HasGates        bool    // the database contains gates (locks, rates or resources); if not, no job needs one
	ResourceGateIDs []int64 // ids of the gates that are resources; to change it, a transaction assigns a new list
	// UsedUnitsByGate counts the units that leases hold, by gate (a lock, rate or resource). For a rate it counts
	// only leases whose attempts are not known to have started. The package engine updates it.
	UsedUnitsByGate map[int64]int
}

// AddReadQueries adds to the batch the statements that read the state, except UsedUnitsByGate.
func (s *CachedState) AddReadQueries(batch *database.QueryBatch) {
	batch.AddForEachRow(func(r database.Row) { s.ResourceGateIDs = append(s.ResourceGateIDs, r.Int64(0)) },
		`SELECT id FROM gates WHERE uid = ? AND kind = ?`, queue.SharedGateOwner, queue.GateResource)
	batch.AddForEachRow(func(database.Row) { s.HasGates = true }, `SELECT 1 FROM gates LIMIT 1`)
}

// GateTables implements rules.Gates, except LeasedUnitNumbers, on the tables "gates" and "starts". It belongs to one
// transaction.
type GateTables struct {
	tx              Tx
	state           *CachedState
	gateRules       map[int64]rules.GateRule // rules that the transaction has read, by gate; UsedUnits is not set
	jobCountChanges map[gateName]int64       // unwritten changes of the number of jobs that name a lock or rate
}

// gateName identifies a lock or rate that jobs name.
type gateName struct {
	ownerUID int
	kind     queue.GateKind
	key      string
}

// New returns the tables for one transaction.
func New(tx Tx, s *CachedState) GateTables { return GateTables{tx: tx, state: s} }

// ResetGateCache discards the rules that the transaction has read and the changes that it has not written. It is
// called when a part of the transaction is undone.
func (t *GateTables) ResetGateCache() { t.gateRules, t.jobCountChanges = nil, nil }

// EnsureGate returns the id of the gate (the lock, rate or resource) that a user's job demands. It creates
// the gate, with the demand's rule, if it does not exist.
func (t *GateTables) EnsureGate(uid int, d queue.Demand) (gateID int64, err error) {
	owner := d.GateOwner(uid)
	gateID, err = t.tx.QueryNumber(`SELECT id FROM gates WHERE uid = ? AND kind = ? AND key = ?`, owner, d.Kind,
		d.GateKey)
	if err != nil || gateID != 0 {
		return gateID, err
	}
	gateID, err = t.tx.QueryNumber(`INSERT INTO gates (uid, kind, key, n, per) VALUES (?, ?, ?, ?, ?) RETURNING id`, owner,
		d.Kind, d.GateKey, d.Amount, d.RatePeriod.Milliseconds())
	t.state.HasGates = true
	if d.Kind == queue.GateResource {
		t.state.ResourceGateIDs = append(slices.Clip(t.state.ResourceGateIDs), gateID)
	}
	return gateID, err
}

// ResourceGateIDs implements rules.Gates. It returns the gates that are resources.
func (t *GateTables) ResourceGateIDs() []int64 { return t.state.ResourceGateIDs }

// AdjustLaneCount adds delta to the stored number of lanes that need a gate. A lane is the list of a user's waiting
// jobs in a queue that need the same gates.
func (t *GateTables) AdjustLaneCount(gateID int64, delta int) error {
	return t.tx.Exec(`UPDATE gates SET lanes = lanes + ? WHERE id = ?`, delta, gateID)
}

// RemoveUnusedGates removes up to limit gates (locks and other limits) that no job names and no lane (list of jobs)
// needs. It keeps a rate while the rate's period contains a recorded start. more reports whether the limit was reached.
func (t *GateTables) RemoveUnusedGates(limit int) (more bool, err error) {
	if !t.state.HasGates {
		return false, nil
	}
	t.WriteGateJobCounts()
	periods := map[int64]int64{} // for each rate that no lane or job needs: its period in milliseconds
	err = database.ForEachRow(t.tx, func(r database.Row) { periods[r.Int64(0)] = r.Int64(1) },
		`SELECT id, per FROM gates INDEXED BY gates_idle WHERE lanes = 0 AND jobs = 0 AND opens = 0 AND kept = 0 LIMIT ?`,
		limit)
	for _, id := range slices.Sorted(maps.Keys(periods)) {
		last, _ := t.tx.QueryNumber(`SELECT max(at) FROM starts WHERE gate = ?`, id)
		if opens := last + periods[id] + 1; opens > int64(t.tx.Now()) && last > 0 {
			err = t.setRateRecheckTime(id, opens)
		} else {
			err = t.removeGate(id)
		}
	}
	return len(periods) == limit, err
}

// removeGate deletes a gate (a lock, rate or resource) and its recorded starts.
func (t *GateTables) removeGate(gateID int64) error {
	delete(t.gateRules, gateID)
	if at := slices.Index(t.state.ResourceGateIDs, gateID); at >= 0 {
		t.state.ResourceGateIDs = slices.Delete(slices.Clone(t.state.ResourceGateIDs), at, at+1)
	}
	t.tx.Exec(`DELETE FROM starts WHERE gate = ?`, gateID)
	return t.tx.Exec(`DELETE FROM gates WHERE id = ?`, gateID)
}

// GateRule implements rules.Gates. It returns the rule of a gate (a lock, rate or resource) and the units in
// use.
func (t *GateTables) GateRule(gateID int64) (rules.GateRule, error) {
	rule, found := t.gateRules[gateID]
	if !found {
		found, err := database.ReadFirstRow(t.tx, func(r database.Row) {
			rule.Amount, rule.RatePeriod, rule.GateKey = int(r.Int64(0)), time.Duration(r.Int64(1))*time.Millisecond, r.Text(2)
		}, `SELECT n, per, key FROM gates WHERE id = ?`, gateID)
		if err == nil && !found {
			err = database.DamageError(fmt.Sprintf(`the table "gates" lacks the row with the id %d`, gateID))
		}
		if err != nil {
			return rule, err
		}
		if t.gateRules == nil {
			t.gateRules = map[int64]rules.GateRule{}
		}
		t.gateRules[gateID] = rule
	}
	rule.UsedUnits = t.state.UsedUnitsByGate[gateID]
	return rule, nil
}

// CountRateStarts implements rules.Gates. It counts the recorded starts of a rate at or after the time since.
func (t *GateTables) CountRateStarts(gateID int64, since queue.UnixMillis) (startCount int, err error) {
	// A start in the future means that the clock was set back. Treat it as a start at the current time.
	now := t.tx.Now()
	t.tx.Exec(`UPDATE starts SET at = ? WHERE gate = ? AND at > ?`, now, gateID, now)
	starts, err := t.tx.QueryNumber(`SELECT count(*) FROM starts WHERE gate = ? AND at >= ?`, gateID, since)
	return int(starts), err
}

// NthNewestRateStart implements rules.Gates. Of the starts of a rate at or after the time since, it skips the
// newerStarts newest ones and returns the time of the next one. It returns 0 if no start is left.
func (t *GateTables) NthNewestRateStart(gateID int64, since queue.UnixMillis, newerStarts int) (queue.UnixMillis,
	error) {
	at, err := t.tx.QueryNumber(`SELECT at FROM starts WHERE gate = ? AND at >= ? ORDER BY at DESC LIMIT 1 OFFSET ?`,
		gateID,
		since, newerStarts)
	return queue.UnixMillis(at), err
}

// ScheduleGateRecheck implements rules.Gates. It makes ApplyDueChanges check at the given time whether waiting jobs may
// start.
func (t *GateTables) ScheduleGateRecheck(gateID int64, recheckAt queue.UnixMillis) error {
	t.tx.WakeServiceAt(recheckAt)
	return t.setRateRecheckTime(gateID, int64(recheckAt))
}

// setRateRecheckTime stores the time when ApplyDueChanges must check again whether a rate allows starts; 0 means never.
func (t *GateTables) setRateRecheckTime(gateID, recheckAt int64) error {
	return t.tx.Exec(`UPDATE gates SET opens = ? WHERE id = ?`, recheckAt, gateID)
}

// TakeDueGateRechecks returns up to limit gates (rate limits) whose opening time has come, and deletes these opening
// times. If the clock was set back, TakeDueGateRechecks first lowers opening times that are too far ahead, so that no
// rate holds jobs back for longer than its period.
func (t *GateTables) TakeDueGateRechecks(limit int, clockWasSetBack bool) (gateIDs []int64, err error) {
	now := t.tx.Now()
	if clockWasSetBack {
		t.tx.Exec(`UPDATE gates SET opens = ? WHERE id IN (SELECT id FROM gates INDEXED BY gates_opens
			WHERE opens > 0 AND opens > ? + per + 1)`, now, now)
	}
	gateIDs, err = database.ReadRows(t.tx, database.FirstColumnInt64,
		`SELECT id FROM gates INDEXED BY gates_opens WHERE opens > 0 AND opens <= ? LIMIT ?`, now, limit)
	for _, id := range gateIDs {
		err = t.setRateRecheckTime(id, 0)
	}
	return gateIDs, err
}

// NextGateRecheckTime returns the earliest time when a rate must be checked again, or 0 if no rate has such a time.
func (t *GateTables) NextGateRecheckTime() (recheckAt int64, err error) {
	if t.state.HasGates {
		recheckAt, err = t.tx.QueryNumber(
			`SELECT opens FROM gates INDEXED BY gates_opens WHERE opens > 0 ORDER BY opens LIMIT 1`)
	}
	return recheckAt, err
}

// RecordRateStart implements rules.Gates. It stores a start for a rate limit, and deletes starts that are too old
// to count.
func (t *GateTables) RecordRateStart(gateID int64, startedAt queue.UnixMillis) error {
	t.deleteExpiredRateStarts(gateID)
	return t.tx.Exec(`INSERT INTO starts (gate, at) VALUES (?, ?)`, gateID, startedAt)
}

// SetGateRuleFromJob implements rules.Gates. It sets the limit and period of a lock or rate to what a job
// demands. See docs/decisions/0018.
func (t *GateTables) SetGateRuleFromJob(j *rules.Job, d queue.Demand) (int64, error) {
	id, _ := t.EnsureGate(j.UID, d)
	fixed, err := t.tx.QueryNumber(
		`SELECT kept = 1 OR uid = ? AND jobs + ? > 0 OR n = ? AND per = ? FROM gates WHERE id = ?`,
		queue.SharedGateOwner, t.jobCountChanges[gateName{d.GateOwner(j.UID), d.Kind, d.GateKey}], d.Amount,
		d.RatePeriod.Milliseconds(), id)
	if err != nil || fixed == 1 {
		return 0, err
	}
	return id, t.writeGateRule(id, d)
}

// writeGateRule changes the limit and the period of a lock or rate to those of a demand.
func (t *GateTables) writeGateRule(gateID int64, d queue.Demand) error {
	delete(t.gateRules, gateID)
	t.deleteExpiredRateStarts(gateID) // otherwise a longer new period would count starts that had already left the old one
	return t.tx.Exec(`UPDATE gates SET n = ?, per = ? WHERE id = ?`, d.Amount, d.RatePeriod.Milliseconds(), gateID)
}

// SetFixedGateRule implements rules.Gates. It stores the rule of a shared lock or rate. Jobs cannot change this
// rule. If d.Amount is 0, it keeps the rule as it is, but jobs can then change it.
func (t *GateTables) SetFixedGateRule(d queue.Demand) (gateID int64, err error) {
	if d.Amount == 0 {
		err = t.tx.Exec(`UPDATE gates SET kept = 0 WHERE uid = ? AND kind = ? AND key = ?`, queue.SharedGateOwner,
			d.Kind, d.GateKey)
		t.tx.WakeServiceAt(t.tx.Now()) // run upkeep, which removes the gate if no job needs it any more
		return 0, err
	}
	others, err := t.tx.QueryNumber(
		`SELECT count(*) FROM gates INDEXED BY gates_kept WHERE kept = 1 AND (kind, key) <> (?, ?)`,
		d.Kind, d.GateKey)
	if err == nil && others >= store.MaxGatesPerPage {
		err = queue.Errorf(queue.CodeQueueFull,
			"%d shared keys already have limits, which is the maximum; remove a limit that "+
				"queuectl gate list shows: queuectl gate set @KEY --unset lock (or rate)", store.MaxGatesPerPage)
	}
	if err != nil {
		return 0, err
	}
	gateID, _ = t.EnsureGate(queue.SharedGateOwner, d)
	t.tx.Exec(`UPDATE gates SET kept = 1 WHERE id = ?`, gateID)
	return gateID, t.writeGateRule(gateID, d)
}

// deleteExpiredRateStarts deletes the starts of a rate that are older than its period.
func (t *GateTables) deleteExpiredRateStarts(gateID int64) {
	t.tx.Exec(`DELETE FROM starts WHERE gate = ? AND at < ? - (SELECT per FROM gates WHERE id = ?)`, gateID,
		t.tx.Now(), gateID)
}

// AdjustGateJobCounts implements rules.Gates. For each lock and rate that the job j names, it adds delta to
// the number of jobs that name it.
func (t *GateTables) AdjustGateJobCounts(j *rules.Job, delta int) (err error) {
	for _, d := range j.Demands {
		if !d.DeclaresLimit() {
			continue
		}
		if delta > 0 {
			_, err = t.EnsureGate(j.UID, d)
		}
		if t.jobCountChanges == nil {
			t.jobCountChanges = map[gateName]int64{}
		}
		t.jobCountChanges[gateName{d.GateOwner(j.UID), d.Kind, d.GateKey}] += int64(delta)
	}
	return err
}

// WriteGateJobCounts stores the numbers of jobs that AdjustGateJobCounts has changed. It writes the row of each
// lock or rate once, however many jobs have changed.
func (t *GateTables) WriteGateJobCounts() (err error) {
	for g, by := range t.jobCountChanges {
		if by != 0 {
			err = t.tx.Exec(`UPDATE gates SET jobs = jobs + ? WHERE uid = ? AND kind = ? AND key = ?`, by, g.ownerUID,
				g.kind, g.key)
		}
	}
	clear(t.jobCountChanges)
	return err
}
