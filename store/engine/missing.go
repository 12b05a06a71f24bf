package engine

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store/database"
)

// checkMissing returns a damage error if a job that a lookup did not find may still exist. So a damaged
// database never answers that a job does not exist.
func checkMissing(c database.Statements, id string) error {
	if checker, is := c.(database.MissingChecker); is {
		return checker.CheckMissingID(id, numberOf(id))
	}
	return nil
}

// missingJob returns the error for a seq without a job: not found, or damage.
func missingJob(c database.Statements, seq int64) error {
	if checker, is := c.(database.MissingChecker); is {
		if err := checker.CheckMissingNumber(seq); err != nil {
			return err
		}
	}
	return queue.Errorf(queue.CodeNotFound, "there is no job with the number (seq) %d", seq)
}
