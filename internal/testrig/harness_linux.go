package testrig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const (
	Extension      = ""          // suffix of executable files
	ExitCodeEnded  = -1          // exit code of a job that a signal ended; -1 means no exit code
	NetworkFinding = "is on NFS" // text of the finding of "queuectl doctor" about a directory on a network
	SocketName     = "queuectl.sock"
	MkdirCommand   = "mkdir -p" // command that messages recommend to create a directory

	// Starting a process is slow on some other systems. Tests divide their number of jobs by JobDivisor and
	// multiply their timeouts by TimeoutFactor.
	JobDivisor, TimeoutFactor = 1, 1

	TreesOutliveRunners = true  // the process trees of jobs continue when their runner is killed
	HasTerminals        = true  // the service can give jobs a terminal
	AuditsStop          = false // a stop of the service leaves no audit event, because a signal requests it
	DataSurvivesClose   = true  // the last data sent on a connection can be read after the peer has closed it
)

// Keep the main goroutine on the main thread. Tests run code as another user on other threads (see ConnectAs).
// If a test changed the user of the main thread, that user could send signals to the whole process.
func init() { runtime.LockOSThread() }

// StartCommand starts a command. On Windows the start can fail under Wine, so that version retries.
func StartCommand(cmd *exec.Cmd) error { return cmd.Start() }

// startFailed reports whether a program did not start for a reason that may disappear, so that a retry makes
// sense. On Linux no such reason is known.
func startFailed(Result) bool { return false }

// osSpecific contains the fields of Queue that only Linux needs.
type osSpecific struct {
	Owner         *syscall.Credential // account of the service; nil means that of this process
	controlSocket *os.File            // socket that the test passes to the service; nil if the service creates its socket
	PageSockets   []*os.File          // sockets that the test passes to the service for the web page
	// RootRunnerDir is the directory of the runners that root starts, or "" if the service starts its own
	// runners.
	RootRunnerDir string
	// CommandPrefix is a command, such as unshare, that executes the command of the service. It may be empty.
	CommandPrefix []string
}

// attributes returns the process attributes of the service. The service is in its own process
// group, so the terminal sends it no signals.
func (o *osSpecific) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: o.Owner}
}

// Environment returns the environment of a user with the given home directory.
func Environment(home string) []string {
	return []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
}

// ServiceCommand returns a command that runs the service with the given arguments.
func (q *Queue) ServiceCommand(args []string) *exec.Cmd {
	argv := append(slices.Concat(q.CommandPrefix, []string{q.Bin}), args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	handed, names := slices.Clone(q.PageSockets), slices.Repeat([]string{"web"}, len(q.PageSockets))
	if q.controlSocket != nil {
		handed, names = append(handed, q.controlSocket), append(names, "queuectl.socket")
	}
	if len(handed) > 0 { // pass the sockets as systemd does
		script := fmt.Sprintf(`LISTEN_FDS=%d LISTEN_FDNAMES=%s LISTEN_PID=$$ exec "$0" "$@"`,
			len(handed), strings.Join(names, ":"))
		cmd = exec.Command("/bin/sh", append([]string{"-c", script}, argv...)...)
		cmd.ExtraFiles = handed
	}
	cmd.SysProcAttr = q.attributes()
	return cmd
}

// ShellCommand returns a command that runs a line in a shell.
func ShellCommand(text string) *exec.Cmd { return exec.Command("/bin/sh", "-c", text) }

// ToolPath returns a name by which a job can start a standard program. On Windows it returns a path.
func ToolPath(name string) string { return name }

// tempDir creates a directory that other users cannot access. Its name is short, because the length
// of a socket's path is limited.
func tempDir() (string, error) { return os.MkdirTemp("", "qt") }

// RequestStop asks the service to stop.
func (q *Queue) RequestStop() { q.Cmd.Process.Signal(syscall.SIGTERM) }

// Kill kills a process.
func Kill(pid int) { syscall.Kill(pid, syscall.SIGKILL) }

// terminateRunner asks a runner to end itself and its jobs.
func terminateRunner(pid int) { syscall.Kill(pid, syscall.SIGTERM) }

// wasKilled reports whether err, the error of an ended program, shows that a failpoint killed the program.
func wasKilled(err error) bool {
	var exitErr *exec.ExitError
	if !errors.As(err, &exitErr) {
		return false
	}
	status, ok := exitErr.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// RunnerDir returns the directory of the queue's runners.
func (q *Queue) RunnerDir() string { return cmp.Or(q.RootRunnerDir, filepath.Join(q.Dir, "runner")) }

// IsRunner reports whether a process is a runner with the given directory.
func IsRunner(pid int, dir string) bool {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.Contains(raw, []byte("\x00runner\x00")) && bytes.Contains(raw, []byte(filepath.Dir(dir)))
}

// Dial connects to the service that has the given state directory.
func Dial(dir string) (net.Conn, error) { return net.Dial("unix", filepath.Join(dir, SocketName)) }

// Listen listens at the address at which the service with the given state directory would listen.
func Listen(dir string) (net.Listener, error) {
	return net.Listen("unix", filepath.Join(dir, SocketName))
}

// SocketAddress returns the address of the service as it appears in the environment of jobs.
func (q *Queue) SocketAddress() string { return q.Path(SocketName) }

// HalfClose closes the sending direction of a connection. It returns false if the connection does
// not support that.
func HalfClose(c net.Conn) bool { return c.(*net.UnixConn).CloseWrite() == nil }

// PrefetchFailpoints are the failpoints that make a service prefetch every job: it sends jobs to a runner
// before a worker is free. PrefetchTag is the build tag of a program with these failpoints. Both are empty on
// Linux, because there the service prefetches short jobs anyway.
const PrefetchFailpoints, PrefetchTag = "", ""

// runnerHelper is a text in the command line of the process that helps a runner. On Linux a runner has no such
// process, so no command line contains this text.
const runnerHelper = "\x00"

// LockingCommand returns a shell command that takes a lock for a job. The lock is released when all processes
// of the job have ended. The command fails if the lock is taken.
func LockingCommand(path string) string { return `exec 9>>"` + path + `"; flock -n 9` }

// IsUnlocked reports whether no process holds the lock on a file.
func IsUnlocked(t testing.TB, path string) bool {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
}

// IsAlive reports whether a process is alive. Zombies are not alive.
func IsAlive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, stat, _ := strings.Cut(string(raw), ") ")
	return err == nil && !strings.HasPrefix(stat, "Z") && !strings.HasPrefix(stat, "X")
}

// ProcessesWithArg lists the processes whose command line contains a text. Each line begins with the pid.
func ProcessesWithArg(arg string) (lines []string) {
	list, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range list {
		raw, _ := os.ReadFile(name)
		if bytes.Contains(raw, []byte(arg)) {
			lines = append(lines, strings.Split(name, "/")[2]+" "+strings.ReplaceAll(string(raw), "\x00", " "))
		}
	}
	return lines
}

// ProcessesUsing returns the command line, by pid, of each other process whose command line or environment
// contains the path of a directory.
func ProcessesUsing(dir string) map[int]string {
	list := map[int]string{}
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		pid, _ := strconv.Atoi(filepath.Base(name))
		cmdline, _ := os.ReadFile(name + "/cmdline")
		env, _ := os.ReadFile(name + "/environ")
		if pid != os.Getpid() && bytes.Contains(append(cmdline, env...), []byte(dir)) && IsAlive(pid) {
			list[pid] = strings.ReplaceAll(string(cmdline), "\x00", " ")
		}
	}
	return list
}

// PeakMemory returns the highest resident memory that a process has had, in bytes.
func PeakMemory(t testing.TB, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var kib int64
	for line := range strings.Lines(string(raw)) {
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// CopyDir copies the contents of a directory into another one.
func CopyDir(src, dst string) error {
	out, err := exec.Command("cp", "-a", src+"/.", dst).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// SetUpHome prepares the home directory of a script. It links the program bin into a directory that is in PATH.
func (s *Shell) SetUpHome(bin string) error {
	s.env = []string{"HOME=" + s.Home, "PATH=" + s.Home + "/bin:/usr/local/bin:/usr/bin:/bin", "TZ=UTC", "LANG=C.UTF-8"}
	return os.Symlink(bin, filepath.Join(s.Home, "bin", "queuectl"))
}

// lineCommand returns a command that runs a line of the script in a shell.
func (s *Shell) lineCommand(line string) *exec.Cmd { return ShellCommand(line) }

// PlatformLine returns a line of a script in the form for this system. The scripts contain the Unix form.
func (s *Shell) PlatformLine(line string) string { return line }

// UnixOutput converts the output of a line to the form that it has on Unix. The scripts contain that form.
func (s *Shell) UnixOutput(text string) string { return text }

// UserName returns the name of the account that runs the tests.
func UserName(t testing.TB) string {
	return strings.TrimSpace(RunCommand(t, exec.Command("id", "-un")).Stdout)
}

// RunOnTerminal runs a command on a terminal of the given width. It returns the text that the terminal received
// and the exit code.
func RunOnTerminal(t testing.TB, cmd *exec.Cmd, columns int) (text string, code int) {
	screen := NewScreen(t, columns)
	cmd.Stdout, cmd.Stderr = screen.Tty, screen.Tty
	code = ExitCodeOf(t, cmd)
	return screen.Text(t), code
}

// IsOwnerOnly reports whether only the owner of a file can access it.
func IsOwnerOnly(info os.FileInfo) bool { return info.Mode().Perm() == 0o600 }

// Install copies a program into the directory of the queue. A separate process writes the copy. If this process
// wrote it, a child that has just been forked could still have the file open for writing. The kernel would then
// refuse to execute the program (ETXTBSY).
func (q *Queue) Install(sourcePath, name string) string {
	q.Helper()
	CopyProgram(q, sourcePath, q.Path(name))
	return q.Path(name)
}

// CopyProgram copies a program to a path and replaces the file there.
func CopyProgram(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.Command("install", "-m", "755", from, to).CombinedOutput(); err != nil {
		t.Fatalf("install %s: %v\n%s", to, err, out)
	}
}

// awaitLock waits until it can lock a file.
func awaitLock(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != syscall.EINTR {
			return err
		}
	}
}
