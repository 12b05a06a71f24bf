package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/launcher"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// attempt is the execution that one START frame asked for. The server's mu guards its fields.
type attempt struct {
	start       *wire.Start
	log         *output.Log
	worker      *process.Worker // the worker that runs the attempt; nil while it does not run
	slot        int64
	pid         int
	startedAt   int64
	watched     bool
	pendingKill func()  // kills the attempt right after the fork; set by a kill that came before the fork
	paused      bool    // the attempt's process tree is or will be frozen
	signals     []int64 // signals to be sent to the attempt, each at most once
	signalling  bool    // a goroutine is sending signals
	result      []byte  // the encoded RESULT frame; nil while the attempt has not ended
	segment     int     // journal segment that holds the result
	// unjournaled means that the result is not in the journal, so the attempt keeps its slot in the
	// running table.
	unjournaled bool
	progress    wire.Progress // the progress that was last sent to the service
	workspace   workspace     // used only by the worker that runs the attempt
}

func lease(a *attempt) wire.Lease { return a.start.Lease }

// setUpWorkers starts workers until there are targetWorkers of them. The caller holds mu.
func (s *server) setUpWorkers() {
	for s.workerCount < s.targetWorkers {
		s.workerCount++
		s.workers.Go(s.work)
	}
	s.workerCond.Broadcast()
}

// work runs one worker. The worker executes waiting attempts until there are more than targetWorkers
// or the runner is closing.
func (s *server) work() {
	w := process.NewWorker(s.Cgroups)
	defer w.Close()
	f := s.newWorkDir()
	defer f.Close()
	for {
		a := s.nextAttempt(w, f)
		if a == nil {
			return
		}
		s.execute(w, f, a)
	}
}

// nextAttempt returns the first waiting attempt, and waits until there is one. It returns nil if the
// worker must end.
func (s *server) nextAttempt(w *process.Worker, f *workDir) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	var a *attempt
	for a == nil {
		slot := s.emptySlot()
		for (len(s.waiting) == 0 || slot == 0 || s.leasesExpire && !s.watchdogSettled) && s.workerCount <= s.targetWorkers && !s.closing {
			s.slotAwaited = s.slotAwaited || slot == 0
			if !f.IsOpen() || !s.removeIdleDir(f) {
				s.workerCond.Wait()
			}
			slot = s.emptySlot()
		}
		if s.workerCount > s.targetWorkers || s.closing {
			s.workerCount--
			return nil
		}
		a = s.waiting[0]
		s.waiting = s.waiting[1:]
		a.slot, a.startedAt = slot, time.Now().UnixMilli()
		// Write the attempt to the table before comparing its deadline with the clock. So if the
		// deadline By has passed and the table lacks the attempt, a service knows that the attempt
		// never starts.
		s.table.SetStarting(slot, lease(a), a.startedAt)
		if a.pastDeadline() {
			s.table.Free(slot)
			s.discard(a)
			s.send(&wire.Dropped{Lease: lease(a), Dropped: true}, true)
			a = nil
		}
	}
	a.worker = w
	s.slots[a.slot]++
	if s.runningCount++; s.runningCount == 1 {
		s.watchdog.CheckStarts()
	}
	return a
}

// spareSlots is the number of slots with disk space that the table has in addition to one for each
// worker. A result that could not be written to the journal keeps its slot, so its worker needs another
// one.
const spareSlots = 64

// emptySlot returns the first free slot, or 0 if no slot is free. The caller holds mu.
func (s *server) emptySlot() int64 {
	for slot := 1; slot <= s.reservedSlots; slot++ {
		if s.slots[slot] == 0 {
			return int64(slot)
		}
	}
	return 0
}

// freeSlot frees the slot of an attempt whose result is in the journal or acknowledged. The caller
// holds mu.
func (s *server) freeSlot(a *attempt) {
	a.unjournaled = false
	s.table.Free(a.slot)
	s.slots[a.slot]--
	s.wakeSlotWaiters()
}

// wakeSlotWaiters wakes the workers that wait for a free slot. The caller holds mu.
func (s *server) wakeSlotWaiters() {
	if s.slotAwaited {
		s.slotAwaited = false
		s.workerCond.Broadcast()
	}
}

// pastDeadline reports whether a deadline for starting the attempt has passed.
func (a *attempt) pastDeadline() bool {
	notAfter, by := a.start.NotAfter, a.start.By
	return notAfter != 0 && time.Now().UnixMilli() >= notAfter || by != 0 && runner.SinceBoot().Milliseconds() >= by
}

// addedVariables is the approximate number of variables that the runner adds to the environment of a
// command.
const addedVariables = 8

// execute runs one attempt and stores its result.
func (s *server) execute(w *process.Worker, f *workDir, a *attempt) {
	failpoint.Hit("attempt-noted")
	st := a.start
	c := &process.Command{
		Argv: st.Argv, Env: append(slices.Grow(st.Env, addedVariables), "QUEUECTL_WORKER="+runner.Worker(s.dir, a.slot)),
		Dir: st.Cwd, Umask: int(st.Umask), Stdin: st.Stdin, StdinFile: st.StdinFile, TTY: st.TTY,
		Timeout: st.Timeout, IdleTimeout: st.IdleTimeout, KillAfter: st.KillAfter, OutputGrace: st.OutputGrace,
		Background: st.Background, Patience: runner.Patience(), Cookie: s.cookie(a), Log: a.log,
		Limits: process.Limits{Memory: st.Memory, CPUs: float64(st.MilliCPUs) / 1000, Tasks: int(st.Tasks)},
		Nice:   int(st.Nice), NoFile: int(st.NoFile), NoNewPrivileges: st.NoNewPrivileges, Mask: st.Mask,
		Forked: func(pid int, at time.Time) {
			s.table.SetForked(a.slot, pid, at.UnixMilli())
			s.mu.Lock()
			defer s.mu.Unlock()
			a.pid, a.startedAt = pid, at.UnixMilli()
			if a.pendingKill != nil {
				a.pendingKill()
			} else if a.paused {
				a.worker.Pause(true, func(int, bool) {})
			}
		},
		Started: func(int, time.Time) { s.reportStarted(a) },
	}
	ws := &a.workspace
	ws.s, ws.a, ws.dir = s, a, f
	if failed := s.prepare(c, ws); failed != nil {
		a.log.Close()
		s.settle(a, failed, ws)
		return
	}
	r := w.Run(c)
	ws.collect(&r)
	if r.Unlimited != "" {
		s.warnUnenforced.Do(func() {
			s.Log.Warn("jobs request limits that this system does not enforce; see: queuectl doctor", "limits", r.Unlimited, "job", st.Seq)
		})
	}
	s.settle(a, &r, ws)
	if r.StuckPID != 0 {
		s.awaitStuck(w, a)
	}
}

// prepare adds to a command what only the runner knows: the account, the secrets and the private
// directory. It returns nil, or the result of an attempt that cannot be run.
func (s *server) prepare(c *process.Command, ws *workspace) *process.Result {
	now := time.Now()
	if err := s.setAccount(c, ws.a.start.UID); err != nil {
		unknown := !launcher.IsFinal(err) // the user database (NSS) did not answer, so the account may exist
		return &process.Result{StartedAt: now, EndedAt: now, ExitCode: 126, Error: "user: " + err.Error(), Shortage: unknown, HungStart: unknown}
	}
	var err error
	if c.Secrets, err = s.secrets(ws.a.start); err != nil {
		return &process.Result{StartedAt: now, EndedAt: now, ExitCode: 126, Error: err.Error(), CannotStart: process.IsLasting(err)}
	}
	if err := ws.open(c); err != nil {
		return &process.Result{StartedAt: now, EndedAt: now, ExitCode: -1, Error: err.Error(), Shortage: true}
	}
	return nil
}

// setAccount makes a command run under the account with the given uid: with the account's groups and
// with its variables, such as HOME. The account's home is the default working directory. A negative uid
// means the runner's own account.
func (s *server) setAccount(c *process.Command, uid int64) error {
	if uid < 0 {
		return nil
	}
	account, err := s.accounts.ByUID(uint32(uid))
	if err != nil {
		return err
	}
	c.RunAs = &process.Identity{UID: account.UID, GID: account.GID, Groups: account.Groups}
	c.Env = launcher.AccountEnv(&account, c.Env)
	if c.Dir == "" {
		c.Dir = account.Home
	}
	return nil
}

// cookie returns the marker that every process of an attempt has in its environment.
func (s *server) cookie(a *attempt) string {
	return runner.CookieOf(s.name, lease(a))
}

// reportStarted reports a running attempt to the service, together with the next results. If the
// attempt ends before those results are sent, the service records start and end together.
func (s *server) reportStarted(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(&wire.Started{Attempt: wireAttempt(a)}, a.watched)
}

func wireAttempt(a *attempt) wire.Attempt {
	return wire.Attempt{Lease: lease(a), Slot: a.slot, PID: int64(a.pid), StartedAt: a.startedAt}
}

// typicalResultBytes is the typical size of a RESULT frame without output, in bytes.
const typicalResultBytes = 128

// settle stores the result of an attempt in the journal, then sends it. The journal keeps the result
// until the service has acknowledged it.
func (s *server) settle(a *attempt, r *process.Result, ws *workspace) {
	failpoint.Hit("runner-ended")
	f := &wire.Result{
		EndedAt: r.EndedAt.UnixMilli(), Cause: cause(r), TimedOut: r.TimedOut, Silent: r.Silent, Shortage: r.Shortage, Unkilled: r.StuckPID != 0 || r.Traced, MemoryLimit: r.MemoryLimit,
		ExitCode: r.ExitCode, Signal: int64(r.Signal), Error: r.Error, CPU: r.CPU, PeakRSS: r.PeakRSS, PeakTasks: r.PeakTasks,
		Leftovers: int64(r.Leftovers), Dropped: a.log.Dropped(),
		Value: ws.value, ValueError: ws.resultError, Progress: ws.progress.last,
	}
	s.storeOutput(a, f)
	// Only this worker changes the fields that wireAttempt reads, so mu is not needed.
	f.Attempt = wireAttempt(a)
	result := wire.Append(make([]byte, 0, typicalResultBytes+len(f.Output)), f)
	segment, err := s.journal.Append(result)
	if err != nil {
		s.Log.Error("could not write a job's result to the result journal; keeping the result in memory and trying again", "job", f.Seq, "error", err)
	} else if s.anyUnjournaled() {
		s.diskQueue.add(s.retryJournal)
	}
	if r.Spared {
		s.recordSpared(r.PID)
	}
	if r.Leftovers > 0 || r.Signal != 0 {
		wakeUp(s.orphanHint)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.worker, a.result, a.segment, a.unjournaled = nil, result, segment, err != nil
	if s.conn == nil && time.Since(s.idleAt) > disconnectSync {
		s.diskQueue.add(s.sync)
	}
	s.runningCount--
	if a.unjournaled {
		s.unjournaled++ // the attempt keeps its slot
	} else {
		s.freeSlot(a)
	}
	// Send Stuck before the result: after a result alone, the service would send the worker another
	// job.
	if r.StuckPID != 0 {
		s.slots[a.slot]++
		stuck := wireAttempt(a)
		stuck.PID = int64(r.StuckPID)
		s.stuckAttempts = append(s.stuckAttempts, stuck)
		s.send(&wire.Stuck{Attempts: s.stuckAttempts}, true)
	}
	s.sendRaw(a.result, a.watched || len(s.waiting) == 0)
	s.endIfDone()
}

// Causes that the runner itself determines. They are the values of queue.Stopped (which the service
// also sends), queue.Lost, queue.Interrupted, queue.OutOfMemory, queue.HungStart and queue.CannotStart.
// A result with causeHungStart and Shortage does not mean that the machine lacks resources. It means
// that something that the start needs did not answer.
const (
	causeStopped     = 5
	causeLost        = 8
	causeInterrupted = 9
	causeMemory      = 12
	causeHungStart   = 13
	causeCannotStart = 17
)

// cause returns why an attempt ended: the cause of its kill, or else what the runner has detected. It
// returns 0 for an attempt that ended by itself.
func cause(r *process.Result) int64 {
	switch {
	case r.Cause != 0:
		return int64(r.Cause)
	case r.SessionEnds:
		return causeStopped
	case r.Lost:
		return causeLost
	case r.HungStart:
		return causeHungStart
	case r.OutOfMemory:
		return causeMemory
	case r.CannotStart:
		return causeCannotStart
	}
	return 0
}

func (s *server) recordSpared(pgid int) {
	if err := rundir.AppendSpared(s.dir, pgid, s.mode(0o600)); err != nil {
		s.Log.Error("could not record a job's background processes; they will end with the runner", "error", err)
	}
}

// storeOutput stores the output in the result, or in a file if the output is large.
func (s *server) storeOutput(a *attempt, f *wire.Result) {
	if a.log.Kept() == 0 && a.log.Dropped() == 0 {
		return
	}
	if a.log.Kept() <= output.InMemory {
		var err error
		if f.Output, err = a.log.Encode(); err == nil && len(f.Output) <= 4*output.InMemory {
			return
		}
		f.Output = nil
	}
	ref := runner.OutputRef(lease(a))
	err := writeOutput(runner.OutputPath(s.Root, ref), s.mode(0o600), a.log)
	// If the output directory was removed, create it again.
	if dir := filepath.Join(s.Root, rundir.OutputsName); errors.Is(err, os.ErrNotExist) && os.Mkdir(dir, s.mode(0o700)) == nil {
		err = writeOutput(runner.OutputPath(s.Root, ref), s.mode(0o600), a.log)
	}
	if err != nil {
		s.Log.Error("a job's output was truncated, because its output file could not be written", "job", a.start.Seq, "error", err)
		var kept int64
		f.Output, kept = a.log.EncodeHead(output.InMemory)
		f.Error, f.Dropped = joinText(f.Error, "output truncated: "+err.Error()), f.Dropped+a.log.Kept()-kept
		return
	}
	f.OutputRef = ref
}

func joinText(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// anyUnjournaled reports whether any result could not be written to the journal yet.
func (s *server) anyUnjournaled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unjournaled > 0
}

// retryJournal writes the results to the journal that could not be written before.
func (s *server) retryJournal() {
	s.mu.Lock()
	var list []*attempt
	for _, a := range s.attempts {
		if a.unjournaled {
			list = append(list, a)
		}
	}
	s.mu.Unlock()
	for _, a := range list {
		segment, err := s.journal.Append(a.result)
		if err != nil {
			return // housekeep or the next result calls retryJournal again
		}
		s.mu.Lock()
		needed := a.unjournaled
		if needed {
			a.segment = segment
			s.unjournaled--
			s.freeSlot(a)
		}
		s.mu.Unlock()
		if !needed { // the service has acknowledged the result in the meantime
			s.journal.Ack(segment)
		}
	}
}

// writeOutput writes a log to a file. It syncs the file and its directory, because the result that
// names the file must not survive a power cut without the file.
func writeOutput(path string, mode os.FileMode, l *output.Log) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if err = errors.Join(l.EncodeTo(f), f.Sync(), f.Close(), rundir.SyncDir(filepath.Dir(path))); err != nil {
		os.Remove(path) // no file is better than an incomplete one
	}
	return err
}
