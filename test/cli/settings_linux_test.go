package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// On SIGHUP the service reads its settings file again. If the file is invalid, the old settings
// stay in effect.
func TestSIGHUPReloadsSettingsFile(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.WriteFile("queuectl.toml", "priority = 2\n")
	q.StartService("--workers", "0")
	logged := func(word string) bool {
		out, _ := exec.Command("sh", "-c", "cat "+q.Path("stderr-*")).Output()
		return strings.Contains(string(out), word)
	}
	for _, c := range []struct{ file, word, want string }{
		{"priority = 3\n", "settings reloaded", "3"},
		{"priority = = 4\n", "queuectl.toml:1", "3"},
		{"priority = 4\nprioriti = 5\n", "queuectl.toml:2", "3"},
	} {
		q.WriteFile("queuectl.toml", c.file)
		q.ServiceCmd.Process.Signal(syscall.SIGHUP)
		q.WaitUntil("the log says "+c.word, 10*time.Second, func() bool { return logged(c.word) })
		if got := q.GetSetting("priority").Value; got != c.want {
			t.Errorf("%q: priority %s, want %s", c.file, got, c.want)
		}
	}
}

// A service refuses to start if other users can write to its directory or read its database. The error contains
// the command that fixes the file mode. If another user owns the directory or the database, the error does not
// advise chown, because that user may have put harmful files there.
func TestUnsafeStateFilesAreRefused(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.StopService()
	db := q.Path("queuectl.db")
	restore := func() {
		os.Chmod(q.StateDir, 0o700)
		os.Chmod(db, 0o600)
		if os.Getuid() == 0 {
			os.Chown(q.StateDir, 0, 0)
			os.Chown(db, 0, 0)
		}
	}
	cases := map[string]func() error{
		"chmod go-w " + q.StateDir: func() error { return os.Chmod(q.StateDir, 0o770) },
		"chmod 600 " + db:          func() error { return os.Chmod(db, 0o640) },
	}
	if os.Getuid() == 0 {
		cases["--dir"] = func() error { return os.Chown(q.StateDir, 65534, 65534) }
		cases["queuectl restore"] = func() error { return os.Chown(db, 65534, 65534) }
	}
	for advice, spoil := range cases {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if r := q.RunServiceExpectingRefusal("--dir", q.StateDir); r.ExitCode == 0 || !strings.Contains(r.Stderr, advice) ||
			strings.Contains(r.Stderr, "chown") {
			t.Errorf("start with files of another user: %+v, want %q and no chown", r, advice)
		}
		restore()
	}
	q.StartService("--workers", "0")
}

// unusableSettings lists settings with which a service cannot start, with a part of the expected error.
var unusableSettings = []struct{ key, value, wantText string }{
	{"run_as", "submitter", noRunnersErrorText()},
	{"run_as", "fixed:nosuchuser", noRunnersErrorText()},
	{"socket_group", "no.such.group", "there is no group"},
}

// noRunnersErrorText returns a part of the error of a service that cannot run jobs as other users. If the test runs as
// root, the service needs accounts that do not exist. Otherwise, the service needs runners that root starts.
func noRunnersErrorText() string {
	if os.Geteuid() == 0 {
		return "create them: groupadd"
	}
	return "works only if root starts the service"
}

// A service refuses a directory whose path is too long for a socket.
func TestDirTooLongForSocketIsRefused(t *testing.T) {
	q := testrig.NewHarness(t, "")
	longDir := q.Path(strings.Repeat("long", 25))
	if err := os.Mkdir(longDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if r := q.RunServiceExpectingRefusal("--dir", longDir); r.ExitCode != 78 || !strings.Contains(r.Stderr, "107") {
		t.Errorf("start in a directory with a long path: %+v, want 78 and the limit", r)
	}
}

// If another user created the state directory, no command advises the caller, even root, to take over the
// directory. The files and links in it could be an attack.
func TestOtherUsersStateDirIsNotTakenOver(t *testing.T) {
	skip.UnlessRoot(t, "needs root to act for several users; .ci/run runs it as root")
	q := testrig.NewHarness(t, "")
	q.ClientPath = testrig.InstallPrograms(q, q.ClientPath, q.StateDir)
	if err := os.Chmod(q.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	planted := q.Path("planted")
	if err := errors.Join(os.Mkdir(planted, 0o755), os.Chown(planted, testrig.Alice.Uid, testrig.Alice.Uid)); err != nil {
		t.Fatal(err)
	}
	for _, owner := range []testrig.Person{{Name: "root"}, testrig.Bob} {
		for _, verb := range []string{"serve", "doctor"} {
			r := testrig.RunCommand(q, testrig.CommandAs(q.CLICommand("--dir", planted, verb), owner))
			if r.ExitCode == 0 || !strings.Contains(r.Stderr, fmt.Sprint(testrig.Alice.Uid)) ||
				!strings.Contains(r.Stderr, "--dir") ||
				strings.Contains(r.Stderr, "chown") || strings.Contains(r.Stderr, "runuser") {
				t.Errorf("%s %s: %+v, want the owner, the advice --dir and no chown", owner.Name, verb, r)
			}
		}
	}
}

// While a service is stopping, `queuectl status` reports that and does not advise starting workers. The service
// rejects changes of its workers.
func TestStoppingServiceRejectsWorkerChanges(t *testing.T) {
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo up; while [ ! -e " + q.Path("go") + " ]; do sleep 0.05; done"})
	w.WaitJobRunning(id)
	q.RequestServiceStop()
	q.WaitUntil("it says that it stops", 10*time.Second, func() bool {
		return strings.Contains(q.RunCLI("status", "--check").Stdout, "degraded: the service is stopping, so no jobs start")
	})
	w.Enqueue(testrig.JSONFields{"command": "true"})
	if r := q.RunCLI("status", "--check"); r.ExitCode != 1 || strings.Contains(r.Stdout, "worker start") {
		t.Errorf("status --check of a stopping service with a waiting job: %+v", r)
	}
	for _, words := range [][]string{{"worker", "start"}, {"worker", "scale", "3"}, {"worker", "stop", "--all"}} {
		if r := q.RunCLI(words...); r.ExitCode != 3 || !strings.Contains(r.Stderr, "the service is stopping") {
			t.Errorf("%q: %+v", words, r)
		}
	}
	q.WriteFile("go", "")
	if err := <-q.ServiceExit; err != nil {
		t.Error(err)
	}
	q.StartService()
	if got := q.GetSetting("workers").Origin; got == "stored" {
		t.Error("the rejected setting was stored")
	}
}
