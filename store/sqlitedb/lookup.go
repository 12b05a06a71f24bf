package sqlitedb

import (
	"fmt"
	"strconv"

	"github.com/queuectl/queuectl/store/database"
)

// neighboursToCheck is how many entries of the id index are checked before and after the
// position of a missing id.
const neighboursToCheck = 50

// CheckMissingJobID implements database.MissingJobChecker. It is called for a job that was not found, and returns an
// error if damage may have hidden the job: if an index has an entry for it, if a page on the path to its id in
// the id index is damaged, or if entries near that id disagree with their rows. It does not find a page that
// lacks its last write; "queuectl doctor --verify" does.
func (c *Conn) CheckMissingJobID(id string, seq int64) error {
	if seq > 0 {
		if err := c.CheckMissingJobSeq(seq); err != nil {
			return err
		}
	}
	if err := checkIndexSearchPath(c, id); err != nil {
		return err
	}
	for _, side := range []string{`id <= ? ORDER BY id DESC`, `id > ? ORDER BY id`} {
		err := checkIndexedIDs(c, `SELECT id, seq FROM jobs INDEXED BY jobs_id WHERE id <> CAST(seq AS TEXT) AND `+side+
			` LIMIT ?`, id, int64(neighboursToCheck))
		if err != nil {
			return err
		}
	}
	return nil
}

// CheckMissingJobSeq implements database.MissingJobChecker. It returns a damage error if an index has entries for
// the job but the job has no row, or if the job has a row but the id index lacks its id.
func (c *Conn) CheckMissingJobSeq(seq int64) error {
	id := ""
	found, err := database.ScanFirstRow(c, []any{&id}, `SELECT id FROM jobs WHERE seq = ?`, seq)
	if err != nil {
		return err
	}
	switch {
	case found && id == strconv.FormatInt(seq, 10):
		return nil // no damage: the job exists, but did not meet the other conditions of the lookup
	case found:
		indexed, err := c.QueryNumber(`SELECT count(*) FROM jobs INDEXED BY jobs_id
			WHERE id = ? AND id <> CAST(seq AS TEXT) AND seq = ?`, id, seq)
		if err == nil && indexed == 0 {
			err = lookupDamageErrorf("the database index jobs_id lacks the job with the number (seq) %d", seq)
		}
		return err
	}
	indexed, err := c.QueryNumber(`SELECT count(*) FROM jobs INDEXED BY jobs_state
		WHERE state IN (1, 2, 3, 4, 5, 6, 7, 8) AND seq = ?`, seq)
	if err == nil && indexed > 0 {
		err = lookupDamageErrorf(`the table "jobs" lacks the job with the number (seq) %d`, seq)
	}
	return err
}

// checkIndexedIDs executes a query that returns entries of the id index. It returns a damage error if the row of an
// entry is missing or has another id.
func checkIndexedIDs(c *Conn, query string, args ...any) error {
	type entry struct {
		id  string
		seq int64
	}
	list, err := database.ReadRows(c, func(r database.Row) entry { return entry{r.Text(0), r.Int64(1)} }, query, args...)
	if err != nil {
		return err
	}
	for _, e := range list {
		id := ""
		found, err := database.ScanFirstRow(c, []any{&id}, `SELECT id FROM jobs WHERE seq = ?`, e.seq)
		if err == nil && (!found || id != e.id) {
			err = lookupDamageErrorf("the database index jobs_id does not match the row of the job with the number (seq) %d",
				e.seq)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lookupDamageErrorf returns a damage error for the database.
func lookupDamageErrorf(format string, args ...any) error {
	return database.DamageError(fmt.Sprintf(format, args...))
}
