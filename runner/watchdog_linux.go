package runner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/process"
)

// A runner of root's waits in the kernel until what it starts has become a program of
// its own (vfork(2)), and nothing in it can go on without it for long. By then the child
// has its user's ids already, so that the user can stop it, by a signal or a file system
// that does not answer, and with it the runner of everybody. So a second process looks
// for such children and ends them.
//
// Where the service has its leases for a time only, that process also outlives a runner that dies, and
// ends what it ran: the service, which does so too, may stand still until the leases are others'. A runner that stands
// still itself until then is ended first.

// The watchdog looks every watchdogLook. It sees a start for the first time at most two looks after
// its beginning, and ends what is no program process.StartWithin later.
// See docs/decisions/0030.
const watchdogLook = 50 * time.Millisecond

// watchdogStep is the most that the time between two looks counts: a machine that stood still
// makes no start hang.
const watchdogStep = 2 * watchdogLook

// watchdogAgain is the pause before a watchdog is started again.
const watchdogAgain = time.Second

// watchdog is the runner's end of it.
type watchdog struct {
	argv  []string
	hung  bool // it looks for what hangs
	log   *slog.Logger
	in    *os.File      // the watchdog's end of wake
	wake  *os.File      // words for it; its end ends the watchdog
	fd    int           // its descriptor, which does not block
	over  chan struct{} // closed by end
	ended chan struct{} // closed after the last watchdog's end
}

// startWatchdog starts the watchdog of a runner's folder; argv makes this program one. One that
// ends before its time is started again. Hung has it look for what hangs, whenever look is called.
func startWatchdog(argv []string, dir string, hung bool, log *slog.Logger) (*watchdog, error) {
	in, wake, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the watchdog: %w", err)
	}
	g := &watchdog{
		argv: append(argv[1:len(argv):len(argv)], "--dir", dir), hung: hung, log: log,
		in: in, wake: wake, over: make(chan struct{}), ended: make(chan struct{}),
	}
	g.fd = int(wake.Fd()) // which has it block
	err = unix.SetNonblock(g.fd, true)
	if err == nil {
		started := make(chan error)
		go g.keep(argv[0], started) // not on the main thread, whose children are orphans
		err = <-started
	}
	if err != nil {
		in.Close()
		wake.Close()
		return nil, fmt.Errorf("start the watchdog: %w", err)
	}
	return g, nil
}

// keep has a watchdog run until end, and tells whether the first one was started.
func (g *watchdog) keep(program string, started chan<- error) {
	defer close(g.ended)
	for first := true; ; first = false {
		cmd := exec.Command(program, g.argv...)
		cmd.Env, cmd.Dir = runnerEnv(), "/"
		cmd.Stdin, cmd.Stderr = g.in, os.Stderr
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true} // what a dead runner leaves is known by its session
		err := cmd.Start()
		if first {
			started <- err
			if err != nil {
				return
			}
		}
		if err == nil {
			if g.hung {
				g.look() // the watchdog before it may have been told of something
			}
			err = cmd.Wait()
		}
		select {
		case <-g.over:
			return
		case <-time.After(watchdogAgain):
			g.log.Error("the watchdog ended unexpectedly; starting it again", "error", err)
		}
	}
}

// look has the watchdog look until nothing runs. It does not wait.
func (g *watchdog) look() { g.tell(lookWord) }

// until has the watchdog end the runner, and what that runs, if it is not told of another instant since boot before this one. It does not
// wait.
func (g *watchdog) until(at time.Duration) { g.tell(at) }

// lookWord tells that something is about to be started; other words are instants.
const lookWord = 0

// tell writes a word, whole or not at all: one that is full has woken the watchdog.
func (g *watchdog) tell(word time.Duration) {
	if g != nil {
		var bytes [8]byte
		binary.LittleEndian.PutUint64(bytes[:], uint64(word))
		unix.Write(g.fd, bytes[:])
	}
}

func (g *watchdog) end() {
	if g != nil {
		close(g.over)
		g.wake.Close()
		<-g.ended
		g.in.Close()
	}
}

// RunWatchdog watches the runner of a folder until its standard input ends, with the runner: while a runner
// of root's has something to run it looks whether a child of its hangs that was just started. What a runner has
// left alive whose service has leases for a time is ended then; one that stands still until these are over is ended.
func RunWatchdog(dir string) error {
	f, err := os.Open(filepath.Join(dir, tableName))
	if err != nil {
		return err
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, (maxSlots+1)*slotBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the runner's table of running jobs: %w", err)
	}
	field := slots(mem).field
	w := watch{field: field, runner: int(field(0, 0)), due: never}
	if w.starting, err = process.StartingOf(w.runner); err != nil {
		return err
	}
	for w.hear() {
		if SinceBoot() >= w.due && os.Getppid() == w.runner {
			os.Stderr.WriteString("queuectl: a runner hangs and its service's leases have expired; ending the runner and its jobs\n")
			unix.Kill(w.runner, unix.SIGKILL)
			w.due = never
		}
		if w.looking {
			w.look()
		}
	}
	if field(0, leasedField)&1 == 0 {
		return nil
	}
	for wait := time.Millisecond; wait < watchdogAgain; wait *= 2 { // its lock may outlive its end of the pipe for a moment
		if lives, err := Lives(dir); err != nil || !lives {
			_, ended := endTrees(dir, nil)
			return errors.Join(err, ended)
		}
		time.Sleep(wait)
	}
	return nil // it ends by itself, and what it ran with it
}

// watch is a watchdog at work.
type watch struct {
	field    func(slot, n int) int64
	runner   int // its pid
	starting *process.Starting
	looking  bool             // until nothing runs
	unborn   map[int][2]int64 // by slot, what had no process yet at the last look
	due      time.Duration    // since boot, when the runner is to be ended
}

// hear waits for the next word, or until something is to be done; more is false at the end.
func (w *watch) hear() (more bool) {
	began, wait := SinceBoot(), time.Duration(-1)
	switch {
	case w.looking:
		time.Sleep(watchdogLook) // it is told of each start meanwhile
		wait = 0
	case w.due != never:
		wait = milliseconds(max(0, min(w.due-began, lapseLook)))
	}
	stdin := []unix.PollFd{{Fd: 0, Events: unix.POLLIN}}
	unix.Poll(stdin, int(wait)) // which fails by a signal alone
	if stdin[0].Revents != 0 {
		buf := make([]byte, 4096)
		n, err := unix.Read(0, buf)
		if err != nil || n == 0 {
			return false
		}
		for ; n >= 8; n, buf = n-8, buf[8:] {
			if word := time.Duration(binary.LittleEndian.Uint64(buf)); word == lookWord {
				w.looking = true
			} else {
				w.due = word
			}
		}
	}
	if wait >= 0 && SinceBoot()-began > 2*lapseLook {
		w.due = never // it has stood still itself, as the machine may have: what it was told is old
	}
	return true
}

// milliseconds are those of a wait, rounded up.
func milliseconds(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1) / time.Millisecond
}

// look looks whether a child hangs that was just started.
func (w *watch) look() {
	busy, slow := false, false
	now := map[int][2]int64{}
	for slot := 1; slot <= maxSlots; slot++ {
		seq := w.field(slot, 0)
		busy = busy || seq != 0
		if seq != 0 && w.field(slot, 2) == 0 {
			now[slot] = [2]int64{seq, w.field(slot, 1)}
			slow = slow || w.unborn[slot] == now[slot]
		}
	}
	if w.unborn = now; slow {
		w.starting.EndHung(process.StartWithin, watchdogStep)
	}
	w.looking = busy && os.Getppid() == w.runner
}
