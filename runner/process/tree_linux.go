package process

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/cleanstart"
	"github.com/queuectl/queuectl/internal/timerslack"
)

// The main thread of a process that runs commands starts none: it keeps to the
// main goroutine, so that the kernel's list of its children names orphans alone.
// Only an init function is sure to be on that thread.
func init() {
	if os.Getenv(preparedName) != "" {
		runtime.LockOSThread()
	}
}

// Prepare makes this process fit to run commands: a session of its own, orphans
// come to it, only descriptors 0, 1 and 2 are inherited, umask 022, no signal is
// ignored or blocked in commands, and none reports the end of a child.
//
// It starts the program again, once, because the limit of 1,024 descriptors that
// commands see must hold when the Go runtime notes what to give them.
func Prepare() error {
	if os.Getenv(preparedName) == "" {
		return restart()
	}
	os.Unsetenv(preparedName)
	if name, err := unix.BytePtrFromString(filepath.Base(os.Args[0])); err == nil {
		unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0) // else ps would show "exe"
	}
	unix.Setsid() // fails only for a leader, who has a session
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set the subreaper attribute: %w", err)
	}
	unix.Umask(inheritedUmask)
	paceCollections()
	if err := hearNoChild(); err != nil {
		return err
	}
	return cleanstart.CloseOnExec()
}

const preparedName = "QUEUECTL_PREPARED"

// softFiles is the soft limit of open files of every command.
const softFiles = 1024

func restart() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the open file limit: %w", err)
	}
	limit.Cur = min(softFiles, limit.Max)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("set the open file limit: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cleanstart.DefaultSignals()
	return timerslack.Exec(append(os.Environ(), preparedName+"=1"))
}

// hearNoChild gives SIGCHLD its default back: it is dropped where it is raised,
// and the ended child stays until somebody waits for it. Workers see ends by
// pidfd; the Go runtime's handler would only interrupt them, once a job.
// See docs/decisions/0039.
func hearNoChild() error {
	var none [8]uintptr // larger than the kernel's struct sigaction
	if _, _, failed := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&none)), 0, 8, 0, 0); failed != 0 {
		return fmt.Errorf("set SIGCHLD to its default: %w", failed)
	}
	return nil
}

// treeOf lists the living processes of a tree, the main one excepted: those of its session
// or group, those of its account that carry its cookie, and their descendants. A cookie of
// another account's process is forged.
func treeOf(main int, cookie string, uid uint32) []proc {
	return treeIn(processes.now(), main, cookie, uid)
}

// treeIn is treeOf by one look.
func treeIn(l *look, main int, cookie string, uid uint32) []proc {
	return members(l.procs, func(p proc) bool {
		return p.sid == main || p.pgid == main || p.ppid == main || l.owns(uid, p.pid) && l.cookie(p.pid) == cookie
	}, main)
}

// members lists those living of these processes that belong, and their descendants.
func members(procs []proc, belongs func(proc) bool, except int) []proc {
	self := os.Getpid()
	in := map[int]bool{}
	for _, p := range procs {
		if p.pid != except && p.pid != self && p.alive() && belongs(p) {
			in[p.pid] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range procs {
			if !in[p.pid] && in[p.ppid] && p.pid != except && p.pid != self && p.alive() {
				in[p.pid], grown = true, true
			}
		}
	}
	var list []proc
	for _, p := range procs {
		if in[p.pid] {
			list = append(list, p)
		}
	}
	return list
}

// endAll sends SIGKILL to processes.
func endAll(procs []proc) {
	for _, p := range procs {
		send(p, unix.SIGKILL, nil)
	}
}

// send sends a signal to a process that was looked at, if may, which may be nil, says so:
// never to a stranger that got its number since.
func send(p proc, number unix.Signal, may func() bool) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return // it is gone
	}
	if now, ok := stat(p.pid); ok && now.ticks == p.ticks && (may == nil || may()) {
		unix.PidfdSendSignal(fd, number, nil, 0)
	}
	unix.Close(fd)
}

// EndTrees ends, with SIGKILL, every process that is known to be a dead runner's: those of
// its session, those with one of the cookies, and those of the trees. A tree's main process
// is known by its cookie or, if it shows none, by when it started; its session and group are
// the tree's as long as a process with its cookie, or the main process itself, is in them. It
// returns those it met, and, after patience, those that are left. The caller is no member.
func EndTrees(d Dead, patience time.Duration) (met, stuck []Left) {
	known, numbers := map[string]bool{}, map[string]bool{}
	for _, c := range d.Cookies {
		known[c] = true
	}
	mains := map[int]Tree{}
	for _, t := range d.Trees {
		if t.Fence != 0 {
			numbers[fmt.Sprintf(".%d.%d", t.Seq, t.Fence)] = true
		}
		if t.PID != 0 {
			mains[t.PID] = t
		}
	}
	ours := func(cookie string) bool { return known[cookie] || numbers[lastNumbers(cookie)] }
	began := time.Now()
	for pause, first := time.Millisecond, true; ; pause, first = min(2*pause, 50*time.Millisecond), false {
		session := d.Leader
		if p, ok := stat(d.Leader); session == 0 || ok && p.ticks != d.Ticks {
			session = -1 // the number is somebody else's now, so nobody of the old session lives
		}
		sure := map[int]bool{} // sessions and groups of the trees
		for _, p := range all() {
			if t, ok := mains[p.pid]; ok && t.began(p) {
				sure[p.pid] = true
			}
			for _, id := range []int{p.sid, p.pgid} {
				if _, ok := mains[id]; ok && !sure[id] && ours(cookieOf(p.pid)) {
					sure[id] = true
				}
			}
		}
		left := members(all(), func(p proc) bool {
			if d.Spared != nil && d.Spared(p.pgid) {
				return false
			}
			return p.sid == session || sure[p.sid] || sure[p.pgid] || ours(cookieOf(p.pid))
		}, 0)
		if d.Of != nil {
			left = slices.DeleteFunc(left, func(p proc) bool { return !Owns(*d.Of, p.pid) })
		}
		if first {
			met = lefts(left)
		}
		if len(left) == 0 {
			return met, nil
		}
		if time.Since(began) > patience {
			return met, lefts(left)
		}
		endAll(left)
		time.Sleep(pause)
	}
}

func lefts(procs []proc) (list []Left) {
	for _, p := range procs {
		list = append(list, Left{p.pid, p.pgid, cookieOf(p.pid)})
	}
	return list
}

// lastNumbers are the last two parts of a cookie, with the point before each.
func lastNumbers(cookie string) string {
	i := strings.LastIndexByte(cookie, '.')
	if i < 0 {
		return ""
	}
	i = strings.LastIndexByte(cookie[:i], '.')
	return cookie[max(i, 0):]
}

// The kernel tells when a process started by a tick that has begun, and the process is made
// right after the moment that Forked says. What differs by more is another process.
const (
	startBefore = 15 * time.Millisecond
	startAfter  = 30 * time.Millisecond
)

// began reports whether a process with the main process's number started when that did.
func (t Tree) began(p proc) bool {
	var up unix.Timespec
	if t.StartedAt.IsZero() || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return false
	}
	age := time.Duration(up.Nano()) - time.Duration(p.ticks)*(time.Second/ticksPerSecond)
	late := time.Since(t.StartedAt) - age
	return -startBefore <= late && late <= startAfter
}

// ticksPerSecond is the unit of times in /proc (USER_HZ), the same on every machine that Go
// runs on.
const ticksPerSecond = 100

// SelfTicks is when this process started, in clock ticks since boot.
func SelfTicks() int64 {
	p, _ := stat(os.Getpid())
	return p.ticks
}

// BootID names this boot of the machine.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}
