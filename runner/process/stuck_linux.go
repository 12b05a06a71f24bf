package process

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/queuectl/queuectl/runner/procfs"
)

// giveUp records processes that survive SIGKILL. They wait in the kernel for a disk or a server that
// does not answer. See docs/decisions/0047.
func (r *run) giveUp(remaining []procfs.Process) {
	r.r.StuckPID = remaining[0].PID
	r.r.Error = fmt.Sprintf("%d processes of the job still exist %v after SIGKILL; the first has pid %d", len(remaining),
		r.c.Patience, r.r.StuckPID)
	r.w.stuck = remaining
	for _, p := range remaining {
		r.endTracer(p.PID)
	}
}

// endTracer ends the process that traces pid, if it belongs to the job's account. A tracer can keep its
// tracee from ending indefinitely, and so occupy the worker.
func (r *run) endTracer(pid int) {
	tracer := procfs.Tracer(pid)
	p, ok := procfs.Stat(tracer)
	if ok && tracer != os.Getpid() {
		owner := r.c.uid()
		Kill(tracer, p.Ticks, &owner) // a tracer that cannot be ended stays
	}
}

// giveUpMain gives up a tree whose main process survives SIGKILL.
func (r *run) giveUpMain(remaining []procfs.Process) {
	main, ok := procfs.Stat(r.pid)
	if !ok {
		panic("process: the state of an unreaped process is missing")
	}
	r.giveUp(append([]procfs.Process{main}, remaining...))
}

// abandonTraced gives up a main process that has ended but whose tracer withholds its exit status. Such
// a process uses only a pid, so no worker waits for it.
func (r *run) abandonTraced() {
	r.r.HeldByTracer, r.exited = true, true
	tracer := ""
	if pid := procfs.Tracer(r.pid); pid != 0 {
		tracer = fmt.Sprintf(" (pid %d)", pid)
	}
	r.r.Error = fmt.Sprintf("the job's process %d has ended, but a process%s that traces it with ptrace keeps its exit "+
		"status; if the tracing process still runs, end it, then retry the job", r.pid, tracer)
	r.w.markEnded()
	r.endTracer(r.pid)
	go func() { // returns when the tracer ends; otherwise it runs until this process ends
		for ok := false; !ok; _, _, ok, _ = orphans.reap(r.pid) {
			time.Sleep(time.Second)
		}
	}()
}

// isStuck reports whether any process that the last Run has given up still exists.
func (w *Worker) isStuck() bool {
	w.stuck = slices.DeleteFunc(w.stuck, hasExited)
	return len(w.stuck) > 0
}

// hasExited reports whether a process has ended. It reaps the process if it is a child of this process.
func hasExited(p procfs.Process) bool {
	now, ok := procfs.Stat(p.PID)
	if !ok || now.Ticks != p.Ticks {
		return true
	}
	if now.Alive() {
		return false
	}
	_, _, ok, _ = orphans.reap(p.PID) // this fails if the process is not a child of this process
	return ok
}
