package engine

import (
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
)

// frame holds the jobs of one request of a batch.
// See docs/decisions/0009.
type frame struct {
	id       int64
	count    int64 // number of jobs
	bytes    int64 // size of the jobs in bytes
	jobs     []records.StagedJob
	complete bool // true if all jobs could be read
}

// firstFrame reads the first frame of a batch.
func (t *Tx) firstFrame(batch int64) (f frame, found bool) {
	found, _ = database.First(t, func(r database.Row) {
		f.id, f.count, f.bytes = r.Num(0), r.Num(1), r.Num(2)
		f.jobs, f.complete = records.ReadFrame(r.View(3))
		f.complete = f.complete && int64(len(f.jobs)) == f.count
	}, `SELECT n, count, bytes, jobs FROM frames WHERE batch = ? ORDER BY n LIMIT 1`, batch)
	return f, found
}

// freeChosenIDs frees the ids that the user chose for a frame's jobs.
func (t *Tx) freeChosenIDs(f *frame) {
	for i := range f.jobs {
		if f.jobs[i].HasChosenID() {
			t.Exec(`DELETE FROM staged_ids WHERE id = ?`, f.jobs[i].ID)
		}
	}
}

// dropFrame removes a frame and the ids of its jobs.
func (t *Tx) dropFrame(f *frame) {
	t.freeChosenIDs(f)
	t.Exec(`DELETE FROM frames WHERE n = ?`, f.id)
}

// detachFrame separates a damaged frame from its batch and keeps it, so that an administrator can examine it.
// The frame's readable jobs are already in the queue. The batch continues without the unreadable jobs. The
// column "count" of the frame then holds the number of the unreadable jobs.
func (t *Tx) detachFrame(b *batch, f *frame) {
	t.freeChosenIDs(f)
	ended, _ := t.ExecCount(
		`INSERT INTO ended (parent, uid, state, upto) SELECT parent, CAST(? AS BIGINT), 0, max(edges.id) FROM frames JOIN edges ON parent BETWEEN first AND last
		WHERE n = ? AND NOT EXISTS (SELECT 1 FROM jobs WHERE seq = parent) GROUP BY parent`, int64(b.uid), f.id)
	t.s.mem.dependencies.UndecidedJobs += ended // dependants of lost jobs are decided as if these jobs had been removed
	t.WakeAt(t.startTime)
	lost := max(1, f.count-int64(len(f.jobs)))
	t.Exec(`UPDATE frames SET batch = -batch, count = ? WHERE n = ?`, lost, f.id)
	name, uid := b.name, b.uid
	t.afterCommit = append(t.afterCommit, func() {
		t.s.log.Error("part of a committed batch is damaged, so some of the batch's jobs are missing in the queue; "+
			"see: queuectl doctor", "batch", name, "uid", uid, "missing_jobs", lost)
	})
}
