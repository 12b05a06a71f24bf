package launcher

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// The watchdog is a second process next to a runner. It has two tasks.
//
// First, it ends commands that hang while a runner of root starts them. Between fork and exec, the runner
// waits in the kernel for its child (vfork(2)). At that time the child already has the ids of the job's
// user. So the user can stop the child by a signal, or make it wait for a file system that does not answer.
// The runner, which runs the jobs of all users, would then hang too. The watchdog therefore kills children
// that do not reach exec in time.
//
// Second, if the service's leases (its rights to run jobs) are limited in time, another node may start the
// jobs after the leases have expired. The watchdog makes sure that the jobs have ended by then. It kills a
// runner that hangs when the leases expire, and ends the jobs of a dead runner. The service also ends the
// jobs of a dead runner, but the service may hang for too long.

// hungStartCheckInterval is the time between two checks for hanging starts. The first or second check after a fork
// notices the child. From then on, the child has process.ExecTimeout to reach exec. Otherwise the watchdog kills it.
// See docs/decisions/0030.
const hungStartCheckInterval = 50 * time.Millisecond

// maxChildAgeIncrease limits by how much one check increases the recorded age of a child. Without this limit, all
// children would seem to hang after the whole machine was suspended between two checks.
const maxChildAgeIncrease = 2 * hungStartCheckInterval

// deadlineCheckInterval is the longest time between two checks of the runner's deadline. If the time between two checks
// was more than twice as long, the watchdog itself was stopped. The watchdog then ignores the deadline, because the
// deadline is outdated after such a long time.
const deadlineCheckInterval = time.Second

// watchdogRestartDelay is the pause before a watchdog that ended is started again.
const watchdogRestartDelay = time.Second

// Watchdog represents the watchdog process in the runner.
type Watchdog struct {
	argv             []string // arguments of the watchdog process
	checksHungStarts bool     // the watchdog process checks for hanging starts
	log              *slog.Logger
	messageReader    *os.File      // reading end of the pipe, the watchdog's standard input
	messageWriter    *os.File      // writing end; closing it makes the watchdog end
	messageWriterFD  int           // non-blocking descriptor of messageWriter
	stop             chan struct{} // closed by the method End
	done             chan struct{} // closed after the last watchdog process has ended
}

// StartWatchdog starts a watchdog process for the runner in runnerDir. watchdogArgv is the command line that starts
// this program as a watchdog. If the watchdog ends unexpectedly, it is started again. If checksHungStarts is true, the
// runner must call the method CheckHungStarts when it starts commands.
func StartWatchdog(watchdogArgv []string, runnerDir string, checksHungStarts bool, log *slog.Logger) (*Watchdog,
	error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot create a pipe for the runner's watchdog process: %w", err)
	}
	g := &Watchdog{
		argv:             append(watchdogArgv[1:len(watchdogArgv):len(watchdogArgv)], "--dir", runnerDir),
		checksHungStarts: checksHungStarts, log: log,
		messageReader: reader, messageWriter: writer, stop: make(chan struct{}), done: make(chan struct{}),
	}
	g.messageWriterFD = int(writer.Fd()) // Fd makes the descriptor blocking; the next line reverts this
	err = unix.SetNonblock(g.messageWriterFD, true)
	if err == nil {
		started := make(chan error)
		// Start the watchdog from a thread that is not the main thread, because package process treats children of the main
		// thread as orphans.
		go g.superviseWatchdogProcess(watchdogArgv[0], started)
		err = <-started
	}
	if err != nil {
		reader.Close()
		writer.Close()
		return nil, fmt.Errorf("cannot start the runner's watchdog process; check the free memory and the limit of "+
			"processes: %w", err)
	}
	return g, nil
}

// superviseWatchdogProcess runs the watchdog process until End is called. If the process ends earlier, supervise starts
// it again. supervise sends the error of the first start, or nil, to firstStartError.
func (g *Watchdog) superviseWatchdogProcess(program string, firstStartError chan<- error) {
	defer close(g.done)
	for first := true; ; first = false {
		cmd := exec.Command(program, g.argv...)
		cmd.Env, cmd.Dir = runner.InheritedRunnerEnv(), "/"
		cmd.Stdin, cmd.Stderr = g.messageReader, os.Stderr
		// Give the watchdog a new session. Otherwise runner.RecoverDeadRunner would treat it as a process of a job.
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
		err := cmd.Start()
		if first {
			firstStartError <- err
			if err != nil {
				return
			}
		}
		if err == nil {
			if g.checksHungStarts {
				g.CheckHungStarts() // the previous watchdog may have ended before it read the last message
			}
			err = cmd.Wait()
		}
		select {
		case <-g.stop:
			return
		case <-time.After(watchdogRestartDelay):
			g.log.Error("the runner's watchdog process ended unexpectedly; jobs continue, and the runner starts it again",
				"error", err)
		}
	}
}

// CheckHungStarts makes the watchdog check for hanging starts, until no attempt is running. It does not block.
func (g *Watchdog) CheckHungStarts() { g.sendMessage(checkHungStartsMessage) }

// SetKillDeadline makes the watchdog kill the runner and end its jobs at the given time since boot. A later call
// replaces the time of an earlier one. SetKillDeadline does not block.
func (g *Watchdog) SetKillDeadline(deadlineSinceBoot time.Duration) { g.sendMessage(deadlineSinceBoot) }

// checkHungStartsMessage is the message that CheckHungStarts sends to the watchdog. Any other message is a new
// deadline, in nanoseconds since boot. A message has 8 bytes.
const checkHungStartsMessage = 0

// sendMessage writes a message to the pipe, completely or not at all. If the pipe is full, it drops the message. In
// that case the watchdog hangs, or still has many messages to read.
func (g *Watchdog) sendMessage(messageNanos time.Duration) {
	if g != nil {
		var buf [8]byte
		binary.LittleEndian.PutUint64(buf[:], uint64(messageNanos))
		unix.Write(g.messageWriterFD, buf[:])
	}
}

// End ends the watchdog process and waits for it.
func (g *Watchdog) End() {
	if g != nil {
		close(g.stop)
		g.messageWriter.Close()
		<-g.done
		g.messageReader.Close()
	}
}

// RunWatchdog runs in the watchdog process of the runner in runnerDir. It checks for hanging starts, and kills a runner
// that is still alive at its deadline. It reads the runner's messages from standard input, which ends when the runner
// ends. If the service's leases are limited in time, RunWatchdog then ends the jobs of the dead runner.
func RunWatchdog(runnerDir string) error {
	table, err := rundir.MapLiveRunningTable(runnerDir)
	if err != nil {
		return fmt.Errorf("the watchdog process of the runner in %s cannot start; jobs continue, and the runner starts the "+
			"watchdog again: %w", runnerDir, err)
	}
	w := watchdogState{runningTable: table, runnerPID: table.RunnerPID(), killDeadlineSinceBoot: NoKillDeadline}
	if w.startWatcher, err = process.NewStartWatcher(w.runnerPID); err != nil {
		return err
	}
	for w.readMessages() {
		if runner.TimeSinceBoot() >= w.killDeadlineSinceBoot && os.Getppid() == w.runnerPID {
			fmt.Fprintf(os.Stderr, "queuectl: the runner with pid %d hangs, and other nodes may take over its jobs now "+
				"(setting node_lease); ending the runner and its jobs\n", w.runnerPID)
			unix.Kill(w.runnerPID, unix.SIGKILL)
			w.killDeadlineSinceBoot = NoKillDeadline
		}
		if w.checkingHungStarts {
			w.killHungStarts()
		}
	}
	if !table.LeasesExpire() {
		return nil
	}
	// Wait until the runner's lock is released. That may be a moment after the runner's end of the pipe was closed.
	for wait := time.Millisecond; wait < watchdogRestartDelay; wait *= 2 {
		if alive, err := runner.IsAlive(runnerDir); err != nil || !alive {
			_, ended := runner.EndProcessTrees(runnerDir, nil)
			return errors.Join(err, ended)
		}
		time.Sleep(wait)
	}
	return nil // the runner is alive, and will end its jobs when it ends
}

// watchdogState is the state of the watchdog process.
type watchdogState struct {
	runningTable          rundir.LiveRunningTable
	runnerPID             int
	startWatcher          *process.StartWatcher
	checkingHungStarts    bool               // the watchdog checks for hanging starts until no attempt is running
	unforkedLeaseBySlot   map[int]wire.Lease // attempts that had no process at the last check, by slot of the table
	killDeadlineSinceBoot time.Duration      // time since boot at which to kill the runner
}

// readMessages waits until the runner sends messages or a check is due, and reads the messages. It returns
// false when standard input ends.
func (w *watchdogState) readMessages() (inputOpen bool) {
	start, wait := runner.TimeSinceBoot(), time.Duration(-1)
	switch {
	case w.checkingHungStarts:
		time.Sleep(hungStartCheckInterval) // messages that arrive during the sleep stay in the pipe
		wait = 0
	case w.killDeadlineSinceBoot != NoKillDeadline:
		left := max(0, min(w.killDeadlineSinceBoot-start, deadlineCheckInterval))
		wait = (left + time.Millisecond - 1) / time.Millisecond // rounded up
	}
	stdin := []unix.PollFd{{Fd: 0, Events: unix.POLLIN}}
	unix.Poll(stdin, int(wait)) // an error can only mean that a signal interrupted the call
	if stdin[0].Revents != 0 {
		buf := make([]byte, 4096)
		n, err := unix.Read(0, buf)
		if err != nil || n == 0 {
			return false
		}
		for ; n >= 8; n, buf = n-8, buf[8:] {
			if message := time.Duration(binary.LittleEndian.Uint64(buf)); message == checkHungStartsMessage {
				w.checkingHungStarts = true
			} else {
				w.killDeadlineSinceBoot = message
			}
		}
	}
	if wait >= 0 && runner.TimeSinceBoot()-start > 2*deadlineCheckInterval {
		// this process was stopped, perhaps with the whole machine, so the deadline is outdated
		w.killDeadlineSinceBoot = NoKillDeadline
	}
	return true
}

// killHungStarts finds and kills children of the runner that hang between fork and exec.
func (w *watchdogState) killHungStarts() {
	busy, slow := false, false
	now := map[int]wire.Lease{}
	for slot := 1; slot <= rundir.MaxTableSlots; slot++ {
		l, forked := w.runningTable.AttemptInSlot(slot)
		busy = busy || l.Seq != 0
		if l.Seq != 0 && !forked {
			now[slot] = l
			slow = slow || w.unforkedLeaseBySlot[slot] == l
		}
	}
	if w.unforkedLeaseBySlot = now; slow {
		w.startWatcher.KillHungStarts(process.ExecTimeout, maxChildAgeIncrease)
	}
	w.checkingHungStarts = busy && os.Getppid() == w.runnerPID
}
