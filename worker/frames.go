package worker

import (
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// startFrames are the order to run a job, appended to others. A runner that does not know
// limits is of another version, and gets no new job.
func (p *Pool) startFrames(frames []wire.Frame, j *queue.Job) []wire.Frame {
	if j.Memory != 0 || j.CPUs != 0 || j.Tasks != 0 {
		frames = append(frames, &wire.Bound{Lease: wire.Lease(j.Lease()), Memory: j.Memory, MilliCPUs: int64(math.Round(j.CPUs * 1000)), Tasks: j.Tasks})
	}
	start := p.plainStart(j)
	if !p.cfg.Runners.Roots() {
		return append(frames, start)
	}
	return append(frames, &wire.StartAs{Start: *start, UID: int64(p.cfg.Account.RunsAs(j))})
}

func (p *Pool) plainStart(j *queue.Job) *wire.Start {
	argv := j.Argv
	if j.Command != "" {
		argv = append(strings.Fields(j.Shell), j.Command)
	}
	cwd := j.Cwd
	if cwd == "" && !p.cfg.Runners.Roots() {
		cwd = p.cfg.Account.Home
	}
	return &wire.Start{
		Lease: wire.Lease(j.Lease()), Argv: argv, Env: p.environment(j), Cwd: cwd, Umask: int64(j.Umask), Stdin: j.Stdin, StdinFile: j.StdinFile,
		Timeout: j.Timeout, IdleTimeout: j.IdleTimeout, KillAfter: j.KillAfter, OutputGrace: p.cfg.OutputGrace(), OutputLimit: j.OutputLimit,
		Background: j.AllowBackground, NotAfter: int64(j.ExpiresAt),
	}
}

// environment builds a job's environment; nothing of the service's own is in it.
func (p *Pool) environment(j *queue.Job) []string {
	env := make([]string, 0, len(j.Env)+usuallyAdded)
	given := func(name string) bool {
		for _, e := range j.Env {
			if len(e) > len(name) && e[len(name)] == '=' && sameVariable(e[:len(name)], name) {
				return true
			}
		}
		return false
	}
	p.usual(given, func(name, value string) {
		if value != "" && !given(name) {
			env = append(env, name+"="+value)
		}
	})
	env = append(env, j.Env...)
	return append(env,
		"QUEUECTL_JOB_ID="+j.ID,
		"QUEUECTL_ATTEMPT="+itoa(j.Runs+1),
		"QUEUECTL_QUEUE="+j.Queue,
		"QUEUECTL_SOCKET="+p.cfg.Socket)
}

// outcome is what a result says was seen.
func outcome(r *wire.Result) queue.Outcome {
	o := queue.Outcome{ExitCode: r.ExitCode, Signal: int(r.Signal), Error: r.Error}
	switch {
	case r.Shortage:
		o.End = queue.Shortage
	case r.Unkilled:
		o.End = queue.Unkillable
	case r.Silent:
		o.End = queue.Silent
	case r.TimedOut:
		o.End = queue.TimedOut
	case r.Cause == int64(queue.Killed), r.Cause == int64(queue.Stopped), r.Cause == int64(queue.OutOfMemory):
		o.End = queue.End(r.Cause)
	case r.Signal != 0:
		o.End = queue.Signalled
	default:
		o.End = queue.Exited
	}
	return o
}

// settlement is what follows from a result, of the runner of a folder, for the job it
// belongs to.
func (p *Pool) settlement(j *queue.Job, r *wire.Result, dir string) store.Settlement {
	a := queue.Attempt{
		Fence: r.Fence, Worker: runner.Worker(dir, r.Slot), Node: p.cfg.Node, PID: int(r.PID),
		StartedAt: queue.Millis(r.StartedAt), EndedAt: queue.Millis(r.EndedAt),
		ExitCode: r.ExitCode, Signal: int(r.Signal), CPU: r.CPU, PeakRSS: r.PeakRSS,
		Leftovers: int(r.Leftovers), Dropped: r.Dropped, Output: r.Output, OutputRef: r.OutputRef,
	}
	if a.OutputRef != "" {
		a.OutputBytes = runner.OutputSize(filepath.Dir(dir), a.OutputRef)
	}
	d := queue.Decide(j, outcome(r), p.cfg.Policy())
	return store.Settlement{Lease: queue.Lease(r.Lease), Attempt: a, Decision: d}
}

// howLost is how an attempt ended whose runner has died.
func howLost(r runner.Remains, l wire.Lease) queue.End {
	switch {
	case r.Unkilled[l]:
		return queue.Unkillable
	case r.SameBoot:
		return queue.Lost
	}
	return queue.Interrupted
}

// lost is the settlement of an attempt whose runner, of a folder, has died; running is
// nil if it is not known when it began.
func (p *Pool) lost(j *queue.Job, running *wire.Attempt, how queue.End, dir string) store.Settlement {
	o, now := queue.Outcome{End: how, ExitCode: -1, Alone: runner.Lone(dir)}, p.now()
	a := queue.Attempt{Fence: j.Fence, Worker: j.WorkerID, Node: p.cfg.Node, PID: j.PID, StartedAt: j.StartedAt, EndedAt: now, ExitCode: -1}
	if running != nil {
		a.Worker, a.PID, a.StartedAt = runner.Worker(dir, running.Slot), int(running.PID), queue.Millis(running.StartedAt)
	}
	d := queue.Decide(j, o, p.cfg.Policy())
	return store.Settlement{Lease: j.Lease(), Attempt: a, Decision: d}
}

// measure follows the mean of recent run times, each new one weighing a quarter.
func (p *Pool) measure(r *wire.Result) {
	run := time.Duration(r.EndedAt-r.StartedAt) * time.Millisecond
	run = max(run, time.Millisecond/2)
	if p.mean == 0 {
		p.mean = run
		return
	}
	p.mean += (run - p.mean) / 4
}
