package runner

import (
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

// The watchdog looks every watchdogLook. It sees a start for the first time at most two looks after
// its beginning, and ends what is no program process.StartWithin later.
const watchdogLook = 50 * time.Millisecond

// watchdogStep is the most that the time between two looks counts: a machine that stood still
// makes no start hang.
const watchdogStep = 2 * watchdogLook

// watchdogAgain is the pause before a watchdog is started again.
const watchdogAgain = time.Second

// execWatchdog is the runner's end of it.
type execWatchdog struct {
	argv  []string
	log   *slog.Logger
	in    *os.File      // the watchdog's end of wake
	wake  *os.File      // a byte: something is about to be started; its end ends the watchdog
	fd    int           // its descriptor, which does not block
	over  chan struct{} // closed by end
	ended chan struct{} // closed after the last watchdog's end
}

// startExecWatchdog starts the watchdog of a runner's folder; argv makes this program one. One that
// ends before its time is started again.
func startExecWatchdog(argv []string, dir string, log *slog.Logger) (*execWatchdog, error) {
	in, wake, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the watchdog: %w", err)
	}
	g := &execWatchdog{
		argv: append(argv[1:len(argv):len(argv)], "--dir", dir), log: log,
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
func (g *execWatchdog) keep(program string, started chan<- error) {
	defer close(g.ended)
	for first := true; ; first = false {
		cmd := exec.Command(program, g.argv...)
		cmd.Env, cmd.Dir = runnerEnv(), "/"
		cmd.Stdin, cmd.Stderr = g.in, os.Stderr
		err := cmd.Start()
		if first {
			started <- err
			if err != nil {
				return
			}
		}
		if err == nil {
			err = cmd.Wait()
		}
		select {
		case <-g.over:
			return
		case <-time.After(watchdogAgain):
			g.log.Error("the watchdog of what is being started has ended; it is started again", "error", err)
		}
	}
}

// look has the watchdog look until nothing runs. It does not wait.
func (g *execWatchdog) look() {
	if g != nil {
		unix.Write(g.fd, []byte{0}) // one that is full has woken it
	}
}

func (g *execWatchdog) end() {
	if g != nil {
		close(g.over)
		g.wake.Close()
		<-g.ended
		g.in.Close()
	}
}

// RunExecWatchdog watches the runner of a folder until its standard input ends: while the runner
// has something to run it looks whether a child of its hangs that was just started.
func RunExecWatchdog(dir string) error {
	f, err := os.Open(filepath.Join(dir, tableName))
	if err != nil {
		return fmt.Errorf("open the running table: %w", err)
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, (maxSlots+1)*slotBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the running table: %w", err)
	}
	field := slots(mem).field
	runner := int(field(0, 0))
	starting, err := process.StartingOf(runner)
	if err != nil {
		return err
	}
	for { // it looks at once: the watchdog before it may have been told of something
		unborn := map[int][2]int64{} // by slot, what had no process yet at the last look
		for busy := true; busy && os.Getppid() == runner; time.Sleep(watchdogLook) {
			busy = false
			now, slow := map[int][2]int64{}, false
			for slot := 1; slot <= maxSlots; slot++ {
				seq := field(slot, 0)
				busy = busy || seq != 0
				if seq != 0 && field(slot, 2) == 0 {
					now[slot] = [2]int64{seq, field(slot, 1)}
					slow = slow || unborn[slot] == now[slot]
				}
			}
			if unborn = now; slow {
				starting.EndHung(process.StartWithin, watchdogStep)
			}
		}
		if _, err := os.Stdin.Read(make([]byte, 64)); err != nil {
			return nil // the runner has ended
		}
	}
}
