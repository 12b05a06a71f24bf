package process

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/cleanstart"
)

// limiterWithin is how long a limiter may take to become its program. Nothing but its worker
// waits for it, and it may get little of a busy processor: it is nice by then.
const limiterWithin = 10 * time.Second

// limiting is a command's limiter as this process sees it.
type limiting struct {
	fd       int // of the socket; -1 once the limiter is the program, has failed or has ended
	order    int // a file; -1 once it has been handed over, as of the next
	theirs   int // the limiter's end of the socket
	name     string
	ready    bool
	hung     bool
	failed   *report
	shortage error // its control group could not be set
}

// needsLimiter reports whether a command has limits that it must be given by a limiter, if no
// control group enforces those that are missing.
func (c *Command) needsLimiter(missing []string) bool {
	return c.Nice != 0 || c.NoFile != 0 || c.NoNewPrivileges || slices.Contains(missing, "memory")
}

// newLimiting makes what a limiter of this program needs. Where there is a control group its
// limits are lifted until the limiter is ready: they are the program's alone.
func (r *run) newLimiting(path string, env, missing []string) (l *limiting, err error) {
	l = &limiting{fd: -1, order: -1, theirs: -1, name: newLimiterName()}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	o := order{nice: int64(r.c.Nice), noFile: int64(r.c.NoFile), argv: int64(len(r.c.Argv)), env: int64(len(env)), name: l.name, path: path, texts: slices.Concat(r.c.Argv, env)}
	if r.c.NoNewPrivileges {
		o.noNew = 1
	}
	if slices.Contains(missing, "memory") {
		o.memory = r.c.Limits.Memory
	}
	if l.order, err = memoryFile("order", o.encode()); err != nil {
		return nil, fmt.Errorf("write the job's limits: %w", err)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create the limiter's socket: %w", err)
	}
	l.fd, l.theirs = ends[0], ends[1]
	unix.SetNonblock(l.fd, true) // which holds for this end alone
	if b := r.w.cgroup; b != nil {
		_, err = b.limit(Limits{})
	}
	return l, err
}

// memoryFile makes a file of memory that this account alone can open.
func memoryFile(name string, content []byte) (fd int, err error) {
	if fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC); err != nil {
		return -1, err
	}
	err = unix.Fchmod(fd, 0o600) // else every other command could open it by /proc/self/fd
	for rest := content; err == nil && len(rest) > 0; {
		var n int
		n, err = unix.Write(fd, rest)
		rest = rest[max(n, 0):]
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// attributes are those that a limiter is started with, made of its command's.
func (l *limiting) attributes(of *syscall.ProcAttr) *syscall.ProcAttr {
	attr := *of
	attr.Env = of.Env[len(of.Env)-1:] // the cookie
	attr.Files = append(slices.Clone(of.Files), uintptr(l.order), uintptr(l.theirs))
	return &attr
}

// handedOver closes what is the limiter's own now.
func (l *limiting) handedOver() {
	for _, fd := range []*int{&l.order, &l.theirs} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

func (l *limiting) close() {
	if l == nil {
		return
	}
	l.handedOver()
	if l.fd >= 0 {
		unix.Close(l.fd)
		l.fd = -1
	}
}

// begins reports whether a command's limiter has not become its program yet.
func (r *run) begins() bool { return r.limiter != nil && r.limiter.fd >= 0 }

// boundLimiter ends a command whose limiter does not become its program in time.
func (r *run) boundLimiter() {
	if r.begins() && !r.limiter.hung && r.ran() >= r.w.limiterWithin {
		r.limiter.hung, r.killAt = true, time.Now()
	}
}

// talk is the socket of the limiter, -1 if there is none.
func (r *run) talk() int32 {
	if r.limiter == nil {
		return -1
	}
	return int32(r.limiter.fd)
}

// hearLimiter takes what the limiter reports. One that is ready may go on once its control
// group has the command's limits; one that executes the program without asking is killed.
func (r *run) hearLimiter() {
	l := r.limiter
	var b [reportBytes]byte
	n, err := unix.Read(l.fd, b[:])
	if err == unix.EINTR || err == unix.EAGAIN {
		return
	}
	if n == reportBytes && b[0] == stepReady && !l.ready {
		l.ready = true
		if _, l.shortage = r.limit(); l.shortage == nil {
			unix.Write(l.fd, []byte{1}) // one that has ended is seen to have
			return
		}
	} else if n == reportBytes {
		l.failed = &report{b[0], syscall.Errno(binary.LittleEndian.Uint32(b[1:]))}
	}
	l.close()
	if l.failed != nil || l.shortage != nil || !l.ready { // else a stop that comes now would keep its worker waiting
		unix.PidfdSendSignal(r.pidfd, unix.SIGKILL, nil, 0)
	}
}

// became reports whether a limiter that has ended, and is not reaped, was its program by then.
func (l *limiting) became(pid int) bool {
	if l == nil {
		return true
	}
	if l.failed != nil || l.shortage != nil || !l.ready {
		return false
	}
	raw, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return string(bytes.TrimSpace(raw)) != l.name
}

// notLimited is how a command ended whose limiter did not become its program.
// See docs/decisions/0042.
func (r *run) notLimited(status unix.WaitStatus) {
	l := r.limiter
	switch {
	case l.shortage != nil:
		r.startFailed(&shortageError{l.shortage})
	case l.failed != nil:
		r.startFailed(r.refused(*l.failed))
	case status.Signaled():
		r.r.HungStart, r.r.ExitCode, r.r.Error = true, 126, r.unbegun(status.Signal())
	case l.ready: // its report of why was not heard
		r.r.ExitCode = int64(status.ExitStatus())
	case r.c.As == nil: // the Go runtime got no thread, or no memory
		r.startFailed(&shortageError{fmt.Errorf("the process that sets the job's limits ended with exit code %d", status.ExitStatus())})
	default: // which its account can bring about
		r.startFailed(fmt.Errorf("the process that sets the job's limits ended with exit code %d", status.ExitStatus()))
	}
}

// limitError says which limit kept a command from starting.
type limitError struct {
	field string
	error
}

// Error names the field.
func (e *limitError) Error() string { return e.field + ": " + e.error.Error() }

// Unwrap is why.
func (e *limitError) Unwrap() error { return e.error }

// refused is what a report means for people.
func (r *run) refused(p report) error {
	switch {
	case p.step == stepNice:
		return &limitError{"nice", fmt.Errorf("%d is not allowed (%w): the runner has nice value %d, and the account may not go below it; use a higher value, or raise the runner's limit (LimitNICE=)", r.c.Nice, p.errno, cleanstart.Nice())}
	case p.step == stepNoFile && errors.Is(p.errno, unix.EPERM):
		return &limitError{"nofile", fmt.Errorf("%d is above the hard limit of %d open files (%w); use a lower value, or raise the runner's limit (LimitNOFILE=, ulimit -Hn)", r.c.NoFile, hardLimit(unix.RLIMIT_NOFILE), p.errno)}
	case p.step == stepNoFile:
		return &limitError{"nofile", p.errno}
	case p.step == stepMemory:
		return &limitError{"memory", p.errno}
	case p.step == stepNoNew:
		return &limitError{"no_new_privileges", p.errno}
	case p.errno == unix.ENOMEM && r.c.Limits.Memory != 0:
		return &limitError{"memory", fmt.Errorf("the limit is too low for %s to start (%w); use a higher limit", r.c.Argv[0], p.errno)}
	}
	return p.errno
}

// scheduler says how nice holds: where the kernel groups by session, it counts within one alone.
func scheduler() string {
	const by = "the kernel's scheduler"
	if autogroups() {
		return by + ", except for jobs with a terminal or their own session (kernel.sched_autogroup_enabled is 1)"
	}
	return by
}

// Enforced lists how each limit of a command is enforced, with these control groups or nil.
func Enforced(c *Cgroups) []Enforcement {
	counted, why := "", "no control groups"
	if c != nil {
		raw, _ := os.ReadFile(filepath.Join(c.path, "cgroup.subtree_control")) // what cannot be read counts nothing
		counted, why = string(raw), "the runner's control group has no controller for this limit"
	}
	list := []Enforcement{
		{"memory", ForEach, "the address space limit of each process (RLIMIT_AS): " + why},
		{"cpus", Unenforced, why},
		{"tasks", Unenforced, why},
		{"nice", Whole, scheduler()},
		{"nofile", Whole, "the open file limit of each process (RLIMIT_NOFILE)"},
		{"no_new_privileges", Whole, "the kernel (PR_SET_NO_NEW_PRIVS)"},
	}
	for i, controller := range []string{"memory", "cpu", "pids"} {
		if slices.Contains(strings.Fields(counted), controller) {
			list[i].Extent, list[i].By = Whole, "the job's control group"
		}
	}
	return list
}
