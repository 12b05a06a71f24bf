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

// diskServerVariable is the environment variable that makes this test binary the server of a Disk. Its value is the
// directory in which the server mounts its files. The server must be a separate process: a process that reads a file
// from its own server can wait forever.
const diskServerVariable = "QUEUECTL_TEST_DISK"

// DiskServerRole is an entry for the argument helpersByEnvVariable of RunPackageTests. It makes a test binary serve a
// Disk.
var DiskServerRole = map[string]func() int{diskServerVariable: func() int {
	fmt.Fprintln(os.Stderr, serveDisk(os.Getenv(diskServerVariable)))
	return 1
}}

// Disk is a disk for tests. Each write to it is logged. It is an ext4 file system on a loop device, whose
// file disk.img is served by a FUSE server.
type Disk struct {
	testing.TB
	// baseDir contains the directories fuse (the served files), disk and cut (mount points).
	baseDir              string
	WriteLogFile         *os.File // file to which the FUSE server logs the writes
	InitialContent       []byte   // initial content of the disk
	fuseServer           *exec.Cmd
	serverExit           chan error // receives the error of the server when it ends
	fuseConnectionNumber string     // number of the FUSE connection; AbortServer needs it
}

// NewDisk creates and serves a disk of sizeMiB MiB. If sizeMiB is 0, the disk has no content. The server then serves
// only a file named "stuck", on which every read hangs.
func NewDisk(t testing.TB, sizeMiB int64) *Disk {
	t.Helper()
	dir, err := os.MkdirTemp(inMemoryDir(), "qd")
	if err != nil {
		t.Fatal(err)
	}
	d := &Disk{TB: t, baseDir: dir, serverExit: make(chan error, 1)}
	t.Cleanup(func() {
		d.Close()
		os.RemoveAll(dir)
	})
	for _, name := range []string{"fuse", "disk"} {
		if err := os.Mkdir(d.Path(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	makeDiskImage(t, d.Path("base"), sizeMiB)
	if d.InitialContent, err = os.ReadFile(d.Path("base")); err != nil {
		t.Fatal(err)
	}
	d.startFUSEServer()
	return d
}

// inMemoryDir returns a directory for files in memory, or "" if the system has none.
func inMemoryDir() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// makeDiskImage creates an image with an empty ext4 file system, or an empty file if sizeMiB is 0.
func makeDiskImage(t testing.TB, path string, sizeMiB int64, mkfsOptions ...string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if sizeMiB == 0 {
		return
	}
	if err := os.Truncate(path, sizeMiB<<20); err != nil {
		t.Fatal(err)
	}
	words := append([]string{"-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"}, mkfsOptions...)
	if out, err := exec.Command("mkfs.ext4", append(words, path)...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
}

func (d *Disk) Path(name string) string { return filepath.Join(d.baseDir, name) }

// startFUSEServer starts the FUSE server and waits until the server has mounted its directory.
func (d *Disk) startFUSEServer() {
	d.Helper()
	image, err := os.Open(d.Path("base"))
	if err != nil {
		d.Fatal(err)
	}
	defer image.Close()
	if d.WriteLogFile, err = os.OpenFile(d.Path("log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
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
	d.fuseServer = exec.Command(self)
	d.fuseServer.Env = append(os.Environ(), diskServerVariable+"="+d.Path("fuse"))
	d.fuseServer.ExtraFiles, d.fuseServer.Stdout, d.fuseServer.Stderr = []*os.File{image, d.WriteLogFile}, stderr, stderr
	// The server ends when this process ends, because that closes the server's standard input.
	if _, err = d.fuseServer.StdinPipe(); err == nil {
		err = d.fuseServer.Start()
	}
	if err != nil {
		d.Fatal(err)
	}
	go func() { d.serverExit <- d.fuseServer.Wait() }() // close receives the result
	for deadline := time.Now().Add(20 * time.Second); d.fuseConnectionNumber == ""; time.Sleep(time.Millisecond) {
		if d.fuseConnectionNumber = mountDeviceNumber(d.Path("fuse")); time.Now().After(deadline) {
			text, _ := os.ReadFile(d.Path("said"))
			d.Fatalf("the disk's server does not serve: %s", text)
		}
	}
}

// mountDeviceNumber returns the minor device number of the file system mounted at mountPoint, or "" if nothing is
// mounted there. It does not access the mounted file system, which may hang.
func mountDeviceNumber(mountPoint string) string {
	raw, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == mountPoint {
			_, minor, _ := strings.Cut(f[2], ":")
			return minor
		}
	}
	return ""
}

// AbortServer kills the server. This closes the FUSE connection, so processes that wait for a reply get an error. If
// the server hangs, the kill may not end it. So AbortServer also aborts the connection through the kernel's control
// files, if they exist.
func (d *Disk) AbortServer() {
	d.fuseServer.Process.Kill()
	os.WriteFile("/sys/fs/fuse/connections/"+d.fuseConnectionNumber+"/abort", []byte("1"), 0)
}

// Close ends the server and unmounts everything. It does not wait for processes that are blocked in a read or
// write.
func (d *Disk) Close() {
	if d.fuseServer == nil || d.fuseServer.Process == nil {
		return
	}
	hangs := time.AfterFunc(20*time.Second, d.AbortServer)
	defer hangs.Stop()
	if mountDeviceNumber(d.Path("disk")) != "" && syscall.Unmount(d.Path("disk"), 0) != nil {
		d.AbortServer()
		syscall.Unmount(d.Path("disk"), syscall.MNT_DETACH)
	}
	d.AbortServer()
	<-d.serverExit
	syscall.Unmount(d.Path("fuse"), syscall.MNT_DETACH)
	d.WriteLogFile.Close()
	d.fuseServer = nil
}

// Unmount unmounts a directory. While a process still uses the mount, Unmount tries again, for at most ten seconds.
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
			skip.MissingRequirement(t, name, "needs a device that makes disks; .ci/run runs it where there is one")
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
	if pid == 0 || !IsProcessAlive(pid) {
		d.Fatal("nothing outlives SIGKILL")
	}
	return pid
}
