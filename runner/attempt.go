package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// attempt is the execution that one START frame asked for. The server's mu guards its fields.
type attempt struct {
	start     *wire.Start
	log       *output.Log
	worker    *process.Worker // the worker that runs the attempt; nil while it does not run
	slot      int64
	pid       int
	at        int64
	watched   bool
	killed    func()        // kills the attempt right after the fork; set by a kill that came before the fork
	paused    bool          // the attempt's process tree is or will be frozen
	signals   []int64       // signals to be sent to the attempt, each at most once
	signalled bool          // a goroutine is sending signals
	result    []byte        // the encoded RESULT frame; nil while the attempt has not ended
	segment   int           // journal segment that holds the result
	unkept    bool          // the result is not in the journal; the slot must still show that the attempt ran
	progress  wire.Progress // the progress that was last sent to the service
	inside    inside        // used only by the worker that runs the attempt
}

func lease(a *attempt) wire.Lease { return a.start.Lease }

// setUpWorkers starts workers until there are target of them. The caller holds mu.
func (s *server) setUpWorkers() {
	for s.live < s.target {
		s.live++
		s.workers.Go(s.work)
	}
	s.more.Broadcast()
}

// work runs one worker. The worker executes waiting attempts until there are more than target workers
// or the runner is closing.
func (s *server) work() {
	w := process.NewWorker(s.Cgroups)
	defer w.Close()
	f := s.newFolder()
	defer f.Close()
	for {
		a := s.next(w, f)
		if a == nil {
			return
		}
		s.execute(w, f, a)
	}
}

// next returns the first waiting attempt, and waits until there is one. It returns nil if the worker
// must end.
func (s *server) next(w *process.Worker, f *workFolder) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	var a *attempt
	for a == nil {
		slot := s.emptySlot()
		for (len(s.waiting) == 0 || slot == 0 || s.forTime && !s.guarded) && s.live <= s.target && !s.closing {
			s.starved = s.starved || slot == 0
			if !f.IsOpen() || !s.rest(f) {
				s.more.Wait()
			}
			slot = s.emptySlot()
		}
		if s.live > s.target || s.closing {
			s.live--
			return nil
		}
		a = s.waiting[0]
		s.waiting = s.waiting[1:]
		a.slot, a.at = slot, time.Now().UnixMilli()
		// Write the attempt to the table before reading the clock. A service that does not find the
		// attempt in the table after the deadline By then knows that it never starts.
		s.table.begin(slot, lease(a), a.at)
		if a.late() {
			s.table.end(slot)
			s.forgo(a)
			s.send(&wire.Dropped{Lease: lease(a), Dropped: true}, true)
			a = nil
		}
	}
	a.worker = w
	s.slots[a.slot]++
	if s.running++; s.running == 1 {
		s.watchdog.look()
	}
	return a
}

// spareSlots is how many slots more than workers have disk space reserved. Results that could not be
// written to the journal keep their slots, so workers need other ones.
const spareSlots = 64

// emptySlot returns the first free slot, or 0 if no slot is free. The caller holds mu.
func (s *server) emptySlot() int64 {
	for slot := 1; slot <= s.room; slot++ {
		if s.slots[slot] == 0 {
			return int64(slot)
		}
	}
	return 0
}

// freeSlot frees the slot of an attempt whose result is in the journal or acknowledged. The caller
// holds mu.
func (s *server) freeSlot(a *attempt) {
	a.unkept = false
	s.table.end(a.slot)
	s.slots[a.slot]--
	s.slotFreed()
}

// slotFreed wakes the workers that wait for a free slot. The caller holds mu.
func (s *server) slotFreed() {
	if s.starved {
		s.starved = false
		s.more.Broadcast()
	}
}

// late reports whether a deadline for starting the attempt has passed.
func (a *attempt) late() bool {
	notAfter, by := a.start.NotAfter, a.start.By
	return notAfter != 0 && time.Now().UnixMilli() >= notAfter || by != 0 && SinceBoot().Milliseconds() >= by
}

// addedVariables is about how many variables the runner adds to the environment of a command.
const addedVariables = 8

// execute runs one attempt and stores its result.
func (s *server) execute(w *process.Worker, f *workFolder, a *attempt) {
	failpoint.Hit("attempt-noted")
	st := a.start
	c := &process.Command{
		Argv: st.Argv, Env: append(slices.Grow(st.Env, addedVariables), "QUEUECTL_WORKER="+Worker(s.dir, a.slot)),
		Dir: st.Cwd, Umask: int(st.Umask), Stdin: st.Stdin, StdinFile: st.StdinFile, TTY: st.TTY,
		Timeout: st.Timeout, IdleTimeout: st.IdleTimeout, KillAfter: st.KillAfter, OutputGrace: st.OutputGrace,
		Background: st.Background, Patience: patience(), Cookie: s.cookie(a), Log: a.log,
		Limits: process.Limits{Memory: st.Memory, CPUs: float64(st.MilliCPUs) / 1000, Tasks: int(st.Tasks)},
		Nice:   int(st.Nice), NoFile: int(st.NoFile), NoNewPrivileges: st.NoNewPrivileges, Mask: st.Mask,
		Forked: func(pid int, at time.Time) {
			s.table.forked(a.slot, pid, at.UnixMilli())
			s.mu.Lock()
			defer s.mu.Unlock()
			a.pid, a.at = pid, at.UnixMilli()
			if a.killed != nil {
				a.killed()
			} else if a.paused {
				a.worker.Pause(true, func(int, bool) {})
			}
		},
		Started: func(int, time.Time) { s.started(a) },
	}
	in := &a.inside
	in.s, in.a, in.folder = s, a, f
	if failed := s.prepare(c, in); failed != nil {
		a.log.Close()
		s.settle(a, failed, in)
		return
	}
	r := w.Run(c)
	in.end(&r)
	if r.Unlimited != "" {
		s.unlimited.Do(func() {
			s.Log.Warn("jobs request limits that this system does not enforce; see: queuectl doctor", "limits", r.Unlimited, "job", st.Seq)
		})
	}
	s.settle(a, &r, in)
	if r.StuckPID != 0 {
		s.linger(w, a)
	}
}

// prepare adds to a command what only the runner knows: the account, the secrets and the private
// directory. It returns nil, or the result of an attempt that cannot be run.
func (s *server) prepare(c *process.Command, in *inside) *process.Result {
	now := time.Now()
	if err := s.dress(c, in.a.start.UID); err != nil {
		unknown := !settled(err) // the user directory (NSS) did not answer
		return &process.Result{StartedAt: now, EndedAt: now, ExitCode: 126, Error: "user: " + err.Error(), Shortage: unknown, HungStart: unknown}
	}
	var err error
	if c.Secrets, err = s.secrets(in.a.start); err != nil {
		return &process.Result{StartedAt: now, EndedAt: now, ExitCode: 126, Error: err.Error(), CannotStart: process.Lasting(err)}
	}
	if err := in.begin(c); err != nil {
		return &process.Result{StartedAt: now, EndedAt: now, ExitCode: -1, Error: err.Error(), Shortage: true}
	}
	return nil
}

// dress makes a command run under the account with the given uid: with the account's groups and with
// its variables, such as HOME. The account's home is the default working directory. A negative uid
// means the runner's own account.
func (s *server) dress(c *process.Command, uid int64) error {
	if uid < 0 {
		return nil
	}
	known, err := s.accounts.of(uint32(uid))
	if err != nil {
		return err
	}
	c.As = &process.Identity{UID: known.UID, GID: known.GID, Groups: known.Groups}
	c.Env = environ(&known, c.Env)
	if c.Dir == "" {
		c.Dir = known.Home
	}
	return nil
}

// cookie returns the marker that every process of an attempt has in its environment.
func (s *server) cookie(a *attempt) string {
	return cookieOf(s.name, lease(a))
}

// cookieOf returns the cookie of an attempt that the runner with the given name started.
func cookieOf(name string, l wire.Lease) string {
	return name + "." + strconv.FormatInt(l.Seq, 10) + "." + strconv.FormatInt(l.Fence, 10)
}

// WorkerID returns the name of the worker that uses a slot.
func WorkerID(slot int64) string { return "w" + strconv.FormatInt(slot, 10) }

// started reports a running attempt to the service, together with the next results. If the attempt ends
// before these are sent, the service records start and end together.
func (s *server) started(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(&wire.Started{Attempt: known(a)}, a.watched)
}

func known(a *attempt) wire.Attempt {
	return wire.Attempt{Lease: lease(a), Slot: a.slot, PID: int64(a.pid), StartedAt: a.at}
}

// usualResult is the typical size of a RESULT frame without output, in bytes.
const usualResult = 128

// settle stores the result of an attempt in the journal, then sends it. The journal keeps the result
// until the service has acknowledged it.
func (s *server) settle(a *attempt, r *process.Result, in *inside) {
	failpoint.Hit("runner-ended")
	f := &wire.Result{
		EndedAt: r.EndedAt.UnixMilli(), Cause: cause(r), TimedOut: r.TimedOut, Silent: r.Silent, Shortage: r.Shortage, Unkilled: r.StuckPID != 0 || r.Traced, MemoryLimit: r.MemoryLimit,
		ExitCode: r.ExitCode, Signal: int64(r.Signal), Error: r.Error, CPU: r.CPU, PeakRSS: r.PeakRSS, PeakTasks: r.PeakTasks,
		Leftovers: int64(r.Leftovers), Dropped: a.log.Dropped(),
		Value: in.value, ValueError: in.fault, Progress: in.progress.last,
	}
	s.keepOutput(a, f)
	// Only this worker changes the fields that known reads, so mu is not needed.
	f.Attempt = known(a)
	result := wire.Append(make([]byte, 0, usualResult+len(f.Output)), f)
	segment, err := s.journal.append(result)
	if err != nil {
		s.Log.Error("could not write a job's result to the result journal; keeping the result in memory and trying again", "job", f.Seq, "error", err)
	} else if s.anyUnkept() {
		s.chores.add(s.keepAgain)
	}
	if r.Spared {
		s.noteSpared(r.PID)
	}
	if r.Leftovers > 0 || r.Signal != 0 {
		poke(s.orphans)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.worker, a.result, a.segment, a.unkept = nil, result, segment, err != nil
	if s.conn == nil && time.Since(s.idleAt) > awaySync {
		s.chores.add(s.sync)
	}
	s.running--
	if a.unkept {
		s.unkept++ // the attempt keeps its slot
	} else {
		s.freeSlot(a)
	}
	// Send this before the result, because a result alone would make the service reuse the worker.
	if r.StuckPID != 0 {
		s.slots[a.slot]++
		stuck := known(a)
		stuck.PID = int64(r.StuckPID)
		s.stuck = append(s.stuck, stuck)
		s.send(&wire.Stuck{Attempts: s.stuck}, true)
	}
	s.sendRaw(a.result, a.watched || len(s.waiting) == 0)
	s.endIfDone()
}

// Causes that the runner itself determines. They are the values of queue.Stopped (which the service
// also sends), queue.Lost, queue.Interrupted, queue.OutOfMemory, queue.HungStart and queue.CannotStart.
// causeHungStart together with Shortage means that the machine does not lack resources: something that
// the start needs did not answer.
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

func (s *server) noteSpared(pgid int) {
	f, err := os.OpenFile(filepath.Join(s.dir, sparedName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, s.mode(0o600))
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", pgid)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		s.Log.Error("could not record a job's background processes; they will end with the runner", "error", err)
	}
}

// keepOutput stores the output in the result, or in a file if the output is large.
func (s *server) keepOutput(a *attempt, f *wire.Result) {
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
	ref := OutputRef(lease(a))
	err := writeOutput(OutputPath(s.Root, ref), s.mode(0o600), a.log)
	// If the output directory was removed, create it again.
	if folder := filepath.Join(s.Root, outputsName); errors.Is(err, os.ErrNotExist) && os.Mkdir(folder, s.mode(0o700)) == nil {
		err = writeOutput(OutputPath(s.Root, ref), s.mode(0o600), a.log)
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

// anyUnkept reports whether any result could not be written to the journal yet.
func (s *server) anyUnkept() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unkept > 0
}

// keepAgain writes the results to the journal that could not be written before.
func (s *server) keepAgain() {
	s.mu.Lock()
	var list []*attempt
	for _, a := range s.attempts {
		if a.unkept {
			list = append(list, a)
		}
	}
	s.mu.Unlock()
	for _, a := range list {
		segment, err := s.journal.append(a.result)
		if err != nil {
			return // housekeep or the next result tries again
		}
		s.mu.Lock()
		needed := a.unkept
		if needed {
			a.segment = segment
			s.unkept--
			s.freeSlot(a)
		}
		s.mu.Unlock()
		if !needed { // the service has acknowledged the result in the meantime
			s.journal.ack(segment)
		}
	}
}

// writeOutput writes a log to a file. It syncs the file and its directory, because the result that
// names the file must not survive a power cut without it.
func writeOutput(path string, mode os.FileMode, l *output.Log) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if err = errors.Join(l.EncodeTo(f), f.Sync(), f.Close(), syncFolder(filepath.Dir(path))); err != nil {
		os.Remove(path) // no file is better than an incomplete one
	}
	return err
}
