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
func TestHungStartsDelayNoOtherJob(t *testing.T) {
	s, f, _ := startPool(t, 2, make([]int64, 4)...)
	awaitFrame[*wire.Start](t, f, 2)
	sentAt := time.Now()
	first, second := shortageResult(lease(1)), shortageResult(lease(2))
	first.Cause, second.Cause = int64(queue.EndStartHung), int64(queue.EndStartHung)
	f.send(first, second)
	s.awaitState(1, queue.Pending)
	s.awaitState(2, queue.Pending)
	if _, startedAt := awaitFrame[*wire.Start](t, f, 4); startedAt.Sub(sentAt) >= time.Second {
		t.Errorf("the other jobs started after %v", startedAt.Sub(sentAt))
	}
}

// While claims are paused, ThrottleReason quotes the error of the last job that could not start. A long
// error is cut.
func TestThrottleReasonQuotesLastError(t *testing.T) {
	_, f, p := startPool(t, 2, make([]int64, 4)...)
	awaitFrame[*wire.Start](t, f, 2)
	checkEqual(t, "paused before a shortage", p.ThrottleReason(), "")
	first, second := shortageResult(lease(1)), shortageResult(lease(2))
	second.Error = "no more directories " + strings.Repeat("x", 1000)
	f.send(first, second)
	waitUntil(t, "claims are paused", func() bool { return p.ThrottleReason() != "" })
	if got := p.ThrottleReason(); !strings.Contains(got, "the last error was: no more directories x") || len(got) > 600 {
		t.Errorf("ThrottleReason returned %q, want the last error in at most 600 bytes", got)
	}
}
