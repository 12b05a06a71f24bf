package engine

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// Limits of one transaction that disowns jobs.
const (
	// disownJobs is how many jobs the transaction changes, and how many keys and batch names it deletes.
	disownJobs  = 250
	disownReads = 5000 // number of jobs that the transaction reads
)

// disownment moves the jobs of a uid to a uid below 0, because another user has the uid now.
type disownment struct {
	former    int   // the uid below 0
	uid       int   // the uid that the jobs had
	beforeSeq int64 // jobs below this seq move; later ones belong to the next owner
	movedUpTo int64 // jobs below this seq have moved, except leased ones
	keysUpTo  int64 // keys up to this number are deleted
}

// done reports whether everything has moved, except leased jobs.
func (d *disownment) done() bool { return d.movedUpTo == d.beforeSeq }

// disownmentOf returns the disownment that moves a job, or nil if none does.
func (m *memory) disownmentOf(uid int, seq int64) *disownment {
	for i := range m.disownments {
		if d := &m.disownments[i]; d.uid == uid && seq < d.beforeSeq {
			return d
		}
	}
	return nil
}

// recordOwner records the name of a uid that has no recorded name yet.
func (t *Tx) recordOwner(uid int, name string) error {
	owners := t.s.mem.owners
	if _, known := owners[uid]; known || name == "" {
		return nil
	}
	if err := t.Exec(`INSERT INTO owners (uid, name) VALUES (?, ?)`, int64(uid), name); err != nil {
		return err
	}
	owners[uid] = name
	t.requireReload()
	t.undo = append(t.undo, func() { delete(owners, uid) })
	return nil
}

// Disown moves the jobs of a uid to a former owner, if owner is the recorded name of the uid. Each call takes
// one step, and reports whether another call is needed.
func (e *Engine) Disown(ctx context.Context, uid int, owner string) (more bool, err error) {
	err = e.Do(ctx, Prompt, func(t *Tx) error {
		m := &t.s.mem
		more = false
		m.disownments = slices.Clone(m.disownments)
		index := slices.IndexFunc(m.disownments, func(d disownment) bool { return d.uid == uid && !d.done() })
		if index < 0 {
			if name, known := m.owners[uid]; !known || name != owner {
				return nil
			}
			if err := t.beginDisowning(uid); err != nil {
				return err
			}
			index = len(m.disownments) - 1
		}
		d := &m.disownments[index]
		if err := t.disownStep(d); err != nil {
			return err
		}
		more = !d.done()
		return t.endDisownings()
	})
	return more, err
}

// beginDisowning adds a former owner for a uid and removes the uid's recorded name. It moves the schedules
// and batches now. The jobs follow in steps.
func (t *Tx) beginDisowning(uid int) error {
	t.requireReload()
	m := &t.s.mem
	least, err := t.QueryNumber(`SELECT min(uid) FROM owners`)
	if err != nil {
		return err
	}
	keys, err := t.QueryNumber(`SELECT max(n) FROM keys`)
	if err != nil {
		return err
	}
	d := disownment{former: int(min(0, least)) - 1, uid: uid, beforeSeq: m.nextSeq, keysUpTo: keys}
	if err := t.Exec(`INSERT INTO owners (uid, name, was, upto, at, keys) VALUES (?, ?, ?, ?, 0, ?)`, int64(d.former),
		m.owners[uid], int64(uid), d.beforeSeq, d.keysUpTo); err != nil {
		return err
	}
	if err := t.Exec(`DELETE FROM owners WHERE uid = ?`, int64(uid)); err != nil {
		return err
	}
	bytes, err := t.QueryNumber(`SELECT sum(stored) FROM schedules INDEXED BY schedules_uid WHERE uid = ?`, int64(uid))
	if err != nil {
		return err
	}
	t.AddUserBytes(uid, -bytes, 0)
	t.AddUserBytes(d.former, bytes, 0)
	if err := t.Exec(
		`UPDATE schedules SET uid = ?, paused_at = CASE paused_at WHEN 0 THEN ? ELSE paused_at END, next_at = 0, due_at = 0, note = ? WHERE uid = ?`, int64(d.former), int64(t.startTime), store.DisownedNote, int64(uid)); err != nil {
		return err
	}
	owners, name := m.owners, m.owners[uid]
	delete(owners, uid)
	t.undo = append(t.undo, func() { owners[uid] = name })
	for n, b := range maps.Clone(m.batches) {
		if b.uid != uid {
			continue
		}
		if b.acceptsFrames() {
			if err := t.auditBatch(&b, "forgotten", b.jobs); err != nil {
				return err
			}
			if err := t.markBatchRemoved(b); err != nil {
				return err
			}
			b = m.batches[n]
		}
		if err := t.Exec(`UPDATE batches SET uid = ? WHERE n = ?`, int64(d.former), n); err != nil {
			return err
		}
		b.uid = d.former
		t.setBatch(n, b)
	}
	m.disownments = append(m.disownments, d)
	return nil
}

// disownStep deletes the next keys and batch names of a disownment. Once all are deleted, it moves the next jobs.
func (t *Tx) disownStep(d *disownment) error {
	t.requireReload()
	keys, err := t.ExecCount(`DELETE FROM keys WHERE n IN (SELECT n FROM keys WHERE uid = ? AND n <= ? LIMIT 250)`,
		int64(d.uid), d.keysUpTo)
	if err != nil {
		return err
	}
	batches, err := t.ExecCount(
		`DELETE FROM batches WHERE n IN (SELECT n FROM batches WHERE uid = ? AND stage = 2 LIMIT 250)`,
		int64(d.uid))
	if err != nil || keys == disownJobs || batches == disownJobs {
		return err
	}
	m := &t.s.mem
	var list []rules.Job
	scanned, upTo := 0, d.beforeSeq
	err = t.Query(func(r database.Row) (bool, error) {
		if len(list) == disownJobs || scanned == disownReads {
			upTo = r.Num(0)
			return false, nil
		}
		scanned++
		if m.leases[r.Num(0)] == nil && r.Num(records.UidColumn) == int64(d.uid) {
			list = append(list, records.ReadRulesJob(r, records.HeadColumns))
		}
		return true, nil
	}, `SELECT `+records.HeadColumns+` FROM jobs WHERE seq >= ? AND seq < ? ORDER BY seq LIMIT ?`, d.movedUpTo,
		d.beforeSeq,
		int64(disownReads+1))
	if err != nil {
		return err
	}
	for i := range list {
		if err := t.rules.Disown(&list[i], d.former); err != nil {
			return err
		}
	}
	d.movedUpTo = upTo
	return t.Exec(`UPDATE owners SET at = ? WHERE uid = ?`, d.movedUpTo, int64(d.former))
}

// endDisownings ends the disownments that are done. A leased job of the uid delays the end: it moves when its
// lease ends.
func (t *Tx) endDisownings() error {
	t.requireReload()
	m := &t.s.mem
	var remaining []disownment
	for _, d := range m.disownments {
		ended := d.done()
		for seq, l := range m.leases {
			ended = ended && (l.Job.UID != d.uid || seq >= d.beforeSeq)
		}
		if !ended {
			remaining = append(remaining, d)
			continue
		}
		if err := t.Exec(`UPDATE owners SET upto = 0, at = 0, keys = 0 WHERE uid = ?`, int64(d.former)); err != nil {
			return err
		}
	}
	m.disownments = remaining
	return nil
}

// tidyOwners continues the disownments. It reports whether there is more to do now.
func (t *Tx) tidyOwners() (more bool, err error) {
	m := &t.s.mem
	if len(m.disownments) == 0 {
		return false, nil
	}
	m.disownments = slices.Clone(m.disownments)
	at := slices.IndexFunc(m.disownments, func(d disownment) bool { return !d.done() })
	if at < 0 {
		return false, t.endDisownings()
	}
	return true, t.disownStep(&m.disownments[at])
}

// readOwners reads the owners, and the disownments that were unfinished when the engine was closed.
func (e *Engine) readOwners(all *database.QueryBatch) {
	all.Add(func(r database.Row) (bool, error) {
		d := disownment{former: int(r.Num(0)), uid: int(r.Num(2)), beforeSeq: r.Num(3), movedUpTo: r.Num(4),
			keysUpTo: r.Num(5)}
		if d.former >= 0 {
			e.mem.owners[d.former] = r.Text(1)
		} else if d.beforeSeq > 0 {
			e.mem.disownments = append(e.mem.disownments, d)
		}
		return true, nil
	}, `SELECT uid, name, was, upto, at, keys FROM owners`)
}

// unownedStep is the number of output files that one transaction checks.
const unownedStep = 500

// MarkUnownedOutputs returns the output files in refs that belong to no attempt. It adds them to the table garbage.
func (e *Engine) MarkUnownedOutputs(ctx context.Context, refs []string) (unowned []string, err error) {
	for part := range slices.Chunk(refs, unownedStep) {
		var found []string
		err = e.Do(ctx, Normal, func(t *Tx) error {
			found = nil
			for _, ref := range part {
				owned, err := t.isOutputOwned(ref)
				if err != nil {
					return err
				}
				if owned {
					continue
				}
				if err := t.Exec(`INSERT INTO garbage (ref, node) VALUES (?, ?)`, ref, t.s.mem.thisNode.Name); err != nil {
					return err
				}
				found = append(found, ref)
			}
			return nil
		})
		if err != nil {
			return unowned, err
		}
		unowned = append(unowned, found...)
	}
	return unowned, nil
}

// isOutputOwned reports whether an output file belongs to an attempt or a lease, or is in the table garbage
// already. It also reports true for a name that is not SEQ-FENCE, so that files of other programs are kept.
func (t *Tx) isOutputOwned(ref string) (bool, error) {
	first, second, _ := strings.Cut(ref, "-")
	seq, err := strconv.ParseInt(first, 10, 64)
	fence, err2 := strconv.ParseInt(second, 10, 64)
	if err != nil || err2 != nil || ref != strconv.FormatInt(seq, 10)+"-"+strconv.FormatInt(fence, 10) {
		return true, nil
	}
	if l := t.s.mem.leases[seq]; l != nil && l.Job.Fence == fence {
		return true, nil
	}
	n, err := t.QueryNumber(
		`SELECT 1 FROM attempts INDEXED BY attempts_ref WHERE output_ref = ? UNION ALL SELECT 1 FROM garbage WHERE ref = ?`,
		ref, ref)
	return n != 0, err
}
