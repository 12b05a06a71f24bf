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
	ExecutableSuffix      = ""          // suffix of executable files
	KilledJobExitCode     = -1          // exit code of a job that a signal ended; -1 means no exit code
	NetworkDirFindingText = "is on NFS" // part of the message of "queuectl doctor" about a directory on a network
	SocketName            = "queuectl.sock"
	MkdirCommand          = "mkdir -p" // command that messages recommend to create a directory

	// Starting a process is slow on some other systems. Tests divide their number of jobs by JobCountDivisor and
	// multiply their timeouts by TimeoutFactor.
	JobCountDivisor, TimeoutFactor = 1, 1

	JobsOutliveKilledRunners = true  // the process trees of jobs continue when their runner is killed
	JobsCanUseTerminals      = true  // the service can give jobs a terminal
	ServiceStopIsAudited     = false // a stop of the service leaves no audit event, because a signal requests it
	SentDataSurvivesClose    = true  // the last data sent on a connection can be read after the peer has closed it
)

// Keep the main goroutine on the main thread. Tests run code as another user on other threads (see ConnectAs).
// If a test changed the user of the main thread, that user could send signals to the whole process.
func init() { runtime.LockOSThread() }

// StartCommand starts a command. On Windows the start can fail under Wine, so that version retries.
func StartCommand(cmd *exec.Cmd) error { return cmd.Start() }

// startFailedTemporarily reports whether a program did not start for a reason that may be temporary. The caller then
// tries again. On Linux no such reason is known.
func startFailedTemporarily(CommandResult) bool { return false }

// osSpecificFields contains the fields of Queue that only Linux needs.
type osSpecificFields struct {
	ServiceCredential *syscall.Credential // account of the service; nil means the account of this process
	// socket that the test passes to the service; nil if the service creates its socket
	controlSocket  *os.File
	WebPageSockets []*os.File // sockets that the test passes to the service for the web page
	// RootRunnerDir is the directory of the runners that root starts, or "" if the service starts its own
	// runners.
	RootRunnerDir string
	// ServiceCommandPrefix is a command, such as unshare, that executes the command of the service. It may be empty.
	ServiceCommandPrefix []string
}

// serviceProcessAttributes returns the process attributes of the service. The service is in its own process
// group, so the terminal sends it no signals.
func (o *osSpecificFields) serviceProcessAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: o.ServiceCredential}
}

// UserEnvironment returns the environment of a user with the given home directory.
func UserEnvironment(homeDir string) []string {
	return []string{"HOME=" + homeDir, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
}

// ServiceCommand returns a command that runs the service with the given arguments.
func (q *Harness) ServiceCommand(args []string) *exec.Cmd {
	argv := append(slices.Concat(q.ServiceCommandPrefix, []string{q.ClientPath}), args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	handed, names := slices.Clone(q.WebPageSockets), slices.Repeat([]string{"web"}, len(q.WebPageSockets))
	if q.controlSocket != nil {
		handed, names = append(handed, q.controlSocket), append(names, "queuectl.socket")
	}
	if len(handed) > 0 { // pass the sockets as systemd does
		script := fmt.Sprintf(`LISTEN_FDS=%d LISTEN_FDNAMES=%s LISTEN_PID=$$ exec "$0" "$@"`,
			len(handed), strings.Join(names, ":"))
		cmd = exec.Command("/bin/sh", append([]string{"-c", script}, argv...)...)
		cmd.ExtraFiles = handed
	}
	cmd.SysProcAttr = q.serviceProcessAttributes()
	return cmd
}

// ShellCommand returns a command that runs a line in a shell.
func ShellCommand(line string) *exec.Cmd { return exec.Command("/bin/sh", "-c", line) }

// ToolPath returns a name by which a job can start a standard program. On Windows it returns a path.
func ToolPath(toolName string) string { return toolName }

// newPrivateTempDir creates a directory that other users cannot access. The name of the directory is short, because the
// path of a socket in it must not be too long.
func newPrivateTempDir() (string, error) { return os.MkdirTemp("", "qt") }

// RequestServiceStop asks the service to stop.
func (q *Harness) RequestServiceStop() { q.ServiceCmd.Process.Signal(syscall.SIGTERM) }

// KillProcess kills a process.
func KillProcess(pid int) { syscall.Kill(pid, syscall.SIGKILL) }

// terminateRunner asks a runner to end itself and its jobs.
func terminateRunner(pid int) { syscall.Kill(pid, syscall.SIGTERM) }

// wasKilledByFailpoint reports whether err, the error of an ended program, shows that a failpoint killed the program.
func wasKilledByFailpoint(err error) bool {
	var exitErr *exec.ExitError
	if !errors.As(err, &exitErr) {
		return false
	}
	status, ok := exitErr.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// RunnerDir returns the directory of the queue's runners.
func (q *Harness) RunnerDir() string {
	return cmp.Or(q.RootRunnerDir, filepath.Join(q.StateDir, "runner"))
}

// IsRunnerProcess reports whether a process is a runner with the given directory.
func IsRunnerProcess(pid int, runnerDir string) bool {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.Contains(raw, []byte("\x00runner\x00")) && bytes.Contains(raw, []byte(filepath.Dir(runnerDir)))
}

// DialService connects to the service that has the given state directory.
func DialService(stateDir string) (net.Conn, error) {
	return net.Dial("unix", filepath.Join(stateDir, SocketName))
}

// ListenAsService listens at the address at which the service with the given state directory would listen.
func ListenAsService(stateDir string) (net.Listener, error) {
	return net.Listen("unix", filepath.Join(stateDir, SocketName))
}

// SocketAddress returns the address of the service as it appears in the environment of jobs.
func (q *Harness) SocketAddress() string { return q.Path(SocketName) }

// HalfClose closes the sending direction of a connection. It returns false if the connection does
// not support that.
func HalfClose(c net.Conn) bool { return c.(*net.UnixConn).CloseWrite() == nil }

// PrefetchFailpoints lists failpoints with which a service prefetches every job: it sends jobs to a runner before a
// worker is free. PrefetchBuildTag is the build tag of a program with these failpoints. Both are empty on Linux,
// because there the service prefetches short jobs without failpoints.
const PrefetchFailpoints, PrefetchBuildTag = "", ""

// runnerHelperCommandText is a text that identifies a runner's helper process by its command line. On Linux runners
// have no helper process, so no command line contains this text.
const runnerHelperCommandText = "\x00"

// LockingCommand returns a shell command that takes a lock for a job. The lock is released when all processes
// of the job have ended. The command fails if the lock is taken.
func LockingCommand(lockPath string) string { return `exec 9>>"` + lockPath + `"; flock -n 9` }

// IsFileUnlocked reports whether no process holds the lock on a file.
func IsFileUnlocked(t testing.TB, path string) bool {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
}

// IsProcessAlive reports whether a process is alive. Zombies are not alive.
func IsProcessAlive(pid int) bool {
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

// ProcessesUsingDir returns the command line, by pid, of each other process whose command line or environment
// contains the path of a directory.
func ProcessesUsingDir(dir string) map[int]string {
	list := map[int]string{}
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		pid, _ := strconv.Atoi(filepath.Base(name))
		cmdline, _ := os.ReadFile(name + "/cmdline")
		env, _ := os.ReadFile(name + "/environ")
		if pid != os.Getpid() && bytes.Contains(append(cmdline, env...), []byte(dir)) && IsProcessAlive(pid) {
			list[pid] = strings.ReplaceAll(string(cmdline), "\x00", " ")
		}
	}
	return list
}

// PeakMemoryBytes returns the highest resident memory of a process since it started, in bytes.
func PeakMemoryBytes(t testing.TB, pid int) int64 {
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

// SetUpHome prepares the home directory of a script. It links the program at programPath into a directory that is in
// PATH.
func (s *ScriptShell) SetUpHome(programPath string) error {
	s.env = []string{"HOME=" + s.HomeDir, "PATH=" + s.HomeDir + "/bin:/usr/local/bin:/usr/bin:/bin", "TZ=UTC",
		"LANG=C.UTF-8"}
	return os.Symlink(programPath, filepath.Join(s.HomeDir, "bin", "queuectl"))
}

// scriptLineCommand returns a command that runs a line of the script in a shell.
func (s *ScriptShell) scriptLineCommand(line string) *exec.Cmd { return ShellCommand(line) }

// PlatformScriptLine converts a line of a script to the form for this system. Scripts are written for Unix.
func (s *ScriptShell) PlatformScriptLine(line string) string { return line }

// ToUnixOutput converts the output of a line to the form that it has on Unix, because the scripts contain that form.
func (s *ScriptShell) ToUnixOutput(text string) string { return text }

// CurrentUserName returns the name of the account that runs the tests.
func CurrentUserName(t testing.TB) string {
	return strings.TrimSpace(RunCommand(t, exec.Command("id", "-un")).Stdout)
}

// RunOnTerminal runs a command on a terminal of the given width. It returns the text that the terminal received
// and the exit code.
func RunOnTerminal(t testing.TB, cmd *exec.Cmd, columns int) (text string, exitCode int) {
	screen := NewPseudoTerminal(t, columns)
	cmd.Stdout, cmd.Stderr = screen.Tty, screen.Tty
	exitCode = RunForExitCode(t, cmd)
	return screen.WaitOutput(t), exitCode
}

// IsAccessibleOnlyByOwner reports whether only the owner of a file can access it.
func IsAccessibleOnlyByOwner(info os.FileInfo) bool { return info.Mode().Perm() == 0o600 }

// InstallProgram copies a program into the directory of the queue. A separate process writes the copy, for this reason:
// if this process wrote it, a concurrently forked child could inherit the descriptor that is open for writing. The
// kernel would then refuse to execute the program (ETXTBSY).
func (q *Harness) InstallProgram(sourcePath, fileName string) string {
	q.Helper()
	CopyProgram(q, sourcePath, q.Path(fileName))
	return q.Path(fileName)
}

// CopyProgram copies a program to a path and replaces the file there.
func CopyProgram(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.Command("install", "-m", "755", from, to).CombinedOutput(); err != nil {
		t.Fatalf("install %s: %v\n%s", to, err, out)
	}
}

// WriteProgram writes a script to a path as a program. Like InstallProgram, it lets a separate process write the file.
func WriteProgram(t testing.TB, path, script string) {
	t.Helper()
	if err := os.WriteFile(path+".source", []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	CopyProgram(t, path+".source", path)
}

// waitForFileLock waits until it can lock a file.
func waitForFileLock(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != syscall.EINTR {
			return err
		}
	}
}
