package access

import (
	"bufio"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// newJobTmpdir creates a directory for the setting job_tmpdir. Every account has search permission on it.
func newJobTmpdir(t *testing.T) string {
	t.Helper()
	base, err := os.MkdirTemp("", "qt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	path := filepath.Join(base, "scratch")
	if err := os.Mkdir(path, 0o711); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{base, path} {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func fileNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// runJobAndGetTmpdir runs a job that leaves a file in its private directory, and returns the path of the directory.
func runJobAndGetTmpdir(q *testrig.Harness) string {
	q.Helper()
	return q.MustRunCLI("run", `touch "$QUEUECTL_TMPDIR/left"; echo "$QUEUECTL_TMPDIR"`)
}

// The private directories of jobs are in the directory that the setting job_tmpdir names. A job's directory is
// removed when the job ends. If a runner was killed, the next runner removes the directories of its jobs. After
// a change of the setting, running jobs keep their directories, and new jobs get theirs in the new place.
func TestWorkspacesAreInConfiguredJobTmpdir(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	first, second := newJobTmpdir(t), newJobTmpdir(t)
	set := func(dir string) { q.WriteFile("queuectl.toml", fmt.Sprintf("job_tmpdir = %q\n", dir)) }
	set(first + "/")
	q.StartService("--workers", "2", "--keep-jobs")
	path := runJobAndGetTmpdir(q)
	if !strings.HasPrefix(path, first+"/") {
		t.Fatalf("a job has its directory at %s, want it in %s", path, first)
	}
	q.WaitUntil("the directory of the ended job is gone", 10*time.Second, func() bool {
		_, err := os.Stat(path)
		return os.IsNotExist(err)
	})
	gate := q.Path("gate")
	longJob := q.MustRunCLI("enqueue", `touch "$QUEUECTL_TMPDIR/mine"; echo up; `+testrig.CommandWaitingForFile(gate)+
		`; ls "$QUEUECTL_TMPDIR"`)
	q.WaitUntil("the long job runs", 10*time.Second, func() bool {
		return strings.Contains(q.ShowJob(longJob).Output, "up")
	})
	q.KillService()
	set(second)
	q.StartService("--workers", "2", "--keep-jobs")
	if path := runJobAndGetTmpdir(q); !strings.HasPrefix(path, second+"/") {
		t.Errorf("with the changed setting a job has its directory at %s, want it in %s", path, second)
	}
	q.WriteFile("gate", "")
	q.MustRunCLI("wait", longJob)
	if got := q.ShowJob(longJob).Output; !strings.HasSuffix(got, "\nmine\n") {
		t.Errorf("the job that ran while the setting changed finds the files %q in its directory, want mine", got)
	}
	q.WaitUntil("the earlier directories are empty", 20*time.Second, func() bool {
		return len(fileNames(t, first)) == 0
	})

	lostJob := q.MustRunCLI("enqueue", "--on-lost", "dead",
		`mkdir "$QUEUECTL_TMPDIR/a"; touch "$QUEUECTL_TMPDIR/a/b"; echo up; exec sleep 300`)
	q.WaitUntil("the job to lose runs", 10*time.Second, func() bool {
		return strings.Contains(q.ShowJob(lostJob).Output, "up")
	})
	q.KillService()
	q.KillRunners()
	if len(fileNames(t, second)) == 0 {
		t.Fatal("the killed runner left no files, so this test proves nothing")
	}
	q.WriteFile("queuectl.toml", "")
	q.StartService("--workers", "2", "--keep-jobs")
	q.RunCLI("wait", lostJob)
	q.WaitUntil("the files of the killed runner are removed", 20*time.Second, func() bool {
		return len(fileNames(t, second)) == 0
	})
	if path := runJobAndGetTmpdir(q); !strings.HasPrefix(path, q.Path("runner/jobs")+"/") {
		t.Errorf("without the setting a job has its directory at %s", path)
	}
}

// No job starts while other accounts can change the directory that job_tmpdir names. The log and the commands
// status, why and doctor name the setting and say how to fix it. The job starts after the fix.
func TestJobTmpdirMustBePrivate(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	dir := newJobTmpdir(t)
	link := filepath.Join(filepath.Dir(dir), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path, want string
		undo             func() error
	}{
		{"missing", dir + "/none", "job_tmpdir: lstat " + dir +
			"/none: no such file or directory; create this directory, or change the setting",
			func() error { return os.Mkdir(dir+"/none", 0o700) }},
		{"a link", link, "job_tmpdir: " + link + " contains a symbolic link; use the real path, " + dir, nil},
		{"writable", dir, "job_tmpdir: " + dir + ": other accounts can write to it (mode 777); run: chmod go-w " + dir,
			func() error { return os.Chmod(dir, 0o711) }},
	} {
		if c.name == "writable" {
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		q := testrig.NewHarness(t, "")
		q.WriteFile("queuectl.toml", fmt.Sprintf("job_tmpdir = %q\n", c.path))
		q.StartService("--workers", "1")
		q.MustRunCLI("enqueue", "--id", "waits", "true")
		for _, words := range [][]string{{"status"}, {"why", "waits"}, {"doctor"}} {
			q.WaitUntil(fmt.Sprint(c.name, ": ", words, " says it"), 20*time.Second, func() bool {
				return strings.Contains(q.RunCLI(words...).Stdout, c.want)
			})
		}
		if lines := q.LogLinesWithMessage("no jobs can start until the setting job_tmpdir is correct"); len(lines) != 1 ||
			!strings.HasPrefix(fmt.Sprint(lines[0]["error"]), c.want) {
			t.Errorf("%s: the log at the start contains %v, want %s", c.name, lines, c.want)
		}
		if c.undo != nil {
			if err := c.undo(); err != nil {
				t.Fatal(err)
			}
			q.MustRunCLI("wait", "--timeout", "20s", "waits")
		}
		q.StopService()
	}
	q := testrig.NewHarness(t, "")
	q.WriteFile("queuectl.toml", "job_tmpdir = \"scratch\"\n")
	if err := q.TryStartService("--workers", "1"); err == nil ||
		!strings.Contains(fmt.Sprint(err, q.ServiceLog), `job_tmpdir: "scratch" is not an absolute path; use the full path`) {
		t.Errorf("a relative path: %v\n%s", err, q.ServiceLog)
	}
}

// A service that uses root's runners does not start if its own settings contain job_tmpdir.
// Otherwise the service would choose where root writes.
func TestRootRunnerRefusesServicesJobTmpdir(t *testing.T) {
	q, rules := testrig.PrepareQueueWithRootRunners(t, "job_tmpdir = \"/tmp\"\n", "accounts = *\n")
	q.StartLauncher(rules)
	err := q.TryStartService("--workers", "1", "--runner-dir", q.RootRunnerDir, "--runner-socket",
		filepath.Join(q.RootRunnerDir, "spawn.sock"), "--runner-policy", rules)
	want := "job_tmpdir: this setting has no effect if root starts the runners; remove it here, and set it in " + rules
	if err == nil || !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("start of the service: %v, want the error %s", err, want)
	}
}

// checkRunnerRefusesTmpdir requests a runner from root's launcher, as a compromised service could. The request
// contains a path that runner.conf does not name. The runner must not use that path.
func checkRunnerRefusesTmpdir(q *testrig.Harness, path string) {
	q.Helper()
	// setresgid changes the group of this thread only. The launcher sees the group of the thread that connects.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	effectiveGroup := func(gid int) {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESGID, ^uintptr(0), uintptr(gid), ^uintptr(0)); errno != 0 {
			q.Fatal(errno)
		}
	}
	effectiveGroup(testrig.ServiceAccount.Gid)
	c, err := net.Dial("unix", filepath.Join(q.RootRunnerDir, "spawn.sock"))
	effectiveGroup(0)
	if err != nil {
		q.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintln(c, "queuectl wants a runner tmpdir="+path)
	line, err := bufio.NewReader(c).ReadString('\n')
	name, ok := strings.CutPrefix(strings.TrimSpace(line), "queuectl runner ")
	if err != nil || !ok {
		q.Fatalf("the launcher replied to the request for a runner with %q: %v", line, err)
	}
	if _, err := os.Stat(filepath.Join(path, name)); !os.IsNotExist(err) {
		q.Errorf("root's runner uses %s, which the service named: %v", path, err)
	}
	if _, err := os.Stat(filepath.Join(path, "scratch", name)); err != nil {
		q.Errorf("root's runner does not use the directory of runner.conf: %v", err)
	}
}

// If the user's systemd starts the runners, each request of the service for a runner contains job_tmpdir.
func TestUserSystemdRunnersUseServiceTmpdir(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	dir := filepath.Join(newJobTmpdir(t), "with a space")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: q.Path("spawn.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // this goroutine ends when the listener is closed
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			in, err := c.File()
			c.Close()
			if err != nil {
				continue
			}
			cmd := exec.Command(q.ClientPath, "runner", "--dir", q.RunnerDir(), "--policy=", "--accepted")
			cmd.Stdin = in
			if cmd.Start() == nil {
				go cmd.Wait()
			}
			in.Close()
		}
	}()
	q.WriteFile("queuectl.toml", fmt.Sprintf("job_tmpdir = %q\n", dir))
	q.StartService("--workers", "1", "--runner-socket", q.Path("spawn.sock"), "--runner-own")
	if path := runJobAndGetTmpdir(q); !strings.HasPrefix(path, dir+"/") {
		t.Errorf("a job has its directory at %s, want it in %s", path, dir)
	}
}

// Root's runners read job_tmpdir only from runner.conf. A job can access its private directory
// below job_tmpdir, whatever account it runs as.
func TestRootRunnersUseTmpdirFromRunnerConf(t *testing.T) {
	dir := ""
	if os.Geteuid() == 0 {
		dir = newJobTmpdir(t)
	}
	for name, settings := range map[string]string{"submitter": "run_as = \"submitter\"\n",
		"fixed": "run_as = \"fixed:daemon\"\n"} {
		t.Run(name, func(t *testing.T) {
			q := testrig.StartQueueWithRootRunners(t, settings, "accounts = *\njob_tmpdir = "+dir+"\n")
			checkRunnerRefusesTmpdir(q, filepath.Dir(dir))
			got := q.RunJobAs(testrig.DaemonUser, "--cwd", "/",
				`echo x >"$QUEUECTL_TMPDIR/x" && stat -c '%a %U' "$QUEUECTL_TMPDIR"; echo "$QUEUECTL_TMPDIR"`)
			if !strings.HasPrefix(got, "700 daemon\n"+dir+"/") {
				t.Errorf("a job says %q, want a private directory in %s", got, dir)
			}
			lostJob := q.MustRunAs(testrig.DaemonUser, "enqueue", "--cwd", "/", "--on-lost", "dead",
				`touch "$QUEUECTL_TMPDIR/x"; echo up; exec sleep 300`)
			q.WaitUntil("the job to lose runs", 20*time.Second, func() bool {
				return strings.Contains(q.ShowJob(lostJob).Output, "up")
			})
			q.KillRunners()
			q.RunCLI("wait", lostJob)
			q.WaitUntil("the files of the killed runner are removed", 20*time.Second, func() bool {
				remaining := false
				filepath.WalkDir(dir, func(path string, _ fs.DirEntry, _ error) error {
					remaining = remaining || filepath.Base(path) == "x"
					return nil
				})
				return !remaining
			})
		})
	}
}
