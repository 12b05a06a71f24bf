package process

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// systemCalls contains the system calls that tests can replace. The tests replace calls that some systems,
// such as Wine, do not support. See docs/decisions/0089.
type systemCalls struct {
	createProcess func(path, commandLine *uint16, processAttributes, threadAttributes *windows.SecurityAttributes,
		inheritHandles bool, flags uint32, env, dir *uint16, startupInfo *windows.StartupInfo,
		processInfo *windows.ProcessInformation) error
	sendCtrlBreak   func(group uint32) error
	terminateJob    func(job windows.Handle)
	setJobInfo      func(job windows.Handle, class uint32, info unsafe.Pointer, size uintptr) error
	queryJobInfo    func(job windows.Handle, class int32, info unsafe.Pointer, size uintptr) error
	nextJobMessage  func(port windows.Handle) (message uint32, ok bool)
	awakeTime       func() time.Duration // time since boot, without the time that the machine slept
	freeMemoryBytes func() uint64        // memory that the machine can still allocate, in bytes
	isSessionEnding func() bool          // whether this session is ending: its user logs off, or the machine shuts down
}

var realSystemCalls = systemCalls{
	createProcess: windows.CreateProcess,
	sendCtrlBreak: func(group uint32) error {
		return windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, group)
	},
	// This call cannot fail for a handle that this process has opened.
	terminateJob: func(job windows.Handle) { windows.TerminateJobObject(job, killedExitCode) },
	setJobInfo: func(job windows.Handle, class uint32, info unsafe.Pointer, size uintptr) error {
		_, err := windows.SetInformationJobObject(job, class, uintptr(info), uint32(size))
		return err
	},
	queryJobInfo: func(job windows.Handle, class int32, info unsafe.Pointer, size uintptr) error {
		return windows.QueryInformationJobObject(job, class, uintptr(info), uint32(size), nil)
	},
	nextJobMessage: func(port windows.Handle) (uint32, bool) {
		var message uint32
		var key uintptr
		var overlapped *windows.Overlapped
		err := windows.GetQueuedCompletionStatus(port, &message, &key, &overlapped, 0)
		return message, err == nil
	},
	awakeTime: func() time.Duration {
		var t int64 // in units of 100 ns
		procQueryUnbiasedInterruptTime.Call(uintptr(unsafe.Pointer(&t)))
		return time.Duration(t) * 100
	},
	freeMemoryBytes: func() uint64 {
		var m struct {
			size, load                                              uint32
			physical, freePhysical, commit, freeCommit, space, more uint64
			extended                                                uint64
		}
		m.size = uint32(unsafe.Sizeof(m))
		procGlobalMemoryStatusEx.Call(uintptr(unsafe.Pointer(&m)))
		return m.freeCommit
	},
	isSessionEnding: func() bool {
		yes, _, _ := procGetSystemMetrics.Call(metricShuttingDown)
		return yes != 0
	},
}

var (
	ntdll                          = windows.NewLazySystemDLL("ntdll.dll")
	procNtSuspendProcess           = ntdll.NewProc("NtSuspendProcess")
	procNtResumeProcess            = ntdll.NewProc("NtResumeProcess")
	kernel32                       = windows.NewLazySystemDLL("kernel32.dll")
	procCreateJobObject            = kernel32.NewProc("CreateJobObjectW")
	procOpenJobObject              = kernel32.NewProc("OpenJobObjectW")
	procPeekNamedPipe              = kernel32.NewProc("PeekNamedPipe")
	procSetConsoleCtrlHandler      = kernel32.NewProc("SetConsoleCtrlHandler")
	procGetProcessMemoryInfo       = kernel32.NewProc("K32GetProcessMemoryInfo")
	procQueryUnbiasedInterruptTime = kernel32.NewProc("QueryUnbiasedInterruptTime")
	procGlobalMemoryStatusEx       = kernel32.NewProc("GlobalMemoryStatusEx")
	procGetSystemMetrics           = windows.NewLazySystemDLL("user32.dll").NewProc("GetSystemMetrics")
)

// callNTFunction calls a function that takes a process and returns an NTSTATUS.
func callNTFunction(ntFunction *windows.LazyProc, process windows.Handle) error {
	if err := ntFunction.Find(); err != nil {
		return err
	}
	if code, _, _ := ntFunction.Call(uintptr(process)); code != 0 {
		return windows.NTStatus(code)
	}
	return nil
}

// Constants of the Windows API that x/sys does not define.
const (
	jobObjectTerminate         = 0x8
	jobObjectQuery             = 0x4
	jobMessageMemoryLimit      = 10 // JOB_OBJECT_MSG_JOB_MEMORY_LIMIT
	cpuRateEnable              = 0x1
	cpuRateHardCap             = 0x4
	fullCPURate                = 10_000 // CPU rate of a job object that may use all processors of the machine
	killedExitCode             = 1      // exit code of the processes that this process ends
	initialPIDCapacity         = 64     // number of pids for which tree.pids has room in its first query
	systemTimeOfDayClass       = 3
	metricShuttingDown         = 0x2000  // SM_SHUTTINGDOWN
	processAttributeJobList    = 0x2000d // PROC_THREAD_ATTRIBUTE_JOB_LIST
	processAttributeHandleList = windows.PROC_THREAD_ATTRIBUTE_HANDLE_LIST
)

// processTree is the process tree of a command: a Windows job object, which its processes cannot leave. The name of
// the job object contains the command's cookie. When the last handle of the job object is closed, for example
// because this process ends, Windows ends all processes in it.
type processTree struct {
	systemCalls      *systemCalls
	jobObjectLimits  windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	jobHandle        windows.Handle
	messagePort      windows.Handle // receives messages about the memory limit; 0 without a limit
	mainHandle       windows.Handle // handle of the main process; 0 before its start
	mainPID          uint32         // pid of the main process
	memoryWasRefused bool           // Windows has refused memory to a process because of the memory limit
}

// limitError adds limitName, the name of the limit that could not be set, to err. It returns nil if err is nil.
func limitError(limitName string, err error) error {
	if err == nil {
		return nil
	}
	return &jobFieldError{"start", fmt.Errorf("cannot set the job's limit --%s; change or remove the limit: %w", limitName,
		err),
		false}
}

// jobObjectName returns the name of the job object of the tree with a cookie.
func jobObjectName(cookie string) (*uint16, error) {
	return windows.UTF16PtrFromString(`Global\queuectl-` + cookie)
}

// newTree creates a tree without processes.
func newTree(sys *systemCalls, cookie string, l TreeLimits) (*processTree, error) {
	name, err := jobObjectName(cookie)
	if err != nil {
		return nil, err
	}
	h, _, err := procCreateJobObject.Call(0, uintptr(unsafe.Pointer(name)))
	if h == 0 {
		return nil, fmt.Errorf("cannot create a Windows job object for the job: %w", err)
	}
	t := &processTree{systemCalls: sys, jobHandle: windows.Handle(h)}
	// Reject a job object that exists already: the process that created it could keep the tree's processes
	// alive.
	if err == windows.ERROR_ALREADY_EXISTS {
		t.close()
		return nil, &jobNameTakenError{errors.New("another process already uses the name Global\\queuectl-" + cookie +
			" of the job's Windows job object; the next try uses another name")}
	}
	t.jobObjectLimits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	if err = t.setJobObjectLimits(); err != nil {
		err = fmt.Errorf("cannot configure the job's Windows job object: %w", err)
	} else {
		err = t.applyLimits(l)
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// jobNameTakenError means that another process already uses the name of the job object that a command needs. The
// command itself is not the cause.
type jobNameTakenError struct{ error }

// applyLimits sets a command's limits.
func (t *processTree) applyLimits(l TreeLimits) (err error) {
	basic := &t.jobObjectLimits.BasicLimitInformation
	if l.MemoryBytes > 0 {
		basic.LimitFlags |= windows.JOB_OBJECT_LIMIT_JOB_MEMORY
		t.jobObjectLimits.JobMemoryLimit = uintptr(min(uint64(l.MemoryBytes), uint64(^uintptr(0))))
		err = limitError("memory", errors.Join(t.setJobObjectLimits(), t.watchMemoryLimit()))
	}
	if l.Tasks > 0 {
		basic.LimitFlags |= windows.JOB_OBJECT_LIMIT_ACTIVE_PROCESS
		basic.ActiveProcessLimit = uint32(l.Tasks)
		err = cmp.Or(err, limitError("tasks", t.setJobObjectLimits()))
	}
	if l.CPUs > 0 {
		cpus := float64(windows.GetActiveProcessorCount(windows.ALL_PROCESSOR_GROUPS))
		rate := struct{ flags, rate uint32 }{cpuRateEnable | cpuRateHardCap,
			uint32(min(max(l.CPUs/cpus*fullCPURate, 1), fullCPURate))}
		err = cmp.Or(err, limitError("cpus", t.systemCalls.setJobInfo(t.jobHandle,
			windows.JobObjectCpuRateControlInformation, unsafe.Pointer(&rate), unsafe.Sizeof(rate))))
	}
	return err
}

// setNice sets the priority class of all processes of the tree. It chooses the class that is nearest to a Unix nice
// value.
func (t *processTree) setNice(nice int) error {
	class := uint32(windows.HIGH_PRIORITY_CLASS)
	switch {
	case nice >= 10:
		class = windows.IDLE_PRIORITY_CLASS
	case nice > 0:
		class = windows.BELOW_NORMAL_PRIORITY_CLASS
	case nice > -10:
		class = windows.ABOVE_NORMAL_PRIORITY_CLASS
	}
	basic := &t.jobObjectLimits.BasicLimitInformation
	basic.LimitFlags |= windows.JOB_OBJECT_LIMIT_PRIORITY_CLASS
	basic.PriorityClass = class
	return limitError("nice", t.setJobObjectLimits())
}

// setJobObjectLimits applies t.limits to the job object.
func (t *processTree) setJobObjectLimits() error {
	return t.systemCalls.setJobInfo(t.jobHandle, windows.JobObjectExtendedLimitInformation,
		unsafe.Pointer(&t.jobObjectLimits), unsafe.Sizeof(t.jobObjectLimits))
}

// watchMemoryLimit makes the kernel send a message when the memory limit is reached.
func (t *processTree) watchMemoryLimit() (err error) {
	if t.messagePort, err = windows.CreateIoCompletionPort(windows.InvalidHandle, 0, 0, 1); err != nil {
		return err
	}
	to := struct{ key, port uintptr }{0, uintptr(t.messagePort)}
	return t.systemCalls.setJobInfo(t.jobHandle, windows.JobObjectAssociateCompletionPortInformation, unsafe.Pointer(&to),
		unsafe.Sizeof(to))
}

// readJobMessages reads the kernel's messages about the tree. The kernel also sends a message for the start and the end
// of every process, so readJobMessages must be called repeatedly.
func (t *processTree) readJobMessages() {
	if t.messagePort == 0 {
		return
	}
	for range 1 << 16 { // bounded, because new messages may arrive as fast as this loop reads them
		message, ok := t.systemCalls.nextJobMessage(t.messagePort)
		if !ok {
			return
		}
		t.memoryWasRefused = t.memoryWasRefused || message == jobMessageMemoryLimit
	}
}

// kill ends all processes of the tree, including those that are just being started.
func (t *processTree) kill() { t.systemCalls.terminateJob(t.jobHandle) }

// keepRunningAfterClose lets the processes live on when this process closes the job object or ends.
func (t *processTree) keepRunningAfterClose() error {
	t.jobObjectLimits.BasicLimitInformation.LimitFlags &^= windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	return t.setJobObjectLimits()
}

// countOtherProcesses returns the number of living processes of the tree except the main process, and the pid
// of one of them.
func (t *processTree) countOtherProcesses() (count int, otherPID uint32) {
	// The handle of the main process is open, so its pid cannot be reused.
	others := slices.DeleteFunc(t.pids(), func(pid uint32) bool { return pid == t.mainPID })
	if len(others) == 0 {
		return 0, 0
	}
	return len(others), others[0]
}

// hasEnded reports whether no process of the tree is alive.
func (t *processTree) hasEnded() bool {
	if event, err := windows.WaitForSingleObject(t.mainHandle, 0); err == nil && event != windows.WAIT_OBJECT_0 {
		return false
	}
	count, _ := t.countOtherProcesses()
	return count == 0
}

// resourceUsage returns the CPU time of all processes of the tree, and the peak memory of its largest process in
// bytes.
func (t *processTree) resourceUsage() (cpuTime time.Duration, peakMemoryBytes int64) {
	var accounting struct {
		user, kernel, periodUser, periodKernel int64 // in units of 100 ns
		faults, total, active, ended           uint32
	}
	t.systemCalls.queryJobInfo(t.jobHandle, windows.JobObjectBasicAccountingInformation, unsafe.Pointer(&accounting),
		unsafe.Sizeof(accounting))
	// If the job object has counted no CPU time, use that of the main process.
	if accounting.user+accounting.kernel == 0 {
		var created, exited, kernel, user windows.Filetime
		if windows.GetProcessTimes(t.mainHandle, &created, &exited, &kernel, &user) == nil {
			accounting.user, accounting.kernel = filetimeTicks(user), filetimeTicks(kernel)
		}
	}
	var limits windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	t.systemCalls.queryJobInfo(t.jobHandle, windows.JobObjectExtendedLimitInformation, unsafe.Pointer(&limits),
		unsafe.Sizeof(limits))
	if limits.PeakProcessMemoryUsed == 0 {
		var memoryCounters struct {
			size, faults uint32
			peak         uintptr
			rest         [7]uintptr
		}
		memoryCounters.size = uint32(unsafe.Sizeof(memoryCounters))
		procGetProcessMemoryInfo.Call(uintptr(t.mainHandle), uintptr(unsafe.Pointer(&memoryCounters)),
			unsafe.Sizeof(memoryCounters))
		limits.PeakProcessMemoryUsed = memoryCounters.peak
	}
	return time.Duration(accounting.user+accounting.kernel) * 100, int64(limits.PeakProcessMemoryUsed)
}

// filetimeTicks returns a FILETIME as a number of units of 100 ns.
func filetimeTicks(t windows.Filetime) int64 { return int64(t.HighDateTime)<<32 | int64(t.LowDateTime) }

// close closes the handles of the tree. Windows then ends the remaining processes, except after a call of
// keepRunningAfterClose.
func (t *processTree) close() {
	closeHandles(t.jobHandle, t.messagePort, t.mainHandle)
}
