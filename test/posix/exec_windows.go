package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/windows"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
)

// programCall is one call of a program that this package implements, with its arguments and streams.
type programCall struct {
	args           []string
	env            []string
	workDir        string // working directory; "" means that of this process
	stdin          io.Reader
	stdout, stderr io.Writer
}

// printError prints an error and returns the exit code 1.
func (c *programCall) printError(err error) int {
	fmt.Fprintln(c.stderr, err)
	return 1
}

// exitStatus returns 0 if err is nil. Otherwise it prints err and returns 1. The result is the exit code of a program.
func (c *programCall) exitStatus(err error) int {
	if err != nil {
		return c.printError(err)
	}
	return 0
}

// resolvePath returns the path of a file that an argument names. A relative name is relative to the working directory
// of the call.
func (c *programCall) resolvePath(name string) string {
	if c.workDir == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(c.workDir, name)
}

// openInput opens a file for reading. The name "-" means standard input. The names /dev/null and /dev/zero have the
// meaning that they have on Unix.
func (c *programCall) openInput(name string) (io.ReadCloser, error) {
	switch name {
	case "-":
		return io.NopCloser(c.stdin), nil
	case "/dev/null":
		return io.NopCloser(strings.NewReader("")), nil
	case "/dev/zero":
		return io.NopCloser(zeroReader{}), nil
	}
	return os.Open(c.resolvePath(name))
}

// zeroReader reads zeros without end, like /dev/zero.
type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

var backgroundProcesses []*exec.Cmd // processes that run in the background

// executeShellCommand runs a command that is not a builtin of the interpreter.
func executeShellCommand(ctx context.Context, args []string) error {
	h := interp.HandlerCtx(ctx)
	c := &programCall{args: args[1:], workDir: h.Dir, stdin: h.Stdin, stdout: h.Stdout, stderr: h.Stderr}
	allVariables := args[0] == subshellCommand || args[0] == backgroundCommand && len(args) > 2 && args[1] == "sh"
	h.Env.Each(func(name string, v expand.Variable) bool {
		if v.IsSet() && v.Kind == expand.String && (v.Exported || allVariables) {
			c.env = append(c.env, name+"="+v.Str)
		}
		return true
	})
	return exitCodeError(c.runCommand(args[0]))
}

// lastExitCodeAbove255 is the last exit code that does not fit into 8 bits. The shell interpreter reports only 8 bits,
// so exitCodeError stores the code here.
var lastExitCodeAbove255 int

// exitCodeError returns the error that reports an exit code to the interpreter.
func exitCodeError(code int) error {
	switch {
	case code == 0:
		return nil
	case code > 255:
		lastExitCodeAbove255, code = code, 255
	}
	return interp.ExitStatus(code)
}

// runCommand runs an internal command (see rewriteForksToProcesses) or a program, and returns its exit code.
func (c *programCall) runCommand(programName string) int {
	switch programName {
	case backgroundCommand:
		cmd, code := c.startProgram(c.args[0], c.args[1:])
		if cmd != nil {
			backgroundProcesses = append(backgroundProcesses, cmd)
		}
		return code
	case subshellCommand:
		return c.runProgram("sh", "-c", c.args[0])
	case newestBackgroundPIDCommand:
		fmt.Fprintln(c.stdout, backgroundProcesses[len(backgroundProcesses)-1].Process.Pid)
		return 0
	case echoCommand:
		if _, err := io.WriteString(c.stdout, strings.Join(c.args, " ")+"\n"); err != nil {
			return 1
		}
		return 0
	case waitCommand:
		for _, cmd := range backgroundProcesses {
			cmd.Wait()
		}
		backgroundProcesses = nil
		return 0
	case killCommand:
		return kill(c)
	}
	base := filepath.Base(programName)
	if builtin := base == programName || strings.HasPrefix(programName, "/bin/") ||
		strings.HasPrefix(programName, "/usr/bin/"); builtin &&
		slices.Contains(builtinPrograms, base) {
		return programsByName[base](c)
	}
	return c.runProgram(programName, c.args...)
}

// runProgram starts a program and waits for its end. It returns the exit code.
func (c *programCall) runProgram(name string, args ...string) int {
	cmd, code := c.startProgram(name, args)
	if cmd == nil {
		return code
	}
	var exitErr *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exitErr) {
		return c.printError(err)
	}
	return cmd.ProcessState.ExitCode()
}

// startProgram starts a process that runs a program of this package or a program from PATH. If it cannot start the
// process, it returns nil and the exit code that a shell would return.
func (c *programCall) startProgram(name string, args []string) (*exec.Cmd, int) {
	base := filepath.Base(name)
	path, err := os.Executable()
	if standard := name == base || strings.HasPrefix(name, "/bin/") || strings.HasPrefix(name, "/usr/bin/"); !standard ||
		programsByName[base] == nil && base != "sh" {
		path, err = interp.LookPathDir(c.workDir, expand.ListEnviron(c.env...), name)
	}
	if err != nil {
		fmt.Fprintf(c.stderr, "/bin/sh: 1: %s: not found\n", name)
		return nil, 127
	}
	cmd := exec.Command(path, args...)
	cmd.Args[0] = base
	cmd.Env, cmd.Dir = append(c.env, heldFileHandleEnvVar+"="+strconv.FormatUint(uint64(heldFileHandle()), 10)), c.workDir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.stdin, underlyingFile(c.stdout), underlyingFile(c.stderr)
	if h := heldFileHandle(); h != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{AdditionalInheritedHandles: []syscall.Handle{h}}
	}
	unstarted := *cmd
	err = cmd.Start()
	if errors.Is(err, windows.ERROR_INTERNAL_ERROR) { // under Wine, starting a process sometimes fails
		*cmd = unstarted
		err = cmd.Start()
	}
	if err != nil {
		c.printError(err)
		return nil, 126
	}
	return cmd, 0
}

// heldFileHandleEnvVar is the environment variable with the handle of an open file. The program "hold" of this
// package opens the file, and its descendants inherit the handle.
const heldFileHandleEnvVar = "QUEUECTL_TEST_HELD"

// heldFileHandle returns the file handle that heldFileHandleEnvVar contains, or 0 if the variable is not set.
func heldFileHandle() syscall.Handle {
	n, err := strconv.ParseUint(os.Getenv(heldFileHandleEnvVar), 10, 64)
	if err != nil {
		return 0
	}
	return syscall.Handle(n)
}

// holdFileOpen opens a file exclusively. No other process can open it while this process or one of its
// descendants lives.
func holdFileOpen(c *programCall) int {
	h, err := openFile(c.resolvePath(c.args[0]), windows.GENERIC_READ|windows.GENERIC_WRITE, 0)
	if err != nil {
		return c.printError(err)
	}
	os.Setenv(heldFileHandleEnvVar, strconv.FormatUint(uint64(h), 10))
	return 0
}

// flock implements flock -s -n FILE COMMAND. It fails if another process holds the lock on the file.
func flock(c *programCall) int {
	h, err := openFile(c.resolvePath(c.args[2]), windows.GENERIC_READ,
		windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE)
	if err != nil {
		return 1
	}
	windows.CloseHandle(h)
	return c.interpretScript(`"$@"`, false, c.args[3:])
}

func openFile(path string, access, shareMode uint32) (windows.Handle, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, err
	}
	inherited := &windows.SecurityAttributes{InheritHandle: 1}
	inherited.Length = 24
	return windows.CreateFile(name, access, shareMode, inherited, windows.OPEN_ALWAYS, windows.FILE_ATTRIBUTE_NORMAL, 0)
}

// lockedAppendFile is a file whose writes are appended atomically. A write takes a lock, because Wine finds the end of
// the file and writes there in two steps. If a write fails, the program exits with an error, because a missing line in
// the file would look as if the job had not done its work. The field file is not embedded, because the other write
// methods of os.File take no lock.
type lockedAppendFile struct{ file *os.File }

func (a lockedAppendFile) Read(p []byte) (int, error) { return a.file.Read(p) }

func (a lockedAppendFile) Close() error { return a.file.Close() }

func (a lockedAppendFile) Write(p []byte) (int, error) {
	// Lock a byte far beyond the end of the data, so that the lock does not block reads and writes.
	at := &windows.Overlapped{OffsetHigh: 1 << 30}
	h := windows.Handle(a.file.Fd())
	err := windows.LockFileEx(h, windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, at)
	if err == nil {
		defer windows.UnlockFileEx(h, 0, 1, 0, at)
		_, err = a.file.Write(p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitCodeWriteFailed)
	}
	return len(p), nil
}

const exitCodeWriteFailed = 97 // the exit code of a program whose write to a file has failed

// underlyingFile returns the os.File of an lockedAppendFile, because a process cannot inherit an lockedAppendFile. It
// returns any other writer unchanged.
func underlyingFile(w io.Writer) io.Writer {
	if a, ok := w.(lockedAppendFile); ok {
		return a.file
	}
	return w
}

// openRedirection opens the target of a shell redirection such as >FILE.
func openRedirection(ctx context.Context, path string, flag int, mode os.FileMode) (io.ReadWriteCloser, error) {
	if flag&os.O_APPEND != 0 {
		flag = flag&^os.O_WRONLY | os.O_RDWR // LockFileEx needs read access
	}
	f, err := interp.DefaultOpenHandler()(ctx, path, flag, mode)
	if file, ok := f.(*os.File); ok && err == nil && flag&os.O_APPEND != 0 {
		return lockedAppendFile{file}, nil
	}
	return f, err
}
