package queue

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"
)

// End is how an attempt ended, as it was seen.
type End uint8

// The ways an attempt can end. They travel between service and runner, so
// their numbers stay.
const (
	Exited             End = iota + 1 // by itself, with an exit code
	Signalled                         // by a signal that queuectl did not send
	TimedOut                          // by its timeout
	Killed                            // because a person cancelled it
	Stopped                           // because the service was told to stop it
	Shortage                          // it could not be started for want of our own resources
	Unstarted                         // claimed, never started
	Lost                              // its runner died
	Interrupted                       // its machine went down
	Unkillable                        // it outlived SIGKILL
	Silent                            // by its idle timeout
	OutOfMemory                       // killed by the kernel, or refused memory on Windows
	HungStart                         // its start hung, and was abandoned
	PerhapsLost                       // its runner died, and whether it was started is not known
	PerhapsInterrupted                // its machine went down, and whether it was started is not known
	Disowned                          // not started, because a uid of the job belongs to another account now
	CannotStart                       // not started, because something that it names does not exist or cannot be used
)

// Outcome is what was seen of an attempt.
type Outcome struct {
	End      End
	ExitCode int64 // with Exited; 126 and 127 also when nothing could be executed
	Signal   int   // with Signalled
	Error    string
	Alone    bool // its runner ran nothing else
	// MemoryLimit says that one of its processes was killed, or refused memory, at the job's own limit.
	MemoryLimit bool
	Paused      bool // a person had it paused, and did not ask for it to run anew
}

// Strategy is how the wait grows from retry to retry.
type Strategy string

// The strategies, for n failed attempts: base^n seconds, base × n seconds, and
// Policy.RetryDelay.
const (
	Exponential Strategy = "exponential"
	Linear      Strategy = "linear"
	Fixed       Strategy = "fixed"
)

// Backoff is what a job set of its own backoff; zero fields (and a nil Jitter)
// follow the service's.
type Backoff struct {
	Base     float64       `json:"base,omitempty"`
	Strategy Strategy      `json:"strategy,omitempty"`
	Max      time.Duration `json:"max,omitempty"`
	Jitter   *float64      `json:"jitter,omitempty"`
}

// Policy is the service's backoff, read at each failure.
type Policy struct {
	Base       float64 // seconds, above 0
	Strategy   Strategy
	Max        time.Duration
	Jitter     float64 // 0…1: the wait is spread by ± so much of it
	RetryDelay time.Duration
}

// A job that could not be started for want of our own resources waits for
// shortagePause, and twice as long each time that happens again, up to
// maxShortagePause. That is no fault of the job's, so it costs none of its attempts;
// but after MaxRefunds times in a row the next one counts as a failure, for the
// shortage may be the job's own making.
const (
	shortagePause    = time.Second
	maxShortagePause = 30 * time.Second
	MaxRefunds       = 100
)

// Decision is what follows from an outcome. Delay is from the moment the
// decision is stored.
type Decision struct {
	State   State
	Reason  Reason
	Error   string
	Counts  bool // the attempt uses one of the job's attempts
	Delay   time.Duration
	Started bool // the attempt has a row of its own
	Defers  bool // the attempt uses one of the job's deferrals
	Refunds bool // the attempt uses one of the job's refunds
	Suspect bool // the next attempt gets a runner of its own
	Crashed bool // the runner died while it ran this job alone
}

// PoisonCrashes is how many runners may die of a job that they run alone; then it is
// dead, whatever attempts remain.
const PoisonCrashes = 3

// Decide says what follows when an attempt of job j ends with outcome o. It is
// the only place that knows; the job is as it was claimed.
func Decide(j *Job, o Outcome, p Policy) Decision {
	d := decide(j, o, p)
	if o.MemoryLimit && o.End != OutOfMemory && (d.State == Failed || d.State == Dead) {
		d.Error += fmt.Sprintf("; the kernel killed a process because the job reached its memory limit of %s (--memory)", DescribeSize(j.Memory))
	}
	return d
}

// decide is Decide without the note on the memory limit.
func decide(j *Job, o Outcome, p Policy) Decision {
	d := Decision{Error: o.Error, Started: true}
	switch o.End { // what says nothing of the job leaves it a suspect
	case Stopped, Shortage, Unstarted, Interrupted, PerhapsLost, PerhapsInterrupted, Disowned:
		d.Suspect = j.Suspect
	}
	switch o.End {
	case HungStart:
		o.ExitCode = 126
		return d.exited(j, o, p)
	case Exited:
		return d.exited(j, o, p)
	case CannotStart: // as if its exit code were one of its no_retry_codes: another attempt would find the same
		if o.ExitCode != 127 {
			o.ExitCode = 126
		}
		if d = d.exited(j, o, p); d.State == Failed {
			d.State, d.Delay = Dead, 0
		}
		return d
	case Signalled:
		d.Reason = ReasonSignal
		if d.Error == "" {
			d.Error = "ended by " + SignalText(o.Signal)
		}
		return d.failed(j, p)
	case OutOfMemory:
		d.Reason = ReasonOOM
		if d.Error == "" {
			d.Error = "out of memory: killed by the kernel"
			if o.MemoryLimit {
				d.Error = fmt.Sprintf("out of memory: the job reached its memory limit of %s (--memory)", DescribeSize(j.Memory))
			}
		}
		return d.failed(j, p)
	case TimedOut:
		d.Reason = ReasonTimedOut
		if d.Error == "" {
			d.Error = "timed out after " + FormatDuration(j.Timeout)
		}
		return d.failed(j, p)
	case Silent:
		d.Reason = ReasonTimedOut
		if d.Error == "" {
			d.Error = "timed out: the job printed nothing for " + FormatDuration(j.IdleTimeout)
		}
		return d.failed(j, p)
	case Killed:
		d.State, d.Reason, d.Counts = Cancelled, ReasonCancelled, true
	case Stopped:
		d.State, d.Reason = Pending, ReasonStopped
		if o.Paused { // nothing but its person has it run again
			d.State = Held
		}
	case Shortage:
		return d.short(j, p)
	case Unstarted:
		d.State, d.Started = Pending, false
	case Disowned:
		d.State, d.Reason, d.Started = Held, ReasonDisowned, false
	case Lost, Interrupted:
		return d.lost(j, o)
	case PerhapsLost, PerhapsInterrupted:
		return d.perhapsLost(j, o)
	case Unkillable:
		d.State, d.Reason, d.Counts = Dead, ReasonUnkillable, true
	default:
		panic(fmt.Sprintf("queue: an attempt ended in an unknown way (%d)", o.End))
	}
	return d
}

func (d Decision) short(j *Job, p Policy) Decision {
	d.Reason = ReasonShortage
	if j.Refunds >= MaxRefunds {
		why := fmt.Sprintf("could not be started: the system was out of resources %d times in a row", MaxRefunds+1)
		if d.Error != "" {
			why += ": " + d.Error
		}
		d.Error = why
		return d.failed(j, p)
	}
	d.State, d.Started, d.Refunds = Pending, false, true
	d.Delay = min(maxShortagePause, shortagePause<<min(j.Refunds, 5))
	return d
}

func (d Decision) exited(j *Job, o Outcome, p Policy) Decision {
	d.Counts = true
	if o.ExitCode == 0 && len(j.OkCodes) == 0 || slices.Contains(j.OkCodes, int(o.ExitCode)) {
		d.State, d.Error = Completed, ""
		return d
	}
	if d.Error == "" {
		d.Error = fmt.Sprintf("exit code %d", o.ExitCode)
	}
	switch o.ExitCode {
	case 126:
		d.Reason = ReasonNotRunnable
	case 127:
		d.Reason = ReasonNotFound
	}
	if slices.Contains(j.DeferCodes, int(o.ExitCode)) && j.Deferred < MaxDeferrals {
		d.State, d.Reason, d.Delay = Pending, ReasonDeferred, p.RetryDelay
		d.Counts, d.Defers = false, true
		return d
	}
	if slices.Contains(j.NoRetryCodes, int(o.ExitCode)) {
		d.State = Dead
		return d
	}
	return d.failed(j, p)
}

// failed is a failure that counts: another attempt while any remains.
func (d Decision) failed(j *Job, p Policy) Decision {
	d.Counts, d.State = true, Dead
	if n := j.Attempts + 1; n < j.MaxAttempts {
		d.State, d.Delay = Failed, p.wait(j, n)
	}
	return d
}

// lostBy says what crashed while an attempt was lost or interrupted.
func lostBy(r Reason) string {
	if r == ReasonInterrupted {
		return "the machine went down"
	}
	return "the runner died"
}

func (d Decision) lost(j *Job, o Outcome) Decision {
	d.Counts = true
	d.Reason = ReasonLost
	if o.End == Interrupted {
		d.Reason = ReasonInterrupted
	}
	if d.Error == "" {
		d.Error = "outcome unknown: " + lostBy(d.Reason)
	}
	if o.End == Lost {
		d.Suspect, d.Crashed = true, o.Alone
	}
	if d.Crashed && j.Crashes+1 >= PoisonCrashes {
		d.State, d.Reason = Dead, ReasonPoison
		d.Error = fmt.Sprintf("%d runners died, each while running only this job", PoisonCrashes)
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
			d.State = Failed // due at once
		}
	}
	return d
}

// perhapsLost is for an attempt that may never have been started: it is recorded, and
// counts only where the job must not run twice.
func (d Decision) perhapsLost(j *Job, o Outcome) Decision {
	d.Reason = ReasonLost
	if o.End == PerhapsInterrupted {
		d.Reason = ReasonInterrupted
	}
	d.Error = "unknown whether the job started: " + lostBy(d.Reason)
	switch j.OnLost {
	case OnLostHold:
		d.State, d.Counts = Held, true
	case OnLostDead:
		d.State, d.Counts = Dead, true
	default:
		d.State = Pending
	}
	return d
}

// wait is the time before the next attempt of j after n failed ones. It is
// never negative and never above the cap, whatever the base.
func (p Policy) wait(j *Job, n int) time.Duration {
	own := j.Backoff
	if own.Base != 0 {
		p.Base = own.Base
	}
	if own.Strategy != "" {
		p.Strategy = own.Strategy
	}
	if own.Max != 0 {
		p.Max = own.Max
	}
	if own.Jitter != nil {
		p.Jitter = *own.Jitter
	}
	var seconds float64
	switch p.Strategy {
	case Linear:
		seconds = p.Base * float64(n)
	case Fixed:
		seconds = p.RetryDelay.Seconds()
	default:
		seconds = math.Pow(p.Base, float64(n))
	}
	seconds *= 1 + p.Jitter*spread(j.Seq, n)
	seconds = min(seconds, p.Max.Seconds())                        // NaN cannot be: base is above 0
	return min(p.Max, time.Duration(seconds*float64(time.Second))) // the product may round up
}

// spread is a number in [-1, 1) that belongs to one attempt of one job.
func spread(seq int64, n int) float64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%d", seq, n)
	return float64(h.Sum64()>>11)/(1<<52) - 1
}
