package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/testrig"
)

// If a client cannot start the service, it prints the reason in one line. The exit code depends on the reason.
// Only `queuectl run` always exits with 125.
func TestClientSaysWhyServiceCannotStart(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.ClientPath = testrig.InstallPrograms(q, q.ClientPath, q.StateDir)
	home := func(name string) (state string) {
		state = q.Path(name + "/.local/state/queuectl")
		if err := os.MkdirAll(state, 0o700); err != nil {
			t.Fatal(err)
		}
		return state
	}
	database := os.Mkdir(filepath.Join(home("database"), "queuectl.db"), 0o700)
	lock, err := os.Create(filepath.Join(home("locked"), "service.lock"))
	if err = errors.Join(database, err, os.Mkdir(q.Path("closed"), 0o555), os.Chmod(q.Path("closed"), 0o555),
		os.Chmod(q.StateDir, 0o755)); err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		home, variable, words string
		code                  int
		wantText              string
	}{
		{"closed", "", "enqueue true", 5, "queuectl: the service did not start: cannot create the state directory " +
			"HOME/.local/state/queuectl: permission denied; choose another one with --dir"},
		{"closed", "", "run true", 125, "queuectl: the service did not start: cannot create the state directory "},
		{"settings", "QUEUECTL_WORKERS=many", "enqueue true", 78,
			`queuectl: the service did not start (its log is HOME/.local/state/queuectl/queuectl.log): environment variable QUEUECTL_WORKERS: "many" is not a number of workers`},
		{"settings", "QUEUECTL_WORKERS=some", "worker start", 78, `QUEUECTL_WORKERS: "some" is not a number of workers`},
		{"settings", "QUEUECTL_WORKERS=some", "run true", 125, `QUEUECTL_WORKERS: "some" is not a number of workers`},
		{"database", "", "enqueue true", 74, "queuectl: the service did not start (its log is " +
			"HOME/.local/state/queuectl/queuectl.log): the database HOME/.local/state/queuectl/queuectl.db " +
			"must be a regular file, not a symbolic link or a directory"},
		{"locked", "", "enqueue true", 5, "already uses HOME/.local/state/queuectl; stop it with: "},
	} {
		cmd := exec.Command(q.ClientPath, strings.Fields(c.words)...)
		cmd.Dir, cmd.Env = q.StateDir, []string{"HOME=" + q.Path(c.home), "PATH=" + os.Getenv("PATH"), c.variable}
		if c.home == "closed" && os.Geteuid() == 0 {
			testrig.CommandAs(cmd, testrig.Outsider)
		}
		r := testrig.RunCommand(t, cmd)
		if wantText := strings.ReplaceAll(c.wantText, "HOME", q.Path(c.home)); r.ExitCode != c.code ||
			!strings.Contains(r.Stderr, wantText) || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%s %s: %+v; want %d and one line with %q", c.variable, c.words, r, c.code, wantText)
		}
	}
}
