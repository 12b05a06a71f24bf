package worker

import (
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// appendStartFramesLocked appends to frames the Start frame (the message that starts a job) for job j. If a caller
// watches the job, it also appends a frame that makes the runner send the job's result immediately.
func (p *Pool) appendStartFramesLocked(frames []wire.Frame, j *queue.Job) []wire.Frame {
	argv := j.Argv
	if j.Command != "" {
		argv = append(strings.Fields(j.Shell), j.Command)
	}
	uid, cwd := int64(-1), j.Cwd
	if p.cfg.RunnerLocation.RunnersRunAsRoot() {
		uid = int64(p.cfg.Account.JobUID(j))
	} else if cwd == "" {
		cwd = p.cfg.Account.HomeDir
	}
	frames = append(frames, &wire.StartAttempt{
		Lease: wire.Lease(j.Lease()), Queue: j.Queue, Position: queuePosition(j), AccountUID: uid,
		Argv: argv, Env: p.jobEnvironment(j), Cwd: cwd, Umask: int64(j.Umask), Stdin: j.Stdin, StdinFile: j.StdinFile,
		Timeouts: wire.Timeouts{
			Timeout: j.Timeout, IdleTimeout: j.IdleTimeout, KillAfter: j.KillAfter, OutputGrace: p.cfg.OutputGrace(),
		},
		OutputLimitBytes: j.OutputLimitBytes,
		AllowBackground:  j.AllowBackground, StartDeadlineMillis: p.localExpiryMillis(j),
		StartDeadlineBootMillis: (runner.TimeSinceBoot() + startDeadline).Milliseconds(),
		MemoryBytes:             j.MemoryBytes, MilliCPUs: int64(math.Round(j.CPUs * 1000)), MaxTasks: j.Tasks,
		Nice: j.Nice, MaxOpenFiles: j.MaxOpenFiles, NoNewPrivileges: j.NoNewPrivileges,
		TTY: j.TTY, Secrets: j.SecretReferences, MaskSecrets: j.MaskSecrets, DependencyResults: j.DependencyResults,
	})
	j.DependencyResults = nil // free the memory, because the results may be large
	if p.leases.endWatcherCountsByJobSeq[j.Seq] > 0 {
		frames = append(frames, &wire.ReportAttemptImmediately{Lease: wire.Lease(j.Lease())})
	}
	return frames
}

// localExpiryMillis returns when a job expires, in milliseconds on this machine's clock. The field j.ExpiresAt contains
// this time on the store's clock. 0 means never.
func (p *Pool) localExpiryMillis(j *queue.Job) int64 {
	if j.ExpiresAt == 0 {
		return 0
	}
	offset := queue.UnixMillisOf(time.Now()) - p.cfg.StoreTime()
	if offset > -storeClockTolerance && offset < storeClockTolerance { // treat both clocks as equal
		offset = 0
	}
	return int64(j.ExpiresAt + offset)
}

// storeClockTolerance is the difference between the store's clock and this machine's clock up to which both clocks
// count as equal. Such a small difference may be a measurement error.
const storeClockTolerance = queue.UnixMillis(50)

// jobEnvironment returns the environment variables of a job. The job inherits nothing from the service's
// environment.
func (p *Pool) jobEnvironment(j *queue.Job) []string {
	env := make([]string, 0, len(j.Env)+32)
	isSet := func(name string) bool {
		for _, e := range j.Env {
			if len(e) > len(name) && e[len(name)] == '=' && queue.SameVariableName(e[:len(name)], name) {
				return true
			}
		}
		return false
	}
	add := func(name, value string) {
		if value != "" && !isSet(name) {
			env = append(env, name+"="+value)
		}
	}
	p.addDefaultJobEnv(isSet, add)
	if j.TTY {
		add("TERM", "xterm-256color") // most current terminals support this type
	}
	env = append(env, j.Env...)
	if parent := p.cfg.AttemptTraceparent(j); parent != "" {
		env = slices.DeleteFunc(env, func(e string) bool {
			name, _, _ := strings.Cut(e, "=")
			return queue.SameVariableName(name, queue.TraceparentVariable)
		})
		env = append(env, queue.TraceparentVariable+"="+parent)
	}
	if j.HeldUnits != "" {
		env = append(env, p.cfg.ResourceUnitEnv(j)...)
	}
	return append(env,
		"QUEUECTL_JOB_ID="+j.ID,
		"QUEUECTL_ATTEMPT="+strconv.Itoa(j.StartedAttempts+1),
		"QUEUECTL_QUEUE="+j.Queue,
		"QUEUECTL_SOCKET="+p.cfg.SocketPath)
}

// attemptOutcome converts a result of a runner to an outcome for queue.DecideAfterAttempt.
func attemptOutcome(r *wire.Result) queue.AttemptOutcome {
	o := queue.AttemptOutcome{ExitCode: r.ExitCode, Signal: int(r.Signal), Error: r.Error,
		HitMemoryLimit: r.ReachedMemoryLimit}
	switch {
	case r.ResourceShortage:
		o.EndCause = queue.EndResourceShortage
	case r.HasStuckProcesses:
		o.EndCause = queue.EndUnkillable
	case r.IdleTimedOut:
		o.EndCause = queue.EndIdleTimedOut
	case r.TimedOut:
		o.EndCause = queue.EndTimedOut
	case r.EndCause == int64(queue.EndCancelled), r.EndCause == int64(queue.EndStopped),
		r.EndCause == int64(queue.EndOutOfMemory),
		r.EndCause == int64(queue.EndStartHung), r.EndCause == int64(queue.EndCannotStart),
		r.EndCause == int64(queue.EndRunnerLost), r.EndCause == int64(queue.EndInterrupted):
		o.EndCause = queue.EndCause(r.EndCause)
	case r.Signal != 0:
		o.EndCause = queue.EndSignalled
	default:
		o.EndCause = queue.EndExited
	}
	return o
}

// resultSettlementLocked returns the settlement for a result: what the store must record about the end of the attempt.
// h is the lease of the result, and runnerDir is the directory of the runner that sent it.
func (p *Pool) resultSettlementLocked(h *lease, r *wire.Result, runnerDir string) store.Settlement {
	j := &h.job
	a := queue.Attempt{
		Fence: r.Fence, Worker: runner.WorkerName(runnerDir, r.TableSlot), Node: p.cfg.NodeName, PID: int(r.PID),
		StartedAt: queue.UnixMillis(r.StartedAtMillis), EndedAt: queue.UnixMillis(r.EndedAtMillis),
		ExitCode: r.ExitCode, Signal: int(r.Signal), CPUTime: r.CPUTime, PeakRSSBytes: r.PeakRSSBytes, PeakTasks: r.PeakTasks,
		LeftoverProcesses: int(r.EndedLeftoverCount), DroppedBytes: r.DroppedOutputBytes, Output: r.Output,
		OutputFileRef: r.OutputRef,
	}
	if a.OutputFileRef != "" && a.OutputFileRef != runner.OutputRef(r.Lease) {
		a.OutputFileRef = "" // a runner may name only the output file of this lease
	}
	if a.OutputFileRef != "" {
		a.OutputBytes = runner.CappedOutputFileBytes(filepath.Dir(runnerDir), a.OutputFileRef, j.OutputLimitBytes)
	}
	o := attemptOutcome(r)
	o.WasPausedAtEnd = p.mustHoldReturnedJobLocked(h)
	a.Result, a.ResultError = validateResult(r)
	d := queue.DecideAfterAttempt(j, o, p.cfg.RetryPolicy())
	s := store.Settlement{Lease: queue.Lease(r.Lease), Attempt: a, Decision: d, Progress: sanitizedProgress(r.Progress)}
	if d.NextState == queue.Completed {
		s.CommandFingerprint = j.CommandFingerprint()
	}
	return s
}
