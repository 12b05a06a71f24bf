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
	EndExited             EndCause = iota + 1 // the command exited with an exit code
	EndSignalled                              // a signal that queuectl did not send ended the command
	EndTimedOut                               // the timeout expired
	EndKilled                                 // a user cancelled the job
	EndStopped                                // the service had to stop the attempt
	EndShortage                               // the command could not start, because the machine lacked resources
	EndNeverStarted                           // the job was claimed, but the attempt never started
	EndRunnerLost                             // the runner of the attempt died
	EndInterrupted                            // the machine of the attempt went down
	EndUnkillable                             // processes of the attempt survived SIGKILL
	EndIdleTimedOut                           // the idle timeout expired
	EndOutOfMemory                            // the kernel killed the command or, on Windows, refused it memory
	EndStartHung                              // the start of the command hung, so it was aborted
	EndPerhapsRunnerLost                      // the runner died; it is unknown whether the command had started
	EndPerhapsInterrupted                     // the machine went down; it is unknown whether the command had started
	EndAccountChanged                         // not started, because a uid of the job now belongs to another account
	EndCannotStart                            // not started, because a file that the job names is missing or unusable
)

// Outcome describes how an attempt ended. The runner or the service determines it, and Decide uses it.
type Outcome struct {
	EndCause EndCause
	ExitCode int64  // exit code, if EndCause is EndExited; 126 or 127 also if the command could not be run
	Signal   int    // signal number, if EndCause is EndSignalled
	Error    string // message for users; if it is "", Decide composes one
	Isolated bool   // the runner ran no other job during the attempt
	// HitMemoryLimit means that a process of the attempt was killed, or got no memory, because the job reached
	// its memory limit.
	HitMemoryLimit bool
	// WasPaused means that a user had paused the job and it was still paused when the attempt ended.
	WasPaused bool
}

// BackoffStrategy determines how the retry delay grows from retry to retry.
type BackoffStrategy string

// These are the strategies. After n failed attempts, the delay is base^n seconds (Exponential), base × n
// seconds (Linear), or always RetryPolicy.RetryDelay (Fixed).
const (
	Exponential BackoffStrategy = "exponential"
	Linear      BackoffStrategy = "linear"
	Fixed       BackoffStrategy = "fixed"
)

// Backoff holds the backoff settings of one job. They have the same meaning as in RetryPolicy. A zero value
// means that the setting of the service applies.
type Backoff struct {
	Base     float64         `json:"base,omitempty"`
	Strategy BackoffStrategy `json:"strategy,omitempty"`
	Max      time.Duration   `json:"max,omitempty"`
	Jitter   *float64        `json:"jitter,omitempty"`
}

// RetryPolicy holds the backoff settings of the service. The service reads them again for each failed
// attempt.
type RetryPolicy struct {
	Base       float64 // seconds, greater than 0
	Strategy   BackoffStrategy
	Max        time.Duration // longest delay
	Jitter     float64       // 0 to 1: with 0.2, the delay varies by ±20 %
	RetryDelay time.Duration // delay with the strategy Fixed, and after an exit code in the job's DeferCodes
}

// A shortage means that a job could not start because the machine lacked resources. The job then waits for
// shortagePause. Each further shortage in a row doubles the wait, up to maxShortagePause.
//
// The job did not cause the shortage, so it loses no attempt. But after MaxShortages in a row, the next one
// counts as a failure, because the job itself may be the cause.
const (
	shortagePause    = time.Second
	maxShortagePause = 30 * time.Second
	MaxShortages     = 100
)

// Decision is the result of Decide for the outcome of an attempt: the job's next state, and how the attempt
// counts. Delay begins when the store records the decision.
type Decision struct {
	State          State
	Reason         Reason
	Error          string        // message for users; "" if the job is completed
	UsesAttempt    bool          // the attempt counts towards the job's MaxAttempts
	Delay          time.Duration // until the job can start again
	RecordsAttempt bool          // the attempt gets its own row in the store
	UsesDeferral   bool          // the attempt counts towards the job's Deferrals
	CountsShortage bool          // the attempt counts towards the job's Shortages
	NeedsIsolation bool          // the next attempt gets a runner without other jobs
	CountsAsCrash  bool          // increments the job's RunnerCrashes: the runner died while it ran only this job
}

// PoisonCrashCount is the number of crashes after which a job is dead, even if attempts remain. A crash is the
// death of a runner while it ran only this job. Job.RunnerCrashes counts them.
const PoisonCrashCount = 3

// Decide returns the decision for an attempt of job j with outcome o. j is the job as it was when the attempt
// was claimed. No other code decides how a job continues after an attempt.
func Decide(j *Job, o Outcome, p RetryPolicy) Decision {
	d := decideWithoutNote(j, o, p)
	if o.HitMemoryLimit && o.EndCause != EndOutOfMemory && (d.State == Failed || d.State == Dead) {
		d.Error += fmt.Sprintf("; the kernel killed a process because the job reached its memory limit of %s (--memory)",
			DescribeSize(j.Memory))
	}
	return d
}

// decideWithoutNote is like Decide, but does not add a note about the memory limit to the error.
func decideWithoutNote(j *Job, o Outcome, p RetryPolicy) Decision {
	d := Decision{Error: o.Error, RecordsAttempt: true}
	switch o.EndCause { // these causes do not show whether the job kills its runner, so keep NeedsIsolation
	case EndStopped, EndShortage, EndNeverStarted, EndInterrupted, EndPerhapsRunnerLost, EndPerhapsInterrupted,
		EndAccountChanged:
		d.NeedsIsolation = j.NeedsIsolation
	}
	switch o.EndCause {
	case EndStartHung:
		o.ExitCode = 126
		return d.afterExit(j, o, p)
	case EndExited:
		return d.afterExit(j, o, p)
	case EndCannotStart: // treated like an exit code in NoRetryCodes, since a retry would fail too
		if o.ExitCode != 127 {
			o.ExitCode = 126
		}
		if d = d.afterExit(j, o, p); d.State == Failed {
			d.State, d.Delay = Dead, 0
		}
		return d
	case EndSignalled:
		d.Reason = ReasonSignal
		d.Error = cmp.Or(d.Error, "ended by "+SignalText(o.Signal))
		return d.afterFailure(j, p)
	case EndOutOfMemory:
		return d.afterOutOfMemory(j, o, p)
	case EndTimedOut:
		d.Reason = ReasonTimedOut
		d.Error = cmp.Or(d.Error, "timed out after "+FormatDuration(j.Timeout))
		return d.afterFailure(j, p)
	case EndIdleTimedOut:
		d.Reason = ReasonTimedOut
		d.Error = cmp.Or(d.Error, "the job printed nothing for "+FormatDuration(j.IdleTimeout)+" (--idle-timeout)")
		return d.afterFailure(j, p)
	case EndKilled:
		d.State, d.Reason, d.UsesAttempt = Cancelled, ReasonCancelled, true
	case EndStopped:
		d.State, d.Reason = Pending, ReasonStopped
		if o.WasPaused { // a paused job must not run again until a user releases it
			d.State = Held
		}
	case EndShortage:
		return d.afterShortage(j, p)
	case EndNeverStarted:
		d.State, d.RecordsAttempt = Pending, false
	case EndAccountChanged:
		d.State, d.Reason, d.RecordsAttempt = Held, ReasonDisowned, false
	case EndRunnerLost, EndInterrupted:
		return d.afterLoss(j, o)
	case EndPerhapsRunnerLost, EndPerhapsInterrupted:
		return d.afterPossibleLoss(j, o)
	case EndUnkillable:
		d.State, d.Reason, d.UsesAttempt = Dead, ReasonUnkillable, true
	default:
		panic(fmt.Sprintf("queue: an attempt ended in an unknown way (%d)", o.EndCause))
	}
	return d
}

func (d Decision) afterOutOfMemory(j *Job, o Outcome, p RetryPolicy) Decision {
	d.Reason = ReasonOOM
	switch {
	case d.Error != "":
	case o.HitMemoryLimit:
		d.Error = fmt.Sprintf("out of memory, because the job reached its memory limit of %s (--memory)",
			DescribeSize(j.Memory))
	default:
		d.Error = "out of memory, killed by the kernel"
	}
	return d.afterFailure(j, p)
}

// afterShortage completes the decision for an attempt that could not start because the machine lacked
// resources. After MaxShortages of these attempts in a row, the next one counts as a failure.
func (d Decision) afterShortage(j *Job, p RetryPolicy) Decision {
	d.Reason = ReasonShortage
	if j.Shortages >= MaxShortages {
		message := fmt.Sprintf("not started, because the system was out of resources %d times in a row", MaxShortages+1)
		if d.Error != "" {
			message += ": " + d.Error
		}
		d.Error = message
		return d.afterFailure(j, p)
	}
	d.State, d.RecordsAttempt, d.CountsShortage = Pending, false, true
	d.Delay = min(maxShortagePause, shortagePause<<min(j.Shortages, 5))
	return d
}

// afterExit completes the decision for a command that exited with the code o.ExitCode.
func (d Decision) afterExit(j *Job, o Outcome, p RetryPolicy) Decision {
	d.UsesAttempt = true
	if o.ExitCode == 0 && len(j.OkCodes) == 0 || slices.Contains(j.OkCodes, int(o.ExitCode)) {
		d.State, d.Error = Completed, ""
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
		d.State, d.Reason, d.Delay = Pending, ReasonDeferred, p.RetryDelay
		d.UsesAttempt, d.UsesDeferral = false, true
		return d
	}
	if slices.Contains(j.NoRetryCodes, int(o.ExitCode)) {
		d.State = Dead
		return d
	}
	return d.afterFailure(j, p)
}

// afterFailure completes the decision for a failed attempt, which counts. If an attempt remains, the job is
// retried; otherwise it is dead.
func (d Decision) afterFailure(j *Job, p RetryPolicy) Decision {
	d.UsesAttempt, d.State = true, Dead
	if n := j.Attempts + 1; n < j.MaxAttempts {
		d.State, d.Delay = Failed, p.retryDelay(j, n)
	}
	return d
}

// causeOfLoss says why the end of an attempt is unknown: the machine went down, or the runner died.
func (o *Outcome) causeOfLoss() (Reason, string) {
	if o.EndCause == EndInterrupted || o.EndCause == EndPerhapsInterrupted {
		return ReasonInterrupted, "the machine went down"
	}
	return ReasonLost, "the runner died"
}

// afterLoss completes the decision for a started attempt whose end is unknown, because its runner or machine
// went down.
func (d Decision) afterLoss(j *Job, o Outcome) Decision {
	d.UsesAttempt = true
	reason, cause := o.causeOfLoss()
	d.Reason, d.Error = reason, cmp.Or(d.Error, "outcome unknown, because "+cause)
	if o.EndCause == EndRunnerLost {
		d.NeedsIsolation, d.CountsAsCrash = true, o.Isolated
	}
	if d.CountsAsCrash && j.RunnerCrashes+1 >= PoisonCrashCount {
		d.State, d.Reason = Dead, ReasonPoison
		d.Error = fmt.Sprintf("not retried, because %d runners (the processes that supervise jobs) died while this was "+
			"their only job", PoisonCrashCount)
		return d
	}
	switch j.OnLost {
	case OnLostHold:
		d.State = Held
	case OnLostDead:
		d.State = Dead
	default:
		d.State = Dead
		if j.Attempts+1 < j.MaxAttempts {
			d.State = Failed // without a delay
		}
	}
	return d
}

// afterPossibleLoss completes the decision for an attempt whose runner or machine went down, perhaps before the
// command started. The attempt counts only if the job must not run twice, that is, if on_lost is hold or dead.
func (d Decision) afterPossibleLoss(j *Job, o Outcome) Decision {
	reason, cause := o.causeOfLoss()
	d.Reason, d.Error = reason, "it is unknown whether the job started, because "+cause
	switch j.OnLost {
	case OnLostHold:
		d.State, d.UsesAttempt = Held, true
	case OnLostDead:
		d.State, d.UsesAttempt = Dead, true
	default:
		d.State = Pending
	}
	return d
}

// retryDelay returns the delay before the next attempt of j. failedAttempts is the number of attempts that have
// failed. The delay is never negative and never longer than the maximum.
func (p RetryPolicy) retryDelay(j *Job, failedAttempts int) time.Duration {
	settings := j.Backoff
	if settings.Base != 0 {
		p.Base = settings.Base
	}
	if settings.Strategy != "" {
		p.Strategy = settings.Strategy
	}
	if settings.Max != 0 {
		p.Max = settings.Max
	}
	if settings.Jitter != nil {
		p.Jitter = *settings.Jitter
	}
	var seconds float64
	switch p.Strategy {
	case Linear:
		seconds = p.Base * float64(failedAttempts)
	case Fixed:
		seconds = p.RetryDelay.Seconds()
	default:
		seconds = math.Pow(p.Base, float64(failedAttempts))
	}
	seconds *= 1 + p.Jitter*jitterFactor(j.Seq, failedAttempts)
	seconds = min(seconds, p.Max.Seconds())                        // not NaN, since base is greater than 0
	return min(p.Max, time.Duration(seconds*float64(time.Second))) // the product may be rounded up
}

// jitterFactor returns a pseudorandom number in [-1, 1). It is always the same for the same attempt of a job.
func jitterFactor(seq int64, attemptNumber int) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%d", seq, attemptNumber)
	return float64(h.Sum64()>>11)/(1<<52) - 1
}
