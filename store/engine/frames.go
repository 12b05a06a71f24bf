package engine

import (
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
)

// batchFrame holds the jobs of one request that sends a part of a batch. See docs/decisions/0009.
type batchFrame struct {
	frameID         int64
	jobCount        int64
	jobBytes        int64
	stagedJobs      []records.StagedJob
	allJobsReadable bool
}

// firstFrame reads the first frame of a batch. A frame holds the jobs of one request.
func (t *Tx) firstFrame(batchNumber int64) (f batchFrame, found bool) {
	found, _ = database.ReadFirstRow(t, func(r database.Row) {
		f.frameID, f.jobCount, f.jobBytes = r.Int64(0), r.Int64(1), r.Int64(2)
		f.stagedJobs, f.allJobsReadable = records.DecodeFrame(r.BytesView(3))
		f.allJobsReadable = f.allJobsReadable && int64(len(f.stagedJobs)) == f.jobCount
	}, `SELECT n, count, bytes, jobs FROM frames WHERE batch = ? ORDER BY n LIMIT 1`, batchNumber)
	return f, found
}

// freeChosenIDs frees the ids that the user chose for a frame's jobs, which are the jobs of one request.
func (t *Tx) freeChosenIDs(f *batchFrame) {
	for i := range f.stagedJobs {
		if f.stagedJobs[i].HasChosenID() {
			t.Exec(`DELETE FROM staged_ids WHERE id = ?`, f.stagedJobs[i].ChosenID)
		}
	}
}

// removeFrame removes a frame, which holds the jobs of one request, and frees the ids that the user chose for these
// jobs.
func (t *Tx) removeFrame(f *batchFrame) {
	t.freeChosenIDs(f)
	t.Exec(`DELETE FROM frames WHERE n = ?`, f.frameID)
}

// detachDamagedFrame separates a damaged frame from its batch and keeps it, so that an administrator can examine it.
// A frame holds the jobs of one request. The readable jobs are already in the queue, and the batch continues
// without the unreadable ones. Their number is stored in the column "count" of the frame.
func (t *Tx) detachDamagedFrame(b *batch, f *batchFrame) {
	t.freeChosenIDs(f)
	ended, _ := t.ExecRowsAffected(
		`INSERT INTO ended (parent, uid, state, upto) SELECT parent, CAST(? AS BIGINT), 0, max(edges.id)
		FROM frames JOIN edges ON parent BETWEEN first AND last
		WHERE n = ? AND NOT EXISTS (SELECT 1 FROM jobs WHERE seq = parent) GROUP BY parent`, b.uid, f.frameID)
	// The jobs that depend on a lost job are handled as if that job had been removed.
	t.dependencies.PendingParentChangeCount += ended
	t.WakeServiceAt(t.startTime)
	lost := max(1, f.jobCount-int64(len(f.stagedJobs)))
	t.Exec(`UPDATE frames SET batch = -batch, count = ? WHERE n = ?`, lost, f.frameID)
	name, uid := b.name, b.uid
	t.OnCommitted(func() {
		t.engine.log.Error("part of a committed batch is damaged, so some of the batch's jobs are missing in the queue; "+
			"see: queuectl doctor", "batch", name, "uid", uid, "missing_jobs", lost)
	})
}
