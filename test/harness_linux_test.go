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
	extension  = "" // of a program's file
	cutOff     = -1 // the exit code of a job that is ended: it has none
	network    = "is on NFS"
	socketName = "queuectl.sock"
	makeFolder = "mkdir -p" // as people are told to

	// Where it takes long to start a process there are fewer jobs, by this factor, and
	// more patience.
	fewer, patience = 1, 1

	treesOutliveRunners = true
	terminals           = true  // of jobs, given by the service
	stopIsAnEvent       = false // it is a signal
	lastWordsLast       = true  // what was said on a connection can be read when it was closed
)

// The main thread is the main goroutine's alone: others become another user's (see
// connectAs), and the process would be that user's to stop.
func init() { runtime.LockOSThread() }

// begin starts a command, which here starts at the first time or not at all.
func begin(cmd *exec.Cmd) error { return cmd.Start() }

// neverBegan is for systems that fail to start programs now and then.
func neverBegan(result) bool { return false }

// role plays what this program is started as, if it is no test.
func role() (code int, played bool) {
	if folder := os.Getenv(diskRole); folder != "" {
		if err := serveDisk(folder); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1, true
		}
		return 0, true
	}
	if os.Getenv(abuserRole) != "" {
		return abuse(), true
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

// host is what a queue may have on this system alone.
type host struct {
	owner  *syscall.Credential // the service's account; nil is the account of this process
	door   *os.File            // the service's socket; nil if the service makes it
	pages  []*os.File          // sockets of the page
	roots  string              // directory of root's runners; "" if the service has its own runners
	prefix []string            // the command that runs the service's command, such as unshare; empty if none does
}

// attributes are those of the service's process, which no key reaches.
func (h *host) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: h.owner}
}

// environment is that of a user whose home is a folder.
func environment(home string) []string {
	return []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
}

// serve is the service, not started yet.
func (q *queue) serve(args []string) *exec.Cmd {
	words := append(slices.Concat(q.prefix, []string{q.bin}), args...)
	cmd := exec.Command(words[0], words[1:]...)
	handed, names := slices.Clone(q.pages), slices.Repeat([]string{"web"}, len(q.pages))
	if q.door != nil {
		handed, names = append(handed, q.door), append(names, "queuectl.socket")
	}
	if len(handed) > 0 { // as systemd does
		script := fmt.Sprintf(`LISTEN_FDS=%d LISTEN_FDNAMES=%s LISTEN_PID=$$ exec "$0" "$@"`,
			len(handed), strings.Join(names, ":"))
		cmd = exec.Command("/bin/sh", append([]string{"-c", script}, words...)...)
		cmd.ExtraFiles = handed
	}
	cmd.SysProcAttr = q.attributes()
	return cmd
}

// shellOf is a shell that runs a text.
func shellOf(text string) *exec.Cmd { return exec.Command("/bin/sh", "-c", text) }

// tool is the word by which a job calls a program, whatever its PATH is.
func tool(name string) string { return name }

// tempFolder makes a folder that others are kept out of.
func tempFolder() (string, error) { return os.MkdirTemp("", "qt") } // short: a socket's path has a limit

// askToStop tells the service to end.
func (q *queue) askToStop() { q.cmd.Process.Signal(syscall.SIGTERM) }

// kill ends a process, whatever it does.
func kill(pid int) { syscall.Kill(pid, syscall.SIGKILL) }

// askToEnd has a runner end with its jobs.
func askToEnd(pid int) { syscall.Kill(pid, syscall.SIGTERM) }

// wasKilled reports whether a failpoint of the program ended it.
func wasKilled(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// runners is the folder of the queue's runners.
func (q *queue) runners() string { return cmp.Or(q.roots, filepath.Join(q.dir, "runner")) }

// isRunner reports whether a process is a runner of the folder.
func isRunner(pid int, folder string) bool {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.Contains(raw, []byte("\x00runner\x00")) && bytes.Contains(raw, []byte(filepath.Dir(folder)))
}

// dial connects to the service of a folder.
func dial(dir string) (net.Conn, error) { return net.Dial("unix", filepath.Join(dir, socketName)) }

// listen takes the place of the service of a folder.
func listen(dir string) (net.Listener, error) {
	return net.Listen("unix", filepath.Join(dir, socketName))
}

// socketOf is what jobs are told of the service's socket.
func (q *queue) socketOf() string { return q.path(socketName) }

// halfClose ends what we say on a connection, if that can be done.
func halfClose(c net.Conn) bool { return c.(*net.UnixConn).CloseWrite() == nil }

// ahead are the failpoints of a service that reserves jobs ahead, and aheadTag is the
// program that has them: of itself it does so for short jobs.
const ahead, aheadTag = "", ""

// ofRunner is in the words of what a runner has beside itself: in none, for there is
// nothing.
const ofRunner = "\x00"

// holding is the text of a job that takes a lock, which is held while the job or a
// process that it has started lives.
func holding(path string) string { return `exec 9>>"` + path + `"; flock -n 9` }

// free reports whether nobody holds the lock on a file.
func free(t testing.TB, path string) bool {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
}

// lives reports whether a process runs; a zombie does not.
func lives(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(raw), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// processes lists those whose command line holds a word.
func processes(word string) (lines []string) {
	list, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range list {
		raw, _ := os.ReadFile(name)
		if bytes.Contains(raw, []byte(word)) {
			lines = append(lines, strings.Split(name, "/")[2]+" "+strings.ReplaceAll(string(raw), "\x00", " "))
		}
	}
	return lines
}

// related lists the processes that speak of a folder in their words or in their
// environment, with their words; this one is none.
func related(dir string) map[int]string {
	list := map[int]string{}
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		pid, _ := strconv.Atoi(filepath.Base(name))
		words, _ := os.ReadFile(name + "/cmdline")
		env, _ := os.ReadFile(name + "/environ")
		if pid != os.Getpid() && bytes.Contains(append(words, env...), []byte(dir)) && lives(pid) {
			list[pid] = strings.ReplaceAll(string(words), "\x00", " ")
		}
	}
	return list
}

// peak is the most memory that a process has held, in bytes.
func peak(t testing.TB, pid int) int64 {
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

// copyFolder copies all that a folder holds into another.
func copyFolder(from, to string) error {
	out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// settle makes the home of a script: the program on the PATH.
func (s *shell) settle(bin string) error {
	s.env = []string{"HOME=" + s.home, "PATH=" + s.home + "/bin:/usr/local/bin:/usr/bin:/bin", "TZ=UTC", "LANG=C.UTF-8"}
	return os.Symlink(bin, filepath.Join(s.home, "bin", "queuectl"))
}

// shellOf is a shell that runs a line of the script.
func (s *shell) shellOf(line string) *exec.Cmd { return shellOf(line) }

// typed is a line of a script as a person of this system types it.
func (s *shell) typed(line string) string { return line }

// seen is what is printed as one of Unix sees it.
func (s *shell) seen(text string) string { return text }

// userName is the name of the user of the tests.
func userName(t testing.TB) string {
	return strings.TrimSpace(ran(t, exec.Command("id", "-un")).out)
}

// onScreen is what a command shows on a terminal of some width, and its exit code.
func onScreen(t testing.TB, cmd *exec.Cmd, columns int) (text string, code int) {
	screen := newScreen(t, columns)
	cmd.Stdout, cmd.Stderr = screen.tty, screen.tty
	code = exitCodeOf(t, cmd)
	return screen.text(t), code
}

// ownersAlone reports whether a file is its owner's alone.
func ownersAlone(info os.FileInfo) bool { return info.Mode().Perm() == 0o600 }

// needs skips a test for want of a tool that CI installs.
func needs(t testing.TB, tool string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skip("needs " + tool)
	}
}

// install makes a program of the queue's folder of a file. Another process writes
// it, for a program cannot be started while a fork of ours may have it open.
func (q *queue) install(from, name string) string {
	q.Helper()
	copyProgram(q, from, q.path(name))
	return q.path(name)
}

// copyProgram copies a program to a path, in the place of what is there.
func copyProgram(t testing.TB, from, to string) {
	t.Helper()
	if out, err := exec.Command("install", "-m", "755", from, to).CombinedOutput(); err != nil {
		t.Fatalf("install %s: %v\n%s", to, err, out)
	}
}
