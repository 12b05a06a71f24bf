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

// appendStartFramesLocked appends to frames the Start frame of a job. If a caller watches the job, it also
// appends a frame that makes the runner send the job's result immediately.
func (p *Pool) appendStartFramesLocked(frames []wire.Frame, j *queue.Job) []wire.Frame {
	argv := j.Argv
	if j.Command != "" {
		argv = append(strings.Fields(j.Shell), j.Command)
	}
	uid, cwd := int64(-1), j.Cwd
	if p.cfg.RunnerLocation.OwnedByRoot() {
		uid = int64(p.cfg.Account.RunsAs(j))
	} else if cwd == "" {
		cwd = p.cfg.Account.Home
	}
	frames = append(frames, &wire.Start{
		Lease: wire.Lease(j.Lease()), Queue: j.Queue, Position: queuePosition(j), UID: uid,
		Argv: argv, Env: p.jobEnvironment(j), Cwd: cwd, Umask: int64(j.Umask), Stdin: j.Stdin, StdinFile: j.StdinFile,
		Timeouts: wire.Timeouts{
			Timeout: j.Timeout, IdleTimeout: j.IdleTimeout, KillAfter: j.KillAfter, OutputGrace: p.cfg.OutputGrace(),
		},
		OutputLimitBytes: j.OutputLimit,
		AllowBackground:  j.AllowBackground, DeadlineMillis: p.localExpiryMillis(j),
		BootDeadlineMillis: (runner.TimeSinceBoot() + startDeadline).Milliseconds(),
		Memory:             j.Memory, MilliCPUs: int64(math.Round(j.CPUs * 1000)), Tasks: j.Tasks,
		Nice: j.Nice, NoFile: j.NoFile, NoNewPrivileges: j.NoNewPrivileges,
		TTY: j.TTY, Secrets: j.Secrets, MaskSecrets: j.MaskSecrets, DependencyResults: j.DependencyResults,
	})
	j.DependencyResults = nil // free the memory, because the results may be large
	if p.leases.watcherCounts[j.Seq] > 0 {
		frames = append(frames, &wire.ReportImmediately{Lease: wire.Lease(j.Lease())})
	}
	return frames
}

// localExpiryMillis returns when a job expires, in milliseconds on this machine's clock. The job contains
// this time on the store's clock. 0 means never.
func (p *Pool) localExpiryMillis(j *queue.Job) int64 {
	if j.ExpiresAt == 0 || p.cfg.Clock == nil {
		return int64(j.ExpiresAt)
	}
	offset := queue.MillisOf(time.Now()) - p.cfg.Clock()
	if offset > -clockTolerance && offset < clockTolerance { // treat both clocks as equal
		offset = 0
	}
	return int64(j.ExpiresAt + offset)
}

// clockTolerance is how much the store's clock may differ from this machine's clock without effect. Such a
// small difference may be a measurement error.
const clockTolerance = queue.Millis(50)

// jobEnvironment returns the environment variables of a job. The job inherits nothing from the service's
// environment.
func (p *Pool) jobEnvironment(j *queue.Job) []string {
	env := make([]string, 0, len(j.Env)+32)
	isSet := func(name string) bool {
		for _, e := range j.Env {
			if len(e) > len(name) && e[len(name)] == '=' && queue.SameVariable(e[:len(name)], name) {
				return true
			}
		}
		return false
	}
	p.addDefaultEnv(isSet, func(name, value string) {
		if value != "" && !isSet(name) {
			env = append(env, name+"="+value)
		}
	})
	if j.TTY && !isSet("TERM") {
		env = append(env, "TERM=xterm-256color") // most current terminals support this type
	}
	env = append(env, j.Env...)
	parent := ""
	if p.cfg.Traceparent != nil {
		parent = p.cfg.Traceparent(j)
	}
	if parent != "" {
		env = slices.DeleteFunc(env, func(e string) bool {
			name, _, _ := strings.Cut(e, "=")
			return queue.SameVariable(name, queue.Traceparent)
		})
		env = append(env, queue.Traceparent+"="+parent)
	}
	if j.HeldUnits != "" {
		env = append(env, p.cfg.ResourceUnitEnv(j)...)
	}
	return append(env,
		"QUEUECTL_JOB_ID="+j.ID,
		"QUEUECTL_ATTEMPT="+strconv.Itoa(j.StartedAttempts+1),
		"QUEUECTL_QUEUE="+j.Queue,
		"QUEUECTL_SOCKET="+p.cfg.Socket)
}

// outcomeOf converts a result of a runner to an outcome for queue.Decide.
func outcomeOf(r *wire.Result) queue.Outcome {
	o := queue.Outcome{ExitCode: r.ExitCode, Signal: int(r.Signal), Error: r.Error, HitMemoryLimit: r.AtMemoryLimit}
	switch {
	case r.Shortage:
		o.EndCause = queue.EndShortage
	case r.HasSurvivors:
		o.EndCause = queue.EndUnkillable
	case r.IdleTimedOut:
		o.EndCause = queue.EndIdleTimedOut
	case r.TimedOut:
		o.EndCause = queue.EndTimedOut
	case r.Cause == int64(queue.EndKilled), r.Cause == int64(queue.EndStopped), r.Cause == int64(queue.EndOutOfMemory),
		r.Cause == int64(queue.EndStartHung), r.Cause == int64(queue.EndCannotStart),
		r.Cause == int64(queue.EndRunnerLost), r.Cause == int64(queue.EndInterrupted):
		o.EndCause = queue.EndCause(r.Cause)
	case r.Signal != 0:
		o.EndCause = queue.EndSignalled
	default:
		o.EndCause = queue.EndExited
	}
	return o
}

// settlementLocked returns the settlement for a result: what the store must record about the end of the
// attempt. h is the lease of the result, and dir is the directory of the runner that sent it.
func (p *Pool) settlementLocked(h *lease, r *wire.Result, dir string) store.Settlement {
	j := &h.job
	a := queue.Attempt{
		Fence: r.Fence, Worker: runner.WorkerName(dir, r.Slot), Node: p.cfg.Node, PID: int(r.PID),
		StartedAt: queue.Millis(r.StartedAtMillis), EndedAt: queue.Millis(r.EndedAtMillis),
		ExitCode: r.ExitCode, Signal: int(r.Signal), CPUTime: r.CPU, PeakRSSBytes: r.PeakRSSBytes, PeakTasks: r.PeakTasks,
		Leftovers: int(r.Leftovers), DroppedBytes: r.DroppedBytes, Output: r.Output, OutputRef: r.OutputRef,
	}
	if a.OutputRef != "" && a.OutputRef != runner.OutputRef(r.Lease) {
		a.OutputRef = "" // a runner may name only the output file of this lease
	}
	if a.OutputRef != "" {
		a.OutputBytes = runner.OutputSize(filepath.Dir(dir), a.OutputRef, j.OutputLimit)
	}
	o := outcomeOf(r)
	o.WasPaused = p.staysPausedLocked(h)
	a.Result, a.ResultError = checkedResult(r)
	d := queue.Decide(j, o, p.cfg.Policy())
	s := store.Settlement{Lease: queue.Lease(r.Lease), Attempt: a, Decision: d, Progress: cleanProgress(r.Progress)}
	if d.State == queue.Completed {
		s.Fingerprint = j.Fingerprint()
	}
	return s
}
