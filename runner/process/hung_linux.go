package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Starting looks at what another process is starting: its children that are no program
// of their own yet. They have its memory still, and so its words. For one goroutine.
type Starting struct {
	pid   int
	words string
	seen  map[int]child // at the last look, by pid
}

// child is a process between fork and exec.
type child struct {
	ticks int64         // when it was forked, in clock ticks since boot
	age   time.Duration // since it was first seen
	seen  time.Time     // for the last time
}

// StartingOf looks at what a process is starting from now on.
func StartingOf(pid int) (*Starting, error) {
	words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, fmt.Errorf("inspect process %d: %w", pid, err)
	}
	return &Starting{pid: pid, words: string(words)}, nil
}

// EndHung ends, with SIGKILL, a child that is stopped by a signal, or traced, and one that
// the calls have seen for so long without a program. Between two calls at most step counts:
// a machine that stood still makes no child hang.
func (s *Starting) EndHung(within, step time.Duration) {
	children := map[int]child{}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.pid)) // the pattern is right
	for _, thread := range threads {
		raw, _ := os.ReadFile(thread) // one that has ended has none
		for word := range bytes.FieldsSeq(raw) {
			if pid, err := strconv.Atoi(string(word)); err == nil {
				s.look(pid, within, step, children)
			}
		}
	}
	s.seen = children
}

// look ends a child if it hangs, and else notes it if it is no program.
func (s *Starting) look(pid int, within, step time.Duration, children map[int]child) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	p, ok := stat(pid)
	if !ok || p.flags&forkNoExec == 0 {
		return
	}
	words, ok := memories.read(pid, func() string {
		words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // an orphan of a job's has others
		return string(words)
	})
	if !ok || words != s.words {
		return
	}
	c := child{ticks: p.ticks, seen: time.Now()}
	if before, known := s.seen[pid]; known && before.ticks == p.ticks {
		c.age = before.age + min(step, c.seen.Sub(before.seen))
	}
	children[pid] = c
	if p.state == 'T' || p.state == 't' || c.age >= within {
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
