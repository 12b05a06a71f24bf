package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/runas"
)

// runOnNewWorker runs a command on a new worker and returns its output.
func runOnNewWorker(t *testing.T, c *Command) (Result, string) {
	t.Helper()
	w := NewWorker(nil)
	defer w.Close()
	r := w.Run(c)
	return r, strings.TrimSpace(c.output(t))
}

// A command's limits apply from its first instruction. Everything else is the same as without limits: the
// process, its arguments, environment, directory, umask, input and descriptors.
func TestLimitsApplyFromFirstInstruction(t *testing.T) {
	hard := unix.Rlimit{}
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &hard); err != nil {
		t.Fatal(err)
	}
	const printState = `echo $$ $0 "$@"; pwd; umask; env | sort | grep -v ^_ ; cat; ls /proc/self/fd | wc -l; ps -o sid= -o pgid= -p $$ | xargs`
	runWithLimit := func(set func(c *Command)) string {
		c := newTestCommand(t, "/bin/sh", "-c", printState, "name", "a b", "", "ü")
		c.Env, c.WorkingDir, c.Umask, c.Stdin = []string{"PATH=/usr/bin:/bin", "A=x=y", "EMPTY="}, "/usr", 0o027, "text\n"
		set(c)
		pid := 0
		c.OnForked = func(p int, _ time.Time) { pid = p }
		r, stdout := runOnNewWorker(t, c)
		if r.ExitCode != 0 || r.PID != pid {
			t.Errorf("the result is %+v, but OnForked got the pid %d", r, pid)
		}
		return strings.ReplaceAll(strings.ReplaceAll(stdout, fmt.Sprint(pid), "PID"), c.Cookie, "COOKIE")
	}
	want := runWithLimit(func(*Command) {})
	for name, set := range map[string]func(*Command){
		"memory": func(c *Command) { c.Limits.MemoryBytes = 1 << 30 },
		"nice":   func(c *Command) { c.Nice = 3 },
		"nofile": func(c *Command) { c.MaxOpenFiles = 77 },
		"no new": func(c *Command) { c.NoNewPrivileges = true },
	} {
		if got := runWithLimit(set); got != want {
			t.Errorf("with the limit %s, the command printed\n%s\nwant\n%s", name, got, want)
		}
	}
	priority, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	nice := 20 - priority // the system call returns 20 minus the nice value
	for _, c := range []struct {
		set  func(*Command)
		want string
	}{
		{func(c *Command) { c.Limits.MemoryBytes = 256 << 20 }, fmt.Sprintf("262144 262144 %d %d", min(softOpenFileLimit,
			hard.Max), nice)},
		{func(c *Command) { c.MaxOpenFiles = 77 }, fmt.Sprintf("unlimited unlimited 77 %d", nice)},
		{func(c *Command) { c.Nice = 7 }, fmt.Sprintf("unlimited unlimited %d 7", min(softOpenFileLimit, hard.Max))},
	} {
		cmd := newTestCommand(t, "/bin/sh", "-c", "echo $(ulimit -v) $(ulimit -Hv) $(ulimit -n) $(nice)")
		c.set(cmd)
		if r, stdout := runOnNewWorker(t, cmd); r.ExitCode != 0 || stdout != c.want {
			t.Errorf("the command printed %q, want %q; the result is %+v", stdout, c.want, r)
		}
	}
}

// A setuid program normally gets the rights of its owner. If no_new_privileges is set, it does not.
func TestNoNewPrivilegesBlocksSetuid(t *testing.T) {
	cat := newTestCommand(t, "/bin/sh", "-c", "grep NoNewPrivs /proc/self/status")
	cat.NoNewPrivileges = true
	if r, stdout := runOnNewWorker(t, cat); r.ExitCode != 0 || stdout != "NoNewPrivs:\t1" {
		t.Errorf("the command printed %q, want NoNewPrivs: 1; the result is %+v", stdout, r)
	}
	if os.Geteuid() != 0 {
		return // only root can create a program that belongs to another account
	}
	dir, err := os.MkdirTemp("", "") // unlike t.TempDir, below a directory that other accounts can enter
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	id, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "id")
	if err := errors.Join(os.WriteFile(path, id, 0o755), os.Chmod(path, 0o755|os.ModeSetuid),
		os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	for want, no := range map[string]bool{"0": false, "65534": true} {
		c := newTestCommand(t, path, "-u")
		c.RunAs, c.NoNewPrivileges = &runas.Identity{UID: 65534, GID: 65534}, no
		if r, stdout := runOnNewWorker(t, c); r.ExitCode != 0 || stdout != want {
			t.Errorf("no new privileges is %v: runs as %q, %+v", no, stdout, r)
		}
	}
}

// If a program cannot start, the error is the same with and without limits. If the kernel refuses to set a
// limit, the error names the job setting of this limit.
func TestLimitedStartReportsSameError(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	odd := filepath.Join(dir, "odd")
	if err := os.WriteFile(odd, []byte("\x00no text"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{{"/no/such"}, {"no-such"}, {plain}, {odd}, {"/bin"}} {
		unlimited, _ := runOnNewWorker(t, newTestCommand(t, argv...))
		c := newTestCommand(t, argv...)
		c.Limits.MemoryBytes, c.Nice, c.MaxOpenFiles = 1<<30, 1, 99
		limited, stdout := runOnNewWorker(t, c)
		if limited.ExitCode != unlimited.ExitCode || limited.Error != unlimited.Error ||
			limited.ResourceShortage || limited.StartHung || stdout != "" {
			t.Errorf("%s: with limits the result is %+v, output %q\nwithout limits it is %+v",
				argv, limited, stdout, unlimited)
		}
	}
	c := newTestCommand(t, "/bin/true")
	c.Limits.MemoryBytes, c.WorkingDir = 1<<30, "/no/such/directory"
	if r, _ := runOnNewWorker(t, c); r.ExitCode != 126 || !strings.HasPrefix(r.Error, "cwd: ") {
		t.Errorf("the result is %+v, want an error about cwd", r)
	}
	var hard unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &hard); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // root may exceed the limits, so this part runs as another account
		for field, set := range map[string]func(*Command){
			"nice":   func(c *Command) { c.Nice = -5 },
			"nofile": func(c *Command) { c.MaxOpenFiles = int(min(hard.Max, 1<<62)) + 1 },
		} {
			c := newTestCommand(t, "/bin/true")
			c.RunAs = &runas.Identity{UID: 65534, GID: 65534}
			set(c)
			r, _ := runOnNewWorker(t, c)
			if r.ExitCode != 126 || !strings.HasPrefix(r.Error, field+": ") || !strings.Contains(r.Error, "raise") {
				t.Errorf("limit %s: the result is %+v, want an error that names the limit and says to raise it",
					field, r)
			}
		}
	}
	c = newTestCommand(t, "/bin/true")
	c.Limits.MemoryBytes = 64 << 10
	if r, _ := runOnNewWorker(t, c); r.ExitCode == 0 || r.ResourceShortage {
		t.Errorf("next to no memory: %+v", r)
	}
}

// If a limiter is killed or hangs before it has executed the command's program, the result has StartHung set. If its
// exec request is damaged, the limiter refuses the request.
func TestEndedLimiterCountsAsHungStart(t *testing.T) {
	c := newTestCommand(t, copyWithFileLease(t, "/bin/true"))
	c.Limits.MemoryBytes = 1 << 30
	c.OnForked = func(pid int, _ time.Time) {
		go func() { // this goroutine ends when the limiter has set its name
			for name := ""; !strings.HasPrefix(name, limiterNamePrefix); {
				raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
				name = string(raw)
			}
			unix.Kill(pid, unix.SIGKILL)
		}()
	}
	if r, _ := runOnNewWorker(t, c); !r.StartHung || r.ExitCode != 126 ||
		!strings.Contains(r.Error, "before it could run the program") {
		t.Errorf("a killed limiter: the result is %+v, want a hung start", r)
	}
	c = newTestCommand(t, copyWithFileLease(t, "/bin/true"))
	c.Nice = 1
	w := NewWorker(nil)
	defer w.Close()
	w.limiterTimeout = 300 * time.Millisecond
	if r := w.Run(c); !r.StartHung || r.ExitCode != 126 || !strings.Contains(r.Error, "it did not start within 300ms") {
		t.Errorf("a limiter that hangs: the result is %+v, want a hung start", r)
	}
	if _, err := decodeExecRequest(make([]byte, 48)); !errors.Is(err, errInvalidExecRequest) {
		t.Errorf("a damaged order: %v", err)
	}
}

// A program may have a process name like that of a limiter. If a signal ends such a program, the result does
// not have StartHung set.
func TestProgramNamedLikeLimiterCountsAsStarted(t *testing.T) {
	for _, name := range []string{"queuectl:limits", "queuectl:"} {
		path := filepath.Join(t.TempDir(), name)
		sh, err := os.ReadFile("/bin/sh")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, sh, 0o755); err != nil {
			t.Fatal(err)
		}
		c := newTestCommand(t, path, "-c", "cat /proc/$$/comm; kill -KILL $$")
		c.Nice = 1
		if r, stdout := runOnNewWorker(t, c); r.StartHung || r.Signal != int(unix.SIGKILL) || stdout != name {
			t.Errorf("a program named %s: the result is %+v, output %q; want signal 9 and no hung start", name, r, stdout)
		}
	}
}
