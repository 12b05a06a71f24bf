package enqueue

import (
	"slices"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// A request is full when one more job would exceed one of its bounds. An empty request is never full, so it
// accepts a job of any size.
func TestEnqueueRequestIsFullAtItsLimits(t *testing.T) {
	const maxJobs, maxBytes = 3, 20
	job := pendingJob{jobJSON: []byte("123456789"), argAndEnvCount: 1} // takes 10 bytes in a request
	var r request
	if big := (pendingJob{jobJSON: make([]byte, 100)}); r.isFullForJob(&big, maxJobs, maxBytes) {
		t.Error("an empty request counts as full")
	}
	r.add(job)
	if fits := (pendingJob{jobJSON: []byte("1234567890")}); r.isFullForJob(&fits, maxJobs, maxBytes) {
		t.Error("a request with 10 of 20 bytes has no room for a job of 10 bytes")
	}
	if longer := (pendingJob{jobJSON: []byte("12345678901")}); !r.isFullForJob(&longer, maxJobs, maxBytes) {
		t.Error("a request with 10 of 20 bytes has room for a job of 11 bytes")
	}
	if r.isFullForJob(&job, 2, 100) || !r.isFullForJob(&job, 1, 100) {
		t.Error("a request with one job must be full if it may have one, and not if it may have two")
	}
	many := pendingJob{argAndEnvCount: control.MaxArgEnvCount}
	if !r.isFullForJob(&many, maxJobs, 1000) {
		t.Error("a request has room for more arguments and variables than the service accepts")
	}
}

// mergeBatchResult merges the replies to several requests. The result contains all ids in their order, each limit and
// each new queue once, and the line numbers of the jobs that already existed.
func TestBatchResultsAreMerged(t *testing.T) {
	var a control.EnqueueBatchResult
	limits := []string{"memory"}
	mergeBatchResult(&a, &control.EnqueueBatchResult{JobIDs: []string{"1", "2"}, ExistingJobIndexes: []int{1},
		UnenforcedLimits: limits, Notes: []string{"n"},
		MaxAttempts: 3}, []int{10, 11})
	mergeBatchResult(&a, &control.EnqueueBatchResult{JobIDs: []string{"3"}, UnenforcedLimits: limits, Notes: []string{"n"},
		MaxAttempts: 1},
		[]int{12})
	if !slices.Equal(a.JobIDs, []string{"1", "2", "3"}) || !slices.Equal(a.ExistingJobIndexes, []int{11}) ||
		!slices.Equal(a.UnenforcedLimits, limits) || len(a.Notes) != 1 || a.MaxAttempts != 3 {
		t.Errorf("got %+v", a)
	}
}

// If the service rejects a job of a request, the error names the line of the file with that job.
func TestRejectedJobErrorNamesFileLine(t *testing.T) {
	err := queue.InvalidFieldError("cwd", "must not be empty").WithBatchIndex(2)
	if got, want := errorWithJobLine(err, []int{4, 7}).Error(), "line 7: "; got[:len(want)] != want {
		t.Errorf("got %q, want it to begin with %q", got, want)
	}
}
