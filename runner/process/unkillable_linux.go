package process

import (
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/procfs"
)

// recordStuckProcesses records in the result that processes survive SIGKILL. They wait in the kernel, for
// example for a disk or a server that does not respond. See docs/decisions/0047.
func (r *runningCommand) recordStuckProcesses(remaining []procfs.Process) {
	r.result.StuckPID = remaining[0].PID
	r.result.Error = fmt.Sprintf("%d processes of the job still exist %v after SIGKILL; the first has pid %d",
		len(remaining), r.command.SigkillTimeout, r.result.StuckPID)
	r.worker.stuckProcesses = remaining
	for _, p := range remaining {
		r.killTracer(p.PID)
	}
}

// killTracer kills the process that traces tracedPID (ptrace), if the tracer belongs to the job's account. Otherwise
// the tracer could prevent the end of the traced process indefinitely, and keep the worker busy.
func (r *runningCommand) killTracer(tracedPID int) {
	tracer := procfs.TracerPID(tracedPID)
	p, ok := procfs.Stat(tracer)
	if ok && tracer != os.Getpid() {
		owner := r.command.uid()
		// Ignore an error: nothing more can be done about this tracer.
		SignalProcess(tracer, p.StartTicks, &owner, unix.SIGKILL)
	}
}

// recordStuckMainProcess records in the result that the main process, and perhaps others, survive SIGKILL.
func (r *runningCommand) recordStuckMainProcess(remaining []procfs.Process) {
	main, ok := procfs.Stat(r.pid)
	if !ok {
		panic("process: the state of an unreaped process is missing")
	}
	r.recordStuckProcesses(append([]procfs.Process{main}, remaining...))
}

// abandonTracedMainProcess stops waiting for a main process that has ended, but whose tracer withholds its exit status.
// The main process no longer uses anything except its pid, so the worker can run the next command.
func (r *runningCommand) abandonTracedMainProcess() {
	r.result.ExitHeldByTracer, r.mainProcessExited = true, true
	tracer := ""
	if pid := procfs.TracerPID(r.pid); pid != 0 {
		tracer = fmt.Sprintf(" (pid %d)", pid)
	}
	r.result.Error = fmt.Sprintf(
		"the job's process %d has ended, but a process%s that traces it with ptrace keeps its exit "+
			"status; if the tracing process still runs, end it, then retry the job", r.pid, tracer)
	r.worker.markCommandEnded()
	r.killTracer(r.pid)
	go func() { // this goroutine ends when the tracer ends, or when this process ends
		for ok := false; !ok; _, _, ok, _ = globalOrphanTable.reapMainProcess(r.pid) {
			time.Sleep(time.Second)
		}
	}()
}

// isStuck reports whether the last Run left processes that SIGKILL did not end and that still exist.
func (w *Worker) isStuck() bool {
	w.stuckProcesses = slices.DeleteFunc(w.stuckProcesses, hasExited)
	return len(w.stuckProcesses) > 0
}

// hasExited reports whether a process has ended. If it is a child of this process, hasExited reaps it.
func hasExited(p procfs.Process) bool {
	now, ok := procfs.Stat(p.PID)
	if !ok || now.StartTicks != p.StartTicks {
		return true
	}
	if now.WasAlive() {
		return false
	}
	_, _, ok, _ = globalOrphanTable.reapMainProcess(p.PID) // this fails if the process is not a child of this process
	return ok
}
