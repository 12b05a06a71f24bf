package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

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
// come to it, only descriptors 0, 1 and 2 are inherited, umask 022, signals that
// were ignored are not ignored by commands, and no signal tells of a child's end.
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
		return fmt.Errorf("become a subreaper: %w", err)
	}
	unix.Umask(inheritedUmask)
	if err := hearNoChild(); err != nil {
		return err
	}
	if err := unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err == nil {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fd") // Linux 5.10 has no such flag
	if err != nil {
		return fmt.Errorf("look at open descriptors: %w", err)
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

const preparedName = "QUEUECTL_PREPARED"

// softFiles is the soft limit of open files of every command.
const softFiles = 1024

func restart() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	limit.Cur = min(softFiles, limit.Max)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("set the limit of open files: %w", err)
	}
	unignoreSignals()
	return timerslack.Exec(append(os.Environ(), preparedName+"=1"))
}

// unignoreSignals sets every ignored signal to its default: an ignored one would
// be inherited by every command. It goes by system calls because neither the Go
// runtime nor libc touches signals 32 and 33.
func unignoreSignals() {
	const ignored = 1 // SIG_IGN
	for signal := uintptr(1); signal <= 64; signal++ {
		var old, none [8]uintptr // larger than the kernel's struct sigaction; the handler comes first, 0 is the default
		_, _, failed := unix.RawSyscall6(unix.SYS_RT_SIGACTION, signal, 0, uintptr(unsafe.Pointer(&old)), 8, 0, 0)
		if failed == 0 && old[0] == ignored {
			unix.RawSyscall6(unix.SYS_RT_SIGACTION, signal, uintptr(unsafe.Pointer(&none)), 0, 8, 0, 0)
		}
	}
}

// hearNoChild gives SIGCHLD its default back: it is dropped where it is raised,
// and the ended child stays until somebody waits for it. Workers see ends by
// pidfd; the Go runtime's handler would only interrupt them, once a job.
func hearNoChild() error {
	var none [8]uintptr // as in unignoreSignals
	if _, _, failed := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&none)), 0, 8, 0, 0); failed != 0 {
		return fmt.Errorf("set SIGCHLD to its default: %w", failed)
	}
	return nil
}

// proc is a process as /proc tells.
type proc struct {
	pid, ppid, pgid, sid int
	state                byte
	ticks                int64 // when it started, in clock ticks since boot
}

// stat reads one process; ok is false when it is gone.
func stat(pid int) (p proc, ok bool) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return p, false
	}
	end := bytes.LastIndexByte(raw, ')') // the name may hold anything
	if end < 0 {
		return p, false
	}
	f := strings.Fields(string(raw[end+1:]))
	if len(f) < 20 {
		return p, false
	}
	p.pid, p.state = pid, f[0][0]
	p.ppid, _ = strconv.Atoi(f[1])
	p.pgid, _ = strconv.Atoi(f[2])
	p.sid, _ = strconv.Atoi(f[3])
	p.ticks, _ = strconv.ParseInt(f[19], 10, 64)
	return p, true
}

func (p proc) alive() bool { return p.state != 'Z' && p.state != 'X' }

// all lists every process.
func all() []proc {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	procs := make([]proc, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := stat(pid); ok {
				procs = append(procs, p)
			}
		}
	}
	return procs
}

// cookieOf is the cookie in a process's environment, "" if it has none.
func cookieOf(pid int) string {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return ""
	}
	for entry := range bytes.SplitSeq(raw, []byte{0}) {
		if v, ok := bytes.CutPrefix(entry, []byte(CookieName+"=")); ok {
			return string(v)
		}
	}
	return ""
}

// treeOf lists the living processes of a tree, the main one excepted: those of
// its group, those that carry its cookie, and their descendants.
func treeOf(main int, cookie string) []proc {
	return members(func(p proc) bool {
		return p.pgid == main || p.ppid == main || cookieOf(p.pid) == cookie
	}, main)
}

// members lists the living processes that belong, and their descendants.
func members(belongs func(proc) bool, except int) []proc {
	procs := all()
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

// endAll sends SIGKILL to processes, never to a stranger that got one's number
// since: the signal goes to the process that was looked at or to none.
func endAll(procs []proc) {
	for _, p := range procs {
		signal(p, unix.SIGKILL)
	}
}

func signal(p proc, number unix.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return // it is gone
	}
	if now, ok := stat(p.pid); ok && now.ticks == p.ticks {
		unix.PidfdSendSignal(fd, number, nil, 0)
	}
	unix.Close(fd)
}

// orphans tells which processes were reparented to this one. They are children
// of its main thread, which the kernel lists in one small file; the trees' main
// processes may be there too.
var orphans = orphanage{main: map[int]bool{}, kept: map[int]bool{}, aside: map[int]bool{}}

type orphanage struct {
	once sync.Once
	fd   int
	fork sync.RWMutex // held for reading by a fork, until its pid is in main
	mu   sync.Mutex
	main map[int]bool // main processes that are not reaped; guarded by mu
	kept map[int]bool // orphans that may live on; guarded by mu

	aside map[int]bool // orphans that show no cookie; guarded by mu
}

// own notes, or forgets, a main process that somebody else waits for.
func own(pid int, yes bool) {
	orphans.mu.Lock()
	defer orphans.mu.Unlock()
	if yes {
		orphans.main[pid] = true
	} else {
		delete(orphans.main, pid)
	}
}

// orphanList reads the list; ok is false where the system keeps none.
func orphanList(buf []byte) (list []byte, ok bool) {
	orphans.once.Do(func() {
		pid := os.Getpid()
		orphans.fd, _ = unix.Open(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	n, err := unix.Pread(orphans.fd, buf, 0)
	if err != nil || n < 0 {
		return nil, false
	}
	return buf[:n], true
}

// noOrphans reports whether no process at all was reparented to this one. It
// costs one system call.
func noOrphans() bool {
	var buf [16]byte
	list, ok := orphanList(buf[:])
	return ok && len(list) == 0
}

// reapOrphans reaps the orphans that have ended and lists those that have not
// and may not live on. Trees' main processes are left to those who wait for
// them.
func reapOrphans() (living []int) {
	buf := make([]byte, 64<<10)
	orphans.fork.Lock() // no main process may be in the list and not in main
	defer orphans.fork.Unlock()
	list, _ := orphanList(buf)
	orphans.mu.Lock()
	defer orphans.mu.Unlock()
	for field := range bytes.FieldsSeq(list) {
		pid, err := strconv.Atoi(string(field))
		if err != nil || orphans.main[pid] {
			continue
		}
		if got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err == nil && got == 0 {
			if orphans.aside[pid] && cookieOf(pid) != "" {
				delete(orphans.aside, pid) // it was in the middle of an exec
			}
			if !orphans.kept[pid] && !orphans.aside[pid] {
				living = append(living, pid)
			}
			continue
		}
		delete(orphans.kept, pid)
		delete(orphans.aside, pid)
	}
	return living
}

// execTime is how long a process is waited for that shows no environment: in the
// middle of an exec it has none for a moment.
const execTime = 20 * time.Millisecond

// nameless lists the living orphans that show no cookie and are of no tree's group:
// of a tree in the middle of an exec, or of none that can be told.
func nameless() (list []proc) {
	for _, pid := range reapOrphans() {
		p, ok := stat(pid)
		if !ok || !p.alive() || cookieOf(pid) != "" {
			continue
		}
		orphans.mu.Lock()
		told := orphans.main[p.pgid]
		orphans.mu.Unlock()
		if !told {
			list = append(list, p)
		}
	}
	return list
}

// unsure reports whether some orphan cannot be told to be of another tree.
func unsure() bool { return len(nameless()) > 0 }

// setAside has orphans that belong to no tree that can be told looked for no more
// until they show a cookie, and reaps what has ended.
func setAside() {
	for _, p := range nameless() {
		orphans.mu.Lock()
		orphans.aside[p.pid] = true
		orphans.mu.Unlock()
	}
}

// Reap reaps orphans that have ended; call it now and then.
func Reap() { reapOrphans() }

// spare notes what is left of a tree that may live on, and whether anything is.
func spare(left []proc) bool {
	orphans.mu.Lock()
	defer orphans.mu.Unlock()
	for _, p := range left {
		orphans.kept[p.pid] = true
	}
	return len(left) > 0
}

// EndTrees ends, with SIGKILL, every process of a session whose leader was the
// process leader with those start ticks, and every process that has one of the cookies.
// Process groups in spared are left alone. It returns when none is left, or, after
// patience, those that are. The caller is no member.
func EndTrees(leader int, ticks int64, cookies []string, spared func(pgid int) bool, patience time.Duration) (stuck []Left) {
	known := map[string]bool{}
	for _, c := range cookies {
		known[c] = true
	}
	began := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		session := leader
		if p, ok := stat(leader); ok && p.ticks != ticks {
			session = -1 // the number is somebody else's now, so nobody of the old session lives
		}
		left := members(func(p proc) bool {
			if spared(p.pgid) {
				return false
			}
			return p.sid == session || known[cookieOf(p.pid)]
		}, 0)
		if len(left) == 0 {
			return nil
		}
		if time.Since(began) > patience {
			for _, p := range left {
				stuck = append(stuck, Left{p.pid, p.pgid, cookieOf(p.pid)})
			}
			return stuck
		}
		endAll(left)
		time.Sleep(pause)
	}
}

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
