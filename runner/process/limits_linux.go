package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// spareSpace is how much address space a process that runs commands needs beside that which
// it has at its start: for the threads and memory of some hundred workers.
const spareSpace = 256 << 20 // bytes

// hardLimit returns the hard limit of a resource that this process and its commands have.
func hardLimit(resource int) uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil {
		return unix.RLIM_INFINITY
	}
	return limit.Max
}

// limit is a resource limit of this process, which its commands inherit.
type limit struct {
	resource   int
	what, name string
}

func (l *limit) reached(value uint64) string {
	return fmt.Sprintf("; the runner's limit is %d %s; raise it (Limit%s=)", value, l.what, l.name)
}

// behind lists which limit an error at the start of a command may follow from.
var behind = [...]struct {
	errno unix.Errno
	limit
}{
	{unix.EAGAIN, limit{unix.RLIMIT_NPROC, "processes", "NPROC"}},
	{unix.EMFILE, limit{unix.RLIMIT_NOFILE, "open files", "NOFILE"}},
	{unix.ENOMEM, limit{unix.RLIMIT_AS, "bytes", "AS"}},
	{unix.ENOMEM, limit{unix.RLIMIT_DATA, "bytes", "DATA"}},
	{unix.E2BIG, limit{unix.RLIMIT_STACK, "bytes", "STACK"}},
}

// limitBehind names the limit that an error may follow from, and how to raise it. It returns "" where
// no such limit is set, and else begins with a semicolon.
func limitBehind(err error) string {
	for i := range behind {
		b := &behind[i]
		if !errors.Is(err, b.errno) {
			continue
		}
		if hard := hardLimit(b.resource); hard != unix.RLIM_INFINITY {
			return b.reached(hard)
		}
	}
	return ""
}

// signals lists which signal the kernel sends a command that has reached a limit, the soft one or the
// hard one (getrlimit(2)).
var signals = [...]struct {
	unix.Signal
	hard bool
	limit
}{
	{unix.SIGXCPU, false, limit{unix.RLIMIT_CPU, "s of CPU time", "CPU"}},
	{unix.SIGKILL, true, limit{unix.RLIMIT_CPU, "s of CPU time", "CPU"}},
	{unix.SIGXFSZ, false, limit{unix.RLIMIT_FSIZE, "bytes", "FSIZE"}},
}

// limitReached describes, as limitBehind does, the limit of this process at which a signal has ended a command: one that
// the command has not changed, and of CPU time only one that it has used up. The command is not reaped.
func limitReached(pid int, by unix.Signal) string {
	for i := range signals {
		s := &signals[i]
		var own, command unix.Rlimit
		if s.Signal != by || unix.Getrlimit(s.resource, &own) != nil || unix.Prlimit(pid, s.resource, nil, &command) != nil {
			continue
		}
		value, same := own.Cur, own.Cur == command.Cur
		switch {
		case s.hard:
			value, same = own.Max, own.Max == command.Max
		case s.resource == unix.RLIMIT_CPU: // with SIGXCPU the kernel raises the soft limit by a second
			same = own.Cur+1 == command.Cur
		}
		if same && value != unix.RLIM_INFINITY && (s.resource != unix.RLIMIT_CPU || cpuSeconds(pid) >= value) {
			return s.reached(value)
		}
	}
	return ""
}

// cpuSeconds returns the CPU time of a process by the clock that the kernel compares with RLIMIT_CPU; 0 if it is gone.
func cpuSeconds(pid int) uint64 {
	const prof = 0 // CPUCLOCK_PROF in include/linux/posix-timers.h, where the number of a process's clock is defined
	var used unix.Timespec
	if unix.ClockGettime(int32(^pid)<<3|prof, &used) != nil {
		return 0
	}
	return uint64(used.Sec)
}

// CheckLimits refuses limits of this process under which it would sooner or later end, and
// with it all that it runs.
func CheckLimits() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &limit); err != nil {
		return fmt.Errorf("read the address space limit: %w", err)
	}
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return fmt.Errorf("read the size of this process: %w", err)
	}
	first, _, _ := bytes.Cut(raw, []byte(" "))
	pages, err := strconv.ParseUint(string(first), 10, 64)
	if err != nil {
		return fmt.Errorf("read the size of this process: %w", err)
	}
	return checkSpace(limit.Cur, pages*uint64(os.Getpagesize()))
}

func checkSpace(limit, size uint64) error {
	need := size + spareSpace
	if limit >= need {
		return nil
	}
	return fmt.Errorf("the address space limit (RLIMIT_AS; ulimit -v, LimitAS=) is %d MiB, but this process needs %d MiB for its threads; raise or remove it, and limit jobs with --memory", limit>>20, need>>20+1)
}
