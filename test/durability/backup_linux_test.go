package durability

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// An interrupted backup leaves no file. A backup does not replace a target that is not a regular file. If the target is
// a symbolic link, the backup is written to the file to which the link points.
func TestBackupAcceptsOnlyRegularFileTargets(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "true")
	out := filepath.Join(q.StateDir, "out")
	if err := os.Mkdir(out, 0o700); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(out, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pipe, out} {
		if r := q.RunCLI("backup", name); r.ExitCode != 2 || !strings.Contains(r.Stderr, "is not a regular file") {
			t.Errorf("backup %s: %+v", filepath.Base(name), r)
		}
	}
	os.Remove(pipe)
	file, link := filepath.Join(q.StateDir, "copy.db"), filepath.Join(q.StateDir, "newest")
	if err := errors.Join(os.WriteFile(file, []byte("old"), 0o644), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	q.MustRunCLI("backup", link, "--force")
	if to, err := os.Readlink(link); err != nil || to != file {
		t.Errorf("the link now leads to %q, %v", to, err)
	}
	checkBackup(t, file, []string{"1"})

	// Stop the service with SIGSTOP, so that the interrupt below arrives in the middle of the backup.
	q.ServiceCmd.Process.Signal(syscall.SIGSTOP)
	cmd := q.CLICommand("backup", filepath.Join(out, "copy.db"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	q.WaitUntil("the backup has begun", 20*time.Second, func() bool {
		list, _ := os.ReadDir(out)
		return len(list) > 0
	})
	cmd.Process.Signal(syscall.SIGINT)
	cmd.Wait()
	q.ServiceCmd.Process.Signal(syscall.SIGCONT)
	if list, _ := os.ReadDir(out); len(list) > 0 || cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("interrupted backup: exit %d, remaining files %v", cmd.ProcessState.ExitCode(), list)
	}
}
