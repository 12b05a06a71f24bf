package connect

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/internal/cleanstart"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/queue"
)

// startDetached starts a process that outlives this process and its console. If this process is in a
// job object that permits it, the new process leaves the job object.
func startDetached(log *os.File, program string, args ...string) (cmd *exec.Cmd, err error) {
	for _, leave := range []uint32{windows.CREATE_BREAKAWAY_FROM_JOB, 0} {
		cmd = exec.Command(program, args...)
		cmd.Dir, cmd.Stderr, cmd.Env = `\\`[:1], log, cleanstart.InheritableEnviron()
		const flags = windows.CREATE_NEW_PROCESS_GROUP | windows.DETACHED_PROCESS | cleanstart.NewProcessCreationFlags
		cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: flags | leave}
		if err = cmd.Start(); !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
			break
		}
	}
	return cmd, err
}

// exeSuffix is the file name extension of programs.
const exeSuffix = ".exe"

// checkTrustedProgram accepts every program, because on Windows only administrators can write to the directories of
// installed programs.
func checkTrustedProgram(string, string) error { return nil }

// ExecQueuectld executes queuectld with the same arguments and returns its exit code. If this process ends first,
// queuectld ends too, because both belong to a job object. The processes that queuectld has started continue.
func (f *ServiceFinder) ExecQueuectld() (exitCode int, err error) {
	path, err := f.DaemonPath()
	if err != nil {
		return 0, err
	}
	// The console sends Ctrl-C to this process and to queuectld. queuectld handles Ctrl-C, so ignore it here and wait for
	// queuectld.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Env = append(os.Environ(), clientVersionVariable+"="+f.Version)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, f.messageOutput.Stdout, f.messageOutput.Stderr
	if err := cmd.Start(); err != nil {
		return 0, explainExecError(path, err)
	}
	if err := endChildWithThisProcess(cmd.Process); err != nil {
		cmd.Process.Kill()
		return 0, explainExecError(path, err)
	}
	cmd.Wait() // ignore the error, because the exit code below also says whether the program failed
	return cmd.ProcessState.ExitCode(), nil
}

// endChildWithThisProcess makes a process end when this process ends. It adds the process to a job object, and only
// this process has a handle of that object. When this process ends, Windows closes the handle and ends the processes in
// the job object.
func endChildWithThisProcess(p *os.Process) error {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return err
	}
	var limits windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	const flags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE | windows.JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK
	limits.BasicLimitInformation.LimitFlags = flags
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))); err != nil {
		return err
	}
	failed := p.WithHandle(func(h uintptr) { err = windows.AssignProcessToJobObject(job, windows.Handle(h)) })
	return errors.Join(failed, err)
}

// checkSocketPath returns an error if the path is not a valid name of a pipe. The pipe need not exist.
func checkSocketPath(errorPrefix, path string) error {
	if err, ok := errors.AsType[*queue.Error](socket.CheckPath(path)); ok {
		return fault.Usagef("%s: %s", errorPrefix, err.Message)
	}
	return nil
}

// CheckedNewSocketPath checks the name of a pipe to be created and returns it.
func CheckedNewSocketPath(errorPrefix, path string) (string, error) {
	return path, checkSocketPath(errorPrefix, path)
}

// socketExists always returns false, because testing whether a pipe exists would connect to it. ChooseTarget finds the
// service by the service's directory instead.
func socketExists(string) bool { return false }

// These texts are parts of messages about a service that ends at logoff.
const (
	StartSystemServiceCommand = "sc start queuectl"
	ServiceEndsAtLogoutText   = "your service and its jobs end when you log off, and the service does not start at boot"
	KeepServiceRunningAdvice  = "to keep the service running, install it for all users, in an elevated prompt " +
		"(right-click, Run as " +
		"administrator): queuectl service install"
)
