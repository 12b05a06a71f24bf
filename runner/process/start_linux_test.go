package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner/runas"
)

// testCookieCount counts the commands of the tests, so that each command gets a unique cookie.
var testCookieCount atomic.Int64

// newTestCommand returns a command with defaults for tests.
func newTestCommand(t *testing.T, argv ...string) *Command {
	t.Helper()
	dir := t.TempDir()
	return &Command{
		Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}, WorkingDir: "/", Umask: 0o022,
		LeftoverGracePeriod: 50 * time.Millisecond, KillAfter: time.Second, SigkillTimeout: 10 * time.Second,
		Timeout:   20 * time.Second,
		Cookie:    fmt.Sprintf("test.%d.%d", os.Getpid(), testCookieCount.Add(1)),
		OutputLog: output.NewLog(1<<20, func() (*os.File, error) { return os.CreateTemp(dir, "log") }),
		OnStarted: func(int, time.Time) {}, OnForked: func(int, time.Time) {},
	}
}

// output returns what a command has printed.
func (c *Command) output(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	chunks, _, _, err := c.OutputLog.Read(output.StreamCursor{}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, chunk := range chunks {
		text.Write(chunk.Data)
	}
	return text.String()
}

// copyWithFileLease copies a program, and takes a file lease (fcntl(2)) on the copy. Until the test ends,
// the copy cannot be opened.
func copyWithFileLease(t *testing.T, program string) (path string) {
	t.Helper()
	raw, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "leased")
	if err := os.WriteFile(path, raw, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatalf("take a lease: %v", err)
	}
	return path
}

// An error about a file that a command names is never a resource shortage, because a user's file system can return any
// error number. If the file is missing or is not a regular file, the error is permanent.
func TestUnusableFileIsNotResourceShortage(t *testing.T) {
	for _, c := range []struct {
		name      string
		set       func(c *Command)
		code      int64
		wantErr   string
		permanent bool // another attempt would fail in the same way
	}{
		{"a leased input", func(c *Command) { c.StdinFile = copyWithFileLease(t, "/bin/true") }, 126,
			"stdin_file: open ", false},
		{"no input", func(c *Command) { c.StdinFile = "/no/such/file" }, 126, "stdin_file: open /no/such/file", true},
		{"a directory as input", func(c *Command) { c.StdinFile = "/etc" }, 126, "stdin_file: /etc is not", true},
		{"no secret", func(c *Command) { c.Secrets = []Secret{{EnvVarName: "A", FilePath: "/no/such/file"}} }, 126,
			"env_secret A: open", true},
		{"a secret with NUL", func(c *Command) { c.Secrets = []Secret{{EnvVarName: "A", Value: []byte{0}}} }, 126,
			"env_secret A: the value contains a NUL", true},
		{"no program", func(c *Command) { c.Argv[0] = "/no/such/program" }, 127,
			"cannot start /no/such/program: no such file", true},
		{"no program, limited", func(c *Command) { c.Argv[0], c.MaxOpenFiles = "/no/such/program", 100 }, 127,
			"cannot start /no/such/program: no such file", true},
		{"no program in PATH", func(c *Command) { c.Argv[0] = "no-such-program" }, 127, "cannot start no-such-program: ",
			true},
		{"a directory as program", func(c *Command) { c.Argv[0] = "/etc" }, 126, "cannot start /etc: permission denied",
			true},
		{"no directory", func(c *Command) { c.WorkingDir = "/no/such/dir" }, 126, "cwd: stat /no/such/dir", true},
	} {
		w := NewWorker(nil)
		command := newTestCommand(t, "/bin/true")
		c.set(command)
		r := w.Run(command)
		if r.ExitCode != c.code || r.ResourceShortage || r.StartFailedPermanently != c.permanent ||
			!strings.HasPrefix(r.Error, c.wantErr) {
			t.Errorf("%s: got %+v, want exit code %d, %q and lasting %v", c.name, r, c.code, c.wantErr, c.permanent)
		}
		w.Close()
	}
}

// If an account has reached its limit of processes, the kernel refuses to start its program. This is not a resource
// shortage of this process.
func TestAccountProcessLimitIsNotAShortage(t *testing.T) {
	skip.UnlessRoot(t, "needs root to act as another user; "+
		".ci/run runs it as root, and TestUnstartableJobUsesAttempts has the same refusal")
	other := exec.Command("/bin/cat") // with this process, the account exceeds the limit of 0 that is set below
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 2, Gid: 2}}
	if _, err := other.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	w := NewWorker(nil)
	defer w.Close()
	setSoftLimit(t, unix.RLIMIT_NPROC, 0)
	c := newTestCommand(t, "/bin/true")
	c.RunAs = &runas.Identity{UID: 2, GID: 2, Groups: []uint32{2}}
	if r := w.Run(c); r.ExitCode != 126 || r.ResourceShortage ||
		!strings.Contains(r.Error, "resource temporarily unavailable") {
		t.Errorf("got %+v, want exit code 126", r)
	}
}

// setSoftLimit sets a soft limit of this process. The function restore sets the previous limit again. The end of the
// test does so too, if restore was not called.
func setSoftLimit(t *testing.T, resource int, softLimit uint64) (restore func()) {
	t.Helper()
	var oldLimit unix.Rlimit
	if err := unix.Getrlimit(resource, &oldLimit); err != nil {
		t.Fatal(err)
	}
	set := func(l unix.Rlimit) {
		if err := unix.Prlimit(0, resource, &l, nil); err != nil {
			t.Error(err)
		}
	}
	set(unix.Rlimit{Cur: softLimit, Max: oldLimit.Max})
	t.Cleanup(func() { set(oldLimit) })
	return func() { set(oldLimit) }
}

// If this process has no file descriptors left, a start fails as a shortage. It does not matter whether a
// pipe or an input file needs the descriptor.
func TestLackOfDescriptorsIsShortage(t *testing.T) {
	input := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(input, []byte("fed"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"", input} {
		w := NewWorker(nil)
		c := newTestCommand(t, "/bin/cat")
		if r := w.Run(c); r.ExitCode != 0 {
			t.Fatalf("before the limit, the result is %+v, want exit code 0", r)
		}
		free, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(free)
		restore := setSoftLimit(t, unix.RLIMIT_NOFILE, uint64(free))
		c = newTestCommand(t, "/bin/cat")
		c.StdinFile = file
		r := w.Run(c)
		restore()
		if !r.ResourceShortage || r.ExitCode != -1 || !strings.Contains(r.Error, "too many open files") {
			t.Errorf("stdin_file %q: got %+v, want a shortage", file, r)
		}
		c = newTestCommand(t, "/bin/cat")
		c.StdinFile = input
		if r := w.Run(c); r.ExitCode != 0 || c.output(t) != "fed" {
			t.Errorf("after the limit is removed, the result is %+v, output %q", r, c.output(t))
		}
		w.Close()
	}
}
