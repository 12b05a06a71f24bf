package process

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// testRoleEnvVar is an environment variable. If it is set, this test program runs no tests, but does what its
// value says.
const testRoleEnvVar = "TEST_ROLE"

// The main thread must fork no commands (see tree_linux.go). So lock the main goroutine to the main thread. A process
// that is a limiter, or in which testRoleEnvVar is set, runs no tests.
func init() {
	RunIfLimiterProcess()
	runtime.LockOSThread()
	role, rest, hasRole := strings.Cut(os.Getenv(testRoleEnvVar), " ")
	switch role {
	case "start":
		os.Setenv(testRoleEnvVar, "wait ")
		startPrograms(append(strings.Fields(rest), "/proc/self/exe"))
	case "trace":
		pid, _ := strconv.Atoi(rest)
		err := unix.PtraceSeize(pid)
		os.Stdout.WriteString(fmt.Sprintln("tracing: ", err))
	case "keep": // the traced process stops when it exits, even after SIGKILL
		pid, _ := strconv.Atoi(rest)
		_, _, err := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0)
		os.Stdout.WriteString(fmt.Sprintln("tracing: ", err != 0))
	case "lock":
		lockPipe(1)
	case "note":
		lockProgressFIFO(rest)
	case "wait":
	}
	if hasRole {
		os.Stdin.Read(make([]byte, 1)) // wait here until the test ends
		os.Exit(0)
	}
}

// lockPipe makes the kernel lock a pipe, by a splice to the pipe from a socket that never has data.
func lockPipe(pipeFD int) {
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	for err == nil {
		if _, err = unix.Write(pipeFD, []byte("x")); err == nil {
			_, err = unix.Splice(sockets[0], nil, pipeFD, nil, 4096, 0)
		}
	}
}

// startPrograms starts programs concurrently. Each gets the command line of this process. startPrograms does not wait
// for the programs.
func startPrograms(programPaths []string) {
	debug.SetGCPercent(-1) // a collection would wait until each child has executed its program
	runtime.GOMAXPROCS(2 + len(programPaths))
	for _, program := range programPaths {
		go syscall.ForkExec(program, os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	}
}

// lockProgressFIFO locks the FIFO for progress notes. timingAndPath is "soon PATH" or "late PATH". With "soon",
// lockProgressFIFO writes a note, and locks the FIFO shortly afterwards. With "late", it locks the FIFO after its
// parent process has ended.
func lockProgressFIFO(timingAndPath string) {
	when, path, _ := strings.Cut(timingAndPath, " ")
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	if err != nil {
		os.Exit(1)
	}
	if when == "soon" {
		unix.Write(fd, []byte("1\n"))
		time.Sleep(MinProgressReadInterval / 2)
	} else {
		for parent := unix.Getppid(); unix.Getppid() == parent; time.Sleep(time.Millisecond) {
		}
	}
	lockPipe(fd)
}
