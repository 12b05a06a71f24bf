package sqlitedb

import (
	"fmt"
	"strconv"

	"github.com/queuectl/queuectl/store/database"
)

// neighboursToCheck is how many entries of the id index are checked on each side of the place where a missing
// id would be.
const neighboursToCheck = 50

// CheckMissingID implements database.MissingChecker. It returns a damage error in three cases:
//   - an index has an entry for the job;
//   - a page on the path to the id in the id index is damaged;
//   - entries next to the id's position in that index disagree with their rows.
//
// Only "queuectl doctor --verify" finds pages that are older than the rest of the database.
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

// CheckMissingNumber implements database.MissingChecker. It returns a damage error if there are index entries
// for the job but no row, or if there is a row whose id is missing from the id index.
func (c *Conn) CheckMissingNumber(seq int64) error {
	id := ""
	found, err := database.FirstRow(c, func(r database.Row) { id = r.Text(0) }, `SELECT id FROM jobs WHERE seq = ?`, seq)
	if err != nil {
		return err
	}
	switch {
	case found && id == strconv.FormatInt(seq, 10):
		return nil // no damage: the job exists, but the lookup had further conditions
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

// checkIDs executes a query for entries of the id index. It returns a damage error if the row of an entry is
// missing or has another id.
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

// lookupDamage returns the error for damage that a lookup found.
func lookupDamage(format string, args ...any) error {
	return database.DamageError(fmt.Sprintf(format, args...))
}
