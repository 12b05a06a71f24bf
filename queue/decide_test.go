package queue_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/queue"
)

var testRetryPolicy = queue.RetryPolicy{BaseSeconds: 2, Strategy: queue.BackoffExponential, MaxDelay: time.Hour,
	FixedDelay: time.Minute}

// jobWithAtMostFourAttempts returns a running job that may have four attempts and has used usedAttempts of them. It
// applies the given changes to the job.
func jobWithAtMostFourAttempts(usedAttempts int, changes ...func(*queue.Job)) *queue.Job {
	j := &queue.Job{Seq: 7, MaxAttempts: 4, Attempts: usedAttempts, State: queue.Processing,
		ExecutionSettings: queue.ExecutionSettings{OnLost: queue.OnLostRetry, Timeout: time.Minute}}
	for _, f := range changes {
		f(j)
	}
	return j
}

func outcomeWithExitCode(code int64) queue.AttemptOutcome {
	return queue.AttemptOutcome{EndCause: queue.EndExited, ExitCode: code}
}

func withOkCodes(codes ...int) func(*queue.Job) { return func(j *queue.Job) { j.OkCodes = codes } }
func withNoRetryCodes(codes ...int) func(*queue.Job) {
	return func(j *queue.Job) { j.NoRetryCodes = codes }
}

// withRunnerCrashes returns a change of a job: n runners have died while this job was their only job.
func withRunnerCrashes(n int) func(*queue.Job) {
	return func(j *queue.Job) { j.NeedsIsolation, j.RunnerCrashes = true, n }
}

// withShortages returns a change of a job: the job had n shortages in a row.
func withShortages(n int) func(*queue.Job) { return func(j *queue.Job) { j.Shortages = n } }

func withOnLost(onLost queue.OnLost) func(*queue.Job) {
	return func(j *queue.Job) { j.OnLost = onLost }
}

// withDeferrals returns a change of a job: exit code 75 postpones the job, and has already done so n times.
func withDeferrals(n int) func(*queue.Job) {
	return func(j *queue.Job) { j.DeferCodes, j.Deferrals = []int{75}, n }
}

// For the job and the outcome in each row of the table, DecideAfterAttempt returns the decision in the row.
func TestDecideMatchesOutcomeTable(t *testing.T) {
	type row = queue.AttemptDecision
	small := jobWithAtMostFourAttempts(0, func(j *queue.Job) { j.MemoryBytes = 64 << 20 })
	for _, c := range []struct {
		name string
		job  *queue.Job
		end  queue.AttemptOutcome
		want row
	}{
		{"success", jobWithAtMostFourAttempts(0), outcomeWithExitCode(0),
			row{NextState: queue.Completed, CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"success on the last attempt", jobWithAtMostFourAttempts(3), outcomeWithExitCode(0),
			row{NextState: queue.Completed, CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"success by ok_codes", jobWithAtMostFourAttempts(0, withOkCodes(0, 3)), outcomeWithExitCode(3),
			row{NextState: queue.Completed, CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"0 is not a success when ok_codes omit it", jobWithAtMostFourAttempts(0, withOkCodes(3)), outcomeWithExitCode(0),
			row{NextState: queue.Failed, Error: "exit code 0", CountsTowardMaxAttempts: true, RecordsAttempt: true,
				StartDelay: 2 * time.Second}},
		{"success outlives an error", jobWithAtMostFourAttempts(0),
			queue.AttemptOutcome{EndCause: queue.EndExited, Error: "output not kept"},
			row{NextState: queue.Completed, CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"failure", jobWithAtMostFourAttempts(0), outcomeWithExitCode(1),
			row{NextState: queue.Failed, Error: "exit code 1", CountsTowardMaxAttempts: true,
				RecordsAttempt: true, StartDelay: 2 * time.Second}},
		{"third failure", jobWithAtMostFourAttempts(2), outcomeWithExitCode(1),
			row{NextState: queue.Failed, Error: "exit code 1", CountsTowardMaxAttempts: true, RecordsAttempt: true,
				StartDelay: 8 * time.Second}},
		{"last failure", jobWithAtMostFourAttempts(3), outcomeWithExitCode(1),
			row{NextState: queue.Dead, Error: "exit code 1", CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"more attempts than allowed", jobWithAtMostFourAttempts(9), outcomeWithExitCode(1),
			row{NextState: queue.Dead, Error: "exit code 1", CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"large exit code of Windows", jobWithAtMostFourAttempts(3), outcomeWithExitCode(1<<32 - 1),
			row{NextState: queue.Dead, Error: "exit code 4294967295", CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"signal", jobWithAtMostFourAttempts(0), queue.AttemptOutcome{EndCause: queue.EndSignalled, Signal: 11},
			row{NextState: queue.Failed, Reason: queue.ReasonSignal, Error: "ended by signal 11 (SIGSEGV)",
				CountsTowardMaxAttempts: true, RecordsAttempt: true, StartDelay: 2 * time.Second}},
		{"timeout", jobWithAtMostFourAttempts(0), queue.AttemptOutcome{EndCause: queue.EndTimedOut},
			row{NextState: queue.Failed, Reason: queue.ReasonTimedOut, Error: "timed out after 1m",
				CountsTowardMaxAttempts: true, RecordsAttempt: true, StartDelay: 2 * time.Second}},
		{"last timeout", jobWithAtMostFourAttempts(3), queue.AttemptOutcome{EndCause: queue.EndTimedOut},
			row{NextState: queue.Dead, Reason: queue.ReasonTimedOut, Error: "timed out after 1m", CountsTowardMaxAttempts: true,
				RecordsAttempt: true}},
		{"not found", jobWithAtMostFourAttempts(0),
			queue.AttemptOutcome{EndCause: queue.EndExited, ExitCode: 127, Error: "no such program"},
			row{NextState: queue.Failed, Reason: queue.ReasonNotFound, Error: "no such program", CountsTowardMaxAttempts: true,
				RecordsAttempt: true, StartDelay: 2 * time.Second}},
		{"not executable", jobWithAtMostFourAttempts(3), outcomeWithExitCode(126),
			row{NextState: queue.Dead, Reason: queue.ReasonNotRunnable, Error: "exit code 126", CountsTowardMaxAttempts: true,
				RecordsAttempt: true}},
		{"no_retry_codes", jobWithAtMostFourAttempts(0, withNoRetryCodes(5)), outcomeWithExitCode(5),
			row{NextState: queue.Dead, Error: "exit code 5", CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"ok_codes win over no_retry_codes", jobWithAtMostFourAttempts(0, withOkCodes(5), withNoRetryCodes(5)),
			outcomeWithExitCode(5),
			row{NextState: queue.Completed, CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"defer_codes", jobWithAtMostFourAttempts(0, withDeferrals(0)), outcomeWithExitCode(75),
			row{NextState: queue.Pending, Reason: queue.ReasonDeferred, Error: "exit code 75", StartDelay: time.Minute,
				RecordsAttempt: true, CountsAsDeferral: true}},
		{"the 100th deferral", jobWithAtMostFourAttempts(3, withDeferrals(99)), outcomeWithExitCode(75),
			row{NextState: queue.Pending, Reason: queue.ReasonDeferred, Error: "exit code 75", StartDelay: time.Minute,
				RecordsAttempt: true, CountsAsDeferral: true}},
		{"the 101st deferral", jobWithAtMostFourAttempts(0, withDeferrals(100)), outcomeWithExitCode(75),
			row{NextState: queue.Failed, Error: "exit code 75", CountsTowardMaxAttempts: true, RecordsAttempt: true,
				StartDelay: 2 * time.Second}},
		{"out of memory", jobWithAtMostFourAttempts(0), queue.AttemptOutcome{EndCause: queue.EndOutOfMemory, Signal: 9},
			row{NextState: queue.Failed, Reason: queue.ReasonOOM, Error: "out of memory, killed by the kernel",
				CountsTowardMaxAttempts: true, RecordsAttempt: true, StartDelay: 2 * time.Second}},
		{"the job's own memory limit", small, queue.AttemptOutcome{EndCause: queue.EndOutOfMemory, Signal: 9,
			HitMemoryLimit: true},
			row{NextState: queue.Failed, Reason: queue.ReasonOOM,
				Error: "out of memory, because the job reached its memory limit of 64MiB (--memory)", CountsTowardMaxAttempts: true,
				RecordsAttempt: true, StartDelay: 2 * time.Second}},
		{"a child hit the limit", small, queue.AttemptOutcome{EndCause: queue.EndExited, ExitCode: 137, HitMemoryLimit: true},
			row{NextState: queue.Failed,
				Error: "exit code 137; the kernel killed a process because the job reached its memory " +
					"limit of 64MiB (--memory)", CountsTowardMaxAttempts: true, RecordsAttempt: true, StartDelay: 2 * time.Second}},
		{"a child hit the limit, the job aborts", small, queue.AttemptOutcome{EndCause: queue.EndSignalled, Signal: 6,
			HitMemoryLimit: true}, row{NextState: queue.Failed, Reason: queue.ReasonSignal,
			Error: "ended by signal 6 (SIGABRT); the kernel killed a process because the job reached its memory limit " +
				"of 64MiB (--memory)", CountsTowardMaxAttempts: true, RecordsAttempt: true, StartDelay: 2 * time.Second}},
		{"a child hit the limit, the job hangs", small, queue.AttemptOutcome{EndCause: queue.EndTimedOut,
			HitMemoryLimit: true}, row{NextState: queue.Failed, Reason: queue.ReasonTimedOut,
			Error: "timed out after 1m; the kernel killed a process because the job reached its memory limit " +
				"of 64MiB (--memory)", CountsTowardMaxAttempts: true, RecordsAttempt: true, StartDelay: 2 * time.Second}},
		{"a child hit the limit, the job succeeds", small, queue.AttemptOutcome{EndCause: queue.EndExited,
			HitMemoryLimit: true},
			row{NextState: queue.Completed, CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"a start that hung", jobWithAtMostFourAttempts(0), queue.AttemptOutcome{EndCause: queue.EndStartHung,
			Error: "it took too long"},
			row{NextState: queue.Failed, Reason: queue.ReasonNotRunnable, Error: "it took too long",
				CountsTowardMaxAttempts: true, RecordsAttempt: true, StartDelay: 2 * time.Second}},
		{"the last start hung", jobWithAtMostFourAttempts(3),
			queue.AttemptOutcome{EndCause: queue.EndStartHung, Error: "it took too long"},
			row{NextState: queue.Dead, Reason: queue.ReasonNotRunnable, Error: "it took too long", CountsTowardMaxAttempts: true,
				RecordsAttempt: true}},
		{"idle timeout", jobWithAtMostFourAttempts(3, func(j *queue.Job) { j.IdleTimeout = 5 * time.Second }),
			queue.AttemptOutcome{EndCause: queue.EndIdleTimedOut}, row{NextState: queue.Dead, Reason: queue.ReasonTimedOut,
				Error: "the job printed nothing for 5s (--idle-timeout)", CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"cancelled", jobWithAtMostFourAttempts(0), queue.AttemptOutcome{EndCause: queue.EndCancelled},
			row{NextState: queue.Cancelled, Reason: queue.ReasonCancelled, CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"a shortage after all refunds", jobWithAtMostFourAttempts(1, withShortages(queue.MaxConsecutiveShortages)),
			queue.AttemptOutcome{EndCause: queue.EndResourceShortage, Error: "no memory"}, row{
				NextState: queue.Failed, Reason: queue.ReasonResourceShortage,
				Error:                   "not started, because the system was out of resources 101 times in a row: no memory",
				CountsTowardMaxAttempts: true,
				RecordsAttempt:          true, StartDelay: 4 * time.Second}},
		{"a shortage after all refunds, on the last attempt", jobWithAtMostFourAttempts(3,
			withShortages(queue.MaxConsecutiveShortages)),
			queue.AttemptOutcome{EndCause: queue.EndResourceShortage}, row{
				NextState: queue.Dead, Reason: queue.ReasonResourceShortage,
				Error: "not started, because the system was out of resources 101 times in a row", CountsTowardMaxAttempts: true,
				RecordsAttempt: true}},
		{"a shortage", jobWithAtMostFourAttempts(3), queue.AttemptOutcome{EndCause: queue.EndResourceShortage,
			Error: "no memory"},
			row{NextState: queue.Pending, Reason: queue.ReasonResourceShortage, Error: "no memory", StartDelay: time.Second,
				CountsAsShortage: true}},
		{"stopped by the service", jobWithAtMostFourAttempts(3), queue.AttemptOutcome{EndCause: queue.EndStopped},
			row{NextState: queue.Pending, Reason: queue.ReasonStopped, RecordsAttempt: true}},
		{"never started", jobWithAtMostFourAttempts(3), queue.AttemptOutcome{EndCause: queue.EndNeverStarted},
			row{NextState: queue.Pending}},
		{"another account's uid", jobWithAtMostFourAttempts(3, withRunnerCrashes(1)),
			queue.AttemptOutcome{EndCause: queue.EndAccountChanged, Error: "why"},
			row{NextState: queue.Held, Reason: queue.ReasonDisowned, Error: "why", NeedsIsolation: true}},
		{"lost, retry", jobWithAtMostFourAttempts(0), queue.AttemptOutcome{EndCause: queue.EndRunnerLost},
			row{NextState: queue.Failed, Reason: queue.ReasonLost, Error: "outcome unknown, because the runner died",
				CountsTowardMaxAttempts: true, RecordsAttempt: true, NeedsIsolation: true}},
		{"lost, retry, last attempt", jobWithAtMostFourAttempts(3), queue.AttemptOutcome{EndCause: queue.EndRunnerLost},
			row{NextState: queue.Dead, Reason: queue.ReasonLost, Error: "outcome unknown, because the runner died",
				CountsTowardMaxAttempts: true, RecordsAttempt: true, NeedsIsolation: true}},
		{"lost, dead", jobWithAtMostFourAttempts(0, withOnLost(queue.OnLostDead)),
			queue.AttemptOutcome{EndCause: queue.EndRunnerLost},
			row{NextState: queue.Dead, Reason: queue.ReasonLost, Error: "outcome unknown, because the runner died",
				CountsTowardMaxAttempts: true, RecordsAttempt: true, NeedsIsolation: true}},
		{"lost, hold", jobWithAtMostFourAttempts(3, withOnLost(queue.OnLostHold)),
			queue.AttemptOutcome{EndCause: queue.EndRunnerLost},
			row{NextState: queue.Held, Reason: queue.ReasonLost, Error: "outcome unknown, because the runner died",
				CountsTowardMaxAttempts: true, RecordsAttempt: true, NeedsIsolation: true}},
		{"interrupted, retry", jobWithAtMostFourAttempts(0), queue.AttemptOutcome{EndCause: queue.EndInterrupted},
			row{NextState: queue.Failed, Reason: queue.ReasonInterrupted,
				Error:                   "outcome unknown, because the machine went down",
				CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"interrupted, hold", jobWithAtMostFourAttempts(0, withOnLost(queue.OnLostHold)),
			queue.AttemptOutcome{EndCause: queue.EndInterrupted},
			row{NextState: queue.Held, Reason: queue.ReasonInterrupted, Error: "outcome unknown, because the machine went down",
				CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"lost alone", jobWithAtMostFourAttempts(0), queue.AttemptOutcome{EndCause: queue.EndRunnerLost, RanIsolated: true},
			row{NextState: queue.Failed, Reason: queue.ReasonLost, Error: "outcome unknown, because the runner died",
				CountsTowardMaxAttempts: true, RecordsAttempt: true, NeedsIsolation: true, CountsAsRunnerCrash: true}},
		{"lost together with others", jobWithAtMostFourAttempts(1, withRunnerCrashes(2)),
			queue.AttemptOutcome{EndCause: queue.EndRunnerLost},
			row{NextState: queue.Failed, Reason: queue.ReasonLost, Error: "outcome unknown, because the runner died",
				CountsTowardMaxAttempts: true, RecordsAttempt: true, NeedsIsolation: true}},
		{"poison", jobWithAtMostFourAttempts(0, withRunnerCrashes(2)), queue.AttemptOutcome{EndCause: queue.EndRunnerLost,
			RanIsolated: true}, row{NextState: queue.Dead, Reason: queue.ReasonPoison,
			Error: "not retried, because 3 runners (the processes that supervise jobs) died while this was " +
				"their only job",
			CountsTowardMaxAttempts: true, RecordsAttempt: true, NeedsIsolation: true, CountsAsRunnerCrash: true}},
		{"poison that was to be held", jobWithAtMostFourAttempts(0, withRunnerCrashes(2), withOnLost(queue.OnLostHold)),
			queue.AttemptOutcome{EndCause: queue.EndRunnerLost, RanIsolated: true},
			row{NextState: queue.Dead, Reason: queue.ReasonPoison,
				Error: "not retried, because 3 runners (the processes that supervise jobs) died while this was " +
					"their only job",
				CountsTowardMaxAttempts: true, RecordsAttempt: true, NeedsIsolation: true, CountsAsRunnerCrash: true}},
		{"a suspect that ended well", jobWithAtMostFourAttempts(0, withRunnerCrashes(1)),
			queue.AttemptOutcome{EndCause: queue.EndExited},
			row{NextState: queue.Completed, CountsTowardMaxAttempts: true, RecordsAttempt: true}},
		{"a suspect that was stopped", jobWithAtMostFourAttempts(0, withRunnerCrashes(1)),
			queue.AttemptOutcome{EndCause: queue.EndStopped},
			row{NextState: queue.Pending, Reason: queue.ReasonStopped, RecordsAttempt: true, NeedsIsolation: true}},
		{"a suspect whose machine went down", jobWithAtMostFourAttempts(0, withRunnerCrashes(1)),
			queue.AttemptOutcome{EndCause: queue.EndInterrupted, RanIsolated: true},
			row{NextState: queue.Failed, Reason: queue.ReasonInterrupted,
				Error:                   "outcome unknown, because the machine went down",
				CountsTowardMaxAttempts: true, RecordsAttempt: true, NeedsIsolation: true}},
		{"unkillable", jobWithAtMostFourAttempts(0), queue.AttemptOutcome{EndCause: queue.EndUnkillable},
			row{NextState: queue.Dead, Reason: queue.ReasonUnkillable, CountsTowardMaxAttempts: true, RecordsAttempt: true}},
	} {
		if got := queue.DecideAfterAttempt(c.job, c.end, testRetryPolicy); got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
}

// A job that cannot start because of a shortage waits longer each time, up to half a minute. The wait depends only on
// the number of shortages that this job has had in a row.
func TestShortageDelayGrowsUpToLimit(t *testing.T) {
	for n, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
		if d := queue.DecideAfterAttempt(jobWithAtMostFourAttempts(0, withShortages(n)),
			queue.AttemptOutcome{EndCause: queue.EndResourceShortage},
			testRetryPolicy); d.StartDelay != want*time.Second {
			t.Errorf("after %d shortages: waits %v, want %v", n, d.StartDelay, want*time.Second)
		}
	}
	for _, n := range []int{64, queue.MaxConsecutiveShortages - 1} {
		if d := queue.DecideAfterAttempt(jobWithAtMostFourAttempts(0, withShortages(n)),
			queue.AttemptOutcome{EndCause: queue.EndResourceShortage},
			testRetryPolicy); d.StartDelay != 30*time.Second || !d.CountsAsShortage || d.CountsTowardMaxAttempts {
			t.Errorf("after %d shortages the decision is %+v", n, d)
		}
	}
}

// The next state after an attempt is one that the state table allows. A job without remaining attempts never
// runs again after a failure. No delay is negative.
func TestDecideFollowsStateTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := jobWithAtMostFourAttempts(rapid.IntRange(0, 5).Draw(t, "attempts"),
			withOnLost(rapid.SampledFrom([]queue.OnLost{queue.OnLostRetry, queue.OnLostDead, queue.OnLostHold}).Draw(t,
				"on_lost")),
			withOkCodes(rapid.SliceOfN(rapid.IntRange(0, 3), 1, 3).Draw(t, "ok")...),
			withNoRetryCodes(rapid.SliceOfN(rapid.IntRange(0, 3), 0, 3).Draw(t, "noRetry")...))
		o := queue.AttemptOutcome{EndCause: queue.EndCause(rapid.IntRange(1, int(queue.EndUnkillable)).Draw(t, "end")),
			ExitCode: rapid.Int64Range(0, 4).Draw(t, "code")}
		d := queue.DecideAfterAttempt(j, o, testRetryPolicy)
		if !queue.Processing.CanChangeTo(d.NextState) {
			t.Fatalf("no transition leads from processing to %s", d.NextState)
		}
		if d.NextState == queue.Failed && j.Attempts+1 >= j.MaxAttempts {
			t.Fatalf("after attempt %d of %d, the job runs again", j.Attempts+1, j.MaxAttempts)
		}
		if d.StartDelay < 0 || d.NextState.IsRunnable() != true && d.StartDelay != 0 {
			t.Fatalf("waits %v as %s", d.StartDelay, d.NextState)
		}
		if !d.CountsTowardMaxAttempts && d.NextState != queue.Pending {
			t.Fatalf("a refunded attempt leads to %s", d.NextState)
		}
	})
}

// An unknown EndCause is a bug in the program, so DecideAfterAttempt panics.
func TestDecidePanicsOnUnknownEndCause(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Decide did not panic for the unknown end 0")
		}
	}()
	queue.DecideAfterAttempt(jobWithAtMostFourAttempts(0), queue.AttemptOutcome{}, testRetryPolicy)
}

func delaysAfterFailures(p queue.RetryPolicy, backoff queue.Backoff, n int) (delays []time.Duration) {
	for i := range n {
		j := &queue.Job{Seq: 1, MaxAttempts: 1 << 30, Attempts: i,
			ExecutionSettings: queue.ExecutionSettings{Backoff: backoff}}
		delays = append(delays, queue.DecideAfterAttempt(j, outcomeWithExitCode(1), p).StartDelay)
	}
	return delays
}

// Every strategy gives the documented delays (docs/retries.md). Settings of the job take precedence
// over settings of the service.
func TestBackoffDelaysFollowStrategy(t *testing.T) {
	exact, withPolicy := 0.0, func(f func(*queue.RetryPolicy)) queue.RetryPolicy { p := testRetryPolicy; f(&p); return p }
	for _, c := range []struct {
		name   string
		policy queue.RetryPolicy
		own    queue.Backoff
		want   string
	}{
		{"exponential", testRetryPolicy, queue.Backoff{}, "2s 4s 8s 16s"},
		{"base 1.5", withPolicy(func(p *queue.RetryPolicy) { p.BaseSeconds = 1.5 }), queue.Backoff{}, "1.5s 2.25s 3.375s"},
		{"base below 1", withPolicy(func(p *queue.RetryPolicy) { p.BaseSeconds = 0.5 }), queue.Backoff{}, "500ms 250ms"},
		{"linear", withPolicy(func(p *queue.RetryPolicy) { p.Strategy = queue.BackoffLinear }), queue.Backoff{},
			"2s 4s 6s 8s"},
		{"fixed", withPolicy(func(p *queue.RetryPolicy) { p.Strategy = queue.BackoffFixed }), queue.Backoff{}, "1m0s 1m0s"},
		{"cap", withPolicy(func(p *queue.RetryPolicy) { p.MaxDelay = 5 * time.Second }), queue.Backoff{}, "2s 4s 5s 5s"},
		{"own base", testRetryPolicy, queue.Backoff{BaseSeconds: 3}, "3s 9s"},
		{"own strategy", testRetryPolicy, queue.Backoff{Strategy: queue.BackoffLinear}, "2s 4s 6s"},
		{"own cap", testRetryPolicy, queue.Backoff{MaxDelay: 3 * time.Second}, "2s 3s 3s"},
		{"own jitter of none", withPolicy(func(p *queue.RetryPolicy) { p.Jitter = 1 }), queue.Backoff{Jitter: &exact},
			"2s 4s 8s"},
	} {
		var got []string
		for _, d := range delaysAfterFailures(c.policy, c.own, len(strings.Fields(c.want))) {
			got = append(got, d.String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %v, want %s", c.name, got, c.want)
		}
	}
}

// For any base, number of attempts and jitter, a delay is neither negative nor longer than the maximum.
func TestBackoffNeverOverflows(t *testing.T) {
	bases := rapid.OneOf(rapid.Float64Range(math.SmallestNonzeroFloat64, 1e9),
		rapid.SampledFrom([]float64{math.SmallestNonzeroFloat64, 1e9, 1, math.Nextafter(1, 2), math.MaxFloat64}))
	rapid.Check(t, func(t *rapid.T) {
		p := queue.RetryPolicy{
			BaseSeconds: bases.Draw(t, "base"),
			Strategy: rapid.SampledFrom([]queue.BackoffStrategy{queue.BackoffExponential, queue.BackoffLinear,
				queue.BackoffFixed}).Draw(t,
				"strategy"),
			MaxDelay:   time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(queue.MaxDuration)).Draw(t, "max")),
			Jitter:     rapid.Float64Range(0, 1).Draw(t, "jitter"),
			FixedDelay: time.Duration(rapid.Int64Range(0, int64(queue.MaxDuration)).Draw(t, "delay")),
		}
		j := &queue.Job{Seq: rapid.Int64().Draw(t, "seq"), MaxAttempts: math.MaxInt,
			Attempts: rapid.IntRange(0, queue.MaxAttempts).Draw(t, "attempts")}
		if d := queue.DecideAfterAttempt(j, outcomeWithExitCode(1), p).StartDelay; d < 0 || d > p.MaxDelay {
			t.Fatalf("waits %d ns, want 0 to %d", d, p.MaxDelay)
		}
	})
}

// A jitter of 0.2 changes a delay by at most 20 %. Different attempts get different changes, but the same
// attempt always gets the same change.
func TestJitterStaysInItsBounds(t *testing.T) {
	p := queue.RetryPolicy{BaseSeconds: 1, Strategy: queue.BackoffFixed, MaxDelay: time.Hour, Jitter: 0.2,
		FixedDelay: 100 * time.Second}
	least, most := time.Hour, time.Duration(0)
	for seq := range int64(1000) {
		j := &queue.Job{Seq: seq, MaxAttempts: 9}
		d := queue.DecideAfterAttempt(j, outcomeWithExitCode(1), p).StartDelay
		if again := queue.DecideAfterAttempt(j, outcomeWithExitCode(1), p).StartDelay; again != d {
			t.Fatalf("got %v and then %v for the same attempt", d, again)
		}
		least, most = min(least, d), max(most, d)
	}
	if least < 80*time.Second || most > 120*time.Second || least > 82*time.Second || most < 118*time.Second {
		t.Errorf("waits of 1,000 jobs go from %v to %v, want 80 s to 120 s and nearly all of that", least, most)
	}
}

// If a file that a job names is missing, the job is dead after one attempt, because a retry would fail too. But if the
// job's settings give the exit code 126 or 127 a meaning, this meaning applies instead.
func TestDecideDoesNotRetryAJobThatCannotStart(t *testing.T) {
	policy := queue.RetryPolicy{BaseSeconds: 2, Strategy: queue.BackoffExponential}
	for code, reason := range map[int64]queue.Reason{126: queue.ReasonNotRunnable, 127: queue.ReasonNotFound} {
		codes := []int{int(code)}
		for what, c := range map[string]struct {
			execution queue.ExecutionSettings
			state     queue.State
		}{
			"as usual": {queue.ExecutionSettings{}, queue.Dead},
			"the code is success": {
				queue.ExecutionSettings{SpecialExitCodes: queue.SpecialExitCodes{OkCodes: codes}}, queue.Completed,
			},
			"the code means later": {
				queue.ExecutionSettings{SpecialExitCodes: queue.SpecialExitCodes{DeferCodes: codes}}, queue.Pending,
			},
			"the code is not retried": {
				queue.ExecutionSettings{SpecialExitCodes: queue.SpecialExitCodes{NoRetryCodes: codes}}, queue.Dead,
			},
		} {
			j := &queue.Job{MaxAttempts: 4, ExecutionSettings: c.execution}
			d := queue.DecideAfterAttempt(j, queue.AttemptOutcome{EndCause: queue.EndCannotStart, ExitCode: code,
				Error: "it is missing"}, policy)
			if d.NextState != c.state || c.state == queue.Dead &&
				(d.Reason != reason || !d.CountsTowardMaxAttempts || d.Error != "it is missing") {
				t.Errorf("exit code %d, %s: got %+v, want %s", code, what, d, c.state)
			}
		}
		d := queue.DecideAfterAttempt(&queue.Job{MaxAttempts: 4},
			queue.AttemptOutcome{EndCause: queue.EndExited, ExitCode: code}, policy)
		if d.NextState != queue.Failed {
			t.Errorf("exit code %d of the command itself: got %+v, want a retry", code, d)
		}
	}
}
