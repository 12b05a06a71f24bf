package test

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
)

// On SIGHUP the service reads its settings file again. If the file is invalid, the old settings stay in
// effect.
func TestReload(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	q.writeFile("queuectl.toml", "priority = 2\n")
	q.start("--workers", "0")
	logged := func(word string) bool {
		out, _ := exec.Command("sh", "-c", "cat "+q.path("stderr-*")).Output()
		return strings.Contains(string(out), word)
	}
	for _, c := range []struct{ file, word, want string }{
		{"priority = 3\n", "settings reloaded", "3"},
		{"priority = = 4\n", "queuectl.toml:1", "3"},
		{"priority = 4\nprioriti = 5\n", "queuectl.toml:2", "3"},
	} {
		q.writeFile("queuectl.toml", c.file)
		q.cmd.Process.Signal(syscall.SIGHUP)
		q.waitUntil("the log says "+c.word, 10*time.Second, func() bool { return logged(c.word) })
		if got := q.setting("priority").Value; got != c.want {
			t.Errorf("%q: priority %s, want %s", c.file, got, c.want)
		}
	}
}

// A service refuses to start if other users can write to its directory or read its database. The error
// contains the command that fixes it. If another user owns the directory or the database, the error does not
// advise chown, because that user may have planted these files.
func TestForeignFilesAreRefused(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	q.stop()
	db := q.path("queuectl.db")
	restore := func() {
		os.Chmod(q.dir, 0o700)
		os.Chmod(db, 0o600)
		if os.Getuid() == 0 {
			os.Chown(q.dir, 0, 0)
			os.Chown(db, 0, 0)
		}
	}
	cases := map[string]func() error{
		"chmod go-w " + q.dir: func() error { return os.Chmod(q.dir, 0o770) },
		"chmod 600 " + db:     func() error { return os.Chmod(db, 0o640) },
	}
	if os.Getuid() == 0 {
		cases["--dir"] = func() error { return os.Chown(q.dir, 65534, 65534) }
		cases["queuectl restore"] = func() error { return os.Chown(db, 65534, 65534) }
	}
	for mends, spoil := range cases {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if r := q.mustRefuseStart("--dir", q.dir); r.code == 0 || !strings.Contains(r.err, mends) ||
			strings.Contains(r.err, "chown") {
			t.Errorf("%+v, want %q and no chown", r, mends)
		}
		restore()
	}
	q.start("--workers", "0")
}

// unusableSettings lists settings that would keep a service from starting, and a part of each error.
var unusableSettings = []struct{ key, value, wantText string }{
	{"run_as", "submitter", noRunnersError()},
	{"run_as", "fixed:nosuchuser", noRunnersError()},
	{"socket_group", "no.such.group", "there is no group"},
}

// noRunnersError returns a part of the error of a service that cannot run jobs as other users. If the test
// runs as root, the service would start its own runners of root, but the test machine lacks the accounts for
// that. If the test runs as another user, the service needs runners that root starts.
func noRunnersError() string {
	if os.Geteuid() == 0 {
		return "create them: groupadd"
	}
	return "needs runners that root starts"
}

// A directory whose path is too long for a socket is refused.
func TestLongPaths(t *testing.T) {
	q := newQueue(t, "")
	longDir := q.path(strings.Repeat("long", 25))
	if err := os.Mkdir(longDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if r := q.mustRefuseStart("--dir", longDir); r.code != 78 || !strings.Contains(r.err, "107") {
		t.Errorf("%+v, want 78 and the limit", r)
	}
}

// If another user created the state directory, no user is advised to take it over, not even root. The files
// and links in the directory could be an attack.
func TestOtherUsersStateDirIsNotTakenOver(t *testing.T) {
	skip.UnlessRoot(t, "needs root to act for several users; .ci/run runs it as root")
	q := newQueue(t, "")
	q.bin = install(q, q.bin, q.dir)
	if err := os.Chmod(q.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	planted := q.path("planted")
	if err := errors.Join(os.Mkdir(planted, 0o755), os.Chown(planted, alice.uid, alice.uid)); err != nil {
		t.Fatal(err)
	}
	for _, owner := range []person{{name: "root"}, bob} {
		for _, verb := range []string{"serve", "doctor"} {
			r := runCommand(q, asPerson(q.command("--dir", planted, verb), owner))
			if r.code == 0 || !strings.Contains(r.err, fmt.Sprint(alice.uid)) || !strings.Contains(r.err, "--dir") ||
				strings.Contains(r.err, "chown") || strings.Contains(r.err, "runuser") {
				t.Errorf("%s %s: %+v, want the owner, another folder and no chown", owner.name, verb, r)
			}
		}
	}
}

// A service that is stopping says so in status, and rejects changes of its workers. status then does not
// advise to start workers.
func TestStoppingServiceRejectsWorkerChanges(t *testing.T) {
	q := newQueue(t, "")
	q.start("--workers", "1")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo up; while [ ! -e " + q.path("go") + " ]; do sleep 0.05; done"})
	w.waitRunning(id)
	q.requestStop()
	q.waitUntil("it says that it stops", 10*time.Second, func() bool {
		return strings.Contains(q.cli("status", "--check").out, "degraded: the service is stopping, so no jobs start")
	})
	w.enqueue(fields{"command": "true"})
	if r := q.cli("status", "--check"); r.code != 1 || strings.Contains(r.out, "worker start") {
		t.Errorf("while a job waits: %+v", r)
	}
	for _, words := range [][]string{{"worker", "start"}, {"worker", "scale", "3"}, {"worker", "stop", "--all"}} {
		if r := q.cli(words...); r.code != 3 || !strings.Contains(r.err, "the service is stopping") {
			t.Errorf("%q: %+v", words, r)
		}
	}
	q.writeFile("go", "")
	if err := <-q.ended; err != nil {
		t.Error(err)
	}
	q.start()
	if got := q.setting("workers").Origin; got == "stored" {
		t.Error("what was refused is stored")
	}
}
