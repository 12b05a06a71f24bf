package integrity

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/sqlitedb"
)

// The functions of this file compare the counts stored in the database with the rows that they count, and
// correct the counts of a backup.

// FindWrongStoredCounts compares all stored counts with the rows that they count.
func FindWrongStoredCounts(c database.Conn) (faults []string, err error) {
	for _, state := range queue.States() {
		kept, err := c.QueryNumber(`SELECT ` + state.String() + ` FROM meta`)
		if err != nil {
			return nil, err
		}
		n, err := c.QueryNumber(`SELECT count(*) FROM jobs WHERE state = ?`, int64(state))
		if err != nil {
			return nil, err
		}
		if n != kept {
			faults = append(faults, fmt.Sprintf("the counter of %[2]s jobs is %[1]d, but there are %[3]d", kept, state, n))
		}
	}
	kept, err := c.QueryNumber(`SELECT output_bytes FROM meta`)
	if err != nil {
		return nil, err
	}
	sum, err := c.QueryNumber(`SELECT sum(output_bytes) FROM attempts WHERE output_bytes > 0`)
	if err != nil {
		return nil, err
	}
	if sum != kept {
		faults = append(faults, fmt.Sprintf("the counter of output bytes is %d, but the jobs have %d bytes of output",
			kept, sum))
	}
	gates, err := FindWrongGateCounts(c)
	return slices.Concat(faults, findWrongUserCounts(c), FindWrongQueueCounts(c), gates), err
}

// FindWrongGateCounts returns the gates whose stored numbers of lanes and jobs differ from the rows of the lanes and
// jobs. A gate is a lock, a rate, a resource or another limit for which jobs wait.
func FindWrongGateCounts(c database.Conn) (faults []string, err error) {
	g := gateRecount{conn: c, gates: map[gateName]*gateUse{}}
	if err := g.readAndCountGates(); err != nil {
		return nil, err
	}
	needed := map[int64]int64{} // number of lanes that need each gate, by id
	err = c.Query(func(r database.Row) (bool, error) {
		l, err := records.ReadLane(r)
		for _, n := range l.GateNeeds {
			needed[n.GateID]++
		}
		return true, err
	}, `SELECT `+records.LaneColumns+` FROM lanes WHERE demands <> ''`)
	for gate, u := range g.gates {
		switch {
		case u.id == 0 && u.countedJobs > 0:
			faults = append(faults, fmt.Sprintf("%d jobs need the gate %q (a limit such as a lock), which is missing in the "+
				"database, so these jobs may never start", u.countedJobs, gate.key))
		case u.id != 0 && (u.storedLaneCount != needed[u.id] || u.storedJobCount != u.countedJobs):
			faults = append(faults, fmt.Sprintf("gate %q (a limit such as a lock): the stored counts are %d jobs and "+
				"%d groups of waiting jobs, but %d jobs and %d groups use the gate", gate.key, u.storedJobCount, u.storedLaneCount,
				u.countedJobs, needed[u.id]))
		}
	}
	slices.Sort(faults)
	return faults, err
}

// gateName identifies a gate: a lock, a rate, a resource or another limit for which jobs wait.
type gateName struct {
	ownerUID, kind int64
	key            string
}

// recountGateUse creates missing gates (locks and other limits) that jobs or lanes need, and recounts how many
// lanes and jobs use each gate. It marks all lanes as open, because their gates have changed: the next claims
// check which of them can start a job.
func recountGateUse(c *sqlitedb.Conn) error {
	return database.InTransaction(c, func() error {
		g := gateRecount{conn: c, gates: map[gateName]*gateUse{}}
		for _, step := range []func() error{g.readAndCountGates, g.rewriteLaneRows, g.writeGateCounts} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

// gateRecount holds the gates that exist, and those that jobs or lanes need. It counts how many jobs and lanes use each
// gate.
type gateRecount struct {
	conn  database.Conn
	gates map[gateName]*gateUse
}

// gateUse holds how many lanes and jobs use a gate. A gate is a lock or other limit. A lane is the list of a
// user's waiting jobs in a queue that need the same gates.
type gateUse struct {
	id                              int64        // 0 if the gate does not exist
	storedLaneCount, storedJobCount int64        // the numbers in the gate's row
	countedLanes                    int64        // number of lanes that need the gate, counted by rewriteLaneRows
	countedJobs                     int64        // number of jobs that name the gate, if it is a lock or rate
	demand                          queue.Demand // the demand of a job that names the gate
}

// gateUseOf returns the entry of a gate in g.gates, and adds it if necessary.
func (g *gateRecount) gateUseOf(gate gateName) *gateUse {
	if g.gates[gate] == nil {
		g.gates[gate] = &gateUse{}
	}
	return g.gates[gate]
}

// readAndCountGates reads the stored gates (locks and other limits), and counts for each gate the unfinished jobs
// that need it.
func (g *gateRecount) readAndCountGates() error {
	err := database.ForEachRow(g.conn, func(r database.Row) {
		u := g.gateUseOf(gateName{r.Int64(1), r.Int64(2), r.Text(3)})
		u.id, u.storedLaneCount, u.storedJobCount = r.Int64(0), r.Int64(4), r.Int64(5)
	}, `SELECT id, uid, kind, key, lanes, jobs FROM gates`)
	if err != nil {
		return err
	}
	return database.ForEachRow(g.conn, func(r database.Row) {
		for _, d := range records.DecodeDemands(r.BytesView(1)) {
			u := g.gateUseOf(gateNameOf(d, int(r.Int64(0))))
			u.demand = d
			u.countedJobs += records.BoolToInt(d.DeclaresLimit())
		}
	}, `SELECT uid, demands FROM jobs WHERE state < 6 AND demands <> ''`)
}

// ensureGate creates a gate if it does not exist. The gate's rule comes from a job that names the gate. If
// there is no such job yet, the next job that names the gate sets the rule.
func (g *gateRecount) ensureGate(gate gateName) (use *gateUse, err error) {
	if use = g.gateUseOf(gate); use.id == 0 {
		use.id, err = g.conn.QueryNumber(`INSERT INTO gates (uid, kind, key, n, per) VALUES (?, ?, ?, ?, ?) RETURNING id`,
			gate.ownerUID, gate.kind, gate.key, int64(max(1, use.demand.Amount)), use.demand.RatePeriod.Milliseconds())
	}
	return use, err
}

// rewriteLaneRows stores in each lane's row which gates the lane needs. It marks the lanes as open and resets their
// heads, the positions of their first jobs, which the next claims find again.
func (g *gateRecount) rewriteLaneRows() error {
	needs := map[int64]string{}
	err := g.conn.Query(func(r database.Row) (bool, error) {
		var list strings.Builder
		for line := range strings.Lines(r.Text(2)) {
			var d queue.Demand
			if _, err := fmt.Sscanf(line, "%d %d %s", &d.Kind, &d.Amount, &d.GateKey); err != nil {
				return true, nil // skip a damaged lane, whose needs cannot be read
			}
			u, err := g.ensureGate(gateNameOf(d, int(r.Int64(1))))
			if err != nil {
				return false, err
			}
			u.countedLanes++
			fmt.Fprintf(&list, "%d/%d/%d ", u.id, d.Kind, d.UnitsWhileRunning())
		}
		needs[r.Int64(0)] = list.String()
		return true, nil
	}, `SELECT id, uid, demands FROM lanes WHERE demands <> ''`)
	if err != nil {
		return err
	}
	for id, list := range needs {
		if err := g.conn.Exec(
			`UPDATE lanes SET needs = ?, shut = 0, head_rank = -9223372036854775808, head_seq = 0 WHERE id = ?`, list,
			id); err != nil {
			return err
		}
	}
	return nil
}

// writeGateCounts stores the counts of each gate (a lock or other limit). It creates gates that do not exist.
func (g *gateRecount) writeGateCounts() error {
	for gate := range g.gates {
		u, err := g.ensureGate(gate)
		if err == nil {
			err = g.conn.Exec(`UPDATE gates SET lanes = ?, jobs = ? WHERE id = ?`, u.countedLanes, u.countedJobs, u.id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// gateNameOf returns the identity of the lock, rate or resource that a user's job demands.
func gateNameOf(d queue.Demand, jobUID int) gateName {
	return gateName{int64(d.GateOwner(jobUID)), int64(d.Kind), d.GateKey}
}

// userUsageRowsSQL selects one row for each job and schedule: its user, 1 for a waiting job or else 0, the bytes that
// it uses, and how many of these bytes are outputs.
const userUsageRowsSQL = `SELECT uid, CASE WHEN state < 5 THEN 1 ELSE 0 END AS waiting, stored + outputs AS bytes,
		outputs FROM jobs
	UNION ALL SELECT uid, 0, stored, 0 FROM schedules`

// findWrongUserCounts returns the users whose stored counts differ from the rows of their jobs and schedules.
func findWrongUserCounts(c database.Conn) (faults []string) {
	uid := func(r database.Row) int { return int(r.Int64(0)) }
	for _, source := range []storedCountCheck[database.UserCounts]{
		{func(c database.UserCounts) int64 { return c.WaitingJobs }, "uid", "waiting jobs",
			`SELECT uid, waiting FROM users`, `SELECT uid, count(*) FROM jobs WHERE state < 5 GROUP BY uid`},
		{func(c database.UserCounts) int64 { return c.StoredBytes }, "uid", "bytes used by its jobs and schedules",
			`SELECT uid, bytes FROM users`, `SELECT uid, sum(bytes) FROM (` + userUsageRowsSQL + `) AS used GROUP BY uid`},
		{func(c database.UserCounts) int64 { return c.OutputBytes }, "uid", "output bytes",
			`SELECT uid, outputs FROM users`, `SELECT uid, sum(outputs) FROM jobs WHERE outputs <> 0 GROUP BY uid`},
	} {
		faults = append(faults, compareStoredCounts(c, uid, `SELECT users FROM meta`, database.ParseUserCounts, source)...)
	}
	return faults
}

// FindWrongQueueCounts returns the queues whose stored counts differ from the rows of their jobs.
func FindWrongQueueCounts(c database.Conn) (faults []string) {
	name := func(r database.Row) string { return r.Text(0) }
	for _, source := range []storedCountCheck[records.QueueCounts]{
		{func(c records.QueueCounts) int64 { return c.WaitingJobs }, "queue", "waiting jobs",
			`SELECT name, waiting FROM queues`, `SELECT queue, count(*) FROM jobs WHERE state < 5 GROUP BY queue`},
		{func(c records.QueueCounts) int64 { return c.RetainedJobs }, "queue", "jobs kept after their end",
			`SELECT name, kept FROM queues`, `SELECT queue, count(*) FROM jobs WHERE kept = 1 GROUP BY queue`},
		{func(c records.QueueCounts) int64 { return c.RetainedOutputBytes },
			"queue", "output bytes of jobs kept after their end",
			`SELECT name, kept_bytes FROM queues`, `SELECT queue, sum(outputs) FROM jobs WHERE kept = 1 GROUP BY queue`},
	} {
		faults = append(faults, compareStoredCounts(c, name, `SELECT queues FROM meta`, records.ParseQueueCounts, source)...)
	}
	return faults
}

// storedCountCheck describes one stored count of each user or queue, such as the number of waiting jobs.
type storedCountCheck[C any] struct {
	countOf         func(C) int64 // returns the count
	ownerNoun       string        // word for the user or queue in messages
	countName       string        // words for the count in messages
	storedCountsSQL string
	rowCountsSQL    string
}

// compareStoredCounts compares stored counts with the rows that they count. check holds the statements that read the
// counts and the rows. For some users or queues, a list contains newer counts than the stored ones: newerCountsSQL
// reads this list, and parseList parses it. readKey reads the user or queue from a row.
func compareStoredCounts[K cmp.Ordered, C any](c database.Conn, readKey func(database.Row) K, newerCountsSQL string,
	parseList func(string) (map[K]C, error), check storedCountCheck[C]) (faults []string) {
	list, err := database.QueryText(c, newerCountsSQL)
	read := func(q string) map[K]int64 {
		counts := map[K]int64{}
		if err == nil {
			err = database.ForEachRow(c, func(r database.Row) { counts[readKey(r)] = r.Int64(1) }, q)
		}
		return counts
	}
	kept, there := read(check.storedCountsSQL), read(check.rowCountsSQL)
	if err != nil {
		return []string{err.Error()}
	}
	changed, err := parseList(list)
	if err != nil {
		return []string{err.Error()}
	}
	for k, counts := range changed {
		kept[k] = check.countOf(counts)
	}
	for k := range there {
		kept[k] += 0 // add the key if it is missing, so that the next loop checks it
	}
	for _, k := range slices.Sorted(maps.Keys(kept)) {
		if kept[k] != there[k] {
			faults = append(faults, fmt.Sprintf("%s %#v: the counter of %s is %d, but should be %d", check.ownerNoun, k,
				check.countName, kept[k], there[k]))
		}
	}
	return faults
}

// RepairBackup repairs a backup: it corrects the stored counts, creates missing indexes and removes damaged frames.
// A frame is the part of a batch that one request has added.
func RepairBackup(c *sqlitedb.Conn) error {
	wrong, err := FindSchemaFaults(c)
	if err != nil {
		return err
	}
	for _, f := range wrong {
		if strings.HasPrefix(f.createSQL, "CREATE INDEX") || strings.HasPrefix(f.createSQL, "CREATE UNIQUE INDEX") {
			if err := c.Exec(f.createSQL); err != nil {
				return err
			}
		}
	}
	for _, state := range queue.States() {
		if err := c.Exec(`UPDATE meta SET `+state.String()+` = (SELECT count(*) FROM jobs WHERE state = ?)`,
			int64(state)); err != nil {
			return err
		}
	}
	if err := c.Exec(`UPDATE meta SET output_bytes =
		(SELECT coalesce(sum(output_bytes), 0) FROM attempts WHERE output_bytes > 0)`); err != nil {
		return err
	}
	if err := recountGateUse(c); err != nil {
		return err
	}
	return sqlitedb.ExecInOneTx(c, []string{
		`DELETE FROM frames WHERE batch < 0`,
		`DELETE FROM users`,
		`INSERT INTO users (uid, waiting, bytes, outputs) SELECT uid, sum(waiting), sum(bytes), sum(outputs) FROM (` +
			userUsageRowsSQL + `) GROUP BY uid`,
		`UPDATE queues SET waiting = 0, kept = 0, kept_bytes = 0`,
		`INSERT INTO queues (name, waiting, uid) SELECT queue, count(*), min(uid) FROM jobs WHERE state < 5 GROUP BY queue
			ON CONFLICT (name) DO UPDATE SET waiting = excluded.waiting, uid = excluded.uid`,
		`INSERT INTO queues (name, waiting, uid, kept, kept_bytes)
			SELECT queue, 0, min(uid), count(*), sum(outputs) FROM jobs WHERE kept = 1 GROUP BY queue
			ON CONFLICT (name) DO UPDATE SET kept = excluded.kept, kept_bytes = excluded.kept_bytes`,
		`UPDATE meta SET users = '', queues = ''`,
	})
}
