package reads

import (
	"context"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// DependencyLinks returns the jobs for which a job waits or has waited, and the jobs that wait or have waited
// for it.
func (s *Reads) DependencyLinks(ctx context.Context, seq int64, limit int) (parents, children []store.DependencyLink,
	err error) {
	if err := checkLimit(limit); err != nil {
		return nil, nil, err
	}
	err = s.Read(ctx, func(r *Reader) error {
		err := r.checkExists(seq)
		if err == nil {
			parents, err = r.links(`parent`, `child`, seq, limit)
		}
		if err == nil {
			children, err = r.links(`child`, `parent`, seq, limit)
		}
		return err
	})
	return parents, children, err
}

// checkExists returns an error if no job has the number seq.
func (r *Reader) checkExists(seq int64) error {
	there, err := r.QueryNumber(`SELECT 1 FROM jobs WHERE seq = ?`, seq)
	if err == nil && there == 0 {
		err = MissingJobError(r.Statements, seq)
	}
	return err
}

// links returns up to limit jobs that depend on the job seq, or on which it depends. Each row of the table
// edges is a dependency between two jobs. endColumn is the column with the jobs to return, and otherColumn
// the one with seq.
func (r *Reader) links(endColumn, otherColumn string, seq int64, limit int) ([]store.DependencyLink, error) {
	return database.Rows(r, func(r database.Row) store.DependencyLink {
		return store.DependencyLink{Seq: r.Num(0), ID: r.Text(1), State: queue.State(r.Num(2)),
			Condition: queue.DependencyCondition(r.Num(3)), Status: store.DependencyStatus(r.Num(4))}
	}, `SELECT `+endColumn+`, coalesce(jobs.id, ''), coalesce(state, 0), how, met FROM edges INDEXED BY edges_`+
		otherColumn+` LEFT JOIN jobs ON seq = `+endColumn+` WHERE `+otherColumn+` = ? ORDER BY met, edges.id LIMIT ?`,
		seq, int64(limit))
}

// Parents returns the jobs on which a job depends.
func (s *Reads) Parents(ctx context.Context, seq int64) (parents []store.Parent, err error) {
	err = s.Read(ctx, func(r *Reader) error {
		parents = nil
		room := queue.MaxDependencyResultBytes
		// edgeIDs holds the ids of all rows of the table edges for the job, in order. neededResults holds the
		// ids of those for which the result of the parent is needed.
		var edgeIDs, neededResults []int64
		err := database.EachRow(r, func(r database.Row) {
			p := store.Parent{ID: r.Text(1), UID: int(r.Num(2)), State: queue.State(r.Num(3)), ExitCode: r.Num(4)}
			if size := int(r.Num(5)); size > 0 && size <= room {
				room -= size
				neededResults = append(neededResults, r.Num(0))
			}
			at, _ := slices.BinarySearch(edgeIDs, r.Num(0))
			edgeIDs, parents = slices.Insert(edgeIDs, at, r.Num(0)), slices.Insert(parents, at, p)
		}, `SELECT edges.id, jobs.id, uid, state, jobs.exit_code, coalesce(octet_length(result), 0)
			FROM edges INDEXED BY edges_child CROSS JOIN jobs ON jobs.seq = parent
			LEFT JOIN attempts ON attempts.seq = jobs.seq AND n = runs WHERE child = ?`, seq)
		for _, edge := range neededResults { // read one result at a time, since all together may be large
			if err == nil {
				_, err = database.FirstRow(r, func(r database.Row) {
					at, _ := slices.BinarySearch(edgeIDs, edge)
					parents[at].Result = slices.Clone(r.View(0))
				}, `SELECT result FROM edges CROSS JOIN jobs ON jobs.seq = parent
					JOIN attempts ON attempts.seq = jobs.seq AND n = runs WHERE edges.id = ?`, edge)
			}
		}
		if err != nil || len(parents) > 0 {
			return err
		}
		return r.checkExists(seq)
	})
	return parents, err
}
