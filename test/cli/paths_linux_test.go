package cli

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// The error about an unusable path is one line with the flag or setting, the problem and the next step. The
// command that reports the error creates no file.
func TestUnusablePathsAreExplained(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.ClientPath = testrig.InstallPrograms(q, q.ClientPath, q.StateDir)
	q.WriteFile("plain", "x y\n")
	err := errors.Join(os.Mkdir(q.Path("somedir"), 0o755), os.Mkdir(q.Path("closed"), 0o555),
		os.WriteFile(q.Path("secret"), nil, 0), os.Chmod(q.Path("plain"), 0o644), os.Chmod(q.StateDir, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		words string
		code  int
		want  string
	}{
		{"enqueue --file none", 4, "--file: none does not exist; check the path"},
		{"enqueue --file somedir", 2, "--file: somedir is a directory; give a file"},
		{"enqueue --file plain/none", 2, "--file: plain/none does not exist, because plain is not a " +
			"directory; check the path"},
		{"enqueue --file secret", 5, "--file: no permission to read secret; ask its owner for access, or use another file"},
		{"run --private --file none", 125, "--file: none does not exist; check the path"},
		{"run --private --lines somedir", 125, "--lines: somedir is a directory; give a file"},
		{"run --private --arg-file none -- echo", 125, "--arg-file: none does not exist; check the path"},
		{"run --private --dir plain --lines -", 125,
			"--dir: WORK/plain is not a directory; give the directory of the service's data"},
		{"run --private --dir closed/x -- true ::: a", 125,
			"cannot create the state directory WORK/closed/x: permission denied; choose another one with --dir"},
		{"restore none", 4, "restore: none does not exist; check the path"},
		{"restore somedir", 2, "restore: somedir is a directory; give a file"},
		{"restore secret", 5, "restore: no permission to read secret; ask its owner for access, or use another file"},
		{"restore plain --dir closed/x", 5, "cannot create the state directory WORK/closed/x: permission denied; choose " +
			"another one with --dir"},
		{"config validate none", 4, "config validate: none does not exist; check the path"},
		{"config validate somedir", 2, "config validate: somedir is a directory; give a file"},
		{"config validate secret", 5, "config validate: no permission to read secret; ask its owner for access, " +
			"or use another file"},
		{"serve --config none", 78, "--config: none does not exist; check the path"},
		{"serve --config somedir", 78, "--config: somedir is a directory; give a file"},
		{"serve --dir closed/x", 5, "cannot create the state directory WORK/closed/x: permission denied; choose " +
			"another one with --dir"},
		{"serve --dir plain", 78, "--dir: WORK/plain is not a directory; give the directory of the service's data"},
		{"serve --dir plain/x", 78, "--dir: WORK/plain is not a directory; give the directory of the service's data"},
		{"serve --dir somedir --socket none/s", 78, "--socket: directory WORK/none does not exist; create it " +
			"with: mkdir -p WORK/none"},
		{"enqueue --dir plain true", 2, "--dir: WORK/plain is not a directory; give the directory of the service's data"},
		{"status --dir plain", 2, "--dir: WORK/plain is not a directory; give the directory of the service's data"},
		{"doctor --dir plain/x", 2, "--dir: WORK/plain is not a directory; give the directory of the service's data"},
		{"restore plain --dir plain", 2, "--dir: WORK/plain is not a directory; give the directory of the service's data"},
		{"config validate --dir plain", 2, "--dir: WORK/plain is not a directory; give the directory of the service's data"},
		{"wait 1 --dir plain", 125, "--dir: WORK/plain is not a directory; give the directory of the service's data"},
		{"status --socket plain", 2, "--socket: plain is not a socket; give the path of the service's socket"},
		{"enqueue --socket somedir true", 2, "--socket: somedir is not a socket; give the path of the service's socket"},
		{"man plain", 2, "man: plain is not a directory; check the path"},
		{"man closed", 5, "man: no permission to write to closed; choose another directory"},
	} {
		r := runInQueueDir(q, c.words)
		if want := "queuectl: " + strings.ReplaceAll(c.want, "WORK", q.StateDir) + "\n"; r.ExitCode != c.code ||
			r.Stderr != want ||
			r.Stdout != "" {
			t.Errorf("%s: %+v; want %d, %q", c.words, r, c.code, want)
		}
	}
	for _, name := range []string{".queuectl", "closed/x", "none"} {
		if _, err := os.Stat(q.Path(name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the refused command created %s (%v)", name, err)
		}
	}
	if r := testrig.RunCommand(t, commandWithVariable(q, "QUEUECTL_SOCKET="+q.Path("plain"), "status")); r.ExitCode != 2 ||
		r.Stderr != "queuectl: QUEUECTL_SOCKET: "+q.Path("plain")+" is not a socket; give the path of the service's "+
			"socket\n" {
		t.Errorf("status with a file in QUEUECTL_SOCKET: %+v", r)
	}
}

// runInQueueDir runs queuectl in the queue's directory. If the test runs as root, queuectl runs as another user.
func runInQueueDir(q *testrig.Harness, commandLine string) testrig.CommandResult {
	q.Helper()
	cmd := commandWithVariable(q, "", strings.Fields(commandLine)...)
	if os.Geteuid() == 0 {
		testrig.CommandAs(cmd, testrig.Outsider)
	}
	return testrig.RunCommand(q, cmd)
}

// commandWithVariable returns a queuectl command without --dir. It runs in the queue's directory and with one
// additional environment variable.
func commandWithVariable(q *testrig.Harness, envVar string, args ...string) *exec.Cmd {
	cmd := exec.Command(q.ClientPath, args...)
	cmd.Dir = q.StateDir
	cmd.Env = []string{"HOME=" + q.StateDir, "PATH=" + os.Getenv("PATH"), "QUEUECTL_NO_START=1", envVar}
	return cmd
}
