package runner

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A runner of root's waits in the kernel until what it starts has become a program of
// its own (vfork(2)), and nothing in it can go on without it for long. By then the child
// has its user's ids already, so that the user can stop it, by a signal or a file system
// that does not answer, and with it the runner of everybody. So a second process looks
// for such children and ends them.

// What the guard looks at, and when: a stopped child at once, any other that has become
// nothing after startWithin.
const (
	guardLook   = 50 * time.Millisecond
	startWithin = 10 * time.Second
)

// guardAgain is the pause before a guard is started again.
const guardAgain = time.Second

// guard is the runner's end of it.
type guard struct {
	argv  []string
	log   *slog.Logger
	in    *os.File      // the guard's end of wake
	wake  *os.File      // a byte: something is about to be started; its end ends the guard
	fd    int           // its descriptor, which does not block
	over  chan struct{} // closed by end
	ended chan struct{} // closed after the last guard's end
}

// startGuard starts the guard of a runner's folder; argv makes this program one. One that
// ends before its time is started again.
func startGuard(argv []string, dir string, log *slog.Logger) (*guard, error) {
	in, wake, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	g := &guard{
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
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	return g, nil
}

// keep has a guard run until end, and tells whether the first one was started.
func (g *guard) keep(program string, started chan<- error) {
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
		case <-time.After(guardAgain):
			g.log.Error("the guard of what is being started has ended; it is started again", "error", err)
		}
	}
}

// look has the guard look until nothing runs. It does not wait.
func (g *guard) look() {
	if g != nil {
		unix.Write(g.fd, []byte{0}) // one that is full has woken it
	}
}

func (g *guard) end() {
	if g != nil {
		close(g.over)
		g.wake.Close()
		<-g.ended
		g.in.Close()
	}
}

// Guard guards the runner of a folder until its standard input ends: while the runner
// has something to run it looks whether a child of its hangs that was just started.
func Guard(dir string) error {
	f, err := os.Open(filepath.Join(dir, tableName))
	if err != nil {
		return fmt.Errorf("open the running table: %w", err)
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, (maxSlots+1)*slotBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the running table: %w", err)
	}
	field := func(slot, i int) int64 { return int64(binary.LittleEndian.Uint64(mem[slot*slotBytes+8*i:])) }
	runner := int(field(0, 0))
	words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", runner))
	if err != nil {
		return fmt.Errorf("look at the runner: %w", err)
	}
	for { // it looks at once: the guard before it may have been told of something
		for busy := true; busy && os.Getppid() == runner; time.Sleep(guardLook) {
			busy = false
			oldest := time.Now().UnixMilli()
			for slot := 1; slot <= maxSlots; slot++ {
				if field(slot, 0) == 0 {
					continue
				}
				busy = true
				if field(slot, 2) == 0 {
					oldest = min(oldest, field(slot, 3))
				}
			}
			if waits := time.Since(time.UnixMilli(oldest)); waits > guardLook {
				endHung(runner, words, waits > startWithin)
			}
		}
		if _, err := os.Stdin.Read(make([]byte, 64)); err != nil {
			return nil // the runner has ended
		}
	}
}

// endHung ends the runner's children that are no program of their own: those that are
// stopped, or all. They have its memory still, and so its words.
func endHung(runner int, words []byte, all bool) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", runner)) // the pattern is right
	for _, thread := range threads {
		raw, _ := os.ReadFile(thread) // one that has ended has none
		for word := range bytes.FieldsSeq(raw) {
			pid, err := strconv.Atoi(string(word))
			if err != nil {
				continue
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue
			}
			if now, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && bytes.Equal(now, words) && (all || stopped(pid)) {
				unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			}
			unix.Close(fd)
		}
	}
}

// stopped reports whether a process is stopped by a signal, or traced.
func stopped(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	end := bytes.LastIndexByte(raw, ')') // the name may hold anything
	return err == nil && end >= 0 && len(raw) > end+2 && (raw[end+2] == 'T' || raw[end+2] == 't')
}
