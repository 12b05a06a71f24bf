package cli

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cleanstart"
)

// startDetached starts a process that outlives this one and its terminal, and a job object
// that ends this one, if that lets anybody go.
func startDetached(log *os.File, program string, words ...string) (cmd *exec.Cmd, err error) {
	for _, leave := range []uint32{windows.CREATE_BREAKAWAY_FROM_JOB, 0} {
		cmd = exec.Command(program, words...)
		cmd.Dir, cmd.Stderr, cmd.Env = `\\`[:1], log, cleanstart.Environ()
		cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.DETACHED_PROCESS | cleanstart.CreationFlags | leave}
		if err = cmd.Start(); !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
			break
		}
	}
	return cmd, err
}

// asciiOnly reports whether the terminal shows ASCII alone. The console of Windows shows Unicode.
func asciiOnly() bool { return false }

// exe ends the names of programs.
const exe = ".exe"

// trusted trusts whoever may write into the folder of this program: Windows' folders of
// programs let administrators alone.
func trusted(string, string) error { return nil }

// become runs queuectld with the same words, and ends as it does. Neither outlives the
// other: a job object ends queuectld with this process, however that ends, but not what
// queuectld starts.
func (a *App) become() error {
	path, err := a.other()
	if err != nil {
		return err
	}
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM) // the console tells queuectld too
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Env = append(os.Environ(), clientVariable+"="+Version)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, a.Out, a.Err
	if err := cmd.Start(); err != nil {
		return notStartedBy(path, err)
	}
	if err := endTogether(cmd.Process); err != nil {
		cmd.Process.Kill()
		return notStartedBy(path, err)
	}
	cmd.Wait() // its exit code says how
	a.Exit = cmd.ProcessState.ExitCode()
	return nil
}

// endTogether has a process end when this one does: then the last handle of the job object
// is closed that holds it.
func endTogether(p *os.Process) error {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return err
	}
	var limits windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE | windows.JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))); err != nil {
		return err
	}
	failed := p.WithHandle(func(h uintptr) { err = windows.AssignProcessToJobObject(job, windows.Handle(h)) })
	return errors.Join(failed, err)
}

// ownUmask is the umask of this process; Windows has none.
func ownUmask() (int, bool) { return 0, false }

// PrivateFiles does nothing: the rights of a directory hold for what is made in it.
func PrivateFiles() {}

// shareFile does nothing: see PrivateFiles.
func shareFile(string) error { return nil }

// StopSignals end a service decently, ReloadSignals have it read its settings
// again. SIGTERM is the console that is closed.
var (
	StopSignals   = []os.Signal{syscall.SIGTERM, os.Interrupt}
	ReloadSignals = []os.Signal{}
)

// readerLook is how often it is looked whether a pipe is still read: Windows does not say
// when it is not any more.
const readerLook = time.Second

// readerGone waits until nobody can read a pipe any more, and is then the error that
// a write would meet; nil if this cannot be known.
func readerGone(f *os.File) error {
	for pipeState(f) == pipeOpen {
		time.Sleep(readerLook)
	}
	if pipeState(f) == pipeClosing {
		return windows.ERROR_NO_DATA
	}
	return nil
}

// States of a pipe, and the question for them, as ntifs.h has them.
const (
	pipeUnknown          = 0
	pipeOpen             = 3
	pipeClosing          = 4
	pipeLocalInformation = 24
)

// pipeState is the state of a pipe that is written to, pipeUnknown if it is none.
func pipeState(f *os.File) uint32 {
	var status windows.IO_STATUS_BLOCK
	var about struct { // FILE_PIPE_LOCAL_INFORMATION
		_     [8]uint32
		state uint32
		_     uint32
	}
	h := windows.Handle(f.Fd())
	if kind, err := windows.GetFileType(h); err != nil || kind != windows.FILE_TYPE_PIPE {
		return pipeUnknown
	}
	if windows.NtQueryInformationFile(h, &status, (*byte)(unsafe.Pointer(&about)), uint32(unsafe.Sizeof(about)), pipeLocalInformation) != nil {
		return pipeUnknown
	}
	return about.state
}

// alias is an output as it can be written to: a console understands colours from here on,
// and where there is none, as for services, all is taken and forgotten.
func alias(f *os.File) *os.File {
	if kind, err := windows.GetFileType(windows.Handle(f.Fd())); kind == windows.FILE_TYPE_UNKNOWN && err != nil {
		if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
			return null
		}
	}
	var mode uint32
	h := windows.Handle(f.Fd())
	if windows.GetConsoleMode(h, &mode) == nil {
		windows.SetConsoleMode(h, mode|windows.ENABLE_PROCESSED_OUTPUT|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) // what refuses is no terminal to us
	}
	return f
}

// closedPipe reports whether a write met a reader that has gone.
func closedPipe(err error) bool {
	return errors.Is(err, windows.ERROR_BROKEN_PIPE) || errors.Is(err, windows.ERROR_NO_DATA)
}

// syncFolder makes the names in a folder durable; Windows does so by itself.
func syncFolder(string) error { return nil }

// isSocket refuses what is no name of a pipe. It may not be there yet.
func isSocket(what, path string) error {
	if err := control.CheckSocketPath(path); err != nil {
		return Usage("%s: %v", what, err)
	}
	return nil
}

// NewSocket is the name of a pipe that is to be made.
func NewSocket(what, path string) (string, error) { return path, isSocket(what, path) }

// socketExists reports whether there may be a pipe: who looks for one connects to it, so
// only the service's folder tells.
func socketExists(string) bool { return false }
