//go:build linux || windows

package testrig

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// PrivateRun lets tests call "queuectl run --private" in the directory Work. Queue is the private queue that these
// calls use.
type PrivateRun struct {
	*Queue
	Work string
}

// NewPrivate creates the directory Work. The first call of "queuectl run --private" creates the queue in that
// directory.
func NewPrivate(t *testing.T) *PrivateRun {
	q := NewQueue(t, "")
	work := filepath.Join(q.Dir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	// A private run creates its queue in this directory.
	q.Dir = filepath.Join(work, ".queuectl")
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(work)) })
	return &PrivateRun{q, work}
}

// Command returns the command "queuectl run --private" in the directory Work, with the given stdin.
func (p *PrivateRun) Command(stdin string, args ...string) *exec.Cmd {
	cmd := exec.Command(p.Bin, append([]string{"run", "--private"}, args...)...)
	cmd.Env = Environment(p.Work)
	cmd.Dir = p.Work
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// Run executes "queuectl run --private" in the directory Work and returns its result.
func (p *PrivateRun) Run(stdin string, args ...string) Result {
	p.Helper()
	return RunCommand(p, p.Command(stdin, args...))
}
