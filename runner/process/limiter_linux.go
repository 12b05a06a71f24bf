package process

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
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
// The runner passes an order to the limiter, in a memory file: the limits, the program, its arguments and its
// environment. The limiter first sets all limits except memory. It reports stepReady and waits, while the
// runner sets the limits of the control group. After the runner's reply of one byte, the limiter sets the
// memory limit and executes the program. If a step fails, the limiter reports the step and its error, and
// exits.

// limiterArgs are the arguments that make this program a limiter. They are visible in ps. See
// docs/decisions/0042.
var limiterArgs = []string{"queuectl", "runner", "exec"}

// limiterPrefix is the start of the process name of a limiter. Execve replaces the name, and a process keeps
// its name after its end. So the name of an ended process shows whether it had executed the command's
// program. The rest of the name is random, so that a program cannot take the name of its limiter. A process
// name has at most 15 bytes.
const limiterPrefix = "queuectl:"

// newLimiterName returns a random process name for a limiter.
func newLimiterName() string { return fmt.Sprintf("%s%06x", limiterPrefix, rand.Uint32N(1<<24)) }

// Descriptors of a limiter, in addition to those of the command.
const (
	orderFD  = 3 // descriptor of the order
	reportFD = 4 // a socket: the limiter sends reports, and receives one byte when it may continue
)

// Steps that a limiter reports.
const (
	stepReady           = 'r' // success: the limiter waits for permission to continue
	stepNice            = 'n'
	stepNoFile          = 'f'
	stepMemory          = 'm'
	stepNoNewPrivileges = 'p'
	stepExec            = 's'
)

// limiterReport is a limiter's report about its last step. If the step is not stepReady, it has failed with
// this error number, which fits into a byte.
type limiterReport struct{ step, errno byte }

// reportBytes is the size of a limiterReport, in bytes.
const reportBytes = 2

// orderHead is the start of an order: the limits and the number of arguments. Its bytes in memory are the
// encoding, because the runner and the limiter are the same program.
type orderHead struct {
	nice, maxOpenFiles int64 // 0 means that the command sets no such limit
	addressSpaceBytes  int64 // limit of the address space, in bytes; 0 means no limit
	noNewPrivileges    bool  // set PR_SET_NO_NEW_PRIVS
	argCount           int64 // number of the program's arguments; encodeOrder sets it
}

// encodeOrder returns an order: the head, followed by texts that each end with NUL. The texts are the
// limiter's process name, the program, its arguments and its environment.
func encodeOrder(head orderHead, limiterName, path string, argv, env []string) []byte {
	head.argCount = int64(len(argv))
	order := unsafe.Slice((*byte)(unsafe.Pointer(&head)), unsafe.Sizeof(head))
	texts := slices.Concat([]string{limiterName, path}, argv, env)
	return append(order, strings.Join(texts, "\x00")+"\x00"...)
}

// decodedOrder is an order in the form that execve(2) needs: pointers to texts that end with NUL.
type decodedOrder struct {
	orderHead
	limiterName, path *byte
	argv, env         []*byte // each ends with nil
	shellArgv         []*byte // arguments with which /bin/sh runs the program; ends with nil
}

var errInvalidOrder = errors.New("no valid job limits")

// decodeOrder decodes an order. The result points into b, because copies would count as memory of the job.
func decodeOrder(b []byte) (order decodedOrder, err error) {
	const headBytes = int(unsafe.Sizeof(order.orderHead))
	if len(b) < headBytes {
		return order, errInvalidOrder
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&order.orderHead)), headBytes), b)
	texts := bytes.SplitAfter(b[headBytes:], []byte{0})
	texts = texts[:len(texts)-1] // the text after the last NUL is empty
	if order.argCount < 1 || order.argCount > int64(len(texts)-2) {
		return order, errInvalidOrder
	}
	pointers := func(texts [][]byte) (pointerList []*byte) {
		for _, text := range texts {
			pointerList = append(pointerList, &text[0])
		}
		return append(pointerList, nil)
	}
	order.limiterName, order.path = &texts[0][0], &texts[1][0]
	order.argv, order.env = pointers(texts[2:2+order.argCount]), pointers(texts[2+order.argCount:])
	order.shellArgv = slices.Concat([]*byte{&shellPath[0], order.path}, order.argv[1:])
	return order, nil
}

// RunIfLimiter does nothing in a normal process. In a process that was started as a limiter, it does the
// limiter's work and does not return. Call it first in main.
func RunIfLimiter() {
	if !slices.Equal(os.Args, limiterArgs) {
		return
	}
	// Stay on one thread: nice and no_new_privs are attributes of a thread, and execve keeps those of the
	// thread that calls it.
	runtime.LockOSThread()
	unix.CloseOnExec(orderFD)
	unix.CloseOnExec(reportFD)
	x, err := readOrder()
	if err != nil {
		fmt.Fprintf(os.Stderr, "queuectl: only a runner can start the internal command \"runner exec\" (file descriptor 3: "+
			"%v); to run a job, use: queuectl run\n", err)
		os.Exit(2)
	}
	x.limitAndExec()
}

// readOrder reads the order from orderFD.
func readOrder() (order decodedOrder, err error) {
	var info unix.Stat_t
	if err := unix.Fstat(orderFD, &info); err != nil {
		return order, err
	}
	if info.Size > maxOrderBytes {
		return order, errInvalidOrder
	}
	b := make([]byte, info.Size)
	// Do not use an os.File: its finalizer would close the descriptor, whose number another file may have by
	// then.
	for done := 0; done < len(b); {
		n, err := unix.Pread(orderFD, b[done:], int64(done))
		if n <= 0 && err != unix.EINTR {
			return order, cmp.Or(err, errInvalidOrder)
		}
		done += max(n, 0)
	}
	return decodeOrder(b)
}

// maxOrderBytes is the maximum size of an order, in bytes. The kernel allows less than this for the arguments
// and the environment of a program.
const maxOrderBytes = 8 << 20

// limitAndExec sets the limits and executes the program. It sets the memory limit last, because the other
// steps may need more memory than the limit allows.
func (o *decodedOrder) limitAndExec() {
	unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(o.limiterName)), 0, 0, 0)
	files := unix.Rlimit{Cur: uint64(o.maxOpenFiles), Max: uint64(o.maxOpenFiles)}
	if o.maxOpenFiles == 0 { // the Go runtime has raised the soft limit, so lower it again
		exitOnError(stepNoFile, unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &files))
		files.Cur = min(softFileLimit, files.Max)
	}
	if o.nice != 0 {
		exitOnError(stepNice, unix.Setpriority(unix.PRIO_PROCESS, 0, int(o.nice)))
	}
	exitOnError(stepNoFile, unix.Prlimit(0, unix.RLIMIT_NOFILE, &files, nil))
	if o.noNewPrivileges {
		exitOnError(stepNoNewPrivileges, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	}
	space := unix.Rlimit{Cur: uint64(o.addressSpaceBytes), Max: uint64(o.addressSpaceBytes)}
	if o.addressSpaceBytes != 0 {
		var current unix.Rlimit
		exitOnError(stepMemory, unix.Prlimit(0, unix.RLIMIT_AS, nil, &current))
		// If a lower limit already applies, keep it.
		space.Cur, space.Max = min(space.Cur, current.Max), min(space.Max, current.Max)
	}
	var permit [1]byte
	unix.Write(reportFD, []byte{stepReady, 0})
	if n, _ := unix.Read(reportFD, permit[:]); n != 1 {
		os.Exit(1) // the runner has ended or no longer waits for this command
	}
	if o.addressSpaceBytes != 0 {
		_, _, failed := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_AS, uintptr(unsafe.Pointer(&space)), 0, 0, 0)
		if failed != 0 {
			reportAndExit(stepMemory, failed)
		}
	}
	reportAndExit(stepExec, o.exec())
}

// shellPath is shellProgram as a C string.
var shellPath = []byte(shellProgram + "\x00")

// exec executes the program, or /bin/sh if the program is a script that names no interpreter. It returns
// only if it fails. It uses only system calls, because a memory limit may be set.
func (o *decodedOrder) exec() syscall.Errno {
	failed := execve(o.path, o.argv, o.env)
	if failed == unix.ENOEXEC && o.needsShell() {
		return execve(&shellPath[0], o.shellArgv, o.env)
	}
	return failed
}

// needsShell reports whether /bin/sh must run the program, because the kernel cannot execute it. It decides
// like run.needsShell, but uses only system calls.
func (o *decodedOrder) needsShell() bool {
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

// execve executes a program. It retries, at most maxBusyRetries times, while the program is open for writing.
func execve(path *byte, argv, env []*byte) (errno syscall.Errno) {
	pause := unix.Timespec{Nsec: 1_000_000}
	for retries := 0; ; retries++ {
		_, _, errno = unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&argv[0])),
			uintptr(unsafe.Pointer(&env[0])))
		if errno != unix.ETXTBSY || retries == maxBusyRetries {
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
	unix.RawSyscall(unix.SYS_WRITE, reportFD, uintptr(unsafe.Pointer(&report)), reportBytes)
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
