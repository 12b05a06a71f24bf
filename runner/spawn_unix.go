//go:build unix

package runner

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/internal/cleanstart"
)

// spawn starts a runner as a process in a session of its own that outlives this one,
// and returns its name once it listens. It has a control group to divide where the user's
// manager gives it one.
func (h Home) spawn(alone bool) (name string, err error) {
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return "", fmt.Errorf("create the runner directory: %w", err)
	}
	if err := h.checkPlace(); err != nil {
		return "", err // the runner can only log it
	}
	words := append([]string{"--dir", h.Dir}, h.logWords()...)
	words = append(words, h.tmpdirWords()...)
	if alone {
		words = append(words, "--alone")
	}
	for _, scope := range scopes() {
		cmd := command(append(scope, h.Command...), append(words, "--delegated")...)
		cmd.Stderr, cmd.Env = h.Log, append(cmd.Env, "XDG_RUNTIME_DIR="+managerFolder())
		if name, err = launch(cmd, func(error) {}); err == nil {
			return name, nil
		}
	}
	cmd := command(h.Command, words...)
	cmd.Stderr = h.Log
	return launch(cmd, func(error) {})
}

// logWords name the log of a runner that may have to open it again; a log of which only the descriptor
// is known, as standard error, has none.
func (h Home) logWords() []string {
	if h.Log == nil || h.Log.Name() == os.Stderr.Name() {
		return nil
	}
	return []string{"--log", h.Log.Name()}
}

// ReopenLogs has the service's own runners that live open their log again where its file was moved.
func (h Home) ReopenLogs() {
	if h.Foreign() {
		return
	}
	live, _ := h.Living() // what cannot be found keeps its file
	for _, dir := range live {
		if pid := PID(dir); pid > 0 {
			syscall.Kill(int(pid), syscall.SIGHUP)
		}
	}
}

// command returns the command of a runner, or of the launcher, which starts runners: argv is the
// program and the words that make it one. It outlives this process, so it gets none of the
// descriptors that this process inherited.
func command(argv []string, words ...string) *exec.Cmd {
	cleanstart.CloseOnExec() // an error leaves them as they are
	cmd := exec.Command(argv[0], append(argv[1:len(argv):len(argv)], words...)...)
	cmd.Env, cmd.Dir = runnerEnv(), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// launch starts a command that reports its directory by Ready. When the command ends, launch calls
// ended with the error of its Wait.
func launch(cmd *exec.Cmd, ended func(error)) (name string, err error) {
	ready, out, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer ready.Close()
	cmd.ExtraFiles = []*os.File{out} // descriptor 3
	err = cmd.Start()
	out.Close()
	if err != nil {
		return "", err
	}
	go func() {
		ended(cmd.Wait())
	}()
	ready.SetReadDeadline(time.Now().Add(readyWithin))
	if name, err = readReady(ready); err != nil {
		cmd.Process.Kill() // else it might become one more runner, later
	}
	return name, err
}

// Ready tells who started this process, on descriptor 3, where its folder is.
func Ready(dir string) {
	f := os.NewFile(3, "ready")
	fmt.Fprintln(f, readyWord+filepath.Base(dir)) // if nobody listens, nobody waits
	f.Close()
}

// runnerEnv is what a runner gets of the service's environment: what its own
// runtime reads.
func runnerEnv() []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	for _, name := range []string{"QUEUECTL_FAILPOINTS", "QUEUECTL_TIMERSLACK", "GOTRACEBACK", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// RemovePrograms removes copies of the program; here none are made.
func RemovePrograms(string) bool { return true }
