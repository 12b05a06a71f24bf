package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
)

// If a job cannot start because access to one of its files hangs, the job is postponed and delays no other
// job.
func TestHungJobStartDelaysNoOtherJob(t *testing.T) {
	s, f, _ := startPool(t, 2, make([]int64, 4)...)
	awaitFrame[*wire.StartAttempt](t, f, 2)
	sentAt := time.Now()
	first, second := shortageResult(firstClaimLease(1)), shortageResult(firstClaimLease(2))
	first.EndCause, second.EndCause = int64(queue.EndStartHung), int64(queue.EndStartHung)
	f.sendFrames(first, second)
	s.awaitJobState(1, queue.Pending)
	s.awaitJobState(2, queue.Pending)
	if _, startedAt := awaitFrame[*wire.StartAttempt](t, f, 4); startedAt.Sub(sentAt) >= time.Second {
		t.Errorf("the other jobs started after %v", startedAt.Sub(sentAt))
	}
}

// While claims are paused, ClaimPauseReason quotes the error of the last job that could not start. A long
// error is cut.
func TestClaimPauseReasonQuotesLastError(t *testing.T) {
	_, f, p := startPool(t, 2, make([]int64, 4)...)
	awaitFrame[*wire.StartAttempt](t, f, 2)
	checkEqual(t, "paused before a shortage", p.ClaimPauseReason(), "")
	first, second := shortageResult(firstClaimLease(1)), shortageResult(firstClaimLease(2))
	second.Error = "no more directories " + strings.Repeat("x", 1000)
	f.sendFrames(first, second)
	waitUntil(t, "claims are paused", func() bool { return p.ClaimPauseReason() != "" })
	if got := p.ClaimPauseReason(); !strings.Contains(got, "the last error was: no more directories x") || len(got) > 600 {
		t.Errorf("ThrottleReason returned %q, want the last error in at most 600 bytes", got)
	}
}
