package testrig

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// CPUTicks returns the CPU time that a process has used, in clock ticks.
func CPUTicks(t *testing.T, pid int) int {
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

// InjectFault makes system calls of the service fail or wait. It attaches strace to the service with the given
// options, which describe the calls and the fault. The fault ends when the caller calls stop.
func (q *Queue) InjectFault(options ...string) (stop func()) {
	q.Helper()
	args := append([]string{"-f", "-p", fmt.Sprint(q.Cmd.Process.Pid), "-o", os.DevNull}, options...)
	cmd := exec.Command("strace", args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		q.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		q.Fatalf("strace: %v", err)
	}
	if _, err := bufio.NewReader(stderr).ReadString('\n'); err != nil { // strace prints "Process … attached"
		q.Fatalf("strace: %v", err)
	}
	return func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
}

// Mount creates and mounts an ext4 disk of the given size. The mount point is then the queue's directory, and
// Mount returns it. The options are those of mkfs.
func (q *Queue) Mount(size string, options ...string) string {
	q.Helper()
	image, disk := filepath.Join(q.Dir, "disk.img"), filepath.Join(q.Dir, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		q.Fatal(err)
	}
	mkfs := append([]string{"mkfs.ext4", "-q", image}, options...)
	for _, words := range [][]string{{"truncate", "-s", size, image}, mkfs, {"mount", "-o", "loop", image, disk}} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			q.Fatalf("%v: %v\n%s", words, err, out)
		}
	}
	outer := q.Dir
	q.Dir = disk
	q.Cleanup(func() {
		q.Kill()
		q.KillRunners()
		if err := Unmount(disk); err != nil && err != syscall.EINVAL { // EINVAL means that the disk is not mounted
			q.Error(err)
			syscall.Unmount(disk, syscall.MNT_DETACH)
		}
		q.Dir = outer
	})
	return disk
}

// ResidentMemory returns the resident memory of a process in bytes, or 0 if the process does not exist.
func ResidentMemory(pid int) (bytes int64) {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(raw)) {
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &bytes); n == 1 {
			return bytes << 10
		}
	}
	return 0
}
