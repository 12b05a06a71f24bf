// Package dependencies stores which job (the child) waits for which other job (the parent). When a parent
// ends, it also stores a note, because a later transaction decides whether the children may run.
//
// Start with Tables.
package dependencies

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/rules"
)

// CachedState holds in memory whether jobs have any dependencies (edges), and how many notes about parents are stored.
// So most transactions need not read the tables. Only the goroutine that may change the database uses CachedState. If a
// transaction is rolled back, the caller restores CachedState.
type CachedState struct {
	HasAnyEdges              bool  `json:"k"` // true if any job waits, or once waited, for another job
	PendingParentChangeCount int64 `json:"d"` // number of notes about parents whose children must still be checked
	// uid of the user whose note NextParentStateChange returned last; not stored, so each node has its own value
	LastProcessedChangeUID int64 `json:"-"`
}

// AddReadQueries adds the statements that fill CachedState from the tables to the batch.
func (s *CachedState) AddReadQueries(queries *database.QueryBatch) {
	queries.AddForEachRow(func(database.Row) { s.HasAnyEdges = true }, `SELECT 1 FROM edges LIMIT 1`)
	queries.AddForEachRow(func(r database.Row) { s.PendingParentChangeCount = r.Int64(0) }, `SELECT count(*) FROM ended`)
}

// Tables implements rules.Dependencies on the table "edges" (dependencies between jobs) and the table "ended" (notes
// about parents), in one transaction. If a statement of the transaction fails, later statements do nothing and return
// the same error.
type Tables struct {
	conn  database.Statements
	state *CachedState
}

// New returns the tables as a transaction sees them.
func New(tx database.Statements, s *CachedState) Tables { return Tables{tx, s} }

// HasEdges implements rules.Dependencies. It reports whether any edge is stored. An edge is the dependency of
// one job (the child) on another job (the parent).
func (t Tables) HasEdges() bool { return t.state.HasAnyEdges }

// AddEdge implements rules.Dependencies. It stores an edge, the dependency of a child on a parent, with its status.
func (t Tables) AddEdge(childSeq int64, d queue.Dependency, onFailure queue.OnDependencyFailure,
	status store.DependencyStatus) error {
	t.state.HasAnyEdges = true
	return t.conn.Exec(`INSERT INTO edges (parent, child, how, otherwise, met) VALUES (?, ?, ?, ?, ?)`, d.ParentSeq,
		childSeq,
		d.Condition, onFailure, status)
}

// HasEdgeWithStatus implements rules.Dependencies. It reports whether a child has an edge (a dependency) with the given
// status.
func (t Tables) HasEdgeWithStatus(childSeq int64, status store.DependencyStatus) (bool, error) {
	n, err := t.conn.QueryNumber(`SELECT 1 FROM edges INDEXED BY edges_child WHERE child = ? AND met = ? LIMIT 1`,
		childSeq, status)
	return n != 0, err
}

// UnresolvedParentSeqs implements rules.Dependencies. It returns up to n jobs that a job waits for.
func (t Tables) UnresolvedParentSeqs(childSeq int64, limit int) ([]int64, error) {
	return database.ReadRows(t.conn, database.FirstColumnInt64,
		`SELECT parent FROM edges INDEXED BY edges_child WHERE child = ? AND met = 0 ORDER BY id LIMIT ?`, childSeq,
		limit)
}

// DeleteEdges implements rules.Dependencies. It deletes all edges (dependencies) of a child.
func (t Tables) DeleteEdges(childSeq int64) error {
	if !t.HasEdges() {
		return nil
	}
	return t.conn.Exec(`DELETE FROM edges WHERE id IN (SELECT id FROM edges INDEXED BY edges_child WHERE child = ?)`,
		childSeq)
}

// CountParentStateChanges implements rules.Dependencies. It returns the number of notes about a parent, and the
// newest of these notes. A note says that the parent has ended, was removed or runs again.
func (t Tables) CountParentStateChanges(parentSeq int64) (changeCount int64, newestChange rules.ParentStateChange,
	err error) {
	if t.state.PendingParentChangeCount == 0 {
		return 0, newestChange, nil
	}
	_, err = database.ReadFirstRow(t.conn, func(r database.Row) {
		changeCount, newestChange = r.Int64(0), rules.ParentStateChange{ID: r.Int64(1), ParentSeq: parentSeq,
			ParentState: queue.State(r.Int64(2)), LastEdgeID: r.Int64(3)}
	}, `SELECT (SELECT count(*) FROM ended AS n WHERE n.parent = ended.parent), id, state, upto
		FROM ended INDEXED BY ended_parent WHERE parent = ? ORDER BY id DESC LIMIT 1`, parentSeq)
	return changeCount, newestChange, err
}

// AddParentStateChange implements rules.Dependencies. It adds a note that a parent has ended, was removed or runs
// again. A parent's notes all get the uid of its oldest note, even if the parent was given to another user in between.
// With different uids, the notes might be processed in the wrong order, since users take turns.
func (t Tables) AddParentStateChange(parentSeq int64, parentUID int, parentState queue.State, afterEdgeID int64) error {
	n, err := t.conn.ExecRowsAffected(`INSERT INTO ended (parent, uid, state, upto)
		SELECT CAST(? AS BIGINT), coalesce((SELECT uid FROM ended INDEXED BY ended_parent WHERE parent = ? LIMIT 1),
			CAST(? AS BIGINT)), CAST(? AS BIGINT), max(id)
		FROM edges INDEXED BY edges_parent WHERE parent = ? AND met <> 1 HAVING max(id) > ?`, parentSeq, parentSeq,
		parentUID, parentState, parentSeq, afterEdgeID)
	t.state.PendingParentChangeCount += n
	return err
}

// ExtendParentRerunChange implements rules.Dependencies. A Rerun note says that a parent runs again.
// ExtendParentRerunChange makes the newest Rerun note of a parent apply to all edges that the parent has now, and
// deletes newer notes.
func (t Tables) ExtendParentRerunChange(parentSeq int64) (found bool, err error) {
	last, err := t.conn.QueryNumber(`SELECT max(id) FROM ended INDEXED BY ended_parent WHERE parent = ? AND state = ?`,
		parentSeq, rules.ParentRerunState)
	if err != nil || last == 0 {
		return false, err
	}
	n, _ := t.conn.ExecRowsAffected(`DELETE FROM ended INDEXED BY ended_parent WHERE parent = ? AND id > ?`, parentSeq,
		last)
	t.state.PendingParentChangeCount -= n
	return true, t.conn.Exec(`UPDATE ended SET upto = (SELECT coalesce(max(edges.id), 0) FROM edges
		INDEXED BY edges_parent WHERE edges.parent = ended.parent AND met <> 1) WHERE id = ?`, last)
}

// NextParentStateChange implements rules.Dependencies. It returns the oldest note of one user. (A note says that a
// parent has ended, was removed or runs again.) Successive calls serve the users in turn.
func (t Tables) NextParentStateChange() (change rules.ParentStateChange, found bool, err error) {
	if t.state.PendingParentChangeCount == 0 {
		return change, false, nil
	}
	last, uid := t.state.LastProcessedChangeUID, int64(0)
	err = database.ForEachRow(t.conn, func(r database.Row) {
		if !found || uid <= last {
			change, uid, found = rules.ParentStateChange{ID: r.Int64(0), ParentSeq: r.Int64(1),
				ParentState: queue.State(r.Int64(2)), LastEdgeID: r.Int64(3)}, r.Int64(4), true
		}
	}, `SELECT id, parent, state, upto, uid
		FROM (SELECT * FROM ended INDEXED BY ended_uid WHERE uid > ? ORDER BY uid, id LIMIT 1) n
		UNION ALL SELECT id, parent, state, upto, uid
		FROM (SELECT * FROM ended INDEXED BY ended_uid ORDER BY uid, id LIMIT 1) f`, last)
	t.state.LastProcessedChangeUID = uid
	return change, found, err
}

// EdgesToResolve implements rules.Dependencies. It returns up to n edges (dependencies on a parent) to which the note e
// applies. The note says that the parent has ended, was removed or runs again.
func (t Tables) EdgesToResolve(change rules.ParentStateChange, maxEdges int) ([]rules.DependencyEdge, error) {
	met := store.Unresolved
	if change.ParentState == rules.ParentRerunState {
		met = store.Broken
	}
	return database.ReadRows(t.conn, func(r database.Row) rules.DependencyEdge {
		return rules.DependencyEdge{ID: r.Int64(0), ChildSeq: r.Int64(1), Condition: queue.DependencyCondition(r.Int64(2)),
			OnFailure: queue.OnDependencyFailure(r.Int64(3))}
	}, `SELECT id, child, how, otherwise FROM edges INDEXED BY edges_parent
		WHERE parent = ? AND met = ? AND id <= ? ORDER BY id LIMIT ?`, change.ParentSeq, met, change.LastEdgeID,
		maxEdges)
}

// DeleteParentStateChange implements rules.Dependencies. It deletes the note with the given id. A note says that a
// parent has ended, was removed or runs again.
func (t Tables) DeleteParentStateChange(changeID int64) error {
	t.state.PendingParentChangeCount--
	return t.conn.Exec(`DELETE FROM ended WHERE id = ?`, changeID)
}

// PostponeParentStateChanges implements rules.Dependencies. It moves the stored state changes of a parent behind
// those of the same user's other parents, and keeps their order.
func (t Tables) PostponeParentStateChanges(parentSeq int64) error {
	last, _ := t.conn.QueryNumber(`SELECT max(id) FROM ended`)
	t.conn.Exec(`INSERT INTO ended (parent, uid, state, upto)
		SELECT parent, uid, state, upto FROM ended INDEXED BY ended_parent WHERE parent = ? ORDER BY id`, parentSeq)
	return t.conn.Exec(`DELETE FROM ended INDEXED BY ended_parent WHERE parent = ? AND id <= ?`, parentSeq, last)
}

// SetEdgeStatus implements rules.Dependencies. It writes the status of an edge, which is the dependency of one job on
// another job.
func (t Tables) SetEdgeStatus(e *rules.DependencyEdge, status store.DependencyStatus) error {
	return t.conn.Exec(`UPDATE edges SET met = ? WHERE id = ?`, status, e.ID)
}

// DeleteSomeEdges deletes up to limit dependencies of a job that is being removed. It returns how many it deleted, and
// whether none is left.
func (t Tables) DeleteSomeEdges(childSeq int64, limit int) (deletedCount int, noneLeft bool, err error) {
	if !t.HasEdges() || limit <= 0 {
		return 0, !t.HasEdges(), nil
	}
	dropped, err := t.conn.ExecRowsAffected(
		`DELETE FROM edges WHERE id IN (SELECT id FROM edges INDEXED BY edges_child WHERE child = ? LIMIT ?)`, childSeq,
		limit)
	return int(dropped), dropped < int64(limit), err
}
