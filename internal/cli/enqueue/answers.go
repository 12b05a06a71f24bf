package enqueue

import (
	"errors"
	"slices"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/queue"
)

// answers collects the service's answers to the requests of a batch.
type answers struct {
	ids              []string
	foundLines       []int    // lines of jobs that were not enqueued, because a job with their unique key exists
	unenforcedLimits []string // names of the jobs' limits that the service does not enforce
	newQueues        []control.NewQueue
	notes            []string // notes of the service about these jobs
	maxAttempts      int      // the highest max_attempts of the jobs
}

// add adds the answer to a request. The parameter lines contains the line of each of the request's
// jobs.
func (a *answers) add(got *control.EnqueueBatchResult, lines []int) {
	for _, at := range got.FoundIndexes {
		if at < len(lines) {
			a.foundLines = append(a.foundLines, lines[at])
		}
	}
	a.ids = append(a.ids, got.IDs...)
	a.unenforcedLimits = appendNew(a.unenforcedLimits, got.UnenforcedLimits)
	a.newQueues = appendNew(a.newQueues, got.NewQueues)
	a.maxAttempts = max(a.maxAttempts, got.MaxAttempts)
	if len(a.notes) == 0 { // every answer contains the same notes
		a.notes = got.Notes
	}
}

// appendNew appends the elements that the list does not contain yet.
func appendNew[T comparable](list, more []T) []T {
	for _, v := range more {
		if !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

// lineOf adds a job's line to an error of a request, if the error says which job it is about.
func lineOf(err error, lines []int) error {
	switch e, ok := errors.AsType[*queue.Error](err); {
	case !ok:
	case e.Index > 0 && e.Index <= len(lines):
		return fault.AtLine(err, lines[e.Index-1])
	case e.Field != "" && len(lines) == 1:
		return fault.AtLine(err, lines[0])
	}
	return err
}

// batchLost reports whether err means that the service no longer has the batch, for example after
// its restart.
func batchLost(err error) bool {
	e, ok := errors.AsType[*queue.Error](err)
	return ok && e.Code == queue.CodeWrongState && e.Field == ""
}
