package durability

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// startTraced starts the service under strace and waits until the service answers. strace writes to the file
// trace.
func startTraced(q *testrig.Queue, trace string, options ...string) {
	q.Helper()
	args := append([]string{"-f", "-y", "-o", trace}, options...)
	cmd := exec.Command("strace", append(args, q.Bin, "serve", "--dir", q.Dir, "--workers", "0")...)
	cmd.Env = append(testrig.Environment(q.Dir), q.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		q.Fatalf("strace: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	q.Cmd, q.Exit = cmd, ended
	q.Cleanup(func() {
		q.KillRunners() // strace ends only after the runners, which it traces too
		q.Kill()
	})
}

// The service replies to an enqueue only after the job is safe on disk: the job was written to the WAL, and an
// fsync of the WAL began after that write and returned 0. This holds for one client and for 64. The test also
// shows that its check detects a missing fsync.
func TestNoAnswerBeforeFsync(t *testing.T) {
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
			q := testrig.NewQueue(t, "failpoint")
			q.Env = c.env
			trace := filepath.Join(q.Dir, "trace")
			startTraced(q, trace, "-s", "5000", "-e", "trace=fsync,fdatasync,write,pwrite64")
			q.WaitUntil("the service answers", 30*time.Second, func() bool { return q.CLI("status").Code == 0 })
			const each = 4
			var clients sync.WaitGroup
			for i := range c.clients {
				w := q.Dial()
				clients.Go(func() {
					for k := range each {
						if !testrig.EnqueueRaw(w, fmt.Sprintf("tok-%03d-%d", i, k)) {
							t.Errorf("client %d: job %d was not acknowledged", i, k)
							return
						}
					}
				})
			}
			clients.Wait()
			q.MustCLI("service", "stop")
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

// These expressions match the token of a job, and the thread id at the start of a line of the trace.
var (
	tokenPattern = regexp.MustCompile(`tok-\d{3}-\d`)
	pidPattern   = regexp.MustCompile(`^(\d+) +`)
)

// checkRepliesAfterFsync reads a trace of system calls. It returns the number of early replies and of all
// replies. A reply is early if no fsync began after the job was written to the WAL and ended before the reply.
func checkRepliesAfterFsync(t *testing.T, trace string) (early, answers int) {
	f, err := os.Open(trace)
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
	under := map[string][]string{} // by thread id, the jobs that the thread's current fsync covers
	done := func(tokens []string) {
		for _, token := range tokens {
			stage[token] = synced
		}
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		pid := pidPattern.FindString(line)
		switch {
		case strings.Contains(line, "pwrite64(") && strings.Contains(line, "queuectl.db-wal"):
			for _, token := range tokenPattern.FindAllString(line, -1) {
				if stage[token] == 0 {
					stage[token] = written
				}
			}
		case strings.Contains(line, "sync(") && strings.Contains(line, "queuectl.db-wal"):
			var covers []string
			for token, s := range stage {
				if s == written {
					stage[token] = syncing
					covers = append(covers, token)
				}
			}
			if strings.HasSuffix(line, "= 0") {
				done(covers)
			} else {
				under[pid] = covers
			}
		case strings.Contains(line, "sync resumed") && strings.HasSuffix(line, "= 0"):
			done(under[pid])
			delete(under, pid)
		case strings.Contains(line, " write(") && strings.Contains(line, `duplicate\":false`):
			answers++
			if token := tokenPattern.FindString(line); stage[token] != synced {
				early++
			}
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return early, answers
}

// If a write or an fsync of the database fails with EIO or ENOSPC, no acknowledged job is lost. The service
// returns an error to the client or exits with 74.
func TestDiskErrorsLoseNothing(t *testing.T) {
	testrig.Long(t)
	t.Parallel()
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	unknown, stopped := 0, 0
	for _, call := range []string{"fsync", "pwrite64"} {
		for _, fault := range []string{"EIO", "ENOSPC"} {
			for n := 1; n <= 12; n++ {
				q := testrig.NewQueue(t, "")
				acked, code := enqueueUnderFault(q, call, fault, n)
				if code == 74 {
					stopped++
				}
				q.Start("--workers", "0")
				for id, yes := range acked {
					if r := q.CLI("show", id, "-q"); yes && r.Code != 0 {
						t.Errorf("%s %s at call %d: job %s was acknowledged, but is missing", call, fault, n, id)
					} else if !yes {
						unknown++
					}
				}
				q.Kill()
				q.KillRunners()
			}
		}
	}
	t.Logf("%d services stopped with 74, %d requests were not acknowledged", stopped, unknown)
	if stopped == 0 {
		t.Error("no fault stopped the service, so the injection had no effect")
	}
}

// enqueueUnderFault starts a service and enqueues up to 12 jobs, until one is not acknowledged. On each thread
// of the service, the n-th call of the given system call after the start fails, and so do all later ones. It
// returns whether each job was acknowledged, and the exit code of the service, or 0 if the service did not
// exit.
func enqueueUnderFault(q *testrig.Queue, call, fault string, n int) (acked map[string]bool, code int) {
	q.Start("--workers", "0")
	pid := fmt.Sprint(q.Cmd.Process.Pid)
	trace := exec.Command("strace", "-f", "-p", pid, "-o", os.DevNull, "-e", "trace="+call, "-e",
		fmt.Sprintf("inject=%s:error=%s:when=%d+", call, fault, n))
	stderr, err := trace.StderrPipe()
	if err != nil {
		q.Fatal(err)
	}
	if err := trace.Start(); err != nil {
		q.Fatalf("strace: %v", err)
	}
	if _, err := bufio.NewReader(stderr).ReadString('\n'); err != nil { // strace prints "Process … attached"
		q.Fatalf("strace: %v", err)
	}
	defer func() {
		trace.Process.Kill()
		trace.Wait()
	}()
	acked = map[string]bool{}
	w := q.Dial()
	for i := range 12 {
		id := fmt.Sprintf("job-%d", i)
		if acked[id] = testrig.EnqueueRaw(w, id); !acked[id] {
			break
		}
	}
	select {
	case err := <-q.Exit:
		q.Exit <- err
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		}
		q.Cmd = nil
	case <-time.After(300 * time.Millisecond):
		trace.Process.Kill()
		q.Kill()
	}
	return acked, code
}

// While a disk of 24 MB fills up, the service refuses new jobs with no_space before the database
// runs out of space. Acknowledged jobs run. When the disk has free space again, the service accepts
// new jobs. The test needs root to mount the disk.
func TestSmallDisk(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; "+
		".ci/run runs it as root, and the tests of store/sqlite simulate a full disk")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel() // this test mostly waits for the next time that the service checks the disk
	q := testrig.NewQueue(t, "")
	disk := q.Mount("24M")
	q.Start("--workers", "2")
	filler, gate := filepath.Join(disk, "filler"), filepath.Join(filepath.Dir(disk), "go")
	acked := fillDisk(q, filler, gate)
	t.Logf("%d jobs were acknowledged before the disk was full", len(acked))
	q.CheckFinding("a full disk", "disk", "free some space")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range acked {
		if r := q.CLI("wait", id, "--timeout", "30"); r.Code != 0 {
			t.Fatalf("job %s on a full disk: exit code %d, %s", id, r.Code, r.Stderr)
		}
	}
	os.Remove(filler)
	q.WaitUntil("new jobs are taken again", 40*time.Second, func() bool { return q.CLI("enqueue", "true").Code == 0 })
}

// fillDisk enqueues jobs that wait until the file at the path gate exists and then print output. After each job
// it extends the file at the path filler, until the service refuses a job for lack of space. Then it fills the
// rest of the disk. It returns the ids of the acknowledged jobs.
func fillDisk(q *testrig.Queue, filler, gate string) (acked []string) {
	f, err := os.Create(filler)
	if err != nil {
		q.Fatal(err)
	}
	defer f.Close()
	// The service checks the disk ten times a second. One block is so large that the disk can fill up between
	// two checks.
	block := make([]byte, 512<<10)
	for range 400 {
		r := q.CLI("enqueue", "--json", "while [ ! -e "+gate+" ]; do sleep 0.05; done; seq 2000")
		if r.Code == 5 && strings.Contains(r.Stderr, "free") {
			if _, err := os.Stat(q.Path("reserve")); err != nil {
				q.Errorf("the service has used its disk reserve: %v", err)
			}
			var disk syscall.Statfs_t
			if err := syscall.Statfs(filepath.Dir(filler), &disk); err != nil || disk.Bavail*uint64(disk.Bsize) < 3<<19 {
				q.Errorf("only %d bytes were free when the first job was refused (%v)", disk.Bavail*uint64(disk.Bsize), err)
			}
			// Fill the rest of the disk too. The service must still record the results of running jobs.
			for err == nil {
				_, err = f.Write(block)
			}
			return acked
		}
		var j testrig.Job
		if r.Code != 0 || json.Unmarshal([]byte(r.Stdout), &j) != nil {
			q.Fatalf("enqueue: exit code %d: %s", r.Code, r.Stderr)
		}
		acked = append(acked, j.ID)
		f.Write(block) // one of these writes fills the disk, and then the service refuses the next job
	}
	q.Fatal("the disk was never full")
	return nil
}

// fillWholeDisk fills a disk to the last byte with one file.
func fillWholeDisk(t *testing.T, disk string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(disk, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for size := 256 << 10; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	return f
}

// If a service cannot start because the disk is full, it prints the reason and ends when the test stops it.
func TestStartOnAFullDisk(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel()
	q := testrig.NewQueue(t, "")
	disk := q.Mount("24M")
	q.Start("--workers", "1")
	q.Kill()
	q.KillRunners()
	os.Remove(q.Path("reserve"))
	fillWholeDisk(t, disk)
	for _, args := range [][]string{{"serve"}, {"run", "--private", "--lines", "-"}} {
		cmd, errs := q.Command(args...), &testrig.LockedBuffer{}
		cmd.Stderr = errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		q.WaitUntil("the service reports the full disk", 20*time.Second, func() bool {
			return strings.Contains(errs.String(), "once there is space")
		})
		cmd.Process.Signal(syscall.SIGTERM)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			cmd.Process.Kill()
			t.Errorf("%v does not end: %s", args, errs)
		}
	}
}

// A service that starts on a full disk waits for space, and is ready when the disk has space. It does so also
// after a crash, and if the database's shared memory file is missing.
func TestStartWaitsForSpace(t *testing.T) {
	testrig.Long(t)
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel()
	for name, lost := range map[string][]string{"after a crash": {"reserve"},
		"without shared memory": {"reserve", "queuectl.db-shm"}} {
		t.Run(name, func(t *testing.T) {
			q := testrig.NewQueue(t, "")
			disk := q.Mount("24M")
			q.Start("--workers", "1")
			q.MustCLI("enqueue", "--id", "before", "true")
			q.Kill()
			q.KillRunners()
			for _, file := range lost {
				if err := os.Remove(q.Path(file)); err != nil {
					t.Fatal(err)
				}
			}
			filler := fillWholeDisk(t, disk)
			ended, errs := startWithoutWaiting(q)
			select {
			case <-ended:
				t.Fatalf("the service ended: %s", errs)
			case <-time.After(2 * time.Second): // in this time the service retries several times
			}
			if text := errs.String(); strings.Contains(text, "ready on") || !strings.Contains(text, "once there is space") {
				t.Errorf("the service on a full disk printed %s", text)
			}
			if err := filler.Truncate(0); err != nil {
				t.Fatal(err)
			}
			q.WaitUntil("it is ready", 10*time.Second, func() bool { return strings.Contains(errs.String(), "ready on") })
			q.MustCLI("wait", "before")
		})
	}
}

// startWithoutWaiting starts a service without waiting until it is ready. It stops the service at the end of the
// test. If the service ends before that, ended is closed.
func startWithoutWaiting(q *testrig.Queue) (ended <-chan struct{}, errs *testrig.LockedBuffer) {
	q.Helper()
	cmd, errs := q.Command("serve", "--workers", "1"), &testrig.LockedBuffer{}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		q.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		cmd.Wait()
		close(done)
	}()
	q.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-done
	})
	return done, errs
}

// A file system can have blocks smaller than the 4 KiB in which SQLite extends the database's shared memory file.
// If such a disk is nearly full, the service waits for space, or runs. It does not end.
func TestStartOnANearlyFullDiskWithSmallBlocks(t *testing.T) {
	testrig.Long(t)
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel()
	for _, freeKiB := range []int64{16, 24, 32, 40} {
		t.Run(fmt.Sprint(freeKiB, " KiB"), func(t *testing.T) {
			q := testrig.NewQueue(t, "")
			disk := q.Mount("24M", "-b", "1024")
			q.Start("--workers", "1")
			q.Stop()
			q.KillRunners()
			os.Remove(q.Path("reserve"))
			filler := fillWholeDisk(t, disk)
			size, err := filler.Seek(0, io.SeekEnd)
			if err != nil {
				t.Fatal(err)
			}
			if err := filler.Truncate(size - freeKiB<<10); err != nil {
				t.Fatal(err)
			}
			ended, errs := startWithoutWaiting(q)
			select {
			case <-ended:
				t.Fatalf("the service ended: %s", errs)
			case <-time.After(time.Second): // in this time the service retries several times
			}
			if err := filler.Truncate(0); err != nil {
				t.Fatal(err)
			}
			q.WaitUntil("it is ready", 10*time.Second, func() bool { return strings.Contains(errs.String(), "ready on") })
			q.WaitUntil("new jobs are accepted", 40*time.Second, func() bool { return q.CLI("enqueue", "--id", "after", "true").Code == 0 })
			q.MustCLI("wait", "after")
		})
	}
}

// startWatchdog sets the environment as systemd does for a service with a watchdog time of 0.4 s. The returned
// function waits for n keep-alive messages of the service.
func startWatchdog(q *testrig.Queue) (beats func(n int)) {
	q.Helper()
	socket := filepath.Join(q.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { conn.Close() })
	q.Env = []string{"NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=400000"}
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
func TestRefusedConnectionsKeepWatchdogAlive(t *testing.T) {
	testrig.Long(t)
	t.Parallel()
	q := testrig.NewQueue(t, "")
	beats := startWatchdog(q)
	q.Start("--workers", "0")
	beats(1)
	q.MustCLI("config", "set", "max_connections_per_user", "2")
	q.MustCLI("enqueue", "--id", "waits", "true")
	// Keep the open connections busy, because the service would close an idle one to admit a new one.
	q.WaitUntil("one more is refused", 20*time.Second, func() bool {
		// The service may refuse this connection, because the limit may already be reached.
		fmt.Fprintln(q.Dial(), `{"jsonrpc":"2.0","id":1,"method":"wait","params":{"ids":["waits"]}}`)
		return q.CLI("status").Code != 0
	})
	beats(100)
}

// A service on a full disk keeps sending keep-alive messages. Without them, systemd would kill the service
// again and again, although it can still answer some requests.
func TestFullDiskKeepsWatchdogAlive(t *testing.T) {
	testrig.Long(t)
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel()
	q := testrig.NewQueue(t, "")
	disk := q.Mount("24M")
	beats := startWatchdog(q)
	q.Start("--workers", "1")
	beats(1)
	os.Remove(q.Path("reserve"))
	f := fillWholeDisk(t, disk)
	q.WaitUntil("the disk is full for the service too", 20*time.Second, func() bool {
		os.Remove(q.Path("reserve"))
		f.Write(make([]byte, 4096))
		return strings.Contains(q.CLI("config", "set", "priority", "6").Stderr, "space")
	})
	beats(100) // more messages than the socket could buffer before the disk was full
	q.MustCLI("status")
}
