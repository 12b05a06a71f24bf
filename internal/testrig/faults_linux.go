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

// ProcessCPUTicks returns the CPU time that a process has used, in clock ticks.
func ProcessCPUTicks(t *testing.T, pid int) int {
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

// InjectSyscallFault makes system calls of the service fail or wait. It attaches strace to the service with
// straceOptions, which describe the calls and the fault. The fault ends when the caller calls stop.
func (q *Harness) InjectSyscallFault(straceOptions ...string) (stop func()) {
	q.Helper()
	args := append([]string{"-f", "-p", fmt.Sprint(q.ServiceCmd.Process.Pid), "-o", os.DevNull}, straceOptions...)
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

// MountQueueDisk creates an ext4 disk of the given size and mounts it. The mount point is then the queue's state
// directory, and MountQueueDisk returns its path. mkfsOptions are the options of mkfs.
func (q *Harness) MountQueueDisk(size string, mkfsOptions ...string) string {
	q.Helper()
	image, disk := filepath.Join(q.StateDir, "disk.img"), filepath.Join(q.StateDir, "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		q.Fatal(err)
	}
	mkfs := append([]string{"mkfs.ext4", "-q", image}, mkfsOptions...)
	for _, words := range [][]string{{"truncate", "-s", size, image}, mkfs, {"mount", "-o", "loop", image, disk}} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			q.Fatalf("%v: %v\n%s", words, err, out)
		}
	}
	outer := q.StateDir
	q.StateDir = disk
	q.Cleanup(func() {
		q.KillService()
		q.KillRunners()
		if err := Unmount(disk); err != nil && err != syscall.EINVAL { // EINVAL means that the disk is not mounted
			q.Error(err)
			syscall.Unmount(disk, syscall.MNT_DETACH)
		}
		q.StateDir = outer
	})
	return disk
}

// ResidentMemoryBytes returns the resident memory of a process in bytes, or 0 if the process does not exist.
func ResidentMemoryBytes(pid int) (bytes int64) {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(raw)) {
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &bytes); n == 1 {
			return bytes << 10
		}
	}
	return 0
}
