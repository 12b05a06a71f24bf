package process

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Some limits can be set only by the process that they apply to, before the first instruction of its
// program. A command with such limits starts as a limiter: a process that runs this program with
// limiterArgs. The limiter sets the limits with the rights of the command's account, and then executes the
// command's program in the same process. Commands without such limits start directly.
//
// The runner passes an exec request to the limiter, in a memory file (memfd). The exec request contains the limits, the
// program, its arguments and its environment. The limiter first sets all limits except memory. It reports
// limiterStepReady and waits, while the runner sets the limits of the control group. After the runner's reply of one
// byte, the limiter sets the memory limit and executes the program. If a step fails, the limiter reports the step and
// its error, and exits.

// limiterArgs are the arguments that make this program a limiter. They are visible in ps. See
// docs/decisions/0042.
var limiterArgs = []string{"queuectl", "runner", "exec"}

// limiterNamePrefix is the start of the process name of a limiter. The process name shows whether an ended process had
// executed the command's program: execve replaces the name, and a process keeps its name after its end. The rest of the
// name is random, so that a program cannot take the name of its limiter. A process name has at most 15 bytes.
const limiterNamePrefix = "queuectl:"

// Descriptors of a limiter, in addition to those of the command.
const (
	execRequestFD   = 3 // descriptor of the exec request
	limiterReportFD = 4 // a socket: the limiter sends reports, and receives one byte when it may continue
)

// Steps that a limiter reports.
const (
	limiterStepReady           = 'r' // success: the limiter waits for permission to continue
	limiterStepNice            = 'n'
	limiterStepNoFile          = 'f'
	limiterStepMemory          = 'm'
	limiterStepNoNewPrivileges = 'p'
	limiterStepExec            = 's'
)

// limiterReport is a limiter's report about its last step. If step is not limiterStepReady, the step has failed with
// the error number errno, which fits into a byte.
type limiterReport struct{ step, errno byte }

// limiterReportBytes is the size of a limiterReport, in bytes.
const limiterReportBytes = 2

// execRequestHeader is the start of an exec request: the limits and the number of arguments. The header is encoded as
// its bytes in memory, because the runner and the limiter are the same program.
type execRequestHeader struct {
	nice, maxOpenFiles int64 // 0 means that the command does not set this limit
	addressSpaceBytes  int64 // limit of the address space, in bytes; 0 means no limit
	noNewPrivileges    bool  // set PR_SET_NO_NEW_PRIVS
	argCount           int64 // number of the program's arguments; encodeExecRequest sets it
}

// encodeExecRequest returns an encoded exec request: the header, followed by texts that each end with NUL. The texts
// are the limiter's process name, the program, its arguments and its environment.
func encodeExecRequest(header execRequestHeader, limiterName, programPath string, argv, env []string) []byte {
	header.argCount = int64(len(argv))
	order := unsafe.Slice((*byte)(unsafe.Pointer(&header)), unsafe.Sizeof(header))
	texts := slices.Concat([]string{limiterName, programPath}, argv, env)
	return append(order, strings.Join(texts, "\x00")+"\x00"...)
}

// decodedExecRequest is an exec request in the form that execve(2) needs: pointers to texts that end with NUL.
type decodedExecRequest struct {
	execRequestHeader
	limiterName, path *byte
	argv, env         []*byte // each ends with nil
	shellArgv         []*byte // arguments with which /bin/sh runs the program; ends with nil
}

var errInvalidExecRequest = errors.New("no valid job limits")

// decodeExecRequest decodes an exec request. The result points into b, because copies would count as memory of the job.
func decodeExecRequest(b []byte) (execRequest decodedExecRequest, err error) {
	const headBytes = int(unsafe.Sizeof(execRequest.execRequestHeader))
	if len(b) < headBytes {
		return execRequest, errInvalidExecRequest
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&execRequest.execRequestHeader)), headBytes), b)
	texts := bytes.SplitAfter(b[headBytes:], []byte{0})
	texts = texts[:len(texts)-1] // the text after the last NUL is empty
	if execRequest.argCount < 1 || execRequest.argCount > int64(len(texts)-2) {
		return execRequest, errInvalidExecRequest
	}
	pointers := func(texts [][]byte) (pointerList []*byte) {
		for _, text := range texts {
			pointerList = append(pointerList, &text[0])
		}
		return append(pointerList, nil)
	}
	execRequest.limiterName, execRequest.path = &texts[0][0], &texts[1][0]
	execRequest.argv, execRequest.env = pointers(texts[2:2+execRequest.argCount]), pointers(texts[2+execRequest.argCount:])
	execRequest.shellArgv = slices.Concat([]*byte{&shellPathCString[0], execRequest.path}, execRequest.argv[1:])
	return execRequest, nil
}

// RunIfLimiterProcess does nothing in a normal process. In a process that was started as a limiter, it does the
// limiter's work and does not return. Call it first in main.
func RunIfLimiterProcess() {
	if !slices.Equal(os.Args, limiterArgs) {
		return
	}
	// Stay on one thread: nice and no_new_privs are attributes of a thread, and execve keeps the attributes of the thread
	// that calls it.
	runtime.LockOSThread()
	unix.CloseOnExec(execRequestFD)
	unix.CloseOnExec(limiterReportFD)
	x, err := readExecRequest()
	if err != nil {
		fmt.Fprintf(os.Stderr, "queuectl: only a runner can start the internal command \"runner exec\" (file descriptor 3: "+
			"%v); to run a job, use: queuectl run\n", err)
		os.Exit(2)
	}
	x.limitAndExec()
}

// readExecRequest reads the exec request from execRequestFD.
func readExecRequest() (execRequest decodedExecRequest, err error) {
	var info unix.Stat_t
	if err := unix.Fstat(execRequestFD, &info); err != nil {
		return execRequest, err
	}
	if info.Size > maxExecRequestBytes {
		return execRequest, errInvalidExecRequest
	}
	b := make([]byte, info.Size)
	// Do not use an os.File: its finalizer would close execRequestFD at some later time. By then, this number may be the
	// descriptor of another file.
	for done := 0; done < len(b); {
		n, err := unix.Pread(execRequestFD, b[done:], int64(done))
		if n <= 0 && err != unix.EINTR {
			return execRequest, cmp.Or(err, errInvalidExecRequest)
		}
		done += max(n, 0)
	}
	return decodeExecRequest(b)
}

// maxExecRequestBytes is the maximum size of an exec request, in bytes. The kernel allows less than this for the
// arguments and the environment of a program.
const maxExecRequestBytes = 8 << 20

// limitAndExec sets the limits and executes the program. It sets the memory limit last, because the other
// steps may need more memory than the limit allows.
func (o *decodedExecRequest) limitAndExec() {
	unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(o.limiterName)), 0, 0, 0)
	files := unix.Rlimit{Cur: uint64(o.maxOpenFiles), Max: uint64(o.maxOpenFiles)}
	if o.maxOpenFiles == 0 { // the Go runtime of this limiter has raised the soft limit, so lower it again
		exitOnError(limiterStepNoFile, unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &files))
		files.Cur = min(softOpenFileLimit, files.Max)
	}
	if o.nice != 0 {
		exitOnError(limiterStepNice, unix.Setpriority(unix.PRIO_PROCESS, 0, int(o.nice)))
	}
	exitOnError(limiterStepNoFile, unix.Prlimit(0, unix.RLIMIT_NOFILE, &files, nil))
	if o.noNewPrivileges {
		exitOnError(limiterStepNoNewPrivileges, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	}
	space := unix.Rlimit{Cur: uint64(o.addressSpaceBytes), Max: uint64(o.addressSpaceBytes)}
	if o.addressSpaceBytes != 0 {
		var current unix.Rlimit
		exitOnError(limiterStepMemory, unix.Prlimit(0, unix.RLIMIT_AS, nil, &current))
		// If a lower limit already applies, keep that limit.
		space.Cur, space.Max = min(space.Cur, current.Max), min(space.Max, current.Max)
	}
	var permit [1]byte
	unix.Write(limiterReportFD, []byte{limiterStepReady, 0})
	if n, _ := unix.Read(limiterReportFD, permit[:]); n != 1 {
		os.Exit(1) // the runner has ended or no longer waits for this command
	}
	if o.addressSpaceBytes != 0 {
		_, _, failed := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_AS, uintptr(unsafe.Pointer(&space)), 0, 0, 0)
		if failed != 0 {
			reportAndExit(limiterStepMemory, failed)
		}
	}
	reportAndExit(limiterStepExec, o.execProgram())
}

// shellPathCString is shellProgram, the path of the shell, as a C string.
var shellPathCString = []byte(shellProgram + "\x00")

// execProgram executes the program, or /bin/sh if the program is a script that names no interpreter. It returns
// only if it fails. It uses only system calls, because a memory limit may be set.
func (o *decodedExecRequest) execProgram() syscall.Errno {
	failed := execve(o.path, o.argv, o.env)
	if failed == unix.ENOEXEC && o.needsShell() {
		return execve(&shellPathCString[0], o.shellArgv, o.env)
	}
	return failed
}

// needsShell reports whether /bin/sh must run the program, because the kernel cannot execute it. It decides
// like run.needsShell, but uses only system calls.
func (o *decodedExecRequest) needsShell() bool {
	var head [scriptHeadBytes]byte
	at := unix.AT_FDCWD
	fd, _, failed := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(o.path)),
		unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0, 0)
	if failed != 0 {
		return true
	}
	n, _, failed := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&head)), scriptHeadBytes)
	return failed != 0 || mayBeShellScript(head[:n])
}

// execve executes a program. It retries, at most maxBusyProgramRetries times, while the program is open for writing.
func execve(programPath *byte, argv, env []*byte) (errno syscall.Errno) {
	pause := unix.Timespec{Nsec: 1_000_000}
	for retries := 0; ; retries++ {
		_, _, errno = unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(programPath)),
			uintptr(unsafe.Pointer(&argv[0])),
			uintptr(unsafe.Pointer(&env[0])))
		if errno != unix.ETXTBSY || retries == maxBusyProgramRetries {
			return errno
		}
		// Wait for 1 ms.
		unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
	}
}

// reportAndExit reports why the program was not executed, and ends this process. It uses only system calls,
// because a memory limit may be set.
func reportAndExit(step byte, errno syscall.Errno) {
	report := limiterReport{step, byte(errno)}
	unix.RawSyscall(unix.SYS_WRITE, limiterReportFD, uintptr(unsafe.Pointer(&report)), limiterReportBytes)
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 126, 0, 0)
	}
}

// exitOnError reports the step and ends this process if the step has failed.
func exitOnError(step byte, err error) {
	if err != nil {
		failed, _ := errors.AsType[syscall.Errno](err)
		reportAndExit(step, failed)
	}
}
