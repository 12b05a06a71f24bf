package engine

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/rules"
)

// HasEdges implements rules.Tx.
func (t *Tx) HasEdges() bool { return t.s.mem.hasDependencies }

// AddEdge implements rules.Tx.
func (t *Tx) AddEdge(child int64, d queue.Dependency, do queue.OnDependencyFailure, met store.DependencyStatus) error {
	t.s.mem.hasDependencies = true
	return t.Exec(`INSERT INTO edges (parent, child, how, otherwise, met) VALUES (?, ?, ?, ?, ?)`, d.Job, child,
		int64(d.Condition), int64(do), int64(met))
}

// Waits implements rules.Tx.
func (t *Tx) Waits(child int64, met store.DependencyStatus) (bool, error) {
	n, err := t.Number(`SELECT 1 FROM edges INDEXED BY edges_child WHERE child = ? AND met = ? LIMIT 1`, child, int64(met))
	return n != 0, err
}

// Parents implements rules.Tx.
func (t *Tx) Parents(child int64, n int) (list []int64, err error) {
	err = t.Query(func(r database.Row) (bool, error) {
		list = append(list, r.Num(0))
		return len(list) < n, nil
	}, `SELECT parent FROM edges INDEXED BY edges_child WHERE child = ? AND met = 0 ORDER BY id LIMIT ?`, child, int64(n))
	return list, err
}

// DropEdges implements rules.Tx.
func (t *Tx) DropEdges(child int64) error {
	if !t.HasEdges() {
		return nil
	}
	return t.Exec(`DELETE FROM edges WHERE id IN (SELECT id FROM edges INDEXED BY edges_child WHERE child = ?)`, child)
}

// Named implements rules.Tx. It finds a job of a batch in transfer only by an id that the user chose. It
// finds a hook from the settings only if the hook runs as that user.
func (t *Tx) Named(uid int, id string) (seq int64, err error) {
	hidden := false
	err = t.Query(func(r database.Row) (bool, error) {
		if hidden = r.Num(1) == 0; !hidden {
			seq = r.Num(0)
		}
		return hidden, nil
	}, `SELECT seq, CASE WHEN hooks & ? = 0 OR uid = ? THEN 1 ELSE 0 END FROM jobs WHERE `+reads.HasID,
		append([]any{int64(queue.HookSettings), int64(uid)}, reads.HasIDArgs(id)...)...)
	if seq != 0 || err != nil {
		return seq, err
	}
	if len(t.s.mem.batches) > 0 {
		seq, err = t.Number(`SELECT seq FROM staged_ids JOIN batches ON n = batch WHERE id = ? AND uid = ? AND stage < 2`, id,
			int64(uid))
	}
	if seq == 0 && err == nil && !hidden {
		err = reads.CheckMissing(t.Conn, id)
	}
	return seq, err
}

// Holder implements rules.Tx.
func (t *Tx) Holder(uid int, key string) (j rules.Job, found bool, err error) {
	for _, ended := range []string{`ended_at = 0`, `ended_at > 0 ORDER BY ended_at DESC`} {
		list, err := t.jobs(1, `jobs INDEXED BY jobs_unique WHERE unique_key <> '' AND uid = ? AND unique_key = ? AND `+ended,
			int64(uid), key)
		if err != nil || len(list) > 0 {
			return orZeroJob(list), len(list) > 0, err
		}
	}
	return j, false, nil
}

func orZeroJob(list []rules.Job) (j rules.Job) {
	if len(list) > 0 {
		j = list[0]
	}
	return j
}

// Noted implements rules.Tx.
func (t *Tx) Noted(parent int64) (n int64, newest rules.EndedParent, err error) {
	if t.s.mem.undecidedJobs == 0 {
		return 0, newest, nil
	}
	err = t.Query(func(r database.Row) (bool, error) {
		n, newest = r.Num(0), rules.EndedParent{ID: r.Num(1), Parent: parent, State: queue.State(r.Num(2)),
			LastEdgeID: r.Num(3)}
		return false, nil
	}, `SELECT (SELECT count(*) FROM ended AS n WHERE n.parent = ended.parent), id, state, upto FROM ended INDEXED BY ended_parent WHERE parent = ? ORDER BY id DESC LIMIT 1`, parent)
	return n, newest, err
}

// AddEnded implements rules.Tx. All notes of one parent are stored under one uid, even after the parent was given
// to another uid. Notes under two uids might be processed out of order, such as those of an end and a restart.
func (t *Tx) AddEnded(parent int64, uid int, state queue.State, after int64) error {
	n, err := t.Count(`INSERT INTO ended (parent, uid, state, upto) SELECT CAST(? AS BIGINT), coalesce((SELECT uid FROM ended INDEXED BY ended_parent WHERE parent = ? LIMIT 1), CAST(? AS BIGINT)), CAST(? AS BIGINT), max(id)
		FROM edges INDEXED BY edges_parent WHERE parent = ? AND met <> 1 HAVING max(id) > ?`, parent, parent, int64(uid),
		int64(state), parent, after)
	t.s.mem.undecidedJobs += n
	return err
}

// ExtendRerunNote implements rules.Tx.
func (t *Tx) ExtendRerunNote(parent int64) (was bool, err error) {
	last, err := t.Number(`SELECT max(id) FROM ended INDEXED BY ended_parent WHERE parent = ? AND state = ?`, parent,
		int64(rules.Rerun))
	if err != nil || last == 0 {
		return false, err
	}
	n, err := t.Count(`DELETE FROM ended INDEXED BY ended_parent WHERE parent = ? AND id > ?`, parent, last)
	t.s.mem.undecidedJobs -= n
	if err == nil {
		err = t.Exec(`UPDATE ended SET upto = (SELECT coalesce(max(edges.id), 0) FROM edges INDEXED BY edges_parent WHERE edges.parent = ended.parent AND met <> 1) WHERE id = ?`, last)
	}
	return true, err
}

// NextEnded implements rules.Tx.
func (t *Tx) NextEnded() (e rules.EndedParent, found bool, err error) {
	if t.s.mem.undecidedJobs == 0 {
		return e, false, nil
	}
	last, uid := t.s.mem.lastDecidedUID, int64(0)
	err = t.Query(func(r database.Row) (bool, error) {
		if !found || uid <= last {
			e, uid, found = rules.EndedParent{ID: r.Num(0), Parent: r.Num(1), State: queue.State(r.Num(2)),
				LastEdgeID: r.Num(3)}, r.Num(4), true
		}
		return true, nil
	}, `SELECT id, parent, state, upto, uid FROM (SELECT * FROM ended INDEXED BY ended_uid WHERE uid > ? ORDER BY uid, id LIMIT 1) n
		UNION ALL SELECT id, parent, state, upto, uid FROM (SELECT * FROM ended INDEXED BY ended_uid ORDER BY uid, id LIMIT 1) f`, last)
	t.s.mem.lastDecidedUID = uid
	return e, found, err
}

// Edges implements rules.Tx.
func (t *Tx) Edges(e rules.EndedParent, n int) (list []rules.Edge, err error) {
	met := store.Unresolved
	if e.State == rules.Rerun {
		met = store.Broken
	}
	err = t.Query(func(r database.Row) (bool, error) {
		list = append(list, rules.Edge{ID: r.Num(0), Child: r.Num(1), Condition: queue.DependencyCondition(r.Num(2)),
			OnFailure: queue.OnDependencyFailure(r.Num(3))})
		return len(list) < n, nil
	}, `SELECT id, child, how, otherwise FROM edges INDEXED BY edges_parent WHERE parent = ? AND met = ? AND id <= ? ORDER BY id LIMIT ?`, e.Parent, int64(met), e.LastEdgeID, int64(n))
	return list, err
}

// DropEnded implements rules.Tx.
func (t *Tx) DropEnded(id int64) error {
	t.s.mem.undecidedJobs--
	return t.Exec(`DELETE FROM ended WHERE id = ?`, id)
}

// Postpone implements rules.Tx. It keeps the order of a parent's notes.
func (t *Tx) Postpone(parent int64) error {
	last, err := t.Number(`SELECT max(id) FROM ended`)
	if err == nil {
		err = t.Exec(`INSERT INTO ended (parent, uid, state, upto) SELECT parent, uid, state, upto FROM ended INDEXED BY ended_parent WHERE parent = ? ORDER BY id`, parent)
	}
	if err == nil {
		err = t.Exec(`DELETE FROM ended INDEXED BY ended_parent WHERE parent = ? AND id <= ?`, parent, last)
	}
	return err
}

// SetEdge implements rules.Tx.
func (t *Tx) SetEdge(e *rules.Edge, met store.DependencyStatus) error {
	return t.Exec(`UPDATE edges SET met = ? WHERE id = ?`, int64(met), e.ID)
}

// dropEdgesOf deletes up to limit dependencies of a job that is being removed. It reports whether none is left.
func (t *Tx) dropEdgesOf(child int64, limit int) (all bool, err error) {
	if !t.HasEdges() || limit <= 0 {
		return !t.HasEdges(), nil
	}
	n, err := t.Count(`DELETE FROM edges WHERE id IN (SELECT id FROM edges INDEXED BY edges_child WHERE child = ? LIMIT ?)`, child, int64(limit))
	t.removedRows += int(n)
	return n < int64(limit), err
}

// readEdges adds the statements that find out whether any job waits or has waited for another one, and how
// many ended jobs have undecided dependants.
func (s *Engine) readEdges(all *database.Batch) {
	all.Add(func(r database.Row) (bool, error) {
		s.mem.hasDependencies = true
		return false, nil
	}, `SELECT 1 FROM edges LIMIT 1`)
	all.Add(func(r database.Row) (bool, error) {
		s.mem.undecidedJobs = r.Num(0)
		return false, nil
	}, `SELECT count(*) FROM ended`)
}
