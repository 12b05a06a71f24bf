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

// This file compares the counts that are stored in the database with the rows that they count, and counts the
// rows again.

// CounterFaults compares the stored counts with the rows.
func CounterFaults(c database.Conn) (faults []string, err error) {
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
		faults = append(faults, fmt.Sprintf("the counter of output bytes is %d, but the jobs have %d bytes of output", kept,
			sum))
	}
	gates, err := GateFaults(c)
	return slices.Concat(faults, userFaults(c), QueueFaults(c), gates), err
}

// GateFaults compares the counts of lanes and jobs that gates store with the rows.
func GateFaults(c database.Conn) (faults []string, err error) {
	g := newGateCounts(c)
	if err := g.read(); err != nil {
		return nil, err
	}
	needed, named := map[int64]int64{}, g.jobs
	err = c.Query(func(r database.Row) (bool, error) {
		l, err := records.ReadLane(r)
		for _, n := range l.Needs {
			needed[n.Gate]++
		}
		return true, err
	}, `SELECT `+records.LaneColumns+` FROM lanes WHERE demands <> ''`)
	if err != nil {
		return nil, err
	}
	err = database.Each(c, func(r database.Row) {
		id, gate := r.Num(0), gateName{r.Num(1), r.Num(2), r.Text(3)}
		if lanes, jobs := r.Num(4), r.Num(5); lanes != needed[id] || jobs != named[gate] {
			faults = append(faults, fmt.Sprintf("gate %[3]q (a limit such as a lock): the stored counts are %[2]d jobs and "+
				"%[1]d groups of waiting jobs, but %[5]d jobs and %[4]d groups use the gate", lanes, jobs, gate.key, needed[id],
				named[gate]))
		}
		delete(named, gate)
	}, `SELECT id, uid, kind, key, lanes, jobs FROM gates`)
	for gate, n := range named {
		faults = append(faults, fmt.Sprintf("%d jobs need the gate %q (a limit such as a lock), which is missing in the "+
			"database, so these jobs may never start", n, gate.key))
	}
	return faults, err
}

// gateName identifies a gate.
type gateName struct {
	uid, kind int64
	key       string
}

// recountGates creates missing gates that jobs or lanes need, and counts the users of all gates again. It
// opens all lanes, so that the next claims check them again.
func recountGates(c *sqlitedb.Conn) error {
	return database.InTx(c, func() error {
		g := newGateCounts(c)
		for _, step := range []func() error{g.read, g.fixLanes, g.write} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

// gateCounts holds the existing gates and what uses them.
type gateCounts struct {
	conn    database.Conn
	ids     map[gateName]int64
	lanes   map[gateName]int64 // number of lanes that need each gate
	jobs    map[gateName]int64 // number of jobs that name each lock or rate
	demands map[gateName]queue.Demand
}

func newGateCounts(c database.Conn) *gateCounts {
	return &gateCounts{conn: c, ids: map[gateName]int64{}, lanes: map[gateName]int64{}, jobs: map[gateName]int64{},
		demands: map[gateName]queue.Demand{}}
}

// read reads the gates, and the demands of all unfinished jobs.
func (g *gateCounts) read() error {
	err := database.Each(g.conn, func(r database.Row) { g.ids[gateName{r.Num(1), r.Num(2), r.Text(3)}] = r.Num(0) },
		`SELECT id, uid, kind, key FROM gates`)
	if err != nil {
		return err
	}
	return database.Each(g.conn, func(r database.Row) {
		for _, d := range records.DecodeDemands(r.View(1)) {
			gate := gateNameOf(d, int(r.Num(0)))
			g.demands[gate] = d
			if d.HasLimit() {
				g.jobs[gate]++
			}
		}
	}, `SELECT uid, demands FROM jobs WHERE state < 6 AND demands <> ''`)
}

// id returns the number of a gate, and creates the gate if it does not exist.
func (g *gateCounts) id(gate gateName) (int64, error) {
	if id := g.ids[gate]; id != 0 {
		return id, nil
	}
	// If no job names the gate, its rule is unknown. The next job that names it sets the rule.
	d := g.demands[gate]
	id, err := g.conn.QueryNumber(`INSERT INTO gates (uid, kind, key, n, per) VALUES (?, ?, ?, ?, ?) RETURNING id`,
		gate.uid,
		gate.kind, gate.key, int64(max(1, d.Amount)), d.Period.Milliseconds())
	g.ids[gate] = id
	return id, err
}

// fixLanes writes the numbers of the gates that each lane needs. It opens the lanes and resets their heads.
func (g *gateCounts) fixLanes() error {
	needs := map[int64]string{}
	err := g.conn.Query(func(r database.Row) (bool, error) {
		var list strings.Builder
		for line := range strings.Lines(r.Text(2)) {
			var d queue.Demand
			if _, err := fmt.Sscanf(line, "%d %d %s", &d.Kind, &d.Amount, &d.Key); err != nil {
				return true, nil // a damaged lane has no readable needs
			}
			gate := gateNameOf(d, int(r.Num(1)))
			id, err := g.id(gate)
			if err != nil {
				return false, err
			}
			g.lanes[gate]++
			fmt.Fprintf(&list, "%d/%d/%d ", id, d.Kind, d.Units())
		}
		needs[r.Num(0)] = list.String()
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

func (g *gateCounts) write() error {
	if err := g.conn.Exec(`UPDATE gates SET lanes = 0, jobs = 0`); err != nil {
		return err
	}
	for gate := range g.demands {
		if _, err := g.id(gate); err != nil {
			return err
		}
	}
	for gate, id := range g.ids {
		if g.lanes[gate]+g.jobs[gate] == 0 {
			continue
		}
		if err := g.conn.Exec(`UPDATE gates SET lanes = ?, jobs = ? WHERE id = ?`, g.lanes[gate], g.jobs[gate],
			id); err != nil {
			return err
		}
	}
	return nil
}

// gateNameOf returns the identity of the gate of a user's demand.
func gateNameOf(d queue.Demand, uid int) gateName {
	return gateName{int64(d.Owner(uid)), int64(d.Kind), d.Key}
}

// usedBytesSQL selects, for each job and each schedule, its user, whether it is a waiting job, how many bytes it
// uses, and how many of these bytes are outputs.
const usedBytesSQL = `SELECT uid, CASE WHEN state < 5 THEN 1 ELSE 0 END AS waiting, stored + outputs AS bytes, outputs
		FROM jobs
	UNION ALL SELECT uid, 0, stored, 0 FROM schedules`

// userFaults compares the stored counts of users with the rows.
func userFaults(c database.Conn) (faults []string) {
	uid := func(r database.Row) int { return int(r.Num(0)) }
	for _, of := range []countSource[database.UserCounts]{
		{func(c database.UserCounts) int64 { return c.Waiting }, "uid", "waiting jobs",
			`SELECT uid, waiting FROM users`, `SELECT uid, count(*) FROM jobs WHERE state < 5 GROUP BY uid`},
		{func(c database.UserCounts) int64 { return c.Bytes }, "uid", "bytes used by its jobs and schedules",
			`SELECT uid, bytes FROM users`, `SELECT uid, sum(bytes) FROM (` + usedBytesSQL + `) AS used GROUP BY uid`},
		{func(c database.UserCounts) int64 { return c.Outputs }, "uid", "output bytes",
			`SELECT uid, outputs FROM users`, `SELECT uid, sum(outputs) FROM jobs WHERE outputs <> 0 GROUP BY uid`},
	} {
		faults = append(faults, countFaults(c, uid, `SELECT users FROM meta`, database.ParseUserCounts, of)...)
	}
	return faults
}

// QueueFaults compares the stored counts of queues with the rows.
func QueueFaults(c database.Conn) (faults []string) {
	name := func(r database.Row) string { return r.Text(0) }
	for _, of := range []countSource[records.QueueCounts]{
		{func(c records.QueueCounts) int64 { return c.Waiting }, "queue", "waiting jobs",
			`SELECT name, waiting FROM queues`, `SELECT queue, count(*) FROM jobs WHERE state < 5 GROUP BY queue`},
		{func(c records.QueueCounts) int64 { return c.RetainedJobs }, "queue", "jobs kept after their end",
			`SELECT name, kept FROM queues`, `SELECT queue, count(*) FROM jobs WHERE kept = 1 GROUP BY queue`},
		{func(c records.QueueCounts) int64 { return c.RetainedBytes },
			"queue", "output bytes of jobs kept after their end",
			`SELECT name, kept_bytes FROM queues`, `SELECT queue, sum(outputs) FROM jobs WHERE kept = 1 GROUP BY queue`},
	} {
		faults = append(faults, countFaults(c, name, `SELECT queues FROM meta`, records.ParseQueueCounts, of)...)
	}
	return faults
}

// countSource describes one stored count of each user or queue. The function member selects the count in a C.
// The statement table reads the stored counts, and the statement rows counts the rows. owner and subject name
// the user or queue and the count in messages.
type countSource[C any] struct {
	member                      func(C) int64
	owner, subject, table, rows string
}

// countFaults compares stored counts with the rows that they count. The statement meta reads a list of newer
// counts, which the function listed parses. A count in this list replaces the one in the table. The function
// key reads the user or queue from a row.
func countFaults[K cmp.Ordered, C any](c database.Conn, key func(database.Row) K, meta string,
	listed func(string) (map[K]C, error), source countSource[C]) (faults []string) {
	list, err := database.QueryText(c, meta)
	read := func(q string) map[K]int64 {
		counts := map[K]int64{}
		if err == nil {
			err = database.Each(c, func(r database.Row) { counts[key(r)] = r.Num(1) }, q)
		}
		return counts
	}
	kept, there := read(source.table), read(source.rows)
	if err != nil {
		return []string{err.Error()}
	}
	changed, err := listed(list)
	if err != nil {
		return []string{err.Error()}
	}
	for k, counts := range changed {
		kept[k] = source.member(counts)
	}
	for k := range there {
		kept[k] += 0 // add the key if it is missing, so that the next loop checks it
	}
	for _, k := range slices.Sorted(maps.Keys(kept)) {
		if kept[k] != there[k] {
			faults = append(faults, fmt.Sprintf("%s %#v: the counter of %s is %d, but should be %d", source.owner, k,
				source.subject, kept[k], there[k]))
		}
	}
	return faults
}

// Repair repairs a backup: it counts the rows again, creates missing indexes and removes damaged parts of
// batches.
func Repair(c *sqlitedb.Conn) error {
	wrong, err := SchemaFaults(c)
	if err != nil {
		return err
	}
	for _, f := range wrong {
		if strings.HasPrefix(f.create, "CREATE INDEX") || strings.HasPrefix(f.create, "CREATE UNIQUE INDEX") {
			if err := c.Exec(f.create); err != nil {
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
	if err := recountGates(c); err != nil {
		return err
	}
	return sqlitedb.ExecAll(c, []string{
		`DELETE FROM frames WHERE batch < 0`,
		`DELETE FROM users`,
		`INSERT INTO users (uid, waiting, bytes, outputs) SELECT uid, sum(waiting), sum(bytes), sum(outputs) FROM (` +
			usedBytesSQL + `) GROUP BY uid`,
		`UPDATE queues SET waiting = 0, kept = 0, kept_bytes = 0`,
		`INSERT INTO queues (name, waiting, uid) SELECT queue, count(*), min(uid) FROM jobs WHERE state < 5 GROUP BY queue
			ON CONFLICT (name) DO UPDATE SET waiting = excluded.waiting, uid = excluded.uid`,
		`INSERT INTO queues (name, waiting, uid, kept, kept_bytes)
			SELECT queue, 0, min(uid), count(*), sum(outputs) FROM jobs WHERE kept = 1 GROUP BY queue
			ON CONFLICT (name) DO UPDATE SET kept = excluded.kept, kept_bytes = excluded.kept_bytes`,
		`UPDATE meta SET users = '', queues = ''`,
	})
}
