package testrig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
)

// diskRole is the environment variable that makes this test binary the server of a Disk. Its value is the
// directory in which the server mounts its files. The server is a separate process, because a process that
// reads a file which it serves itself can wait forever.
const diskRole = "QUEUECTL_TEST_DISK"

// DiskServer is an entry for the map that Main expects. It makes a test binary serve a Disk.
var DiskServer = map[string]func() int{diskRole: func() int {
	fmt.Fprintln(os.Stderr, serveDisk(os.Getenv(diskRole)))
	return 1
}}

// Disk is a disk for tests. Each write to it is logged. It is an ext4 file system on a loop device, whose
// file disk.img is served by a FUSE server.
type Disk struct {
	testing.TB
	// dir is the base directory. Its subdirectories are fuse (the served files), disk and cut (mount points).
	dir              string
	WriteLog         *os.File // file to which the FUSE server logs the writes
	InitialContent   []byte   // initial content of the disk
	server           *exec.Cmd
	exitResult       chan error // receives the error of the server when it ends
	connectionNumber string     // number of the FUSE connection; Abort needs it
}

// NewDisk creates and serves a disk of the given size in MiB. If mib is 0, it serves only a file named "stuck".
// A read of that file hangs.
func NewDisk(t testing.TB, mib int64) *Disk {
	t.Helper()
	dir, err := os.MkdirTemp(memoryDir(), "qd")
	if err != nil {
		t.Fatal(err)
	}
	d := &Disk{TB: t, dir: dir, exitResult: make(chan error, 1)}
	t.Cleanup(func() {
		d.Close()
		os.RemoveAll(dir)
	})
	for _, name := range []string{"fuse", "disk"} {
		if err := os.Mkdir(d.Path(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	makeImage(t, d.Path("base"), mib)
	if d.InitialContent, err = os.ReadFile(d.Path("base")); err != nil {
		t.Fatal(err)
	}
	d.serve()
	return d
}

// memoryDir returns a directory for files in memory, or "" if the system has none.
func memoryDir() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// makeImage creates an image with an empty ext4 file system, or an empty file if mib is 0.
func makeImage(t testing.TB, path string, mib int64, options ...string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if mib == 0 {
		return
	}
	if err := os.Truncate(path, mib<<20); err != nil {
		t.Fatal(err)
	}
	words := append([]string{"-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"}, options...)
	if out, err := exec.Command("mkfs.ext4", append(words, path)...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
}

func (d *Disk) Path(name string) string { return filepath.Join(d.dir, name) }

// serve starts the FUSE server and waits until the server has mounted its directory.
func (d *Disk) serve() {
	d.Helper()
	image, err := os.Open(d.Path("base"))
	if err != nil {
		d.Fatal(err)
	}
	defer image.Close()
	if d.WriteLog, err = os.OpenFile(d.Path("log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		d.Fatal(err)
	}
	stderr, err := os.Create(d.Path("said"))
	if err != nil {
		d.Fatal(err)
	}
	defer stderr.Close()
	self, err := os.Executable()
	if err != nil {
		d.Fatal(err)
	}
	d.server = exec.Command(self)
	d.server.Env = append(os.Environ(), diskRole+"="+d.Path("fuse"))
	d.server.ExtraFiles, d.server.Stdout, d.server.Stderr = []*os.File{image, d.WriteLog}, stderr, stderr
	// The server ends when this process ends, because that closes the server's standard input.
	if _, err = d.server.StdinPipe(); err == nil {
		err = d.server.Start()
	}
	if err != nil {
		d.Fatal(err)
	}
	go func() { d.exitResult <- d.server.Wait() }() // close receives the result
	for deadline := time.Now().Add(20 * time.Second); d.connectionNumber == ""; time.Sleep(time.Millisecond) {
		if d.connectionNumber = mountNumber(d.Path("fuse")); time.Now().After(deadline) {
			text, _ := os.ReadFile(d.Path("said"))
			d.Fatalf("the disk's server does not serve: %s", text)
		}
	}
}

// mountNumber returns the minor device number of the mount at path, or "" if nothing is mounted there. It does
// not access the mounted file system, which may hang.
func mountNumber(path string) string {
	raw, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == path {
			_, minor, _ := strings.Cut(f[2], ":")
			return minor
		}
	}
	return ""
}

// Abort kills the server. That closes the FUSE connection, so processes that wait for a reply get an error. In
// case the server hangs, Abort also aborts the connection through the kernel's control files, if they exist.
func (d *Disk) Abort() {
	d.server.Process.Kill()
	os.WriteFile("/sys/fs/fuse/connections/"+d.connectionNumber+"/abort", []byte("1"), 0)
}

// Close ends the server and unmounts everything. It does not wait for processes that are blocked in a read or
// write.
func (d *Disk) Close() {
	if d.server == nil || d.server.Process == nil {
		return
	}
	hangs := time.AfterFunc(20*time.Second, d.Abort)
	defer hangs.Stop()
	if mountNumber(d.Path("disk")) != "" && syscall.Unmount(d.Path("disk"), 0) != nil {
		d.Abort()
		syscall.Unmount(d.Path("disk"), syscall.MNT_DETACH)
	}
	d.Abort()
	<-d.exitResult
	syscall.Unmount(d.Path("fuse"), syscall.MNT_DETACH)
	d.WriteLog.Close()
	d.server = nil
}

// Unmount unmounts a directory. While a process uses the mount, it tries again, for at most ten seconds.
func Unmount(dir string) error {
	err := syscall.Unmount(dir, 0)
	for deadline := time.Now().Add(10 * time.Second); err == syscall.EBUSY; err = syscall.Unmount(dir, 0) {
		if time.Now().After(deadline) {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

// RequireDisks skips the test if this machine cannot create disks or lacks one of the given devices.
func RequireDisks(t testing.TB, devices ...string) {
	t.Helper()
	skip.UnlessRoot(t, "needs root to mount a disk; .ci/run runs it as root")
	for _, program := range []string{"mkfs.ext4", "mount"} {
		skip.UnlessProgram(t, program, "needs programs that make a disk; .ci/run installs them")
	}
	for _, name := range devices {
		if f, err := os.OpenFile(name, os.O_RDWR, 0); err != nil {
			t.Log(err)
			skip.Missing(t, name, "needs a device that makes disks; .ci/run runs it where there is one")
		} else {
			f.Close()
		}
	}
}

// StuckReaderPID returns the pid of the cat process that reads the file named "stuck".
func (d *Disk) StuckReaderPID() (pid int) {
	d.Helper()
	for _, line := range ProcessesWithArg("cat\x00" + d.Path("fuse/stuck")) {
		fmt.Sscan(line, &pid)
	}
	if pid == 0 || !IsAlive(pid) {
		d.Fatal("nothing outlives SIGKILL")
	}
	return pid
}
