package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// These limits apply to one transaction that disowns jobs, that is, moves them to another uid because their
// uid now belongs to another account.
const (
	// maxDisownedJobsPerTx limits the jobs that the transaction changes. It also limits the keys that it moves.
	maxDisownedJobsPerTx   = 250
	maxJobsReadPerDisownTx = 5000 // limit of the jobs that the transaction reads
)

// disownment describes how the jobs of a uid are moved to a uid below 0. This happens because another user
// has the uid now and must not get these jobs.
type disownment struct {
	formerOwnerUID    int   // the uid below 0 that the jobs get
	originalUID       int   // the uid that the jobs had before
	moveJobsBeforeSeq int64 // jobs with a seq below this one move; later jobs belong to the next owner
	nextSeqToMove     int64 // jobs with a seq below this one have moved, except leased ones
	moveKeysUpToRow   int64 // idempotency keys of the uid up to this row number move; later ones are the next owner's
}

// isUnfinished reports whether jobs that are not leased must still move to the uid of their former owner.
func (d disownment) isUnfinished() bool { return d.nextSeqToMove != d.moveJobsBeforeSeq }

// disownmentOf returns the disownment (the move of a user's jobs to another uid) that will move a job, or nil if the
// job is not to be moved.
func (m *databaseCache) disownmentOf(uid int, jobSeq int64) *disownment {
	for i := range m.disownments {
		if d := &m.disownments[i]; d.originalUID == uid && jobSeq < d.moveJobsBeforeSeq {
			return d
		}
	}
	return nil
}

// unfinishedDisownmentIndex returns the index of the disownment that still moves keys and jobs of a uid to its
// former owner, or -1.
func (m *databaseCache) unfinishedDisownmentIndex(uid int) int {
	return slices.IndexFunc(m.disownments, func(d disownment) bool { return d.originalUID == uid && d.isUnfinished() })
}

// hasUnfinishedDisownment reports whether keys and jobs are still being moved to any former owner.
func (m *databaseCache) hasUnfinishedDisownment() bool {
	return slices.ContainsFunc(m.disownments, disownment.isUnfinished)
}

// recordOwnerName records the account name of a uid, if no name is recorded for the uid.
func (t *Tx) recordOwnerName(uid int, name string) error {
	if _, known := t.ownerNames[uid]; known || name == "" {
		return nil
	}
	restoreOnRollback(t, t.ownerNames, uid)
	t.ownerNames[uid] = name
	t.requireCacheReload()
	return t.Exec(`INSERT INTO owners (uid, name) VALUES (?, ?)`, uid, name)
}

// DisownJobs moves the jobs of a uid to a uid below 0, because another account has the uid now. It does nothing
// if ownerName is not the recorded name of the uid. One call moves a limited number of jobs. more is true if
// another call is needed.
func (e *Engine) DisownJobs(ctx context.Context, uid int, ownerName string) (more bool, err error) {
	return executeWithResult(ctx, e, PromptClass, func(t *Tx) (more bool, err error) {
		t.disownments = slices.Clone(t.disownments)
		index := t.unfinishedDisownmentIndex(uid)
		if index < 0 {
			if name, known := t.ownerNames[uid]; !known || name != ownerName {
				return false, nil
			}
			t.beginDisownment(uid)
			index = len(t.disownments) - 1
		}
		d := &t.disownments[index]
		if err := t.runDisownmentStep(d); err != nil {
			return false, err
		}
		more = d.isUnfinished()
		t.removeFinishedDisownments()
		return more, t.statementErr
	})
}

// beginDisownment adds a former owner for a uid and removes the uid's recorded name. It moves the uid's
// schedules and batches, and deletes its names of discarded batches. runDisownmentStep moves the keys and jobs later.
func (t *Tx) beginDisownment(uid int) {
	t.requireCacheReload()
	least := t.queryInt(`SELECT min(uid) FROM owners`)
	keys := t.queryInt(`SELECT max(n) FROM keys`)
	d := disownment{formerOwnerUID: int(min(0, least)) - 1, originalUID: uid, moveJobsBeforeSeq: t.NextJobSeq,
		moveKeysUpToRow: keys}
	t.Exec(`INSERT INTO owners (uid, name, was, upto, at, keys) VALUES (?, ?, ?, ?, 0, ?)`, d.formerOwnerUID,
		t.ownerNames[uid], uid, d.moveJobsBeforeSeq, d.moveKeysUpToRow)
	t.Exec(`DELETE FROM owners WHERE uid = ?`, uid)
	bytes := t.queryInt(`SELECT sum(stored) FROM schedules INDEXED BY schedules_uid WHERE uid = ?`, uid)
	t.AdjustUserBytes(uid, -bytes, 0)
	t.AdjustUserBytes(d.formerOwnerUID, bytes, 0)
	t.Exec(`UPDATE schedules SET uid = ?, paused_at = CASE paused_at WHEN 0 THEN ? ELSE paused_at END,
		next_at = 0, due_at = 0, note = ? WHERE uid = ?`,
		d.formerOwnerUID, t.startTime, store.DisownedScheduleNote, uid)
	restoreOnRollback(t, t.ownerNames, uid)
	delete(t.ownerNames, uid)
	for n, b := range maps.Clone(t.batches) {
		if b.uid != uid {
			continue
		}
		if b.acceptsFrames() {
			t.auditBatch(&b, "forgotten", b.unqueuedJobCount)
			t.markBatchForRemoval(b)
			b = t.batches[n]
		}
		t.Exec(`UPDATE batches SET uid = ? WHERE n = ?`, d.formerOwnerUID, n)
		b.uid = d.formerOwnerUID
		t.cacheBatch(n, b)
	}
	// Delete the names in this step, because a later step could not distinguish them from names of the next owner. The
	// deleted names are few: at most MaxStagedBatchesPerUser for each BatchStagingTimeout and each restart within
	// DiscardedBatchNameRetention.
	t.Exec(`DELETE FROM batches WHERE uid = ? AND stage = 2`, uid)
	t.disownments = append(t.disownments, d)
}

// moveKeyToFormerOwner moves an idempotency key to the former owner of a uid, if it is a key of that owner and a
// disownment has not moved it yet. Without this, a request of the next owner could be a duplicate of a request of
// the former owner.
func (t *Tx) moveKeyToFormerOwner(uid int, idempotencyKey string) {
	if i := t.unfinishedDisownmentIndex(uid); i >= 0 {
		d := &t.disownments[i]
		t.Exec(`UPDATE keys SET uid = ? WHERE uid = ? AND key = ? AND n <= ?`, d.formerOwnerUID, uid,
			idempotencyKey, d.moveKeysUpToRow)
	}
}

// runDisownmentStep moves the next keys of a disownment, which moves the keys and jobs of a uid's former owner. After
// all keys, it moves the next jobs. It does not delete keys, because the next owner's keys would get the row numbers of
// deleted ones.
func (t *Tx) runDisownmentStep(d *disownment) error {
	t.requireCacheReload()
	keys, err := t.ExecRowsAffected(
		`UPDATE keys SET uid = ? WHERE n IN (SELECT n FROM keys WHERE uid = ? AND n <= ? LIMIT 250)`,
		d.formerOwnerUID, d.originalUID, d.moveKeysUpToRow)
	if err != nil || keys == maxDisownedJobsPerTx {
		return err
	}
	var jobs []rules.Job
	scanned, upTo := 0, d.moveJobsBeforeSeq
	err = t.Query(func(r database.Row) (bool, error) {
		if len(jobs) == maxDisownedJobsPerTx || scanned == maxJobsReadPerDisownTx {
			upTo = r.Int64(0)
			return false, nil
		}
		scanned++
		canMove := t.leases[r.Int64(0)] == nil && r.Int64(records.UIDColumnIndex) == int64(d.originalUID)
		if canMove || r.Int64(records.HookUIDColumnIndex) == int64(d.originalUID) {
			jobs = append(jobs, rules.Job{})
			records.ReadRulesJob(r, records.ShortJobColumns, &jobs[len(jobs)-1])
		}
		return true, nil
	}, `SELECT `+records.ShortJobColumns+` FROM jobs WHERE seq >= ? AND seq < ? ORDER BY seq LIMIT ?`,
		d.nextSeqToMove, d.moveJobsBeforeSeq, maxJobsReadPerDisownTx+1)
	if err != nil {
		return err
	}
	for i := range jobs {
		if err := t.disownJob(&jobs[i], d); err != nil {
			return err
		}
	}
	d.nextSeqToMove = upTo
	return t.Exec(`UPDATE owners SET at = ? WHERE uid = ?`, d.nextSeqToMove, d.formerOwnerUID)
}

// disownJob moves one job of the uid, unless it is leased. If the job is a hook of the uid's jobs, disownJob makes it
// count for the former owner, even if it is leased or runs as another user.
func (t *Tx) disownJob(j *rules.Job, d *disownment) error {
	if j.HookUID == d.originalUID && j.HookEvents&queue.HookJobFlag != 0 {
		if err := t.rules.DisownHook(j, d.formerOwnerUID); err != nil {
			return err
		}
	}
	if j.UID != d.originalUID || t.leases[j.Seq] != nil {
		return nil
	}
	return t.rules.DisownJob(j, d.formerOwnerUID)
}

// removeFinishedDisownments ends the disownments (moves of jobs to former owners) that are done. A leased job of the
// uid delays the end, because the job moves only when its lease ends.
func (t *Tx) removeFinishedDisownments() {
	t.requireCacheReload()
	var unfinished []disownment
	for _, d := range t.disownments {
		ended := !d.isUnfinished()
		for seq, l := range t.leases {
			ended = ended && (l.Job.UID != d.originalUID || seq >= d.moveJobsBeforeSeq)
		}
		if !ended {
			unfinished = append(unfinished, d)
			continue
		}
		t.Exec(`UPDATE owners SET upto = 0, at = 0, keys = 0 WHERE uid = ?`, d.formerOwnerUID)
	}
	t.disownments = unfinished
}

// continueDisownments continues to move jobs to former owners of uids. more is true if there is more to do now.
func (t *Tx) continueDisownments() (more bool, err error) {
	if len(t.disownments) == 0 {
		return false, nil
	}
	t.disownments = slices.Clone(t.disownments)
	at := slices.IndexFunc(t.disownments, disownment.isUnfinished)
	if at < 0 {
		t.removeFinishedDisownments()
		return false, t.statementErr
	}
	return true, t.runDisownmentStep(&t.disownments[at])
}

// addOwnerQueries reads the owners, and the moves of jobs to former owners that were unfinished when the engine
// was closed.
func (m *databaseCache) addOwnerQueries(queries *database.QueryBatch) {
	queries.AddForEachRow(func(r database.Row) {
		d := disownment{formerOwnerUID: int(r.Int64(0)), originalUID: int(r.Int64(2)), moveJobsBeforeSeq: r.Int64(3),
			nextSeqToMove: r.Int64(4), moveKeysUpToRow: r.Int64(5)}
		if d.formerOwnerUID >= 0 {
			m.ownerNames[d.formerOwnerUID] = r.Text(1)
		} else if d.moveJobsBeforeSeq > 0 {
			m.disownments = append(m.disownments, d)
		}
	}, `SELECT uid, name, was, upto, at, keys FROM owners`)
}

// outputsCheckedPerTx is the number of output files for which one transaction checks whether an attempt owns
// them.
const outputsCheckedPerTx = 500

// MarkUnownedOutputs returns those of the output files in refs that belong to no attempt. It adds them to the
// table garbage, which lists the files to delete.
func (e *Engine) MarkUnownedOutputs(ctx context.Context, refs []string) (unownedRefs []string, err error) {
	for part := range slices.Chunk(refs, outputsCheckedPerTx) {
		found, err := executeWithResult(ctx, e, NormalClass,
			func(t *Tx) (found []string, err error) {
				for _, ref := range part {
					if !t.isOutputOwned(ref) {
						t.Exec(`INSERT INTO garbage (ref, node) VALUES (?, ?)`, ref, t.thisNode.Name)
						found = append(found, ref)
					}
				}
				return found, t.statementErr
			})
		if err != nil {
			return unownedRefs, err
		}
		unownedRefs = append(unownedRefs, found...)
	}
	return unownedRefs, nil
}

// isOutputOwned reports whether an output file must be kept, because it belongs to an attempt or a lease, or
// was not created by this program (its name does not have the form SEQ-FENCE). It also returns true for files
// that are already in the table garbage, which lists the files to delete.
func (t *Tx) isOutputOwned(ref string) bool {
	var seq, fence int64
	if n, _ := fmt.Sscanf(ref, "%d-%d", &seq, &fence); n < 2 || seq < 0 || ref != fmt.Sprintf("%d-%d", seq, fence) {
		return true
	}
	if l := t.leases[seq]; l != nil && l.Job.Fence == fence {
		return true
	}
	return t.queryInt(
		`SELECT 1 FROM attempts INDEXED BY attempts_ref WHERE output_ref = ? UNION ALL SELECT 1 FROM garbage WHERE ref = ?`,
		ref, ref) != 0
}
