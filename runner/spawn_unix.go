//go:build unix

package runner

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// readyWord begins the line by which a new runner names its folder.
const readyWord = "queuectl runner "

// Spawn starts a runner below root, as a process in a session of its own that
// outlives this one, and returns its folder once it listens. Its messages go to
// log. argv is the program and the words that make it call Serve; alone adds the one
// that has it run one job only.
func Spawn(root string, argv []string, alone bool, log *os.File) (string, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return "", fmt.Errorf("make the runners' folder: %w", err)
	}
	ready, out, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("start a runner: %w", err)
	}
	defer ready.Close()
	words := append(argv[1:len(argv):len(argv)], "--dir", root)
	if alone {
		words = append(words, "--alone")
	}
	cmd := exec.Command(argv[0], words...)
	cmd.Env = runnerEnv()
	cmd.Dir = "/"
	cmd.Stderr, cmd.ExtraFiles = log, []*os.File{out} // descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	out.Close()
	if err != nil {
		return "", fmt.Errorf("start a runner: %w", err)
	}
	go cmd.Wait() // reaps it if it ends first; it ends this process's wait for it by nothing else
	ready.SetReadDeadline(time.Now().Add(10 * time.Second))
	line, err := bufio.NewReader(ready).ReadString('\n')
	name, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), readyWord)
	if err != nil || !ok {
		return "", fmt.Errorf("start a runner: it said %q and ended or hung (%v); its messages are in the service's log", line, err)
	}
	return filepath.Join(root, name), nil
}

// Ready tells Spawn, on descriptor 3, where the runner's folder is.
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
