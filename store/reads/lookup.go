package reads

import (
	"strconv"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
)

// CheckJobIsMissing returns a damage error if a job that was not found may exist, because the database is damaged.
// So a damaged database never makes a job appear not to exist.
func CheckJobIsMissing(c database.Statements, id string) error {
	if checker, is := c.(database.MissingJobChecker); is {
		return checker.CheckMissingJobID(id, SeqOfNumericID(id))
	}
	return nil
}

// MissingJobError returns the error for a job that was not found by its seq: queue.ErrNotFound, or a damage
// error if the job may exist.
func MissingJobError(c database.Statements, seq int64) error {
	if checker, is := c.(database.MissingJobChecker); is {
		if err := checker.CheckMissingJobSeq(seq); err != nil {
			return err
		}
	}
	return queue.Errorf(queue.CodeNotFound, "there is no job with the number %d; it may have been removed", seq)
}

// JobWithIDCondition is the SQL condition for the job with an id. JobWithIDArgs returns its arguments. A job that was
// enqueued without an id has its number as its id. See docs/decisions/0008.
const JobWithIDCondition = `seq IN (SELECT seq FROM jobs WHERE seq = ? AND id = ?
	UNION ALL SELECT seq FROM jobs INDEXED BY jobs_id WHERE id = ? AND id <> CAST(seq AS TEXT))`

// JobWithIDArgs returns the arguments of JobWithIDCondition.
func JobWithIDArgs(id string) []any { return []any{SeqOfNumericID(id), id, id} }

// SeqOfNumericID returns the job number that is written as this id, or 0 if the id is not a number.
func SeqOfNumericID(id string) int64 {
	if n, err := strconv.ParseInt(id, 10, 64); err == nil && n > 0 && strconv.FormatInt(n, 10) == id {
		return n
	}
	return 0
}
