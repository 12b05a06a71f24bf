package sql

import (
	"fmt"
	"strconv"

	"github.com/queuectl/queuectl/queue"
)

// neighbours is how many entries of the id index are checked on each side of the position of a missing id.
const neighbours = 50

// checkMissing returns a damage error if a job that a lookup did not find may still exist. It checks three
// cases:
//   - an index has an entry for the job;
//   - a page on the path to the id in the id index is damaged;
//   - entries next to the id's position in that index disagree with their rows.
//
// So a damaged database never answers that a job does not exist. Only doctor --verify finds pages that are
// older than the rest of the database. checkMissing checks only SQLite files: a PostgreSQL server has its
// own checksums, and two of its reads may see different snapshots.
func checkMissing(c statements, id string) error {
	lite, is := c.(*liteConn)
	if !is {
		return nil
	}
	if n := numberOf(id); n > 0 {
		if err := checkNumber(lite, n); err != nil {
			return err
		}
	}
	if err := checkIndexPath(lite, id); err != nil {
		return err
	}
	for _, side := range []string{`id <= ? ORDER BY id DESC`, `id > ? ORDER BY id`} {
		err := checkIDs(lite, `SELECT id, seq FROM jobs INDEXED BY jobs_id WHERE id <> CAST(seq AS TEXT) AND `+side+
			` LIMIT ?`, id, int64(neighbours))
		if err != nil {
			return err
		}
	}
	return nil
}

// missingJob returns the error for a seq without a job: not found, or damage.
func missingJob(c statements, seq int64) error {
	if lite, is := c.(*liteConn); is {
		if err := checkNumber(lite, seq); err != nil {
			return err
		}
	}
	return queue.Errorf(queue.CodeNotFound, "there is no job with the number (seq) %d", seq)
}

// checkNumber returns a damage error if a job with this seq has entries in the indexes but no row, or a row
// whose id is missing from the id index.
func checkNumber(c *liteConn, seq int64) error {
	id, found := "", false
	err := c.query(func(r row) (bool, error) {
		id, found = r.text(0), true
		return false, nil
	}, `SELECT id FROM jobs WHERE seq = ?`, seq)
	if err != nil {
		return err
	}
	indexed := int64(0)
	count := func(r row) (bool, error) {
		indexed = r.num(0)
		return false, nil
	}
	switch {
	case found && id == strconv.FormatInt(seq, 10):
		return nil // no damage: the job exists, but the caller may not use it
	case found:
		err = c.query(count, `SELECT count(*) FROM jobs INDEXED BY jobs_id WHERE id = ? AND id <> CAST(seq AS TEXT) AND seq = ?`, id, seq)
		if err == nil && indexed == 0 {
			err = lookupDamage("the database index jobs_id lacks the job with the number (seq) %d", seq)
		}
		return err
	}
	err = c.query(count, `SELECT count(*) FROM jobs INDEXED BY jobs_state WHERE state IN (1, 2, 3, 4, 5, 6, 7, 8) AND seq = ?`, seq)
	if err == nil && indexed > 0 {
		err = lookupDamage(`the table "jobs" lacks the job with the number (seq) %d`, seq)
	}
	return err
}

// checkIDs returns a damage error if the row of an entry of the id index is missing or has another id.
func checkIDs(c *liteConn, entries string, args ...any) error {
	type entry struct {
		id  string
		seq int64
	}
	var list []entry
	err := c.query(func(r row) (bool, error) {
		list = append(list, entry{r.text(0), r.num(1)})
		return true, nil
	}, entries, args...)
	if err != nil {
		return err
	}
	for _, e := range list {
		same := false
		err := c.query(func(r row) (bool, error) {
			same = r.text(0) == e.id
			return false, nil
		}, `SELECT id FROM jobs WHERE seq = ?`, e.seq)
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
	return damage(fmt.Sprintf(format, args...))
}
