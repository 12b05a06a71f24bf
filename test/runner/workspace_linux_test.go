package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// waitUntilWorkspacesRemoved waits until the private directories of all jobs are removed.
func waitUntilWorkspacesRemoved(q *testrig.Harness, condition string, timeout time.Duration) {
	q.Helper()
	remaining := ""
	q.WaitUntil(condition, timeout, func() bool {
		remaining = ""
		dirs, _ := filepath.Glob(q.RunnerDir() + "/jobs/*/*")
		for _, dir := range dirs {
			if info, err := os.Lstat(dir); err == nil && (info.IsDir() || info.Mode()&os.ModeSymlink != 0) {
				remaining = dir
			}
		}
		return remaining == ""
	})
}

// workspaceAttackCommands lists shell commands with which a job attacks its private directory, $T. $V is a directory
// of another user.
var workspaceAttackCommands = map[string]string{
	"a link instead of the directory": `cd /; rm -rf "$T"; ln -s "$V" "$T"; true`,
	"a file instead of the directory": `cd /; rm -rf "$T"; echo x >"$T"; true`,
	"no directory":                    `cd /; rmdir "$T"; true`,
	"the directory moved away":        `cd /; mv "$T" "$V.moved" && rm -rf "$V.moved"; true`,
	"links in the directory":          `ln -s "$V" "$T/link"; ln -s "$V/kept" "$QUEUECTL_RESULT"; mkdir "$T/d"; ln -s "$V" "$T/d/link"; ln -s / "$T/root"`,
	"a FIFO as the result":            `mkfifo "$QUEUECTL_RESULT"`,
	"an unreadable tree":              `mkdir -p "$T/a/b/c"; echo x >"$T/a/b/c/d"; chmod 0 "$T/a/b/c" "$T/a/b" "$T/a"; chmod 0 "$T"`,
	"a deep tree":                     `cd "$T"; for n in $(seq 300); do mkdir d && cd d; done; echo x >x; chmod 0 .`,
	"names with dashes, dots and newlines": `cd "$T"; touch -- -rf ... "a
b" '*'; mkdir -- -r; touch -- -r/..x`,
	"100,000 files": `cd "$T"; seq 100000 | xargs touch`,
}

// checkWorkspaceAttacksFail runs one job for each of workspaceAttackCommands. It checks that the files in $V are
// unchanged and that no private directory remains.
func checkWorkspaceAttacksFail(t *testing.T, q *testrig.Harness, enqueue func(line string) (id string)) {
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.MkdirAll(filepath.Join(victim, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	victimFile := filepath.Join(victim, "kept")
	for _, path := range []string{victimFile, filepath.Join(victim, "sub", "too")} {
		if err := os.WriteFile(path, []byte(`"theirs"`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ids := map[string]string{}
	for name, line := range workspaceAttackCommands {
		ids[name] = enqueue(`T=$QUEUECTL_TMPDIR; V=` + victim + `; ` + line)
	}
	for name, id := range ids {
		q.RunCLI("wait", id, "--timeout", "60")
		j := showJob(q, id)
		if j.State != "completed" {
			t.Errorf("%s: %s, %s", name, j.State, j.Error)
		}
		if name != "links in the directory" || os.Geteuid() == 0 && q.RootRunnerDir == "" {
			continue // skip the check below, because a job that runs as root may read every file
		}
		if strings.Contains(string(j.Result), "theirs") {
			t.Errorf("%s: the result is %s", name, j.Result)
		}
	}
	waitUntilWorkspacesRemoved(q, "all directories of hostile jobs are removed", 60*time.Second)
	for _, path := range []string{victimFile, filepath.Join(victim, "sub", "too")} {
		if raw, err := os.ReadFile(path); string(raw) != `"theirs"` {
			t.Errorf("%s has %q now: %v", path, raw, err)
		}
	}
	after := enqueue(
		`ls "$QUEUECTL_TMPDIR" | wc -l; stat -c '%a %u' "$QUEUECTL_TMPDIR"; stat -c '%A %u' "$QUEUECTL_PROGRESS"; id -u`)
	q.RunCLI("wait", after)
	words := strings.Fields(showJob(q, after).Output)
	if len(words) != 6 || words[0] != "0" || words[1] != "700" || words[3] != "prw-------" || words[2] != words[5] ||
		words[4] != words[5] {
		t.Errorf("the directory of the next job: %v", words)
	}
}

// Whatever a job does with its private directory, the runner removes that directory and nothing
// else.
func TestHostileWorkspaceIsRemovedSafely(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "2")
	checkWorkspaceAttacksFail(t, q, func(line string) string {
		return q.MustRunCLI("enqueue", "--max-retries", "0", line)
	})
}

// Whatever a user's job does with its private directory, root's runner removes only that directory.
// The runner never follows links that the job has made.
func TestRootRunnerRemovesHostileWorkspaceSafely(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	allowTestDirSearch(t)
	checkWorkspaceAttacksFail(t, q, func(line string) string {
		return q.MustRunAs(testrig.DaemonUser, "enqueue", "--max-retries", "0", "--cwd", "/", line)
	})
	for _, c := range []struct{ what, line string }{
		{"another user's directory", `ls "$T"`}, {"another user's progress", `echo 1 >"${T}.progress"`},
		{"a new name in the parent directory", `touch "$(dirname "$T")/x"`},
		{"the names in the parent directory", `ls "$(dirname "$T")"`},
	} {
		gate := filepath.Join(t.TempDir(), "go")
		os.Chmod(filepath.Dir(gate), 0o755)
		id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", `echo "$QUEUECTL_TMPDIR"; `+
			testrig.CommandWaitingForFile(gate))
		path := ""
		q.WaitUntil("the job runs", 10*time.Second, func() bool {
			path, _, _ = strings.Cut(q.ShowJob(id).Output, "\n")
			return path != ""
		})
		if got := q.RunJobAs(testrig.NewsUser, "--cwd", "/", "T="+path+"; "+c.line); !strings.Contains(got,
			"ermission denied") {
			t.Errorf("%s: %q", c.what, got)
		}
		if err := os.WriteFile(gate, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		q.MustRunAs(testrig.DaemonUser, "wait", id)
	}
}

// allowTestDirSearch gives every user search permission on the test's own directories.
func allowTestDirSearch(t *testing.T) {
	for dir := t.TempDir(); len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
}

// If a background process keeps writing to the private directory of an ended job, it cannot write
// to the directories of other jobs and delays no other job. The runner removes the files that the
// process writes.
func TestWorkspaceInUseIsRemoved(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	line := `cd "$QUEUECTL_TMPDIR"; P=$QUEUECTL_PROGRESS; (n=0; while test $n -lt 4000; do n=$((n + 1)); mkdir -p "x$n/y"; echo $n >"x$n/y/z"; echo 77 >>"$P"; done) >/dev/null 2>&1 & sleep 0.3`
	id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", "--allow-background", line)
	q.MustRunAs(testrig.DaemonUser, "wait", id)
	for range 5 {
		j := showJob(q, q.MustRunAs(testrig.DaemonUser, "run", "--cwd", "/", "-d", "-q", "true"))
		if j.Progress != nil {
			t.Errorf("a job has the progress that the process of another job reported: %+v", j.Progress)
		}
	}
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", `ls "$QUEUECTL_TMPDIR" | wc -l`); got != "0" {
		t.Errorf("the next job finds %s names in its directory", got)
	}
	waitUntilWorkspacesRemoved(q, "what it wrote is gone", 60*time.Second)
}

// If a runner is killed, the next runner removes the private directories of its jobs. To remove a job's directory, the
// runner uses only the rights of the job's user.
func TestDeadRunnersWorkspacesAreRemoved(t *testing.T) {
	for name, q := range map[string]*testrig.Harness{"runner of the service's user": testrig.NewHarness(t, ""),
		"runner of root": nil} {
		t.Run(name, func(t *testing.T) {
			args := []string{"enqueue", "--on-lost", "dead", "--cwd", "/",
				`cd "$QUEUECTL_TMPDIR"; mkdir a; touch a/b c; ln -s / d; chmod 0 a; echo up; exec sleep 300`}
			var id string
			if q == nil {
				q = testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
				id = q.MustRunAs(testrig.DaemonUser, args...)
			} else {
				q.StartService("--workers", "1")
				id = q.MustRunCLI(args...)
			}
			q.WaitUntil("the job runs", 20*time.Second, func() bool { return strings.Contains(q.ShowJob(id).Output, "up") })
			q.KillRunners()
			q.RunCLI("wait", id)
			if j := q.ShowJob(id); j.State != "dead" || j.Reason != "lost" {
				t.Errorf("the job of the killed runner: %+v", j)
			}
			waitUntilWorkspacesRemoved(q, "its directory is gone", 60*time.Second)
		})
	}
}

// A secret can be in a file, which is read with the rights of the job's account. If only root may read the
// file, the job is refused, even if the job names a link to the file.
func TestSecretFilesAreReadWithSubmittersRights(t *testing.T) {
	q := testrig.StartQueueWithRootRunners(t, "run_as = \"submitter\"\n", "accounts = *\n")
	dir := t.TempDir()
	allowTestDirSearch(t)
	const value = "0wner-only-42"
	ownFile, rootFile, link := filepath.Join(dir, "own"), filepath.Join(dir, "roots"), filepath.Join(dir, "link")
	for _, path := range []string{ownFile, rootFile} {
		if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(ownFile, testrig.DaemonUser.Uid, testrig.DaemonUser.Gid); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(rootFile, link); err != nil {
		t.Fatal(err)
	}
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "--env-secret", "S="+ownFile, `test "$S" = `+value[:6]+"''"+
		value[6:]+
		` && echo same`); got != "same" {
		t.Errorf("the user's own secret: %q", got)
	}
	for _, path := range []string{rootFile, link, "/proc/self/environ", filepath.Join(dir, "fifo")} {
		syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o666)
		got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "--env-secret", "S="+path, "env")
		if !strings.HasPrefix(got, "env_secret S: ") || strings.Contains(got, value) {
			t.Errorf("%s: %q", path, got)
		}
	}
	if got := q.RunJobAs(testrig.NewsUser, "--cwd", "/", "--env-secret", "S="+ownFile, "env"); !strings.Contains(got,
		"permission denied") || strings.Contains(got, value) {
		t.Errorf("another user's secret: %q", got)
	}
	if got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/", "--env-secret", "S=credential:db",
		"env"); !strings.Contains(got,
		"env_secret S: credential db: not allowed for jobs of daemon") || !strings.Contains(got, "runner.conf") {
		t.Errorf("a credential: %q", got)
	}
	id := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", "--env-secret", "S="+ownFile, "--delay", "1h", "true")
	if r := q.RunAs(testrig.NewsUser, "edit", id, "--env-secret", "S="+rootFile); r.ExitCode != 5 {
		t.Errorf("another user edits the path of the secret: %+v", r)
	}
	records := q.MustRunCLI("events", "--json") + fmt.Sprint(q.ServiceLog)
	for _, dir := range []string{q.StateDir, q.RootRunnerDir} {
		filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			if err == nil && info.Mode().IsRegular() {
				raw, _ := os.ReadFile(path)
				records += string(raw)
			}
			return nil
		})
	}
	if strings.Contains(records, value) {
		t.Error("the secret appears in a file or an output")
	}
}
