package sqlitedb

import (
	"fmt"
	"strconv"

	"github.com/queuectl/queuectl/store/database"
)

// neighboursToCheck is how many entries of the id index are checked before and after the
// position of a missing id.
const neighboursToCheck = 50

// CheckMissingID implements database.MissingChecker. It is called for a job that was not found, and returns an
// error if damage may have hidden the job: if an index has an entry for it, if a page on the path to its id in
// the id index is damaged, or if entries near that id disagree with their rows. It does not find a page that
// lacks its last write; "queuectl doctor --verify" does.
func (c *Conn) CheckMissingID(id string, number int64) error {
	if number > 0 {
		if err := c.CheckMissingNumber(number); err != nil {
			return err
		}
	}
	if err := checkIndexPath(c, id); err != nil {
		return err
	}
	for _, side := range []string{`id <= ? ORDER BY id DESC`, `id > ? ORDER BY id`} {
		err := checkIDs(c, `SELECT id, seq FROM jobs INDEXED BY jobs_id WHERE id <> CAST(seq AS TEXT) AND `+side+
			` LIMIT ?`, id, int64(neighboursToCheck))
		if err != nil {
			return err
		}
	}
	return nil
}

// CheckMissingNumber implements database.MissingChecker. It returns a damage error if an index has entries for
// the job but the job has no row, or if the job has a row but the id index lacks its id.
func (c *Conn) CheckMissingNumber(seq int64) error {
	id := ""
	found, err := database.FirstRow(c, func(r database.Row) { id = r.Text(0) }, `SELECT id FROM jobs WHERE seq = ?`, seq)
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
			err = lookupDamage("the database index jobs_id lacks the job with the number (seq) %d", seq)
		}
		return err
	}
	indexed, err := c.QueryNumber(`SELECT count(*) FROM jobs INDEXED BY jobs_state
		WHERE state IN (1, 2, 3, 4, 5, 6, 7, 8) AND seq = ?`, seq)
	if err == nil && indexed > 0 {
		err = lookupDamage(`the table "jobs" lacks the job with the number (seq) %d`, seq)
	}
	return err
}

// checkIDs executes a query that returns entries of the id index. It returns a damage error if the row of an
// entry is missing or has another id.
func checkIDs(c *Conn, query string, args ...any) error {
	type entry struct {
		id  string
		seq int64
	}
	list, err := database.Rows(c, func(r database.Row) entry { return entry{r.Text(0), r.Num(1)} }, query, args...)
	if err != nil {
		return err
	}
	for _, e := range list {
		same := false
		_, err := database.FirstRow(c, func(r database.Row) { same = r.Text(0) == e.id },
			`SELECT id FROM jobs WHERE seq = ?`, e.seq)
		if err == nil && !same {
			err = lookupDamage("the database index jobs_id does not match the row of the job with the number (seq) %d", e.seq)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lookupDamage returns a damage error for the database.
func lookupDamage(format string, args ...any) error {
	return database.DamageError(fmt.Sprintf(format, args...))
}
