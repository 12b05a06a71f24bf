package worker

import (
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
)

// If the system has ended an attempt for lack of memory, the outcome says that the attempt reached its memory
// limit.
func TestOutOfMemoryOutcomeReportsMemoryLimit(t *testing.T) {
	got := attemptOutcome(&wire.Result{EndCause: int64(queue.EndOutOfMemory), Signal: 9, ReachedMemoryLimit: true})
	if got.EndCause != queue.EndOutOfMemory || !got.HitMemoryLimit {
		t.Errorf("the outcome is %+v, want EndOutOfMemory with HitMemoryLimit", got)
	}
}

// If the leases of a node lapse (the node loses the right to run the jobs), its runners end their attempts. Such an
// attempt is recorded as interrupted, not as a failure of the job.
func TestLapsedLeaseEndsAttemptAsInterrupted(t *testing.T) {
	interrupted := wire.Result{EndCause: int64(queue.EndInterrupted), Signal: 9, ExitCode: 137}
	if got := attemptOutcome(&interrupted).EndCause; got != queue.EndInterrupted {
		t.Errorf("the end is %v, want %v", got, queue.EndInterrupted)
	}
}

// The runner gets the expiry time of a job on the clock of the runner's machine, even if the store's clock
// differs.
func TestJobExpiryUsesRunnersMachineClock(t *testing.T) {
	j := &queue.Job{ExpiresAt: queue.UnixMillisOf(time.Now()) + 60_000}
	const hour = queue.UnixMillis(3_600_000)
	p := &Pool{cfg: Config{StoreTime: func() queue.UnixMillis { return queue.UnixMillisOf(time.Now()) - hour }}}
	if got := queue.UnixMillis(p.localExpiryMillis(j)) - j.ExpiresAt; got < hour-1000 || got > hour+1000 {
		t.Errorf("the machine's clock is an hour ahead, but the expiry is shifted by %v", got)
	}
	p.cfg.StoreTime = func() queue.UnixMillis { return queue.UnixMillisOf(time.Now()) }
	if got := p.localExpiryMillis(j); got != int64(j.ExpiresAt) {
		t.Errorf("with equal clocks, the expiry is %d, want %d", got, j.ExpiresAt)
	}
	if got := p.localExpiryMillis(&queue.Job{}); got != 0 {
		t.Errorf("the expiry of a job without one is %d, want 0", got)
	}
}
