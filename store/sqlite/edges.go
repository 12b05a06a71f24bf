package sqlite

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/rules"
)

// HasEdges implements rules.Tx.
func (t *tx) HasEdges() bool { return t.s.mem.edges > 0 }

// AddEdge implements rules.Tx.
func (t *tx) AddEdge(child int64, d queue.Dependency, do queue.Otherwise) error {
	t.s.mem.edges++
	_, err := t.exec(`INSERT INTO edges (parent, child, how, otherwise) VALUES (?, ?, ?, ?)`, d.Job, child, int64(d.How), int64(do))
	return err
}

// Waits implements rules.Tx.
func (t *tx) Waits(child int64) (bool, error) {
	n, err := t.number(`SELECT 1 FROM edges WHERE child = ? LIMIT 1`, child)
	return n != 0, err
}

// AddEnded implements rules.Tx.
func (t *tx) AddEnded(parent int64, state queue.State) error {
	n, err := t.exec(`INSERT INTO ended (parent, state, upto) SELECT ?, ?, max(id) FROM edges WHERE parent = ? HAVING max(id) > 0`, parent, int64(state), parent)
	t.s.mem.ended += n
	return err
}

// FirstEnded implements rules.Tx.
func (t *tx) FirstEnded() (e rules.EndedParent, found bool, err error) {
	if t.s.mem.ended == 0 {
		return e, false, nil
	}
	err = t.query(func(r row) (bool, error) {
		e, found = rules.EndedParent{ID: r.num(0), Parent: r.num(1), State: queue.State(r.num(2)), Upto: r.num(3)}, true
		return false, nil
	}, `SELECT id, parent, state, upto FROM ended ORDER BY id LIMIT 1`)
	return e, found, err
}

// Edges implements rules.Tx.
func (t *tx) Edges(e rules.EndedParent, n int) (list []rules.Edge, err error) {
	err = t.query(func(r row) (bool, error) {
		list = append(list, rules.Edge{ID: r.num(0), Child: r.num(1), How: queue.ParentEnd(r.num(2)), Otherwise: queue.Otherwise(r.num(3))})
		return len(list) < n, nil
	}, `SELECT id, child, how, otherwise FROM edges INDEXED BY edges_parent WHERE parent = ? AND id <= ? ORDER BY id`, e.Parent, e.Upto)
	return list, err
}

// DropEnded implements rules.Tx.
func (t *tx) DropEnded(id int64) error {
	t.s.mem.ended--
	_, err := t.exec(`DELETE FROM ended WHERE id = ?`, id)
	return err
}

// Postpone implements rules.Tx. What ended first of a parent is decided first.
func (t *tx) Postpone(parent int64) error {
	last, err := t.number(`SELECT max(id) FROM ended`)
	if err == nil {
		_, err = t.exec(`INSERT INTO ended (parent, state, upto) SELECT parent, state, upto FROM ended INDEXED BY ended_parent WHERE parent = ? ORDER BY id`, parent)
	}
	if err == nil {
		_, err = t.exec(`DELETE FROM ended INDEXED BY ended_parent WHERE parent = ? AND id <= ?`, parent, last)
	}
	return err
}

// DropEdge implements rules.Tx.
func (t *tx) DropEdge(e *rules.Edge) error {
	t.s.mem.edges--
	_, err := t.exec(`DELETE FROM edges WHERE id = ?`, e.ID)
	return err
}

// dropEdgesOf forgets up to most of what a job that goes has waited for, and reports whether that
// was all.
func (t *tx) dropEdgesOf(child int64, most int) (all bool, err error) {
	if !t.HasEdges() || most <= 0 {
		return !t.HasEdges(), nil
	}
	n, err := t.exec(`DELETE FROM edges WHERE id IN (SELECT id FROM edges INDEXED BY edges_child WHERE child = ? LIMIT ?)`, child, int64(most))
	t.s.mem.edges -= n
	t.removed += int(n)
	return n < int64(most), err
}

// loadEdges counts what waits.
func (s *Store) loadEdges() (err error) {
	if s.mem.edges, err = s.db.number(`SELECT count(*) FROM edges`); err == nil {
		s.mem.ended, err = s.db.number(`SELECT count(*) FROM ended`)
	}
	return err
}
