package worker

import (
	"cmp"
	"maps"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// mayStartJobsLocked reports whether jobs may be sent to runners now. It returns false during a stop, during a drain,
// while all jobs are paused, and after the time set with SetLeaseDeadline, because from then on other nodes may run the
// jobs.
func (l *poolLoop) mayStartJobsLocked() bool {
	return !l.stopRequested && !l.draining && !l.allJobsPaused && !l.leaseDeadline.hasPassed(time.Now())
}

// claimableJobCountLocked returns how many jobs may be claimed now: one for each free worker, and additional ones if
// recent jobs were short. The additional jobs are prefetched: they wait in the runner until a worker is free.
func (l *poolLoop) claimableJobCountLocked() int {
	if time.Now().Before(l.claimsPausedUntil) {
		return 0
	}
	l.claimsPausedUntil = time.Time{}
	workers := l.usableWorkerCountLocked()
	if workers == 0 || !l.mayStartJobsLocked() || l.leases.isRecallInProgressLocked() ||
		l.runners.currentRunnerLocked() == nil {
		return 0
	}
	prefetch := 0
	if l.meanRunTime > 0 {
		prefetch = min(maxPrefetchedJobs, int(maxPrefetchRunTime*time.Duration(workers)/max(l.meanRunTime, time.Microsecond)))
		if prefetch < workers {
			prefetch = 0 // jobs run too long to be prefetched, so claim only for free workers
		}
	}
	if failpoint.IsEnabled("ahead") {
		prefetch = maxPrefetchedJobs
	}
	return max(0, workers+prefetch-l.leases.undecidedLeaseCountLocked())
}

// stuckWorkerCountLocked returns how many workers cannot run jobs, because processes of an ended job
// survive SIGKILL and occupy the worker.
func (p *Pool) stuckWorkerCountLocked() (n int) {
	for _, conn := range p.runners.conns {
		n += p.runnerStuckWorkerCountLocked(conn)
	}
	return n
}

// runnerStuckWorkerCountLocked returns how many workers of one runner are occupied by processes that survive SIGKILL.
// The pool does not trust the reports of a runner that has switched to another account. If such a runner does not get
// new jobs, the pool ignores its reports. Otherwise, the pool counts at least one of its workers as free.
func (p *Pool) runnerStuckWorkerCountLocked(conn *runnerConn) int {
	switch {
	case !runner.RunnerHasSwitchedAccount(conn.RunnerDir):
		return len(conn.stuckAttempts)
	case filepath.Dir(conn.RunnerDir) != p.cfg.RunnerLocation.DirForNewRunners():
		return 0
	}
	return min(len(conn.stuckAttempts), max(p.wantedWorkerCount-1, 0))
}

// usableWorkerCountLocked returns how many of the wanted workers are not occupied by processes that survive
// SIGKILL.
func (p *Pool) usableWorkerCountLocked() int {
	atLeast := 0
	if p.cfg.RunnerLocation.SwitchToAccount != "" {
		atLeast = min(p.wantedWorkerCount, 1)
	}
	return max(atLeast, p.wantedWorkerCount-p.stuckWorkerCountLocked())
}

// updateCapacityFromResultLocked uses a result to update what the pool has learned from results: whether the machine
// lacks resources, how long jobs run, and for which users the starts of programs hang. This knowledge limits later
// claims.
func (l *poolLoop) updateCapacityFromResultLocked(h *lease, r *wire.Result) {
	switch {
	case r.ResourceShortage:
		text := "a job could not be started; the service tries again later, without using one of the job's attempts"
		if h.job.Shortages >= queue.MaxConsecutiveShortages {
			text = "a job could not be started, again and again, so this start counts as a failed attempt"
		}
		l.cfg.Log.Warn(text, "job", h.job.ID, "error", r.Error)
		// Ignore starts that hang: they do not mean that the machine lacks resources.
		if r.EndCause != int64(queue.EndStartHung) && l.shortage.recordFailedStart(h.job.Seq, time.Now()) {
			l.pauseClaimsLocked(r.Error)
		}
	case r.EndCause == int64(queue.EndStartHung):
		l.recordHungStart(&h.job)
	default:
		l.shortage = shortageTracker{nextPauseDuration: minShortagePause}
		// The attempt counts for a quarter of the new mean run time.
		run := max(time.Duration(r.EndedAtMillis-r.StartedAtMillis)*time.Millisecond, time.Millisecond/2)
		l.meanRunTime = cmp.Or(l.meanRunTime, run)
		l.meanRunTime += (run - l.meanRunTime) / 4
	}
}

// shortageTracker tracks starts that fail for lack of resources. If one job cannot start, only this job is
// postponed. If several jobs cannot start within a short time, the pool also pauses its claims.
type shortageTracker struct {
	lastFailedJobSeq int64     // job number of the last failed start
	lastFailureAt    time.Time // time of the last failed start
	// nextPauseDuration is how long the pool will claim no jobs after the next failed start. Each pause doubles this
	// duration, up to maxShortagePause.
	nextPauseDuration time.Duration
}

// If the starts of two different jobs fail within shortageWindow, the pool concludes that the machine lacks
// resources.
const shortageWindow = 5 * time.Second

// recordFailedStart records that a job could not be started for lack of resources. It returns true if another
// job also failed to start shortly before, so that the whole machine seems to lack resources.
func (s *shortageTracker) recordFailedStart(jobSeq int64, now time.Time) bool {
	machineWide := s.lastFailedJobSeq != 0 && s.lastFailedJobSeq != jobSeq && now.Sub(s.lastFailureAt) < shortageWindow
	s.lastFailedJobSeq, s.lastFailureAt = jobSeq, now
	return machineWide
}

// maxShownStartErrBytes is the maximum length, in bytes of JSON, of the error that ClaimPauseReason contains.
const maxShownStartErrBytes = 400

// pauseClaimsLocked pauses claims because a job failed to start with this error. While starts keep failing,
// each pause is longer than the one before.
func (l *poolLoop) pauseClaimsLocked(startErr string) {
	l.lastStartErr = queue.ClipJSON(startErr, maxShownStartErrBytes)
	// A failed start does not extend a pause that has already begun, because the job may have been sent before the pause.
	if now := time.Now(); now.After(l.claimsPausedUntil) {
		l.claimsPausedUntil = now.Add(l.shortage.nextPauseDuration)
		l.shortage.nextPauseDuration = min(2*l.shortage.nextPauseDuration, maxShortagePause)
	}
}

// ThroughputPerMinute returns the number of attempts whose end was recorded in the last minute.
func (p *Pool) ThroughputPerMinute() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endedAttempts.lastMinuteTotal(time.Now())
}

// QueueThroughputsPerMinute returns, for each queue, the number of attempts whose end was recorded in the
// last minute. It omits queues without such attempts.
func (p *Pool) QueueThroughputsPerMinute() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endedAttempts.lastMinuteTotalsByQueue(time.Now())
}

// endedAttemptCounts counts the attempts that ended in the last minute, in total and by queue.
type endedAttemptCounts struct {
	total               lastMinuteCounts
	byQueue             map[string]*lastMinuteCounts
	newestCountedSecond int64 // newest Unix second in which an attempt was counted
}

// lastMinuteCounts holds one count per second. The index is the Unix second modulo 60.
type lastMinuteCounts [60]int

// sum returns the sum of all counts.
func (c *lastMinuteCounts) sum() (sum int) {
	for _, n := range c {
		sum += n
	}
	return sum
}

// maxCountedQueues limits how many queues are counted separately, because each takes 500 bytes. Ended
// attempts of further queues count only in the total.
const maxCountedQueues = 4096

// countEndedAttempt counts one ended attempt of a job of the queue. If the queue is not known, the caller passes "",
// and the attempt counts only in the total.
func (r *endedAttemptCounts) countEndedAttempt(queueName string, now time.Time) {
	r.discardExpiredCounts(now)
	r.total[r.newestCountedSecond%60]++
	counts := r.byQueue[queueName]
	if counts == nil {
		if queueName == "" || len(r.byQueue) >= maxCountedQueues {
			return
		}
		if r.byQueue == nil {
			r.byQueue = map[string]*lastMinuteCounts{}
		}
		counts = &lastMinuteCounts{}
		r.byQueue[queueName] = counts
	}
	counts[r.newestCountedSecond%60]++
}

// lastMinuteTotal returns the number of ended attempts in the minute before now.
func (r *endedAttemptCounts) lastMinuteTotal(now time.Time) int {
	r.discardExpiredCounts(now)
	return r.total.sum()
}

// lastMinuteTotalsByQueue returns the number of ended attempts per queue in the minute before now.
func (r *endedAttemptCounts) lastMinuteTotalsByQueue(now time.Time) map[string]int {
	r.discardExpiredCounts(now)
	sums := map[string]int{}
	for queueName, counts := range r.byQueue {
		sums[queueName] = counts.sum()
	}
	return sums
}

// discardExpiredCounts clears counts that are older than a minute, and removes queues without remaining counts.
func (r *endedAttemptCounts) discardExpiredCounts(now time.Time) {
	second := max(r.newestCountedSecond, now.Unix())
	if second == r.newestCountedSecond {
		return
	}
	for s := max(r.newestCountedSecond, second-60) + 1; s <= second; s++ {
		r.total[s%60] = 0
		for _, counts := range r.byQueue {
			counts[s%60] = 0
		}
	}
	maps.DeleteFunc(r.byQueue, func(_ string, counts *lastMinuteCounts) bool { return *counts == lastMinuteCounts{} })
	r.newestCountedSecond = second
}
