package queue

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"
)

// EndCause says why an attempt ended. The runner or the service determines it.
type EndCause uint8

// These are the causes. They are sent between service and runner as numbers, so the numbers must not change.
const (
	EndExited                  EndCause = iota + 1 // the command exited with an exit code
	EndSignalled                                   // ended by a signal that queuectl did not send
	EndTimedOut                                    // the timeout expired
	EndCancelled                                   // a user cancelled the job
	EndStopped                                     // the service had to stop the attempt
	EndResourceShortage                            // the command could not start, because the machine lacked resources
	EndNeverStarted                                // the job was claimed, but the attempt never started
	EndRunnerLost                                  // the runner of the attempt died
	EndInterrupted                                 // the machine of the attempt went down
	EndUnkillable                                  // processes of the attempt survived SIGKILL
	EndIdleTimedOut                                // the idle timeout expired
	EndOutOfMemory                                 // the kernel killed the command or, on Windows, refused it memory
	EndStartHung                                   // the start of the command hung, so it was aborted
	EndRunnerLostMaybeStarted                      // the runner died; it is unknown whether the command had started
	EndInterruptedMaybeStarted                     // the machine went down; it is unknown whether the command had started
	EndAccountChanged                              // not started, because a uid of the job now belongs to another account
	EndCannotStart                                 // not started, because a file that the job names is missing or unusable
)

// AttemptOutcome describes how an attempt ended. The runner or the service determines it. DecideAfterAttempt decides
// from it how the job continues.
type AttemptOutcome struct {
	EndCause    EndCause
	ExitCode    int64  // exit code, if EndCause is EndExited; 126 or 127 also if the command could not be run
	Signal      int    // signal number, if EndCause is EndSignalled
	Error       string // message for users; if it is "", DecideAfterAttempt composes one
	RanIsolated bool   // the runner ran no other job during the attempt
	// HitMemoryLimit means that a process of the attempt was killed, or got no memory, because the job reached
	// its memory limit.
	HitMemoryLimit bool
	// WasPausedAtEnd means that a user had paused the job, and had not resumed it when the attempt ended.
	WasPausedAtEnd bool
}

// BackoffStrategy determines how the retry delay grows from retry to retry.
type BackoffStrategy string

// These are the strategies. After n failed attempts, the delay is base^n seconds (BackoffExponential), base × n seconds
// (BackoffLinear), or always RetryPolicy.FixedDelay (BackoffFixed).
const (
	BackoffExponential BackoffStrategy = "exponential"
	BackoffLinear      BackoffStrategy = "linear"
	BackoffFixed       BackoffStrategy = "fixed"
)

// Backoff contains the backoff settings of one job, with the same meaning as in RetryPolicy. If a field is zero, the
// setting of the service applies instead.
type Backoff struct {
	BaseSeconds float64         `json:"base,omitempty"`
	Strategy    BackoffStrategy `json:"strategy,omitempty"`
	MaxDelay    time.Duration   `json:"max,omitempty"`
	Jitter      *float64        `json:"jitter,omitempty"`
}

// RetryPolicy contains the backoff settings of the service. The service reads these settings again for each failed
// attempt.
type RetryPolicy struct {
	BaseSeconds float64 // seconds, greater than 0
	Strategy    BackoffStrategy
	MaxDelay    time.Duration // longest delay
	Jitter      float64       // 0 to 1: with 0.2, the delay varies by ±20 %
	FixedDelay  time.Duration // delay with BackoffFixed, and after an exit code in the job's DeferCodes
}

// A shortage means that a job could not start because the machine lacked resources. The job then waits for
// firstShortageDelay. Each further shortage in a row doubles the wait, up to maxShortageDelay.
//
// The job did not cause the shortage, so the attempt does not count. But after MaxConsecutiveShortages shortages in a
// row, the next one counts as a failure, because the job itself may be the cause.
const (
	firstShortageDelay      = time.Second
	maxShortageDelay        = 30 * time.Second
	MaxConsecutiveShortages = 100
)

// AttemptDecision is the result of DecideAfterAttempt: the job's next state, and how the attempt counts.
type AttemptDecision struct {
	NextState               State
	Reason                  Reason
	Error                   string        // message for users; "" if the job is completed
	CountsTowardMaxAttempts bool          // the attempt counts towards the job's MaxAttempts
	StartDelay              time.Duration // time until the job can start again, from when the store records the decision
	RecordsAttempt          bool          // the attempt gets its own row in the store
	CountsAsDeferral        bool          // the attempt counts towards the job's Deferrals
	CountsAsShortage        bool          // the attempt counts towards the job's Shortages
	NeedsIsolation          bool          // the next attempt gets a runner without other jobs
	CountsAsRunnerCrash     bool          // increments the job's RunnerCrashes: the runner died while it ran only this job
}

// FatalRunnerCrashCount is the number of crashes after which a job is dead, even if attempts remain. A crash is the
// death of a runner while it ran only this job. Job.RunnerCrashes counts them.
const FatalRunnerCrashCount = 3

// DecideAfterAttempt returns the decision after an attempt of job j with the given outcome. j is the job as it was when
// the attempt was claimed. No other code decides how a job continues after an attempt.
func DecideAfterAttempt(j *Job, outcome AttemptOutcome, policy RetryPolicy) AttemptDecision {
	d := decideWithoutMemoryNote(j, outcome, policy)
	if outcome.HitMemoryLimit && outcome.EndCause != EndOutOfMemory && (d.NextState == Failed || d.NextState == Dead) {
		d.Error += fmt.Sprintf("; the kernel killed a process because the job reached its memory limit of %s (--memory)",
			DescribeSize(j.MemoryBytes))
	}
	return d
}

// decideWithoutMemoryNote is like DecideAfterAttempt, but does not add a note about the memory limit to the error.
func decideWithoutMemoryNote(j *Job, outcome AttemptOutcome, policy RetryPolicy) AttemptDecision {
	d := AttemptDecision{Error: outcome.Error, RecordsAttempt: true}
	switch outcome.EndCause { // these causes do not show whether the job kills its runner, so keep NeedsIsolation
	case EndStopped, EndResourceShortage, EndNeverStarted, EndInterrupted, EndRunnerLostMaybeStarted,
		EndInterruptedMaybeStarted,
		EndAccountChanged:
		d.NeedsIsolation = j.NeedsIsolation
	}
	switch outcome.EndCause {
	case EndStartHung:
		outcome.ExitCode = 126
		return d.decideAfterExit(j, outcome, policy)
	case EndExited:
		return d.decideAfterExit(j, outcome, policy)
	case EndCannotStart: // treated like an exit code in NoRetryCodes, because a retry would fail too
		if outcome.ExitCode != 127 {
			outcome.ExitCode = 126
		}
		if d = d.decideAfterExit(j, outcome, policy); d.NextState == Failed {
			d.NextState, d.StartDelay = Dead, 0
		}
		return d
	case EndSignalled:
		d.Reason = ReasonSignal
		d.Error = cmp.Or(d.Error, "ended by "+SignalText(outcome.Signal))
		return d.decideAfterFailure(j, policy)
	case EndOutOfMemory:
		return d.decideAfterOutOfMemory(j, outcome, policy)
	case EndTimedOut:
		d.Reason = ReasonTimedOut
		d.Error = cmp.Or(d.Error, "timed out after "+FormatDuration(j.Timeout))
		return d.decideAfterFailure(j, policy)
	case EndIdleTimedOut:
		d.Reason = ReasonTimedOut
		d.Error = cmp.Or(d.Error, "the job printed nothing for "+FormatDuration(j.IdleTimeout)+" (--idle-timeout)")
		return d.decideAfterFailure(j, policy)
	case EndCancelled:
		d.NextState, d.Reason, d.CountsTowardMaxAttempts = Cancelled, ReasonCancelled, true
	case EndStopped:
		d.NextState, d.Reason = Pending, ReasonStopped
		if outcome.WasPausedAtEnd { // a paused job must not run again until a user releases it
			d.NextState = Held
		}
	case EndResourceShortage:
		return d.decideAfterShortage(j, policy)
	case EndNeverStarted:
		d.NextState, d.RecordsAttempt = Pending, false
	case EndAccountChanged:
		d.NextState, d.Reason, d.RecordsAttempt = Held, ReasonDisowned, false
	case EndRunnerLost, EndInterrupted, EndRunnerLostMaybeStarted, EndInterruptedMaybeStarted:
		return d.decideAfterLoss(j, outcome)
	case EndUnkillable:
		d.NextState, d.Reason, d.CountsTowardMaxAttempts = Dead, ReasonUnkillable, true
	default:
		panic(fmt.Sprintf("queue: an attempt ended in an unknown way (%d)", outcome.EndCause))
	}
	return d
}

func (d AttemptDecision) decideAfterOutOfMemory(j *Job, o AttemptOutcome, p RetryPolicy) AttemptDecision {
	d.Reason = ReasonOOM
	switch {
	case d.Error != "":
	case o.HitMemoryLimit:
		d.Error = fmt.Sprintf("out of memory, because the job reached its memory limit of %s (--memory)",
			DescribeSize(j.MemoryBytes))
	default:
		d.Error = "out of memory, killed by the kernel"
	}
	return d.decideAfterFailure(j, p)
}

// decideAfterShortage completes the decision for an attempt that could not start because the machine lacked resources.
// After MaxConsecutiveShortages such attempts in a row, the next one counts as a failure.
func (d AttemptDecision) decideAfterShortage(j *Job, p RetryPolicy) AttemptDecision {
	d.Reason = ReasonResourceShortage
	if j.Shortages >= MaxConsecutiveShortages {
		message := fmt.Sprintf("not started, because the system was out of resources %d times in a row",
			MaxConsecutiveShortages+1)
		if d.Error != "" {
			message += ": " + d.Error
		}
		d.Error = message
		return d.decideAfterFailure(j, p)
	}
	d.NextState, d.RecordsAttempt, d.CountsAsShortage = Pending, false, true
	d.StartDelay = min(maxShortageDelay, firstShortageDelay<<min(j.Shortages, 5))
	return d
}

// decideAfterExit completes the decision for a command that exited with the code o.ExitCode.
func (d AttemptDecision) decideAfterExit(j *Job, o AttemptOutcome, p RetryPolicy) AttemptDecision {
	d.CountsTowardMaxAttempts = true
	if o.ExitCode == 0 && len(j.OkCodes) == 0 || slices.Contains(j.OkCodes, int(o.ExitCode)) {
		d.NextState, d.Error = Completed, ""
		return d
	}
	d.Error = cmp.Or(d.Error, fmt.Sprintf("exit code %d", o.ExitCode))
	switch o.ExitCode {
	case 126:
		d.Reason = ReasonNotRunnable
	case 127:
		d.Reason = ReasonNotFound
	}
	if slices.Contains(j.DeferCodes, int(o.ExitCode)) && j.Deferrals < MaxDeferrals {
		d.NextState, d.Reason, d.StartDelay = Pending, ReasonDeferred, p.FixedDelay
		d.CountsTowardMaxAttempts, d.CountsAsDeferral = false, true
		return d
	}
	if slices.Contains(j.NoRetryCodes, int(o.ExitCode)) {
		d.NextState = Dead
		return d
	}
	return d.decideAfterFailure(j, p)
}

// decideAfterFailure completes the decision for an attempt that counts as failed. If the job has another attempt, it is
// retried. Otherwise it is dead.
func (d AttemptDecision) decideAfterFailure(j *Job, p RetryPolicy) AttemptDecision {
	d.CountsTowardMaxAttempts, d.NextState = true, Dead
	if n := j.Attempts + 1; n < j.MaxAttempts {
		d.NextState, d.StartDelay = Failed, p.retryDelay(j, n)
	}
	return d
}

// lossCause returns why it is unknown how an attempt ended: the machine went down, or the runner died.
func (o *AttemptOutcome) lossCause() (Reason, string) {
	if o.EndCause == EndInterrupted || o.EndCause == EndInterruptedMaybeStarted {
		return ReasonInterrupted, "the machine went down"
	}
	return ReasonLost, "the runner died"
}

// decideAfterLoss completes the decision for an attempt whose outcome is unknown, because its runner or machine went
// down. If the command may not have started, the attempt counts only if the job must not run twice, that is, if on_lost
// is hold or dead.
func (d AttemptDecision) decideAfterLoss(j *Job, o AttemptOutcome) AttemptDecision {
	reason, cause := o.lossCause()
	hadStarted := o.EndCause == EndRunnerLost || o.EndCause == EndInterrupted
	d.Reason, d.CountsTowardMaxAttempts = reason, true
	d.Error = "it is unknown whether the job started, because " + cause
	if hadStarted {
		d.Error = cmp.Or(o.Error, "outcome unknown, because "+cause)
	}
	if o.EndCause == EndRunnerLost {
		d.NeedsIsolation, d.CountsAsRunnerCrash = true, o.RanIsolated
	}
	switch {
	case d.CountsAsRunnerCrash && j.RunnerCrashes+1 >= FatalRunnerCrashCount:
		d.NextState, d.Reason = Dead, ReasonPoison
		d.Error = fmt.Sprintf("not retried, because %d runners (the processes that supervise jobs) died while this was "+
			"their only job", FatalRunnerCrashCount)
	case j.OnLost == OnLostHold:
		d.NextState = Held
	case j.OnLost == OnLostDead:
		d.NextState = Dead
	case !hadStarted:
		d.NextState, d.CountsTowardMaxAttempts = Pending, false
	case j.Attempts+1 < j.MaxAttempts:
		d.NextState = Failed // without a delay
	default:
		d.NextState = Dead
	}
	return d
}

// retryDelay returns the delay before the next attempt of j. failedAttempts is the number of attempts that have
// failed. The delay is never negative and never longer than the maximum.
func (p RetryPolicy) retryDelay(j *Job, failedAttempts int) time.Duration {
	p.BaseSeconds = cmp.Or(j.Backoff.BaseSeconds, p.BaseSeconds)
	p.Strategy = cmp.Or(j.Backoff.Strategy, p.Strategy)
	p.MaxDelay = cmp.Or(j.Backoff.MaxDelay, p.MaxDelay)
	p.Jitter = ValueOr(j.Backoff.Jitter, p.Jitter)
	var seconds float64
	switch p.Strategy {
	case BackoffLinear:
		seconds = p.BaseSeconds * float64(failedAttempts)
	case BackoffFixed:
		seconds = p.FixedDelay.Seconds()
	default:
		seconds = math.Pow(p.BaseSeconds, float64(failedAttempts))
	}
	seconds *= 1 + p.Jitter*jitterFactor(j.Seq, failedAttempts)
	seconds = min(seconds, p.MaxDelay.Seconds())                        // not NaN, because base is greater than 0
	return min(p.MaxDelay, time.Duration(seconds*float64(time.Second))) // the product may be rounded up
}

// jitterFactor returns a pseudorandom number in [-1, 1). It is always the same for the same attempt of a job.
func jitterFactor(jobSeq int64, attemptNumber int) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%d", jobSeq, attemptNumber)
	return float64(h.Sum64()>>11)/(1<<52) - 1
}
