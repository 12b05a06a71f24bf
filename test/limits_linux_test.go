package test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A service that runs out of descriptors refuses connections, does not spin, and
// works again once there are some; what it had acknowledged runs.
func TestOutOfDescriptors(t *testing.T) {
	q := newQueue(t, "")
	limited := filepath.Join(q.dir, "limited")
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = serve ]; then ulimit -n 64; fi\nexec %s \"$@\"\n", q.bin)
	if err := os.WriteFile(limited, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	plain := q.bin
	q.bin = limited
	q.start("--workers", "2")
	q.bin = plain
	id := q.must("enqueue", "sleep 1; touch "+q.path("ended"))
	var conns []net.Conn
	for range 100 {
		c, err := net.DialTimeout("unix", filepath.Join(q.dir, "queuectl.sock"), 100*time.Millisecond)
		if err != nil {
			break // its backlog is full
		}
		conns = append(conns, c)
	}
	before := cpuTicks(t, q.cmd.Process.Pid)
	q.until("the job ends without a client", 10*time.Second, func() bool {
		_, err := os.Stat(q.path("ended"))
		return err == nil
	})
	if spent := cpuTicks(t, q.cmd.Process.Pid) - before; spent > 30 {
		t.Errorf("%d ticks of CPU while no descriptor was free: it spins", spent)
	}
	for _, c := range conns {
		c.Close()
	}
	q.until("it answers again", 20*time.Second, func() bool { return q.cli("wait", id, "--timeout", "5").code == 0 })
}

// cpuTicks is the CPU time of a process so far, in clock ticks.
func cpuTicks(t *testing.T, pid int) int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	var user, system int
	fmt.Sscan(fields[11], &user)
	fmt.Sscan(fields[12], &system)
	return user + system
}

// trace attaches strace to the service with an injection, until the returned
// function is called.
func (q *queue) trace(options ...string) (stop func()) {
	q.Helper()
	args := append([]string{"-f", "-p", fmt.Sprint(q.cmd.Process.Pid), "-o", os.DevNull}, options...)
	cmd := exec.Command("strace", args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		q.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		q.Fatalf("strace: %v", err)
	}
	if _, err := bufio.NewReader(stderr).ReadString('\n'); err != nil { // "Process … attached"
		q.Fatalf("strace: %v", err)
	}
	return func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
}

// While each fsync takes two seconds a cancelled job's tree is ended at once,
// and acknowledgements come late but true.
func TestSlowDisk(t *testing.T) {
	needs(t, "strace")
	q := newQueue(t, "")
	q.start("--workers", "2")
	running := q.must("enqueue", "sleep 100")
	q.until("the job runs", 10*time.Second, func() bool { return q.show(running).State == "processing" })
	pid := q.show(running).PID
	stop := q.trace("-e", "trace=fsync", "-e", "inject=fsync:delay_enter=2000000")
	defer stop()
	go q.cli("enqueue", "true") // the writer is in its fsync
	begun := time.Now()
	cancelled := make(chan result, 1)
	go func() { cancelled <- q.cli("cancel", running) }()
	q.until("the tree is gone", 1500*time.Millisecond, func() bool { return syscall.Kill(pid, 0) != nil })
	t.Logf("tree ended after %v", time.Since(begun))
	if r := <-cancelled; r.code != 0 {
		t.Errorf("cancel: exit code %d, %s", r.code, r.err)
	}
	if s := q.show(running).State; s != "cancelled" {
		t.Errorf("state %s, want cancelled", s)
	}
}

// When the disk becomes read-only the service stops with 74 and a reason, its
// jobs run on, and the next service has their results. It needs root, for the
// disk.
func TestReadOnlyDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a disk")
	}
	needs(t, "mkfs.ext4")
	q := newQueue(t, "")
	disk := q.mount("64M")
	q.start("--workers", "1")
	kept := q.must("enqueue", "true")
	q.must("wait", kept)
	// What ext4 does by itself when it meets an error: everything is read-only.
	if out, err := exec.Command("mount", "-o", "remount,abort", disk).CombinedOutput(); err != nil {
		t.Fatalf("make the disk read-only: %v\n%s", err, out)
	}
	if r := q.cli("enqueue", "true"); r.code == 0 {
		t.Error("a job was acknowledged on a read-only disk")
	}
	select {
	case <-q.ended:
		if code := q.cmd.ProcessState.ExitCode(); code != 74 {
			t.Errorf("exit code %d, want 74", code)
		}
		q.cmd = nil
	case <-time.After(10 * time.Second):
		t.Error("the service goes on on a read-only disk")
	}
	q.killRunners()
	image := filepath.Join(filepath.Dir(disk), "disk.img")
	q.until("the disk can be unmounted", 10*time.Second, func() bool { return exec.Command("umount", disk).Run() == nil })
	if out, err := exec.Command("mount", "-o", "loop", image, disk).CombinedOutput(); err != nil {
		t.Fatalf("mount again: %v\n%s", err, out)
	}
	q.start("--workers", "1")
	if j := q.show(kept); j.State != "completed" {
		t.Errorf("after the disk came back the job is %s", j.State)
	}
}

// mount makes the queue's folder one on a disk of its own, made with options.
func (q *queue) mount(size string, options ...string) string {
	q.Helper()
	image, disk := filepath.Join(q.dir, "disk.img"), filepath.Join(q.dir, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		q.Fatal(err)
	}
	mkfs := append([]string{"mkfs.ext4", "-q", image}, options...)
	for _, words := range [][]string{{"truncate", "-s", size, image}, mkfs, {"mount", "-o", "loop", image, disk}} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			q.Fatalf("%v: %v\n%s", words, err, out)
		}
	}
	outer := q.dir
	q.dir = disk
	q.Cleanup(func() {
		q.kill()
		q.killRunners()
		if err := unmount(disk); err != nil && err != syscall.EINVAL { // EINVAL: it is not mounted
			q.Error(err)
			syscall.Unmount(disk, syscall.MNT_DETACH)
		}
		q.dir = outer
	})
	return disk
}

// What asks for limits gets them by control groups; where there are none, as here, each
// process has the limit of memory to itself, and the service's log says so once.
func TestLimitsWithoutControlGroups(t *testing.T) {
	q := serving(t, "--workers", "1")
	for range 2 {
		id := q.must("enqueue", "-q", "--memory", "256M", "--cpus", "0.5", "--tasks", "7", "--max-retries", "0", "sleep 0.2; ulimit -v")
		q.must("wait", id)
		if got := strings.TrimSpace(q.must("logs", id)); got != "262144" {
			t.Errorf("its limit is %s KiB", got)
		}
	}
	if n := strings.Count(q.logText(), "limits that are not enforced here"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
	for flag, wrong := range map[string]string{"--memory": "1K", "--cpus": "0", "--tasks": "0"} {
		if r := q.cli("enqueue", flag, wrong, "true"); r.code != 2 || !strings.Contains(r.err, strings.TrimPrefix(flag, "--")) {
			t.Errorf("%s %s: exit code %d, %s", flag, wrong, r.code, r.err)
		}
	}
}
