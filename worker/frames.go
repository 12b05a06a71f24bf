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

// startFramesLocked appends the frames that start a job to frames. If a caller watches the job, the
// frames also make the runner send the job's result immediately.
func (p *Pool) startFramesLocked(frames []wire.Frame, j *queue.Job) []wire.Frame {
	argv := j.Argv
	if j.Command != "" {
		argv = append(strings.Fields(j.Shell), j.Command)
	}
	uid, cwd := int64(-1), j.Cwd
	if p.cfg.Runners.OwnedByRoot() {
		uid = int64(p.cfg.Account.RunsAs(j))
	} else if cwd == "" {
		cwd = p.cfg.Account.Home
	}
	frames = append(frames, &wire.Start{
		Lease: wire.Lease(j.Lease()), Queue: j.Queue, Place: placeOf(j), UID: uid,
		Argv: argv, Env: p.environment(j), Cwd: cwd, Umask: int64(j.Umask), Stdin: j.Stdin, StdinFile: j.StdinFile,
		Timeouts: wire.Timeouts{
			Timeout: j.Timeout, IdleTimeout: j.IdleTimeout, KillAfter: j.KillAfter, OutputGrace: p.cfg.OutputGrace(),
		},
		OutputLimit: j.OutputLimit,
		Background:  j.AllowBackground, NotAfter: p.localExpiry(j),
		BootDeadline: (runner.SinceBoot() + startDeadline).Milliseconds(),
		Memory:       j.Memory, MilliCPUs: int64(math.Round(j.CPUs * 1000)), Tasks: j.Tasks,
		Nice: j.Nice, NoFile: j.NoFile, NoNewPrivileges: j.NoNewPrivileges,
		TTY: j.TTY, Secrets: j.Secrets, Mask: j.MaskSecrets, Deps: j.Deps,
	})
	j.Deps = nil // free the memory, as the dependencies may be large
	if p.leases.watchers[j.Seq] > 0 {
		frames = append(frames, &wire.Watch{Lease: wire.Lease(j.Lease())})
	}
	return frames
}

// localExpiry returns when a job expires, in milliseconds of this machine's clock; 0 means never.
func (p *Pool) localExpiry(j *queue.Job) int64 {
	if j.ExpiresAt == 0 || p.cfg.Clock == nil {
		return int64(j.ExpiresAt)
	}
	offset := queue.MillisOf(time.Now()) - p.cfg.Clock()
	if offset > -clockSlack && offset < clockSlack { // the difference is within the measurement error
		offset = 0
	}
	return int64(j.ExpiresAt + offset)
}

// clockSlack is the difference between two clocks up to which the pool treats them as equal.
const clockSlack = queue.Millis(50)

// environment returns a job's environment. The job inherits nothing from the service's environment.
func (p *Pool) environment(j *queue.Job) []string {
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
	if parent := p.traceparent(j); parent != "" {
		env = slices.DeleteFunc(env, func(e string) bool {
			name, _, _ := strings.Cut(e, "=")
			return queue.SameVariable(name, queue.Traceparent)
		})
		env = append(env, queue.Traceparent+"="+parent)
	}
	if j.Units != "" {
		env = append(env, p.cfg.Units(j)...)
	}
	return append(env,
		"QUEUECTL_JOB_ID="+j.ID,
		"QUEUECTL_ATTEMPT="+strconv.Itoa(j.Runs+1),
		"QUEUECTL_QUEUE="+j.Queue,
		"QUEUECTL_SOCKET="+p.cfg.Socket)
}

// traceparent returns the trace parent for an attempt; "" keeps the one in the job's environment.
func (p *Pool) traceparent(j *queue.Job) string {
	if p.cfg.Traceparent == nil {
		return ""
	}
	return p.cfg.Traceparent(j)
}

// outcome converts a result to the outcome that queue.Decide evaluates.
func outcome(r *wire.Result) queue.Outcome {
	o := queue.Outcome{ExitCode: r.ExitCode, Signal: int(r.Signal), Error: r.Error, MemoryLimit: r.MemoryLimit}
	switch {
	case r.Shortage:
		o.End = queue.Shortage
	case r.Unkilled:
		o.End = queue.Unkillable
	case r.IdleTimedOut:
		o.End = queue.IdleTimedOut
	case r.TimedOut:
		o.End = queue.TimedOut
	case r.Cause == int64(queue.Killed), r.Cause == int64(queue.Stopped), r.Cause == int64(queue.OutOfMemory),
		r.Cause == int64(queue.HungStart), r.Cause == int64(queue.CannotStart),
		r.Cause == int64(queue.RunnerLost), r.Cause == int64(queue.Interrupted):
		o.End = queue.End(r.Cause)
	case r.Signal != 0:
		o.End = queue.Signalled
	default:
		o.End = queue.Exited
	}
	return o
}

// settlementLocked returns the settlement for a result. h is the lease of the result, and dir is the
// directory of the runner that sent it.
func (p *Pool) settlementLocked(h *lease, r *wire.Result, dir string) store.Settlement {
	j := &h.job
	a := queue.Attempt{
		Fence: r.Fence, Worker: runner.Worker(dir, r.Slot), Node: p.cfg.Node, PID: int(r.PID),
		StartedAt: queue.Millis(r.StartedAt), EndedAt: queue.Millis(r.EndedAt),
		ExitCode: r.ExitCode, Signal: int(r.Signal), CPU: r.CPU, PeakRSS: r.PeakRSS, PeakTasks: r.PeakTasks,
		Leftovers: int(r.Leftovers), DroppedBytes: r.DroppedBytes, Output: r.Output, OutputRef: r.OutputRef,
	}
	if a.OutputRef != "" && a.OutputRef != runner.OutputRef(r.Lease) {
		a.OutputRef = "" // ignore it: a runner may name only the output of this lease
	}
	if a.OutputRef != "" {
		a.OutputBytes = runner.OutputSize(filepath.Dir(dir), a.OutputRef, j.OutputLimit)
	}
	o := outcome(r)
	o.Paused = p.holdOnReturnLocked(h)
	a.Result, a.ResultError = resultValue(r)
	d := queue.Decide(j, o, p.cfg.Policy())
	s := store.Settlement{Lease: queue.Lease(r.Lease), Attempt: a, Decision: d, Progress: progressOf(r.Progress)}
	if d.State == queue.Completed {
		s.Fingerprint = j.Fingerprint()
	}
	return s
}
