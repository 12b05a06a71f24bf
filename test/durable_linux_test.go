package test

import (
	"bufio"
	"encoding/json"
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
)

// startTraced starts the service under strace and waits until it answers.
func (q *queue) startTraced(trace string, options ...string) {
	q.Helper()
	args := append([]string{"-f", "-y", "-o", trace}, options...)
	cmd := exec.Command("strace", append(args, q.bin, "serve", "--dir", q.dir, "--workers", "0")...)
	cmd.Env = append(environment(q.dir), q.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		q.Fatalf("strace: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	q.cmd, q.ended = cmd, ended
	q.Cleanup(func() {
		q.killRunners() // end the runners too, because strace ends only after the last process that it traces
		q.kill()
	})
}

// The service replies to an enqueue only after an fsync of the WAL has returned 0. That fsync must have begun
// after the job was written to the WAL. This holds for one client and for 64. The test also shows that its
// check detects a missing fsync.
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
			q := newQueue(t, "failpoint")
			q.env = c.env
			trace := filepath.Join(q.dir, "trace")
			q.startTraced(trace, "-s", "5000", "-e", "trace=fsync,fdatasync,write,pwrite64")
			q.waitUntil("the service answers", 30*time.Second, func() bool { return q.cli("status").code == 0 })
			const each = 4
			var clients sync.WaitGroup
			for i := range c.clients {
				w := q.dial()
				clients.Go(func() {
					for k := range each {
						if !enqueueRaw(w, fmt.Sprintf("tok-%03d-%d", i, k)) {
							t.Errorf("client %d: job %d was not acknowledged", i, k)
							return
						}
					}
				})
			}
			clients.Wait()
			q.must("service", "stop")
			early, answers := checkRepliesAfterFsync(t, trace)
			if answers != c.clients*each {
				t.Fatalf("the trace shows %d answers, want %d", answers, c.clients*each)
			}
			if caught := early > 0; caught != c.caught {
				t.Errorf("%d of %d answers came before their fsync; noticed: %t, want %t", early, answers, caught, c.caught)
			}
		})
	}
}

var (
	tokenPattern = regexp.MustCompile(`tok-\d{3}-\d`)
	pidPattern   = regexp.MustCompile(`^(\d+) +`)
)

// checkRepliesAfterFsync reads a trace of system calls. It counts all replies and the early ones. A reply is
// early if no fsync has both begun after its job was written to the WAL and ended before the reply.
func checkRepliesAfterFsync(t *testing.T, trace string) (early, answers int) {
	f, err := os.Open(trace)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const (
		written = 1 + iota // the job is in the WAL
		syncing            // an fsync has begun since the job was written
		synced
	)
	stage := map[string]int{}
	under := map[string][]string{} // jobs that the current fsync of a thread covers, by thread id
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

// If any fsync or write of the database fails with EIO or ENOSPC, no acknowledged job is lost. The
// service returns an error or exits with 74, and after a restart all acknowledged jobs exist.
func TestDiskErrorsLoseNothing(t *testing.T) {
	t.Parallel()
	skip.UnlessProgram(t, "strace", "needs strace; .ci/run installs it")
	unknown, stopped := 0, 0
	for _, call := range []string{"fsync", "pwrite64"} {
		for _, fault := range []string{"EIO", "ENOSPC"} {
			for n := 1; n <= 12; n++ {
				q := newQueue(t, "")
				acked, code := q.enqueueUnderFault(call, fault, n)
				if code == 74 {
					stopped++
				}
				q.start("--workers", "0")
				for id, yes := range acked {
					if r := q.cli("show", id, "-q"); yes && r.code != 0 {
						t.Errorf("%s %s at the %d. call: job %s was acknowledged and is gone", call, fault, n, id)
					} else if !yes {
						unknown++
					}
				}
				q.kill()
				q.killRunners()
			}
		}
	}
	t.Logf("%d services stopped with 74, %d requests were not acknowledged", stopped, unknown)
	if stopped == 0 {
		t.Error("no fault stopped the service: the injection does not bite")
	}
}

// enqueueUnderFault starts a service. Once the service answers, the n-th call on each of its threads fails,
// and so do all later calls. enqueueUnderFault enqueues jobs until the service stops.
func (q *queue) enqueueUnderFault(call, fault string, n int) (acked map[string]bool, code int) {
	q.start("--workers", "0")
	pid := fmt.Sprint(q.cmd.Process.Pid)
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
	w := q.dial()
	for i := range 12 {
		id := fmt.Sprintf("job-%d", i)
		if acked[id] = enqueueRaw(w, id); !acked[id] {
			break
		}
	}
	select {
	case err := <-q.ended:
		q.ended <- err
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		}
		q.cmd = nil
	case <-time.After(300 * time.Millisecond):
		trace.Process.Kill()
		q.kill()
	}
	return acked, code
}

// While a disk of 24 MB fills up, the service refuses new jobs with no_space before the database
// runs out of space. Acknowledged jobs run. When space is free again, the service accepts new
// jobs. The test needs root to mount the disk.
func TestSmallDisk(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; "+
		".ci/run runs it as root, and the tests of store/sql simulate a full disk")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel() // the test spends half a minute waiting for the service's next check of the disk
	q := newQueue(t, "")
	disk := q.mount("24M")
	q.start("--workers", "2")
	filler, gate := filepath.Join(disk, "filler"), filepath.Join(filepath.Dir(disk), "go")
	acked := q.fillDisk(filler, gate)
	t.Logf("%d jobs acknowledged on the way to a full disk", len(acked))
	q.checkFinding("a full disk", "disk", "free some space")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range acked {
		if r := q.cli("wait", id, "--timeout", "30"); r.code != 0 {
			t.Fatalf("job %s on a full disk: exit code %d, %s", id, r.code, r.err)
		}
	}
	os.Remove(filler)
	q.waitUntil("new jobs are taken again", 40*time.Second, func() bool { return q.cli("enqueue", "true").code == 0 })
}

// fillDisk enqueues jobs that wait for the gate and then print output, while a file takes the rest
// of the disk. It stops when the service refuses jobs, and returns the acknowledged ones.
func (q *queue) fillDisk(filler, gate string) (acked []string) {
	f, err := os.Create(filler)
	if err != nil {
		q.Fatal(err)
	}
	defer f.Close()
	// The block is large, so that the disk fills up before the service's check notices it. The service
	// checks ten times a second.
	block := make([]byte, 512<<10)
	for range 400 {
		r := q.cli("enqueue", "--json", "while [ ! -e "+gate+" ]; do sleep 0.05; done; seq 2000")
		if r.code == 5 && strings.Contains(r.err, "free") {
			if _, err := os.Stat(q.path("reserve")); err != nil {
				q.Errorf("the database has met the end of the disk: %v", err)
			}
			var disk syscall.Statfs_t
			if err := syscall.Statfs(filepath.Dir(filler), &disk); err != nil || disk.Bavail*uint64(disk.Bsize) < 3<<19 {
				q.Errorf("only %d bytes were left when the first job was refused (%v)", disk.Bavail*uint64(disk.Bsize), err)
			}
			// The rest of the disk is filled too: results of running jobs must still be recorded.
			for err == nil {
				_, err = f.Write(block)
			}
			return acked
		}
		var j job
		if r.code != 0 || json.Unmarshal([]byte(r.out), &j) != nil {
			q.Fatalf("enqueue: exit code %d: %s", r.code, r.err)
		}
		acked = append(acked, j.ID)
		f.Write(block) // when the disk is nearly full, the service refuses the next job
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

// A service that cannot start because the disk is full says so, and ends on request.
func TestStartOnAFullDisk(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel()
	q := newQueue(t, "")
	disk := q.mount("24M")
	q.start("--workers", "1")
	q.kill()
	q.killRunners()
	os.Remove(q.path("reserve"))
	fillWholeDisk(t, disk)
	for _, args := range [][]string{{"serve"}, {"run", "--private", "--lines", "-"}} {
		cmd, errs := q.command(args...), &lockedBuffer{}
		cmd.Stderr = errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		q.waitUntil("it says so", 20*time.Second, func() bool {
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

// A service that starts on a full disk waits for space, and is ready once there is some. This
// holds after a crash, and if the database's shared memory file is missing.
func TestStartWaitsForSpace(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel()
	for name, lost := range map[string][]string{"after a crash": {"reserve"},
		"without shared memory": {"reserve", "queuectl.db-shm"}} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(t, "")
			disk := q.mount("24M")
			q.start("--workers", "1")
			q.must("enqueue", "--id", "before", "true")
			q.kill()
			q.killRunners()
			for _, file := range lost {
				if err := os.Remove(q.path(file)); err != nil {
					t.Fatal(err)
				}
			}
			filler := fillWholeDisk(t, disk)
			cmd, errs := q.command("serve", "--workers", "1"), &lockedBuffer{}
			cmd.Stderr = errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			defer func() {
				cmd.Process.Signal(syscall.SIGTERM)
				<-ended
			}()
			select {
			case err := <-ended:
				ended <- err
				t.Fatalf("it ended: %v, %s", err, errs)
			case <-time.After(2 * time.Second): // in this time the service retries several times
			}
			if text := errs.String(); strings.Contains(text, "ready on") || !strings.Contains(text, "once there is space") {
				t.Errorf("on a full disk it said %s", text)
			}
			if err := filler.Truncate(0); err != nil {
				t.Fatal(err)
			}
			q.waitUntil("it is ready", 10*time.Second, func() bool { return strings.Contains(errs.String(), "ready on") })
			q.must("wait", "before")
		})
	}
}

// startWatchdog makes the service believe that systemd supervises it with a watchdog of 0.4 s. The returned
// function waits for n keep-alive messages.
func (q *queue) startWatchdog() (beats func(n int)) {
	q.Helper()
	socket := filepath.Join(q.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { conn.Close() })
	q.env = []string{"NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=400000"}
	return func(n int) {
		q.Helper()
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		for buf := make([]byte, 4096); n > 0; {
			size, err := conn.Read(buf)
			if err != nil {
				q.Fatalf("no sign of life: %v", err)
			}
			if strings.Contains(string(buf[:size]), "WATCHDOG=1") {
				n--
			}
		}
	}
}

// If the user of a service has reached the maximum number of connections, the service keeps sending
// keep-alive messages.
func TestRefusedConnectionsKeepWatchdogAlive(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	beats := q.startWatchdog()
	q.start("--workers", "0")
	beats(1)
	q.must("config", "set", "max_connections_per_user", "2")
	q.must("enqueue", "--id", "waits", "true")
	// The open connections must be busy, because the service closes idle ones to admit a new one.
	q.waitUntil("one more is refused", 20*time.Second, func() bool {
		// This request may itself be refused by now.
		fmt.Fprintln(q.dial(), `{"jsonrpc":"2.0","id":1,"method":"wait","params":{"ids":["waits"]}}`)
		return q.cli("status").code != 0
	})
	beats(100)
}

// A service whose disk is full keeps sending keep-alive messages. Without them systemd would kill the service
// repeatedly, and the requests that it can still answer would fail.
func TestFullDiskKeepsWatchdogAlive(t *testing.T) {
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	skip.UnlessProgram(t, "mkfs.ext4", "needs mkfs.ext4; .ci/run installs it")
	t.Parallel()
	q := newQueue(t, "")
	disk := q.mount("24M")
	beats := q.startWatchdog()
	q.start("--workers", "1")
	beats(1)
	os.Remove(q.path("reserve"))
	f := fillWholeDisk(t, disk)
	q.waitUntil("the disk is full for the service too", 20*time.Second, func() bool {
		os.Remove(q.path("reserve"))
		f.Write(make([]byte, 4096))
		return strings.Contains(q.cli("config", "set", "priority", "6").err, "space")
	})
	beats(100) // more messages than the socket can have buffered before the disk was full
	q.must("status")
}
