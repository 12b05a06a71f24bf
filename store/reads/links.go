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
func (s *JobReader) DependencyLinks(ctx context.Context, jobSeq int64, limit int) (parents,
	children []store.DependencyLink,
	err error) {
	if err := checkPageLimit(limit); err != nil {
		return nil, nil, err
	}
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		err := r.checkJobExists(jobSeq)
		if err == nil {
			parents, err = r.readDependencyLinks(`parent`, `child`, jobSeq, limit)
		}
		if err == nil {
			children, err = r.readDependencyLinks(`child`, `parent`, jobSeq, limit)
		}
		return err
	})
	return parents, children, err
}

// checkJobExists returns an error if no job has the number seq.
func (r *ReadSnapshot) checkJobExists(seq int64) error {
	there, err := r.QueryNumber(`SELECT 1 FROM jobs WHERE seq = ?`, seq)
	if err == nil && there == 0 {
		err = MissingJobError(r.Statements, seq)
	}
	return err
}

// readDependencyLinks returns up to limit jobs that depend on the job seq, or on which it depends. Each row of the
// table edges is a dependency between two jobs. resultColumn is the column with the jobs to return, and seqColumn the
// one with seq.
func (r *ReadSnapshot) readDependencyLinks(resultColumn, seqColumn string, jobSeq int64,
	limit int) ([]store.DependencyLink, error) {
	return database.ReadRows(r, func(r database.Row) (l store.DependencyLink) {
		database.ScanRow(r, &l.LinkedJobSeq, &l.LinkedJobID, &l.LinkedJobState, &l.Condition, &l.Status)
		return l
	}, `SELECT `+resultColumn+`, coalesce(jobs.id, ''), coalesce(state, 0), how, met FROM edges INDEXED BY edges_`+
		seqColumn+` LEFT JOIN jobs ON seq = `+resultColumn+` WHERE `+seqColumn+` = ? ORDER BY met, edges.id LIMIT ?`,
		jobSeq, int64(limit))
}

// ParentJobs returns the jobs on which a job depends.
func (s *JobReader) ParentJobs(ctx context.Context, jobSeq int64) (parents []store.ParentJob, err error) {
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		room := queue.MaxDependencyResultBytes
		// edgeIDs holds the ids of all rows of the table edges for the job, in order. neededResults holds the
		// ids of those for which the result of the parent is needed.
		var edgeIDs, neededResults []int64
		err := database.ForEachRow(r, func(r database.Row) {
			var p store.ParentJob
			var edgeID int64
			var resultBytes int
			database.ScanRow(r, &edgeID, &p.ID, &p.UID, &p.State, &p.ExitCode, &resultBytes)
			if resultBytes > 0 && resultBytes <= room {
				room -= resultBytes
				neededResults = append(neededResults, edgeID)
			}
			at, _ := slices.BinarySearch(edgeIDs, edgeID)
			edgeIDs, parents = slices.Insert(edgeIDs, at, edgeID), slices.Insert(parents, at, p)
		}, `SELECT edges.id, jobs.id, uid, state, jobs.exit_code, coalesce(octet_length(result), 0)
			FROM edges INDEXED BY edges_child CROSS JOIN jobs ON jobs.seq = parent
			LEFT JOIN attempts ON attempts.seq = jobs.seq AND n = runs WHERE child = ?`, jobSeq)
		for _, edge := range neededResults { // read one result at a time, since all together may be large
			if err == nil {
				_, err = database.ReadFirstRow(r, func(r database.Row) {
					at, _ := slices.BinarySearch(edgeIDs, edge)
					parents[at].ResultJSON = slices.Clone(r.BytesView(0))
				}, `SELECT result FROM edges CROSS JOIN jobs ON jobs.seq = parent
					JOIN attempts ON attempts.seq = jobs.seq AND n = runs WHERE edges.id = ?`, edge)
			}
		}
		if err != nil || len(parents) > 0 {
			return err
		}
		return r.checkJobExists(jobSeq)
	})
	return parents, err
}
