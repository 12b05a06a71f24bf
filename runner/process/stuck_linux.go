package process

import (
	"fmt"
	"os"
	"slices"
	"time"
)

// giveUp notes what outlives SIGKILL: a process that waits in the kernel, for a disk
// or a server that does not answer.
// See docs/decisions/0047.
func (r *run) giveUp(left []proc) {
	r.r.StuckPID = left[0].pid
	r.r.Error = fmt.Sprintf("%d processes of the job still exist %v after SIGKILL; the first has pid %d", len(left), r.c.Patience, r.r.StuckPID)
	r.w.stuck = left
	for _, p := range left {
		r.endTracer(p.pid)
	}
}

// endTracer ends the process of the job's account that traces one: it can keep what it traces from
// its end for as long as it likes, and so the worker.
func (r *run) endTracer(pid int) {
	tracer := tracerOf(pid)
	p, ok := stat(tracer)
	if ok && tracer != os.Getpid() {
		of := r.c.uid()
		End(tracer, p.ticks, &of) // what cannot be ended stays as it is
	}
}

// giveUpMain gives up a tree whose main process has not ended.
func (r *run) giveUpMain(left []proc) {
	main, ok := stat(r.pid)
	if !ok {
		panic("process: no state of a process that is not reaped")
	}
	r.giveUp(append([]proc{main}, left...))
	r.exited = true
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.running = false
}

// letTracer gives up a main process that has ended and whose end a tracer keeps. It takes
// nothing but its number, so no worker waits for it.
func (r *run) letTracer() {
	r.r.Traced, r.exited = true, true
	r.r.Error = fmt.Sprintf("pid %d has ended, but the process that traces it (ptrace) has not collected its exit status", r.pid)
	r.w.mu.Lock()
	r.w.running = false
	r.w.mu.Unlock()
	r.endTracer(r.pid)
	go func() { // ends with the tracer, or this process
		for ok := false; !ok; _, _, ok, _ = orphans.reap(r.pid) {
			time.Sleep(time.Second)
		}
	}()
}

// Linger waits until what the last Run has given up is gone, or stop is closed. It
// is for the goroutine that called Run.
func (w *Worker) Linger(stop <-chan struct{}) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		w.stuck = slices.DeleteFunc(w.stuck, gone)
		if len(w.stuck) == 0 {
			return
		}
		select {
		case <-time.After(pause):
		case <-stop:
			return
		}
	}
}

// gone reports whether a process has ended, and reaps it if it is ours.
func gone(p proc) bool {
	now, ok := stat(p.pid)
	if !ok || now.ticks != p.ticks {
		return true
	}
	if now.alive() {
		return false
	}
	_, _, ok, _ = orphans.reap(p.pid) // another's child is not ours to reap
	return ok
}
