//go:build unix

package runner

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// spawn starts a runner as a process in a session of its own that outlives this one,
// and returns its name once it listens.
func (h Home) spawn(alone bool) (name string, err error) {
	if err := os.MkdirAll(h.Dir, 0o700); err != nil {
		return "", fmt.Errorf("make the runners' folder: %w", err)
	}
	ready, out, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer ready.Close()
	words := append(h.Command[1:len(h.Command):len(h.Command)], "--dir", h.Dir)
	if alone {
		words = append(words, "--alone")
	}
	cmd := exec.Command(h.Command[0], words...)
	cmd.Env = runnerEnv()
	cmd.Dir = "/"
	cmd.Stderr, cmd.ExtraFiles = h.Log, []*os.File{out} // descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	out.Close()
	if err != nil {
		return "", err
	}
	go cmd.Wait() // reaps it if it ends first; it ends this process's wait for it by nothing else
	ready.SetReadDeadline(time.Now().Add(readyWithin))
	return readReady(ready)
}

// Ready tells the service that started the runner, on descriptor 3, where its folder
// is.
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
