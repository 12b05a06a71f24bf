package runner

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
)

// spawn starts a runner as a process that outlives this one, with a console of its own that
// has no window, and returns its name once it listens. It runs a copy of the program: a
// program that runs cannot be replaced, and an upgrade replaces it while jobs run.
func (h Home) spawn(alone bool) (name string, err error) {
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return "", fmt.Errorf("make the runners' folder: %w", err)
	}
	program, err := copied(h.Command[0], filepath.Join(h.Dir, programsName))
	if err != nil {
		return "", fmt.Errorf("copy the program for the runner: %w", err)
	}
	words := append(h.Command[1:len(h.Command):len(h.Command)], "--dir", h.Dir)
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
		if err = cmd.Start(); !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
			break
		}
	}
	out.Close()
	if err != nil {
		return "", err
	}
	go cmd.Wait() // ends with the runner, or this process
	slow := time.AfterFunc(readyWithin, func() { cmd.Process.Kill() })
	defer slow.Stop()
	return readReady(ready)
}

// copied is a copy, in a folder, of a program as it is now; those of before are removed
// once nobody runs them.
func copied(program, dir string) (string, error) {
	from, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer from.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, from)
	if err != nil {
		return "", err
	}
	name := "queuectl-" + hex.EncodeToString(sum.Sum(nil)[:8]) + ".exe"
	path := filepath.Join(dir, name)
	there := func() bool {
		info, err := os.Stat(path)
		return err == nil && info.Size() == size
	}
	if there() {
		return path, nil
	}
	RemovePrograms(filepath.Dir(dir))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	to, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(to.Name()) // once it is renamed, it is not there
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		to.Close()
		return "", err
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Sync(), to.Close()); err != nil {
		return "", err
	}
	for end := time.Now().Add(heldFor); ; time.Sleep(20 * time.Millisecond) {
		err := os.Rename(to.Name(), path)
		if err == nil || there() { // or another start was quicker, and it runs
			return path, nil
		}
		if time.Now().After(end) {
			return "", err
		}
	}
}

// heldFor is how long a virus scanner may read a program that has just been written.
const heldFor = 5 * time.Second

// RemovePrograms removes the copies of the program in a runners' folder that nobody runs,
// and reports whether that was all of them.
func RemovePrograms(root string) bool {
	dir := filepath.Join(root, programsName)
	list, _ := filepath.Glob(filepath.Join(dir, "*")) // the pattern is right
	for _, path := range list {
		os.Remove(path) // one that runs cannot be removed
	}
	err := os.Remove(dir) // nor a folder that holds something
	return err == nil || errors.Is(err, os.ErrNotExist)
}

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
