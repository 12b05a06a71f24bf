package runner

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
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

// guard is the runner's end of it.
type guard struct {
	cmd  *exec.Cmd
	wake *os.File // a byte: something is about to be started; its end ends the guard
	fd   int      // its descriptor, which does not block
}

// startGuard starts the guard of a runner's folder; argv makes this program one.
func startGuard(argv []string, dir string) (*guard, error) {
	in, wake, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	defer in.Close()
	cmd := exec.Command(argv[0], append(argv[1:len(argv):len(argv)], "--dir", dir)...)
	cmd.Env, cmd.Dir = runnerEnv(), "/"
	cmd.Stdin, cmd.Stderr = in, os.Stderr
	if err := cmd.Start(); err != nil {
		wake.Close()
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	fd := int(wake.Fd()) // which has it block
	if err := unix.SetNonblock(fd, true); err != nil {
		wake.Close()
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	return &guard{cmd, wake, fd}, nil
}

// look has the guard look until nothing runs. It does not wait.
func (g *guard) look() {
	if g != nil {
		unix.Write(g.fd, []byte{0}) // one that is full has woken it
	}
}

func (g *guard) end() {
	if g != nil {
		g.wake.Close()
		g.cmd.Wait()
	}
}

// Guard guards the runner of a folder until its standard input ends: while the runner
// has something to run it looks whether a child of its hangs that was just started.
func Guard(ctx context.Context, dir string) error {
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
	for {
		if _, err := os.Stdin.Read(make([]byte, 64)); err != nil {
			return nil // it has ended
		}
		for busy := true; busy && ctx.Err() == nil; time.Sleep(guardLook) {
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
