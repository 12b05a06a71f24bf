//go:build linux || windows

package testrig

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// PrivateQueue lets tests call "queuectl run --private" in the directory WorkDir. Queue is the private queue in that
// directory.
type PrivateQueue struct {
	*Harness
	WorkDir string
}

// NewPrivateQueue creates the directory WorkDir. The queue in it is created by the first call of "queuectl run
// --private".
func NewPrivateQueue(t *testing.T) *PrivateQueue {
	q := NewHarness(t, "")
	work := filepath.Join(q.StateDir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	// A private run creates its queue in this directory.
	q.StateDir = filepath.Join(work, ".queuectl")
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(work)) })
	return &PrivateQueue{q, work}
}

// NewPrivateRunCommand returns the command "queuectl run --private" in WorkDir, with the given stdin.
func (p *PrivateQueue) NewPrivateRunCommand(stdin string, args ...string) *exec.Cmd {
	cmd := exec.Command(p.ClientPath, append([]string{"run", "--private"}, args...)...)
	cmd.Env = UserEnvironment(p.WorkDir)
	cmd.Dir = p.WorkDir
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// RunPrivate executes "queuectl run --private" in the directory WorkDir and returns its result.
func (p *PrivateQueue) RunPrivate(stdin string, args ...string) CommandResult {
	p.Helper()
	return RunCommand(p, p.NewPrivateRunCommand(stdin, args...))
}
