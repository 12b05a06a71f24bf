package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// launcher is the process that runs as root and starts the runners of a service.
type launcher struct {
	cmd   *exec.Cmd
	stdin io.Closer // standard input of the launcher; closing it makes the launcher exit
}

// startLauncher starts a launcher whose directory is next to the service's directory. It returns the
// command-line arguments with which the service finds the launcher.
func (s *service) startLauncher(b *bench) ([]string, error) {
	s.rootRunnerDir = s.dir + "-roots"
	policy, settings := s.dir+".policy", filepath.Join(s.dir, "queuectl.toml")
	for path, text := range map[string]string{policy: "accounts = *\n", settings: "run_as = \"submitter\"\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	ready, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	p := &launcher{cmd: exec.Command(b.queuectlPath, "runner", "--dir", s.rootRunnerDir, "--policy", policy, "--launcher",
		"0:0")}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	p.cmd.ExtraFiles, p.cmd.Stderr = []*os.File{out}, os.Stderr
	err = p.cmd.Start()
	out.Close()
	if err != nil {
		return nil, err
	}
	s.launcher = p
	if line, err := bufio.NewReader(ready).ReadString('\n'); err != nil {
		p.stop()
		return nil, fmt.Errorf("the launcher printed %q, then ended: %w", line, err)
	}
	return []string{"--runner-dir", s.rootRunnerDir, "--runner-socket",
		filepath.Join(s.rootRunnerDir, "spawn.sock"), "--runner-policy", policy}, nil
}

// stop stops a launcher. It does nothing if l is nil.
func (l *launcher) stop() {
	if l != nil {
		l.stdin.Close()
		l.cmd.Wait()
	}
}
