package cleanstart

import (
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	defaultTimerSlackNanos     = 50_000 // ns; the default of Linux
	unlimitedResourceLimit     = unix.RLIM_INFINITY
	utilizationClampResetValue = ^uint32(0) // as a value for sched_setattr(2), this removes a utilization clamp
)

// resourceLimit is a resource limit of a fresh process, as defined by INIT_RLIMITS in the kernel's
// include/asm-generic/resource.h.
type resourceLimit struct {
	rlimitNumber int
	// name and unit describe the limit in the texts of DescribeInheritedAttributes. If name is "",
	// DescribeInheritedAttributes does not report the limit, because no job fails when the limit is lower than usual.
	name, unit string
	// hardLimit is 0 if its default differs between systems. Otherwise softLimit is at most hardLimit.
	softLimit, hardLimit uint64
}

// freshProcessResourceLimits lists every resource limit that ResetInheritedAttributes sets.
var freshProcessResourceLimits = []resourceLimit{
	{unix.RLIMIT_CPU, "CPU time", " seconds", unlimitedResourceLimit, unlimitedResourceLimit},
	{unix.RLIMIT_FSIZE, "file size", " bytes", unlimitedResourceLimit, unlimitedResourceLimit},
	{unix.RLIMIT_DATA, "data segment", " bytes", unlimitedResourceLimit, unlimitedResourceLimit},
	{unix.RLIMIT_STACK, "stack", " bytes", 8 << 20, unlimitedResourceLimit},
	{unix.RLIMIT_CORE, "", "", 0, unlimitedResourceLimit},
	{unix.RLIMIT_RSS, "", "", unlimitedResourceLimit, unlimitedResourceLimit},
	{unix.RLIMIT_AS, "address space", " bytes", unlimitedResourceLimit, unlimitedResourceLimit},
	{unix.RLIMIT_LOCKS, "", "", unlimitedResourceLimit, unlimitedResourceLimit},
	{unix.RLIMIT_RTTIME, "real-time CPU time", " microseconds", unlimitedResourceLimit, unlimitedResourceLimit},
	{unix.RLIMIT_NOFILE, "open files", "", 1024, 4096},
	{unix.RLIMIT_NPROC, "processes", "", unlimitedResourceLimit, 0},
	{unix.RLIMIT_SIGPENDING, "", "", unlimitedResourceLimit, 0},
	{unix.RLIMIT_MEMLOCK, "", "", unlimitedResourceLimit, 0},
	{unix.RLIMIT_MSGQUEUE, "", "", unlimitedResourceLimit, 0},
	{unix.RLIMIT_NICE, "", "", unlimitedResourceLimit, 0},
	{unix.RLIMIT_RTPRIO, "", "", unlimitedResourceLimit, 0},
}

// ResetInheritedAttributes gives the calling thread the attributes of a fresh process, except those that the account
// may not set. The caller must first lock its goroutine to the thread, and must execute the new program just
// afterwards. ResetInheritedAttributes ignores errors, because the new program calls DescribeInheritedAttributes, which
// reports most of the attributes that could not be reset.
func ResetInheritedAttributes() {
	SetCloseOnExec()
	ResetSignals()
	resetResourceLimits()
	resetScheduling()
	resetMemoryAttributes()
	dropInheritedPrivileges()
	unix.Prctl(unix.PR_SET_TIMERSLACK, defaultTimerSlackNanos, 0, 0, 0)
	unix.RawSyscall(unix.SYS_PERSONALITY, 0, 0, 0) // sets PER_LINUX, with address space randomization
}

// SetCloseOnExec sets the close-on-exec flag of every descriptor except 0, 1 and 2. So a program that this
// process starts inherits only the descriptors that are passed to it explicitly. The descriptors stay
// open in this process, because the Go runtime may already use one of them.
func SetCloseOnExec() error {
	if unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fd") // Linux 5.10 does not know CLOSE_RANGE_CLOEXEC
	if err != nil {
		return fmt.Errorf("the runner cannot start, because it cannot list its open files; check that /proc is mounted and "+
			"readable: %w", err)
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// ResetSignals sets every ignored signal to its default action, and unblocks all signals on the calling thread.
// Programs that the thread starts inherit both. ResetSignals makes the system calls directly, because neither the Go
// runtime nor libc lets a program change signals 32 and 33.
func ResetSignals() {
	const sigIgn = 1 // SIG_IGN
	var zeros [8]uintptr
	for signal := uintptr(1); signal <= 64; signal++ {
		// The kernel's struct sigaction is smaller than this array. Its first element is the signal's
		// handler, and 0 means the default action.
		var oldAction [8]uintptr
		_, _, failed := unix.RawSyscall6(unix.SYS_RT_SIGACTION, signal, 0, uintptr(unsafe.Pointer(&oldAction)), 8, 0, 0)
		if failed == 0 && oldAction[0] == sigIgn {
			unix.RawSyscall6(unix.SYS_RT_SIGACTION, signal, uintptr(unsafe.Pointer(&zeros)), 0, 8, 0, 0)
		}
	}
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&zeros)), 0, 8, 0, 0)
}

// resetResourceLimits sets the soft limits to their defaults. It also raises the hard limits if the user may do that.
func resetResourceLimits() {
	for _, l := range freshProcessResourceLimits {
		var current unix.Rlimit
		if unix.Prlimit(0, l.rlimitNumber, nil, &current) != nil {
			continue
		}
		raised := unix.Rlimit{Cur: l.defaultSoftLimit(max(current.Max, l.hardLimit)), Max: max(current.Max, l.hardLimit)}
		// Setrlimit fails if the user may not raise the hard limit. In that case, set only the soft limit.
		if unix.Setrlimit(l.rlimitNumber, &raised) != nil {
			unix.Setrlimit(l.rlimitNumber, &unix.Rlimit{Cur: l.defaultSoftLimit(current.Max), Max: current.Max})
		}
	}
}

// defaultSoftLimit returns the soft limit of a fresh process if its hard limit is hardLimit.
func (l resourceLimit) defaultSoftLimit(hardLimit uint64) uint64 { return min(l.softLimit, hardLimit) }

// resetScheduling resets the scheduling policy, nice value, utilization clamps, CPU affinity and I/O class.
func resetScheduling() {
	nice, clamps := int32(NiceValue()), uint64(unix.SCHED_FLAG_UTIL_CLAMP_MIN|unix.SCHED_FLAG_UTIL_CLAMP_MAX)
	// Old kernels reject the clamps, and an ordinary user may not lower the nice value. So try these settings
	// in turn, and keep the first one that the kernel accepts.
	for _, attr := range []unix.SchedAttr{{Flags: clamps}, {}, {Flags: clamps, Nice: nice}, {Nice: nice}} {
		attr.Size, attr.Policy, attr.Util_min, attr.Util_max = unix.SizeofSchedAttr, unix.SCHED_NORMAL,
			utilizationClampResetValue,
			utilizationClampResetValue
		if unix.SchedSetAttr(0, &attr, 0) == nil {
			break
		}
	}
	var allProcessors [1024]byte // one bit for each of 8,192 processors
	for i := range allProcessors {
		allProcessors[i] = 0xff
	}
	unix.RawSyscall(unix.SYS_SCHED_SETAFFINITY, 0, uintptr(len(allProcessors)), uintptr(unsafe.Pointer(&allProcessors)))
	const whoProcess, classNone = 1, 0
	unix.RawSyscall(unix.SYS_IOPRIO_SET, whoProcess, 0, classNone)
}

// NiceValue returns the nice value of this process. The commands that this process starts inherit it.
func NiceValue() int {
	const zeroNice = 20 // the system call returns 20 minus the nice value
	n, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return 0
	}
	return zeroNice - n
}

// resetMemoryAttributes resets the settings of the thread and its process that concern memory, for example the memory
// policy, and how likely the out-of-memory killer selects the process.
func resetMemoryAttributes() {
	os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)
	os.WriteFile("/proc/self/coredump_filter", []byte("0x33"), 0) // the default, MMF_DUMP_FILTER_DEFAULT
	unix.Prctl(unix.PR_SET_THP_DISABLE, 0, 0, 0, 0)
	unix.Prctl(unix.PR_SET_MEMORY_MERGE, 0, 0, 0, 0)
	unix.Prctl(unix.PR_SET_IO_FLUSHER, 0, 0, 0, 0)
	unix.Prctl(unix.PR_MCE_KILL, unix.PR_MCE_KILL_CLEAR, 0, 0, 0)
	unix.RawSyscall(unix.SYS_SET_MEMPOLICY, 0, 0, 0) // sets MPOL_DEFAULT
	for _, kind := range []uintptr{unix.PR_SPEC_STORE_BYPASS, unix.PR_SPEC_INDIRECT_BRANCH, unix.PR_SPEC_L1D_FLUSH} {
		const disabledByPrctl = unix.PR_SPEC_PRCTL | unix.PR_SPEC_DISABLE
		if now, err := unix.PrctlRetInt(unix.PR_GET_SPECULATION_CTRL, kind, 0, 0, 0); err == nil &&
			now&disabledByPrctl == disabledByPrctl {
			unix.Prctl(unix.PR_SET_SPECULATION_CTRL, kind, unix.PR_SPEC_ENABLE, 0, 0)
		}
	}
}

// dropInheritedPrivileges drops privileges that the process has from its caller and not from its account: the session
// keyring, which ends with the caller's session, and the capabilities that exec would pass on.
func dropInheritedPrivileges() {
	if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); err == nil {
		unix.KeyctlInt(unix.KEYCTL_LINK, unix.KEY_SPEC_USER_KEYRING, unix.KEY_SPEC_SESSION_KEYRING, 0, 0)
	}
	unix.Prctl(unix.PR_SET_SECUREBITS, 0, 0, 0, 0)
	unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var capSets [2]unix.CapUserData
	if unix.Capget(&header, &capSets[0]) == nil {
		capSets[0].Inheritable, capSets[1].Inheritable = 0, 0
		unix.Capset(&header, &capSets[0])
	}
}
