package durability

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// startUnderStrace starts the service under strace, which writes its trace to a file, and waits until the service
// answers.
func startUnderStrace(q *testrig.Harness, tracePath string, straceOptions ...string) {
	q.Helper()
	args := append([]string{"-f", "-y", "-o", tracePath}, straceOptions...)
	cmd := exec.Command("strace", append(args, q.ClientPath, "serve", "--dir", q.StateDir, "--workers", "0")...)
	cmd.Env = append(testrig.UserEnvironment(q.StateDir), q.ServiceEnv...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		q.Fatalf("strace: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	q.ServiceCmd, q.ServiceExit = cmd, ended
	q.Cleanup(func() {
		q.KillRunners() // strace ends only after the runners, which it traces too
		q.KillService()
	})
}

// The service replies to an enqueue only after the job is safe on disk: the job was written to the WAL, and
// an fsync of the WAL began after that write and returned 0. This holds for one client and for 64. The last
// case turns fsync off and shows that the check would detect this.
func TestEnqueueReplyFollowsFsync(t *testing.T) {
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	for _, c := range []struct {
		name    string
		clients int
		env     []string
		caught  bool
	}{
		{"one client", 1, nil, false},
		{"64 clients", 64, nil, false},
		{"synchronous=OFF is noticed", 8, []string{"QUEUECTL_FAILPOINTS=nosync"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := testrig.NewHarness(t, "failpoint")
			q.ServiceEnv = c.env
			trace := filepath.Join(q.StateDir, "trace")
			startUnderStrace(q, trace, "-s", "5000", "-e", "trace=fsync,fdatasync,write,pwrite64")
			q.WaitUntil("the service answers", 30*time.Second, func() bool { return q.RunCLI("status").ExitCode == 0 })
			const each = 4
			var clients sync.WaitGroup
			for i := range c.clients {
				w := q.DialService()
				clients.Go(func() {
					for k := range each {
						if !testrig.TryEnqueueJobWithID(w, fmt.Sprintf("tok-%03d-%d", i, k)) {
							t.Errorf("client %d: job %d was not acknowledged", i, k)
							return
						}
					}
				})
			}
			clients.Wait()
			q.MustRunCLI("service", "stop")
			early, answers := checkRepliesAfterFsync(t, trace)
			if answers != c.clients*each {
				t.Fatalf("the trace shows %d replies, want %d", answers, c.clients*each)
			}
			if caught := early > 0; caught != c.caught {
				t.Errorf("%d of %d replies were sent before their fsync; detected: %t, want %t", early, answers, caught, c.caught)
			}
		})
	}
}

// These expressions match the token in the command of a job, such as tok-007-1, and the thread id at the
// start of a line of the trace.
var (
	jobTokenPattern = regexp.MustCompile(`tok-\d{3}-\d`)
	threadIDPattern = regexp.MustCompile(`^(\d+) +`)
)

// checkRepliesAfterFsync reads the trace of system calls in the file tracePath. It returns the number of early replies
// and of all replies to enqueue requests. A reply is early if no fsync began after the job was written to the WAL and
// ended before the reply.
func checkRepliesAfterFsync(t *testing.T, tracePath string) (earlyReplyCount, replyCount int) {
	f, err := os.Open(tracePath)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const (
		written = 1 + iota // the job is in the WAL
		syncing            // an fsync has begun after the write
		synced
	)
	stage := map[string]int{}
	under := map[string][]string{} // by thread id, the tokens of the jobs that the fsync in progress covers
	done := func(tokens []string) {
		for _, token := range tokens {
			stage[token] = synced
		}
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		pid := threadIDPattern.FindString(line)
		switch {
		case strings.Contains(line, "pwrite64(") && strings.Contains(line, "queuectl.db-wal"):
			for _, token := range jobTokenPattern.FindAllString(line, -1) {
				if stage[token] == 0 {
					stage[token] = written
				}
			}
		case strings.Contains(line, "sync(") && strings.Contains(line, "queuectl.db-wal"):
			var coveredTokens []string
			for token, s := range stage {
				if s == written {
					stage[token] = syncing
					coveredTokens = append(coveredTokens, token)
				}
			}
			if strings.HasSuffix(line, "= 0") {
				done(coveredTokens)
			} else {
				under[pid] = coveredTokens
			}
		case strings.Contains(line, "sync resumed") && strings.HasSuffix(line, "= 0"):
			done(under[pid])
			delete(under, pid)
		case strings.Contains(line, " write(") && strings.Contains(line, `duplicate\":false`):
			replyCount++
			if token := jobTokenPattern.FindString(line); stage[token] != synced {
				earlyReplyCount++
			}
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return earlyReplyCount, replyCount
}

// If a write or an fsync of the database fails with EIO or ENOSPC, no acknowledged job is lost. The service
// returns an error to the client or exits with 74.
func TestDiskErrorsLoseNoAcknowledgedJob(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	unknown, stopped := 0, 0
	for _, call := range []string{"fsync", "pwrite64"} {
		for _, fault := range []string{"EIO", "ENOSPC"} {
			for n := 1; n <= 12; n++ {
				q := testrig.NewHarness(t, "")
				acked, code := enqueueUnderSystemCallFault(q, call, fault, n)
				if code == 74 {
					stopped++
				}
				q.StartService("--workers", "0")
				for id, yes := range acked {
					if r := q.RunCLI("show", id, "-q"); yes && r.ExitCode != 0 {
						t.Errorf("%s %s at call %d: job %s was acknowledged, but is missing", call, fault, n, id)
					} else if !yes {
						unknown++
					}
				}
				q.KillService()
				q.KillRunners()
			}
		}
	}
	t.Logf("%d services stopped with 74, %d requests were not acknowledged", stopped, unknown)
	if stopped == 0 {
		t.Error("no fault stopped the service, so the injection had no effect")
	}
}

// enqueueUnderSystemCallFault starts a service and enqueues up to 12 jobs, until one is not acknowledged. In each
// thread of the service, strace makes the calls of systemCall fail, beginning with the thread's call number
// firstFailingCall. ackedByJobID contains for each job whether it was acknowledged. exitCode is the exit code of the
// service, or 0 if the service did not exit.
func enqueueUnderSystemCallFault(q *testrig.Harness, systemCall, errnoName string, firstFailingCall int) (
	ackedByJobID map[string]bool, exitCode int) {
	q.StartService("--workers", "0")
	pid := fmt.Sprint(q.ServiceCmd.Process.Pid)
	trace := exec.Command("strace", "-f", "-p", pid, "-o", os.DevNull, "-e", "trace="+systemCall, "-e",
		fmt.Sprintf("inject=%s:error=%s:when=%d+", systemCall, errnoName, firstFailingCall))
	stderr, err := trace.StderrPipe()
	if err != nil {
		q.Fatal(err)
	}
	if err := trace.Start(); err != nil {
		q.Fatalf("strace: %v", err)
	}
	if _, err := bufio.NewReader(stderr).ReadString('\n'); err != nil { // wait until strace prints "Process … attached"
		q.Fatalf("strace: %v", err)
	}
	defer func() {
		trace.Process.Kill()
		trace.Wait()
	}()
	ackedByJobID = map[string]bool{}
	w := q.DialService()
	for i := range 12 {
		id := fmt.Sprintf("job-%d", i)
		if ackedByJobID[id] = testrig.TryEnqueueJobWithID(w, id); !ackedByJobID[id] {
			break
		}
	}
	select {
	case err := <-q.ServiceExit:
		q.ServiceExit <- err
		var exitErr *exec.ExitError
		if errors.As(err, &exitErr) {
			exitCode = exitErr.ExitCode()
		}
		q.ServiceCmd = nil
	case <-time.After(300 * time.Millisecond):
		trace.Process.Kill()
		q.KillService()
	}
	return ackedByJobID, exitCode
}

// simulateSystemdWatchdog sets the environment as systemd does for a service with a watchdog time of 0.4 s. The
// returned function waits for n keep-alive messages of the service.
func simulateSystemdWatchdog(q *testrig.Harness) (awaitKeepAlives func(n int)) {
	q.Helper()
	socket := filepath.Join(q.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { conn.Close() })
	q.ServiceEnv = []string{"NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=400000"}
	return func(n int) {
		q.Helper()
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		for buf := make([]byte, 4096); n > 0; {
			size, err := conn.Read(buf)
			if err != nil {
				q.Fatalf("no keep-alive message: %v", err)
			}
			if strings.Contains(string(buf[:size]), "WATCHDOG=1") {
				n--
			}
		}
	}
}

// The service keeps sending keep-alive messages to systemd while one user has the maximum number of
// connections.
func TestRefusedConnectionsKeepSystemdWatchdogAlive(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q := testrig.NewHarness(t, "")
	beats := simulateSystemdWatchdog(q)
	q.StartService("--workers", "0")
	beats(1)
	q.MustRunCLI("config", "set", "max_connections_per_user", "2")
	q.MustRunCLI("enqueue", "--id", "waits", "true")
	// Keep the open connections busy, because the service would close an idle one to admit a new one.
	q.WaitUntil("one more is refused", 20*time.Second, func() bool {
		// The service may refuse this connection, because the user may already have the maximum number of connections.
		fmt.Fprintln(q.DialService(), `{"jsonrpc":"2.0","id":1,"method":"wait","params":{"ids":["waits"]}}`)
		return q.RunCLI("status").ExitCode != 0
	})
	beats(100)
}

// A service on a full disk keeps sending keep-alive messages. Without them, systemd would kill the service
// again and again, although it can still answer some requests.
func TestFullDiskKeepsSystemdWatchdogAlive(t *testing.T) {
	testrig.SkipIfShort(t)
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel()
	q := testrig.NewHarness(t, "")
	disk := q.MountQueueDisk("24M")
	beats := simulateSystemdWatchdog(q)
	q.StartService("--workers", "1")
	beats(1)
	os.Remove(q.Path("reserve"))
	f := fillDiskCompletely(t, disk)
	q.WaitUntil("the disk is full for the service too", 20*time.Second, func() bool {
		os.Remove(q.Path("reserve"))
		f.Write(make([]byte, 4096))
		return strings.Contains(q.RunCLI("config", "set", "priority", "6").Stderr, "space")
	})
	beats(100) // more messages than the socket could buffer before the disk was full
	q.MustRunCLI("status")
}
