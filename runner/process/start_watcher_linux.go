package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/procfs"
)

// StartWatcher watches the children that another process is starting, and kills those that hang. A child that has not
// executed its program yet shares the memory of its parent, so it also has the parent's command line. StartWatcher
// recognises such a child by its command line. One goroutine at a time may use a StartWatcher.
type StartWatcher struct {
	parentPID        int                   // pid of the other process
	parentCmdline    string                // command line of the other process, as in /proc/PID/cmdline
	startingChildren map[int]startingChild // children seen by the last KillHungStarts, by pid
}

// startingChild is a process between fork and exec.
type startingChild struct {
	startTicks     int64         // time of the fork, in clock ticks since boot
	observedAge    time.Duration // how long the child has been observed
	lastObservedAt time.Time     // time when the child was last seen
}

// NewStartWatcher returns a StartWatcher for the children of the process parentPID.
func NewStartWatcher(parentPID int) (*StartWatcher, error) {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", parentPID))
	if err != nil {
		return nil, fmt.Errorf("the runner's watchdog ends, because it cannot read the command line of the runner (pid %d); "+
			"if the runner still runs, it starts another watchdog: %w", parentPID, err)
	}
	return &StartWatcher{parentPID: parentPID, parentCmdline: string(cmdline)}, nil
}

// KillHungStarts checks the children that have not executed a program yet. It kills a child that is stopped by a
// signal, is traced, or has reached maxAge. Call it periodically. Each call increases the age of a child by at most
// maxAgeIncrease. Otherwise, every child would seem to hang after the machine was suspended.
func (s *StartWatcher) KillHungStarts(maxAge, maxAgeIncrease time.Duration) {
	children := map[int]startingChild{}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.parentPID)) // the pattern is valid
	for _, thread := range threads {
		raw, _ := os.ReadFile(thread) // ignore an error: an ended thread has no children
		for word := range bytes.FieldsSeq(raw) {
			if pid, err := strconv.Atoi(string(word)); err == nil {
				s.killOrRecordChild(pid, maxAge, maxAgeIncrease, children)
			}
		}
	}
	s.startingChildren = children
}

// killOrRecordChild checks one child, which may not have executed a program yet. It kills the child if the child hangs.
// Otherwise it records the child in children.
func (s *StartWatcher) killOrRecordChild(pid int, maxAge, maxAgeIncrease time.Duration,
	recordedChildren map[int]startingChild) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	p, ok := procfs.Stat(pid)
	if !ok || p.KernelFlags&procfs.FlagForkNoExec == 0 {
		return
	}
	cmdline, ok := procfs.ReadMemoryWithTimeout(pid, func() string {
		// A child that has not executed a program yet has the command line of its parent. The parent's other children, such
		// as orphans of jobs that the parent has adopted, have another command line.
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return string(cmdline)
	})
	if !ok || cmdline != s.parentCmdline {
		return
	}
	c := startingChild{startTicks: p.StartTicks, lastObservedAt: time.Now()}
	if before, known := s.startingChildren[pid]; known && before.startTicks == p.StartTicks {
		c.observedAge = before.observedAge + min(maxAgeIncrease, c.lastObservedAt.Sub(before.lastObservedAt))
	}
	recordedChildren[pid] = c
	if p.State == 'T' || p.State == 't' || c.observedAge >= maxAge {
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
