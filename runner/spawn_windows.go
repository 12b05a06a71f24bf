package runner

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/copies"
	"github.com/queuectl/queuectl/runner/process"
)

// spawn starts a runner as a process that outlives this one, with a console of its own that
// has no window, and returns its name once it listens. It runs a copy of the program: a
// program that runs cannot be replaced, and an upgrade replaces it while jobs run. That is the
// copy that was installed beside the program, or else one in the runners' folder, where policies
// of the machine may let nothing run.
// See docs/decisions/0089.
func (h Home) spawn(alone bool) (name string, err error) { return h.spawnBy((*exec.Cmd).Start, alone) }

func (h Home) spawnBy(start func(*exec.Cmd) error, alone bool) (name string, err error) {
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return "", fmt.Errorf("create the runner folder: %w", err)
	}
	if err := h.checkPlace(); err != nil {
		return "", err // the runner can only log it
	}
	own := filepath.Join(h.Dir, programsName)
	program, err := copies.Find(h.Command[0], copies.Beside(h.Command[0]), own)
	if err == nil && program == "" {
		copies.Remove(own) // those of before
		program, err = copies.Make(h.Command[0], own)
	}
	if err != nil {
		return "", fmt.Errorf("copy the program for the runner: %w", err)
	}
	words := append(h.Command[1:len(h.Command):len(h.Command)], "--dir", h.Dir)
	words = append(words, h.tmpdirWords()...)
	if alone {
		words = append(words, "--alone")
	}
	ready, out, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer ready.Close()
	var cmd *exec.Cmd
	for _, leave := range []uint32{windows.CREATE_BREAKAWAY_FROM_JOB, 0} { // a job object that ends this process, if it lets anybody go
		cmd = exec.Command(program, words...)
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = runnerEnv(), h.Dir, out, h.Log
		cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NO_WINDOW | windows.CREATE_NEW_PROCESS_GROUP | leave}
		if err = start(cmd); !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
			break
		}
	}
	out.Close()
	if err != nil {
		return "", process.WhoBlocks(program, err)
	}
	go cmd.Wait() // ends with the runner, or this process
	slow := time.AfterFunc(readyWithin, func() { cmd.Process.Kill() })
	defer slow.Stop()
	return readReady(ready)
}

// ReopenLogs does nothing: a file that is open cannot be moved.
func (h Home) ReopenLogs() {}

// RemovePrograms removes the copies of the program in a runners' folder that nobody runs,
// and reports whether that was all of them.
func RemovePrograms(root string) bool { return copies.Remove(filepath.Join(root, programsName)) }

// Ready tells who started this process, on standard output, where its folder is.
func Ready(dir string) {
	fmt.Println(readyWord + filepath.Base(dir)) // if nobody listens, nobody waits
	os.Stdout.Close()
}

// runnerEnv is what a runner gets of the service's environment: what the system's programs
// and its own runtime read.
func runnerEnv() (env []string) {
	for _, name := range []string{
		"SystemRoot", "SystemDrive", "windir", "ComSpec", "PATH", "PATHEXT", "TEMP", "TMP",
		"USERPROFILE", "APPDATA", "LOCALAPPDATA", "ProgramData",
		"QUEUECTL_FAILPOINTS", "GOTRACEBACK", "GOCOVERDIR",
	} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}
