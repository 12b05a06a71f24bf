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
	Extension      = "" // suffix of executable files
	ExitCodeEnded  = -1 // exit code of a job that was ended; -1 means no exit code
	NetworkFinding = "is on NFS"
	SocketName     = "queuectl.sock"
	MkdirCommand   = "mkdir -p" // command that messages recommend to create a directory

	// Starting a process is slow on some systems. There, tests divide their number of jobs by
	// JobDivisor and multiply their timeouts by TimeoutFactor.
	JobDivisor, TimeoutFactor = 1, 1

	TreesOutliveRunners = true
	HasTerminals        = true  // the service can give jobs a terminal
	AuditsStop          = false // no audit event records a stop, because a signal requests it
	DataSurvivesClose   = true  // the last data sent on a connection can be read after the peer has closed it
)

// Only the main goroutine runs on the main thread. Tests change the user of other threads (see
// ConnectAs). If a test changed the user of the main thread, that user could signal the whole process.
func init() { runtime.LockOSThread() }

// StartCommand starts a command. On Linux it does not need to retry.
func StartCommand(cmd *exec.Cmd) error { return cmd.Start() }

// startFailed returns false, because on Linux the start of a program does not fail occasionally.
func startFailed(Result) bool { return false }

// osSpecific contains the fields of Queue that only this operating system needs.
type osSpecific struct {
	Owner         *syscall.Credential // account of the service; nil means the account of this process
	controlSocket *os.File            // socket passed to the service; nil if the service creates its socket
	PageSockets   []*os.File          // sockets passed to the service for the web page
	// RootRunnerDir is the directory of the runners that root starts. It is "" if the service
	// starts its own runners.
	RootRunnerDir string
	// CommandPrefix is a command such as unshare that executes the command of the service. It may
	// be empty.
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

// Serve returns the command of the service without starting it.
func (q *Queue) Serve(args []string) *exec.Cmd {
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

// ToolPath returns the command name with which a job starts a standard program, whatever its PATH contains.
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

// wasKilled reports whether a failpoint killed the program that ended with err.
func wasKilled(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// RunnerDir returns the directory of the queue's runners.
func (q *Queue) RunnerDir() string { return cmp.Or(q.RootRunnerDir, filepath.Join(q.Dir, "runner")) }

// IsRunner reports whether a process is a runner in the given directory.
func IsRunner(pid int, dir string) bool {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.Contains(raw, []byte("\x00runner\x00")) && bytes.Contains(raw, []byte(filepath.Dir(dir)))
}

// Dial connects to the service of a state directory.
func Dial(dir string) (net.Conn, error) { return net.Dial("unix", filepath.Join(dir, SocketName)) }

// Listen listens at the address of the service of a state directory.
func Listen(dir string) (net.Listener, error) {
	return net.Listen("unix", filepath.Join(dir, SocketName))
}

// SocketAddress returns the address of the service that jobs get in their environment.
func (q *Queue) SocketAddress() string { return q.Path(SocketName) }

// HalfClose closes the sending direction of a connection. It returns false if the connection does
// not support that.
func HalfClose(c net.Conn) bool { return c.(*net.UnixConn).CloseWrite() == nil }

// PrefetchFailpoints contains the failpoints that make a service prefetch jobs. PrefetchTag is the
// build tag of a program with these failpoints. Both are empty, because on Linux the service prefetches
// short jobs without failpoints.
const PrefetchFailpoints, PrefetchTag = "", ""

// runnerHelper is a text in the command lines of a runner's helper processes. On Linux runners have no
// helper processes, so the text matches no command line.
const runnerHelper = "\x00"

// LockingCommand returns a shell command with which a job takes a lock. The lock is released when all
// processes of the job have ended.
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

// ProcessesWithArg lists the processes whose command line contains a word.
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

// ProcessesUsing returns the processes that have a directory in their command line or environment, as
// command lines by pid. It omits this process.
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

// PeakMemory returns the highest resident memory of a process, in bytes.
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

// SetUpHome prepares the home directory of a script: it puts the program on the PATH.
func (s *Shell) SetUpHome(bin string) error {
	s.env = []string{"HOME=" + s.Home, "PATH=" + s.Home + "/bin:/usr/local/bin:/usr/bin:/bin", "TZ=UTC", "LANG=C.UTF-8"}
	return os.Symlink(bin, filepath.Join(s.Home, "bin", "queuectl"))
}

// lineCommand returns a command that runs a line of the script in a shell.
func (s *Shell) lineCommand(line string) *exec.Cmd { return ShellCommand(line) }

// PlatformLine returns a line of a script in the form in which a user of this system types it.
func (s *Shell) PlatformLine(line string) string { return line }

// UnixOutput returns output in the form that it has on Unix.
func (s *Shell) UnixOutput(text string) string { return text }

// UserName returns the name of the account that runs the tests.
func UserName(t testing.TB) string {
	return strings.TrimSpace(RunCommand(t, exec.Command("id", "-un")).Stdout)
}

// RunOnTerminal runs a command on a terminal of the given width. It returns the text on the
// terminal and the exit code.
func RunOnTerminal(t testing.TB, cmd *exec.Cmd, columns int) (text string, code int) {
	screen := NewScreen(t, columns)
	cmd.Stdout, cmd.Stderr = screen.Tty, screen.Tty
	code = ExitCodeOf(t, cmd)
	return screen.Text(t), code
}

// IsOwnerOnly reports whether only the owner of a file can access it.
func IsOwnerOnly(info os.FileInfo) bool { return info.Mode().Perm() == 0o600 }

// Install copies a program into the directory of the queue. A separate process writes the copy. If this
// process wrote it, a child that is being forked could still have the file open for writing, and the
// kernel would refuse to execute the program (ETXTBSY).
func (q *Queue) Install(from, name string) string {
	q.Helper()
	CopyProgram(q, from, q.Path(name))
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
