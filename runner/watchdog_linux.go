package runner

import (
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
// ends what it ran: the service, which does so too, may stand still until the leases are others'.

// The watchdog looks every watchdogLook. It sees a start for the first time at most two looks after
// its beginning, and ends what is no program process.StartWithin later.
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
	wake  *os.File      // a byte: something is about to be started; its end ends the watchdog
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
			g.log.Error("the runner's watchdog has ended; it is started again", "error", err)
		}
	}
}

// look has the watchdog look until nothing runs. It does not wait.
func (g *watchdog) look() {
	if g != nil {
		unix.Write(g.fd, []byte{0}) // one that is full has woken it
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
// left alive whose service has leases for a time is ended then.
func RunWatchdog(dir string) error {
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
	for {
		if _, err := os.Stdin.Read(make([]byte, 64)); err != nil {
			break // the runner has ended
		}
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
