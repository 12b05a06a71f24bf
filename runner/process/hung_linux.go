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
	words []byte
	seen  map[int]fledgling // at the last look, by pid
}

type fledgling struct {
	ticks int64
	since time.Time
}

// StartingOf looks at what a process is starting from now on.
func StartingOf(pid int) (*Starting, error) {
	words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, fmt.Errorf("look at process %d: %w", pid, err)
	}
	return &Starting{pid: pid, words: words}, nil
}

// EndHung ends, with SIGKILL, a child that is stopped by a signal, or traced, and one that
// has been seen becoming nothing for so long: at each call since.
func (s *Starting) EndHung(within time.Duration) {
	now := map[int]fledgling{}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.pid)) // the pattern is right
	for _, thread := range threads {
		raw, _ := os.ReadFile(thread) // one that has ended has none
		for word := range bytes.FieldsSeq(raw) {
			if pid, err := strconv.Atoi(string(word)); err == nil {
				s.look(pid, within, now)
			}
		}
	}
	s.seen = now
}

// look ends a child if it hangs, and else notes it if it is no program.
func (s *Starting) look(pid int, within time.Duration, now map[int]fledgling) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	p, ok := stat(pid)
	words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if !ok || err != nil || !bytes.Equal(words, s.words) {
		return
	}
	c, known := s.seen[pid]
	if !known || c.ticks != p.ticks {
		c = fledgling{p.ticks, time.Now()}
	}
	now[pid] = c
	if p.state == 'T' || p.state == 't' || time.Since(c.since) > within {
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
