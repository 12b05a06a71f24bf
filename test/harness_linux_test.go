package test

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
	extension      = "" // suffix of executable files
	exitCodeEnded  = -1 // the exit code of a job that was ended; -1 means that it has no exit code
	networkFinding = "is on NFS"
	socketName     = "queuectl.sock"
	mkdirCommand   = "mkdir -p" // the command with which messages advise to create a directory

	// On systems where starting a process is slow, tests divide their number of jobs by jobDivisor and
	// multiply their timeouts by timeoutFactor.
	jobDivisor, timeoutFactor = 1, 1

	treesOutliveRunners = true
	hasTerminals        = true  // the service can give jobs a terminal
	stopIsAnEvent       = false // a stop is requested by a signal and not recorded as an event
	dataSurvivesClose   = true  // the last data sent on a connection can be read after the peer has closed it
)

// The main thread runs only the main goroutine. Other threads may change their user (see connectAs). If the
// main thread changed its user, that user could signal the whole process.
func init() { runtime.LockOSThread() }

// startCommand starts a command. On Linux it does not retry.
func startCommand(cmd *exec.Cmd) error { return cmd.Start() }

// startFailed returns false, because starting a program does not fail now and then on Linux.
func startFailed(result) bool { return false }

// runRole runs this test binary in the role that its environment names. hasRole is false if it has
// none.
func runRole() (code int, hasRole bool) {
	if mountDir := os.Getenv(diskRole); mountDir != "" {
		if err := serveDisk(mountDir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1, true
		}
		return 0, true
	}
	if os.Getenv(abuserRole) != "" {
		return runAttacks(), true
	}
	if os.Getenv(callerRole) != "" {
		fmt.Fprintln(os.Stderr, unusualCaller())
		return 1, true
	}
	if os.Getenv("QUEUECTL_TEST_NC") != "" {
		return netcat(), true
	}
	return 0, false
}

// osSpecific holds the fields of queue that only this system needs.
type osSpecific struct {
	owner         *syscall.Credential // account of the service; nil means the account of this process
	controlSocket *os.File            // socket passed to the service; nil if the service creates its socket
	pageSockets   []*os.File          // sockets passed to the service for the web page
	// Directory of the runners that root starts; "" if the service starts its own runners.
	rootRunnerDir string
	// Command such as unshare that executes the command of the service; may be empty.
	commandPrefix []string
}

// attributes returns the process attributes of the service. Its process group receives no signals
// from the terminal.
func (h *osSpecific) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: h.owner}
}

// environment returns the environment of a user with the given home directory.
func environment(home string) []string {
	return []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
}

// serve returns the command of the service without starting it.
func (q *queue) serve(args []string) *exec.Cmd {
	argv := append(slices.Concat(q.commandPrefix, []string{q.bin}), args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	handed, names := slices.Clone(q.pageSockets), slices.Repeat([]string{"web"}, len(q.pageSockets))
	if q.controlSocket != nil {
		handed, names = append(handed, q.controlSocket), append(names, "queuectl.socket")
	}
	if len(handed) > 0 { // pass the sockets in the same way as systemd
		script := fmt.Sprintf(`LISTEN_FDS=%d LISTEN_FDNAMES=%s LISTEN_PID=$$ exec "$0" "$@"`,
			len(handed), strings.Join(names, ":"))
		cmd = exec.Command("/bin/sh", append([]string{"-c", script}, argv...)...)
		cmd.ExtraFiles = handed
	}
	cmd.SysProcAttr = q.attributes()
	return cmd
}

// shellCommand returns a shell that runs a line.
func shellCommand(text string) *exec.Cmd { return exec.Command("/bin/sh", "-c", text) }

// toolPath returns the command name with which a job starts a standard program, whatever its PATH contains.
func toolPath(name string) string { return name }

// tempDir creates a directory that other users cannot access. Its name is short because the length of a
// socket's path is limited.
func tempDir() (string, error) { return os.MkdirTemp("", "qt") }

// requestStop requests that the service stops.
func (q *queue) requestStop() { q.cmd.Process.Signal(syscall.SIGTERM) }

// kill kills a process.
func kill(pid int) { syscall.Kill(pid, syscall.SIGKILL) }

// terminateRunner requests that a runner ends itself and its jobs.
func terminateRunner(pid int) { syscall.Kill(pid, syscall.SIGTERM) }

// wasKilled reports whether a failpoint of the program killed it.
func wasKilled(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// runnerDir returns the directory of the queue's runners.
func (q *queue) runnerDir() string { return cmp.Or(q.rootRunnerDir, filepath.Join(q.dir, "runner")) }

// isRunner reports whether a process is a runner in the given directory.
func isRunner(pid int, dir string) bool {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.Contains(raw, []byte("\x00runner\x00")) && bytes.Contains(raw, []byte(filepath.Dir(dir)))
}

// dial connects to the service of a state directory.
func dial(dir string) (net.Conn, error) { return net.Dial("unix", filepath.Join(dir, socketName)) }

// listen listens at the address of the service of a state directory.
func listen(dir string) (net.Listener, error) {
	return net.Listen("unix", filepath.Join(dir, socketName))
}

// socketAddress returns the socket address that jobs get from the service.
func (q *queue) socketAddress() string { return q.path(socketName) }

// halfClose closes the sending direction of a connection. It returns false if that is not
// possible.
func halfClose(c net.Conn) bool { return c.(*net.UnixConn).CloseWrite() == nil }

// prefetchFailpoints names the failpoints that make a service prefetch jobs. prefetchTag is the build tag of
// a program with these failpoints. Both are empty here, because on Linux the service prefetches short jobs
// without them.
const prefetchFailpoints, prefetchTag = "", ""

// runnerHelper occurs in the command line of a runner's helper processes. It matches nothing here, because
// runners have no helper process on Linux.
const runnerHelper = "\x00"

// lockingCommand returns a shell command with which a job takes a lock. The lock is held until the job's last
// process has ended.
func lockingCommand(path string) string { return `exec 9>>"` + path + `"; flock -n 9` }

// isUnlocked reports whether no process holds the lock on a file.
func isUnlocked(t testing.TB, path string) bool {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
}

// isAlive reports whether a process is alive. A zombie is not.
func isAlive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, stat, _ := strings.Cut(string(raw), ") ")
	return err == nil && !strings.HasPrefix(stat, "Z") && !strings.HasPrefix(stat, "X")
}

// processesWithArg lists the processes whose command line contains a word.
func processesWithArg(arg string) (lines []string) {
	list, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range list {
		raw, _ := os.ReadFile(name)
		if bytes.Contains(raw, []byte(arg)) {
			lines = append(lines, strings.Split(name, "/")[2]+" "+strings.ReplaceAll(string(raw), "\x00", " "))
		}
	}
	return lines
}

// processesUsing maps the pids of the processes that have a directory in their command line or
// environment to their command lines. This process is not included.
func processesUsing(dir string) map[int]string {
	list := map[int]string{}
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		pid, _ := strconv.Atoi(filepath.Base(name))
		cmdline, _ := os.ReadFile(name + "/cmdline")
		env, _ := os.ReadFile(name + "/environ")
		if pid != os.Getpid() && bytes.Contains(append(cmdline, env...), []byte(dir)) && isAlive(pid) {
			list[pid] = strings.ReplaceAll(string(cmdline), "\x00", " ")
		}
	}
	return list
}

// peakMemory returns the highest resident memory of a process, in bytes.
func peakMemory(t testing.TB, pid int) int64 {
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

// copyDir copies the contents of a directory into another one.
func copyDir(src, dst string) error {
	out, err := exec.Command("cp", "-a", src+"/.", dst).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// setUpHome prepares the home of a script: it puts the program on the PATH.
func (s *shell) setUpHome(bin string) error {
	s.env = []string{"HOME=" + s.home, "PATH=" + s.home + "/bin:/usr/local/bin:/usr/bin:/bin", "TZ=UTC", "LANG=C.UTF-8"}
	return os.Symlink(bin, filepath.Join(s.home, "bin", "queuectl"))
}

// lineCommand returns a shell that runs a line of the script.
func (s *shell) lineCommand(line string) *exec.Cmd { return shellCommand(line) }

// platformLine returns a line of a script as a user of this system would type it.
func (s *shell) platformLine(line string) string { return line }

// unixOutput returns output in the form that it has on Unix.
func (s *shell) unixOutput(text string) string { return text }

// userName returns the name of the user who runs the tests.
func userName(t testing.TB) string {
	return strings.TrimSpace(runCommand(t, exec.Command("id", "-un")).out)
}

// runOnTerminal returns what a command shows on a terminal of the given width, and its exit code.
func runOnTerminal(t testing.TB, cmd *exec.Cmd, columns int) (text string, code int) {
	screen := newScreen(t, columns)
	cmd.Stdout, cmd.Stderr = screen.tty, screen.tty
	code = exitCodeOf(t, cmd)
	return screen.text(t), code
}

// isOwnerOnly reports whether only the owner of a file can access it.
func isOwnerOnly(info os.FileInfo) bool { return info.Mode().Perm() == 0o600 }

// install copies a program into the directory of the queue. A separate process writes the file. If this
// process wrote it, a child that is just being forked could still have the file open for writing, and the
// kernel would refuse to execute the program (ETXTBSY).
func (q *queue) install(from, name string) string {
	q.Helper()
	copyProgram(q, from, q.path(name))
	return q.path(name)
}

// copyProgram copies a program to a path and replaces the file there.
func copyProgram(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.Command("install", "-m", "755", from, to).CombinedOutput(); err != nil {
		t.Fatalf("install %s: %v\n%s", to, err, out)
	}
}
