//go:build linux || windows

package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// binaries holds the paths of the built programs by build tag. The tag "" is the program as shipped; the tag
// "failpoint" adds failpoints. Each is built once.
var binaries struct {
	sync.Mutex
	dir  string
	path map[string]string
}

func TestMain(m *testing.M) {
	if code, hasRole := runRole(); hasRole {
		os.Exit(code)
	}
	flag.Parse()
	// Most tests spend most of their time waiting for other processes, so more of them run in
	// parallel.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0)))
	}
	code := m.Run()
	if binaries.dir != "" {
		os.RemoveAll(binaries.dir)
	}
	os.Exit(code)
}

// binary returns the path of the program that is built with the given build tag. With the tag "", that is the
// program as shipped.
func binary(t testing.TB, tag string) string {
	t.Helper()
	binaries.Lock()
	defer binaries.Unlock()
	if p := binaries.path[tag]; p != "" {
		return p
	}
	// The programs were built elsewhere, so this machine needs no Go.
	if dir := os.Getenv("QUEUECTL_TEST_BIN"); dir != "" {
		return filepath.Join(dir, "plain"+tag, programs[0])
	}
	if binaries.path == nil {
		dir, err := os.MkdirTemp("", "queuectl-test")
		if err != nil {
			t.Fatal(err)
		}
		binaries.dir, binaries.path = dir, map[string]string{}
	}
	p := filepath.Join(binaries.dir, "plain"+tag, programs[0])
	build := exec.Command("go", "build", "-tags", tag, "-o", filepath.Dir(p)+string(filepath.Separator), "../cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	binaries.path[tag] = p
	return p
}

// programs are the file names of the client and of the service.
var programs = []string{"queuectl" + extension, "queuectld" + extension}

// install copies both programs into a directory, as a package does, and returns the path of queuectl there.
// The parameter from is the path of the queuectl to copy. Processes that run an old copy continue.
func install(t testing.TB, from, dir string) string {
	t.Helper()
	for _, name := range programs {
		copyProgram(t, filepath.Join(filepath.Dir(from), name), filepath.Join(dir, name))
	}
	return filepath.Join(dir, programs[0])
}

// queue is a state directory with a service that tests can kill and restart.
type queue struct {
	testing.TB
	osSpecific
	bin   string
	dir   string   // state directory, with slashes, so that a shell reads it unchanged
	env   []string // variables of the service in addition to those that the function environment returns
	store string   // URL of the PostgreSQL database with the queue; "" means a SQLite database in dir
	cmd   *exec.Cmd
	log   *lockedBuffer
	ended chan error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newQueue creates a state directory; start starts a service on it. When the test ends, all
// processes of the queue are ended.
func newQueue(t testing.TB, tag string) *queue {
	t.Helper()
	dir, err := tempDir()
	if err != nil {
		t.Fatal(err)
	}
	q := &queue{TB: t, bin: binary(t, tag), dir: filepath.ToSlash(dir), log: &lockedBuffer{}}
	t.Cleanup(func() {
		q.endProcesses()
		if t.Failed() {
			t.Logf("service log:\n%s", q.log)
		}
		os.RemoveAll(dir)
	})
	return q
}

// start starts the service and waits until it is ready.
func (q *queue) start(args ...string) {
	q.Helper()
	if err := q.tryStart(args...); err != nil {
		q.Fatalf("start: %v\n%s", err, q.log)
	}
}

func (q *queue) tryStart(args ...string) error {
	cmd := q.serve(append([]string{"serve", "--dir", q.dir}, args...))
	cmd.Env = append(environment(q.dir), q.env...)
	if q.store != "" {
		cmd.Env = append(cmd.Env, "QUEUECTL_STORE="+q.store)
	}
	stderr, err := os.CreateTemp(q.dir, "stderr-*")
	if err != nil {
		return err
	}
	defer stderr.Close()
	cmd.Stderr = stderr // stderr is a file, because a runner keeps it open after the service is killed
	if err := startCommand(cmd); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	q.cmd, q.ended = cmd, ended
	for deadline := time.Now().Add(
		timeoutFactor * 20 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		text, _ := os.ReadFile(stderr.Name())
		if strings.Contains(string(text), "queuectl: ready on") {
			return nil
		}
		select {
		case err := <-ended:
			q.log.Write(text)
			ended <- err
			return fmt.Errorf("it ended: %w", errors.Join(err, errors.New(string(text))))
		default:
		}
	}
	return errors.New("it did not get ready")
}

// kill kills the service and waits for its end. Runners stay alive.
func (q *queue) kill() {
	if q.cmd == nil {
		return
	}
	q.cmd.Process.Kill()
	<-q.ended
	q.cmd = nil
}

// stop stops the service in the regular way and returns its exit code.
func (q *queue) stop() int {
	q.Helper()
	q.requestStop()
	select {
	case <-q.ended:
	case <-time.After(60 * time.Second):
		q.Fatal("the service does not stop")
	}
	code := q.cmd.ProcessState.ExitCode()
	q.cmd = nil
	return code
}

// runnerPids returns the pids of the queue's live runners. The name of a runner's directory begins
// with its pid.
func (q *queue) runnerPids() (pids []int) {
	dir := q.runnerDir()
	entries, _ := filepath.Glob(dir + "/*.*")
	accountEntries, _ := filepath.Glob(dir + "/as-*/*.*")
	for _, e := range append(entries, accountEntries...) {
		prefix, _, _ := strings.Cut(filepath.Base(e), ".")
		if pid, err := strconv.Atoi(prefix); err == nil && isRunner(pid, dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killRunners kills the runners and waits for their end. Their jobs survive unless the system ends
// them with their runner.
func (q *queue) killRunners() {
	q.endRunners(kill, 5*time.Second)
}

// endRunners ends the runners and reports whether they ended in time.
func (q *queue) endRunners(end func(pid int), timeout time.Duration) bool {
	for _, pid := range q.runnerPids() {
		end(pid)
	}
	for deadline := time.Now().Add(timeout); len(q.runnerPids()) > 0; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// endProcesses ends all processes of the queue. A runner that ends on request also ends its jobs.
func (q *queue) endProcesses() {
	q.kill()
	if !q.endRunners(terminateRunner, 5*time.Second) {
		q.killRunners()
	}
}

// result holds the output and the exit code of a command.
type result struct {
	out, err string
	code     int
}

// cli runs a queuectl command on the queue.
func (q *queue) cli(args ...string) result {
	q.Helper()
	return q.cliWithInput("", args...)
}

func (q *queue) cliWithInput(stdin string, args ...string) result {
	q.Helper()
	for tries := 1; ; tries++ {
		cmd := q.command(args...)
		cmd.Stdin = strings.NewReader(stdin)
		if r := runCommand(q, cmd); tries == 3 || !startFailed(r) {
			return r
		}
	}
}

// must runs a queuectl command, requires exit code 0 and returns its output, trimmed.
func (q *queue) must(args ...string) string {
	q.Helper()
	r := q.cli(args...)
	if r.code != 0 {
		q.Fatalf("queuectl %v: exit code %d\nstdout: %s\nstderr: %s", args, r.code, r.out, r.err)
	}
	return strings.TrimSpace(r.out)
}

// job is a job in the format of show --json.
type job struct {
	ID         string `json:"id"`
	State      string `json:"state"`
	Reason     string `json:"reason"`
	Attempts   int    `json:"attempts"`
	ExitCode   *int   `json:"exit_code"`
	Signal     *int   `json:"signal"`
	Error      string `json:"error"`
	PID        int    `json:"pid"`
	StartedAt  string `json:"started_at"`
	FinishedAt string `json:"finished_at"`
	Output     string `json:"output"`
	Stderr     string `json:"stderr"`
	History    []struct {
		Attempt    int       `json:"attempt"`
		StartedAt  time.Time `json:"started_at"`
		FinishedAt time.Time `json:"finished_at"`
		ExitCode   *int      `json:"exit_code"`
		Reason     string    `json:"reason"`
		PID        int       `json:"pid"`
		Leftovers  int       `json:"leftovers"`
		Dropped    int64     `json:"output_dropped"`
	} `json:"history"`
}

func (q *queue) show(id string) (j job) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.must("show", id, "--json")), &j); err != nil {
		q.Fatalf("show %s: %v", id, err)
	}
	return j
}

// waitUntil polls ok until it returns true, and fails the test after limit.
func (q *queue) waitUntil(condition string, limit time.Duration, ok func() bool) {
	q.Helper()
	limit *= timeoutFactor
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			q.Fatalf("not within %v: %s", limit, condition)
		}
	}
}

// wire is a raw connection to the service.
type wire struct {
	*queue
	net.Conn
	reader *bufio.Reader
	id     int
}

func (q *queue) dial() *wire {
	q.Helper()
	c, err := dial(q.dir)
	if err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { c.Close() })
	return &wire{q, c, bufio.NewReaderSize(c, 1<<20), 0}
}

// wireMessage is one line from the service: a reply or a notification.
type wireMessage struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    struct {
			Code  string `json:"code"`
			Field string `json:"field"`
		} `json:"data"`
	} `json:"error"`
}

// read reads one line. An error means that the connection ended.
func (w *wire) read() (a wireMessage, err error) {
	w.SetReadDeadline(time.Now().Add(20 * time.Second))
	line, err := w.reader.ReadBytes('\n')
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(line, &a)
}

// call sends a request and returns its reply.
func (w *wire) call(method string, params any) wireMessage {
	w.Helper()
	w.id++
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": w.id, "method": method, "params": params})
	if err != nil {
		w.Fatal(err)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		w.Fatalf("%s: %v", method, err)
	}
	a, err := w.read()
	if err != nil {
		w.Fatalf("%s: %v", method, err)
	}
	return a
}
