//go:build linux || windows

package testrig

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// PrivateRun lets tests call "queuectl run --private" in the directory WorkDir. Queue is the private queue in that
// directory.
type PrivateRun struct {
	*Queue
	WorkDir string
}

// NewPrivateRun creates the directory WorkDir. The queue in it is created by the first call of "queuectl run
// --private".
func NewPrivateRun(t *testing.T) *PrivateRun {
	q := NewQueue(t, "")
	work := filepath.Join(q.StateDir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	// A private run creates its queue in this directory.
	q.StateDir = filepath.Join(work, ".queuectl")
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(work)) })
	return &PrivateRun{q, work}
}

// NewPrivateCommand returns the command "queuectl run --private" in WorkDir, with the given stdin.
func (p *PrivateRun) NewPrivateCommand(stdin string, args ...string) *exec.Cmd {
	cmd := exec.Command(p.ClientPath, append([]string{"run", "--private"}, args...)...)
	cmd.Env = UserEnvironment(p.WorkDir)
	cmd.Dir = p.WorkDir
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// RunPrivate executes "queuectl run --private" in the directory WorkDir and returns its result.
func (p *PrivateRun) RunPrivate(stdin string, args ...string) CommandResult {
	p.Helper()
	return RunCommand(p, p.NewPrivateCommand(stdin, args...))
}
