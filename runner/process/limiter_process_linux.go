package process

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/cleanstart"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/runas"
)

// limiterTimeout limits the time from the start of a limiter until it executes the command's program. The time is long,
// because the limiter already has the command's nice value, and may be slow on a busy processor. Only the command's
// worker waits for the limiter.
const limiterTimeout = 10 * time.Second

// limiterProcess is the state that this process keeps about the limiter of a command. A limiter is a child
// that sets the command's limits and then executes the command's program.
type limiterProcess struct {
	socketFD        int            // socket; -1 once the limiter has executed the program, has failed or has ended
	execRequestFD   int            // memory file with the exec request for the limiter; -1 once the limiter has it
	limiterSocketFD int            // the limiter's end of the socket; -1 once the limiter has it
	processName     string         // process name of the limiter
	reportedReady   bool           // the limiter has reported limiterStepReady
	timedOut        bool           // the limiter did not execute the program in time
	failureReport   *limiterReport // report of the step that failed; nil if none
	cgroupError     error          // error of setting the limits of the control group
}

// needsLimiter reports whether a command has limits that a limiter must set. unenforcedLimitNames contains the names of
// the limits that no control group enforces.
func (c *Command) needsLimiter(unenforcedLimitNames []string) bool {
	return c.Nice != 0 || c.MaxOpenFiles != 0 || c.NoNewPrivileges || slices.Contains(unenforcedLimitNames, "memory")
}

// newLimiter creates the resources for a limiter. The limits of the control group must not apply to the limiter itself,
// so newLimiter removes them from the group. readLimiterReport sets them again when the limiter is ready.
func (r *runningCommand) newLimiter(programPath string, env, unenforcedLimitNames []string) (l *limiterProcess,
	err error) {
	l = &limiterProcess{socketFD: -1, execRequestFD: -1, limiterSocketFD: -1,
		processName: fmt.Sprintf("%s%06x", limiterNamePrefix, rand.Uint32N(1<<24))}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	head := execRequestHeader{nice: int64(r.command.Nice), maxOpenFiles: int64(r.command.MaxOpenFiles),
		noNewPrivileges: r.command.NoNewPrivileges}
	if slices.Contains(unenforcedLimitNames, "memory") {
		head.addressSpaceBytes = r.command.Limits.MemoryBytes
	}
	order := encodeExecRequest(head, l.processName, programPath, r.command.Argv, env)
	if l.execRequestFD, err = createMemoryFile("order", order); err != nil {
		return nil, fmt.Errorf("cannot write the job's limits: %w", err)
	}
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot create a socket for the helper process that sets the job's limits: %w", err)
	}
	l.socketFD, l.limiterSocketFD = sockets[0], sockets[1]
	unix.SetNonblock(l.socketFD, true) // this does not affect the limiter's end
	if b := r.worker.cgroup; b != nil {
		_, err = b.setLimits(TreeLimits{})
	}
	return l, err
}

// createMemoryFile creates a memory file (memfd) with the given content, which is read from the
// beginning. Only this account can open the file.
func createMemoryFile(name string, content []byte) (fd int, err error) {
	if fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC); err != nil {
		return -1, err
	}
	// With the default mode, every other command could open the file through /proc/PID/fd.
	err = unix.Fchmod(fd, 0o600)
	for rest := content; err == nil && len(rest) > 0; {
		var n int
		n, err = unix.Pwrite(fd, rest, int64(len(content)-len(rest)))
		rest = rest[max(n, 0):]
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// procAttr returns the attributes for the start of the limiter. They are the attributes for the command, except that
// the limiter gets two more descriptors, and only the cookie as its environment.
func (l *limiterProcess) procAttr(command *syscall.ProcAttr) *syscall.ProcAttr {
	attr := *command
	attr.Env = command.Env[len(command.Env)-1:] // the last variable is the cookie
	attr.Files = append(slices.Clone(command.Files), uintptr(l.execRequestFD), uintptr(l.limiterSocketFD))
	return &attr
}

func (l *limiterProcess) close() {
	if l != nil {
		closeDescriptors(&l.execRequestFD, &l.limiterSocketFD, &l.socketFD)
	}
}

// isLimiterStarting reports whether the command has a limiter that has not executed the command's program
// yet.
func (r *runningCommand) isLimiterStarting() bool { return r.limiterSocketFD() >= 0 }

// killSlowLimiter kills a command whose limiter does not execute the program in time.
func (r *runningCommand) killSlowLimiter() {
	if r.isLimiterStarting() && !r.limiter.timedOut && r.runTime() >= r.worker.limiterTimeout {
		r.limiter.timedOut, r.sigkillDueAt = true, time.Now()
	}
}

// limiterSocketFD returns the descriptor of the limiter's socket; -1 if there is no limiter.
func (r *runningCommand) limiterSocketFD() int {
	if r.limiter == nil {
		return -1
	}
	return r.limiter.socketFD
}

// readLimiterReport reads and handles a report of the limiter. If the limiter is ready, readLimiterReport sets the
// limits of the control group and lets the limiter continue. If the limiter has failed, or has closed the socket before
// it was ready, readLimiterReport kills the limiter.
func (r *runningCommand) readLimiterReport() {
	l := r.limiter
	var b [limiterReportBytes]byte
	n, err := unix.Read(l.socketFD, b[:])
	if err == unix.EINTR || err == unix.EAGAIN {
		return
	}
	if n == limiterReportBytes && b[0] == limiterStepReady && !l.reportedReady {
		l.reportedReady = true
		if _, l.cgroupError = r.setCgroupLimits(); l.cgroupError == nil {
			// If the limiter has ended, the write fails, and the pidfd reports the end.
			unix.Write(l.socketFD, []byte{1})
			return
		}
	} else if n == limiterReportBytes {
		l.failureReport = &limiterReport{b[0], b[1]}
	}
	l.close()
	// Kill the limiter instead of waiting for its exit. If a signal has stopped the limiter, it does not exit, and its
	// worker would wait indefinitely.
	if l.failureReport != nil || l.cgroupError != nil || !l.reportedReady {
		unix.PidfdSendSignal(r.pidfd, unix.SIGKILL, nil, 0)
	}
}

// hasExecutedProgram reports whether a process has executed the command's program. pid is a process that has ended, but
// is not reaped yet. Without a limiter, hasExecutedProgram returns true.
func (l *limiterProcess) hasExecutedProgram(pid int) bool {
	if l == nil {
		return true
	}
	if l.failureReport != nil || l.cgroupError != nil || !l.reportedReady {
		return false
	}
	raw, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return string(bytes.TrimSpace(raw)) != l.processName
}

// recordLimiterFailure sets the result of a command whose limiter ended without executing the command's
// program. See docs/decisions/0042.
func (r *runningCommand) recordLimiterFailure(status unix.WaitStatus) {
	l := r.limiter
	switch {
	case l.cgroupError != nil:
		r.recordStartFailure(&runas.ResourceShortageError{Err: l.cgroupError})
	case l.failureReport != nil:
		r.recordStartFailure(r.limiterError(*l.failureReport))
	case status.Signaled():
		r.result.StartHung, r.result.ExitCode, r.result.Error = true, 126, r.notStartedReason(status.Signal())
	case l.reportedReady: // the limiter could not report why it failed
		r.result.ExitCode = int64(status.ExitStatus())
	case r.command.RunAs == nil: // the Go runtime of the limiter got no thread or no memory
		r.recordStartFailure(&runas.ResourceShortageError{Err: fmt.Errorf("the helper process that sets the job's "+
			"limits ended with exit code %d, probably because the machine has too little memory or too many processes",
			status.ExitStatus())})
	default: // the cause may be a limit of the job's account
		r.recordStartFailure(fmt.Errorf("the helper process that sets the job's limits ended with exit code %d; check the "+
			"limits of processes and memory of the job's account", status.ExitStatus()))
	}
}

// limiterError turns a limiter's report into an error for users. The error does not count as permanent, because the
// system may later allow a limit that it refuses now.
func (r *runningCommand) limiterError(report limiterReport) error {
	errno := syscall.Errno(report.errno)
	field, err := "", error(errno)
	switch {
	case report.step == limiterStepNice:
		field, err = "nice", fmt.Errorf("%d is not allowed (%w): the runner has nice value %d, and the account may "+
			"not go below it; use a higher value, or raise the runner's limit (LimitNICE=)", r.command.Nice, errno,
			cleanstart.NiceValue())
	case report.step == limiterStepNoFile && errors.Is(errno, unix.EPERM):
		field, err = "nofile", fmt.Errorf("%d is above the hard limit of %d open files (%w); use a lower value, or "+
			"raise the runner's limit (LimitNOFILE=, ulimit -Hn)", r.command.MaxOpenFiles, hardResourceLimit(unix.RLIMIT_NOFILE),
			errno)
	case report.step == limiterStepNoFile:
		field = "nofile"
	case report.step == limiterStepMemory:
		field = "memory"
	case report.step == limiterStepNoNewPrivileges:
		field = "no_new_privileges"
	case errno == unix.ENOMEM && r.command.Limits.MemoryBytes != 0:
		field, err = "memory", fmt.Errorf("the limit is too low for %s to start (%w); use a higher limit", r.command.Argv[0],
			errno)
	default:
		return err
	}
	return &jobFieldError{field, err, false}
}

// niceMechanism describes, for users, how a nice value takes effect. If the kernel groups processes by
// session (autogroup), nice only has an effect between processes of the same session.
func niceMechanism() string {
	const mechanism = "the kernel's scheduler"
	if hasAutogroups() {
		return mechanism + ", except for jobs with a terminal or their own session (kernel.sched_autogroup_enabled is 1)"
	}
	return mechanism
}

// LimitEnforcements returns how each limit of a command is enforced. c is nil if no control groups are
// available.
func LimitEnforcements(c *Cgroups) []queue.LimitEnforcement {
	controllers, reason := "", "there are no control groups"
	if c != nil {
		// If the file is unreadable, assume that no limit is enforced.
		raw, _ := os.ReadFile(filepath.Join(c.parentPath, "cgroup.subtree_control"))
		controllers, reason = string(raw), "the runner's control group has no controller for this limit"
	}
	list := []queue.LimitEnforcement{
		{LimitField: "memory", Extent: queue.EnforcedPerProcess,
			Mechanism: reason + ", so each process has an address space limit (RLIMIT_AS)"},
		{LimitField: "cpus", Extent: queue.Unenforced, Mechanism: reason},
		{LimitField: "tasks", Extent: queue.Unenforced, Mechanism: reason},
		{LimitField: "nice", Extent: queue.Enforced, Mechanism: niceMechanism()},
		{LimitField: "nofile", Extent: queue.Enforced, Mechanism: "the open file limit of each process (RLIMIT_NOFILE)"},
		{LimitField: "no_new_privileges", Extent: queue.Enforced, Mechanism: "the kernel (PR_SET_NO_NEW_PRIVS)"},
	}
	for i, controller := range []string{"memory", "cpu", "pids"} {
		if slices.Contains(strings.Fields(controllers), controller) {
			list[i].Extent, list[i].Mechanism = queue.Enforced, "the job's control group"
		}
	}
	return list
}
