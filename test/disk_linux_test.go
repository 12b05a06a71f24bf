package test

import (
	bits "encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/queuectl/queuectl/internal/skip"
)

// diskRole names the environment variable that makes this test binary the server of a disk. Its value is the
// directory where the server mounts the disk. The server is a separate process, because a process that used
// the files it serves would wait for itself.
const diskRole = "QUEUECTL_TEST_DISK"

// FUSE node ids of the served directory.
const (
	imageNode = 2 // disk.img: the content of the disk
	stuckNode = 3 // stuck: a file on which every read hangs
)

// exportedDir is the directory that the disk's server exports. It logs every write and every flush
// before it replies. Each log record has an offset, a size and the bytes. A flush has the size 0.
type exportedDir struct {
	fuse.RawFileSystem

	mu      sync.Mutex
	content []byte   // guarded by mu
	log     *os.File // guarded by mu
}

// serveDisk serves the disk until the process is ended or its parent is gone.
func serveDisk(dir string) error {
	image, err := io.ReadAll(os.NewFile(3, "image"))
	if err != nil {
		return err
	}
	s := &exportedDir{RawFileSystem: fuse.NewDefaultRawFileSystem(), content: image, log: os.NewFile(4, "log")}
	server, err := fuse.NewServer(s, dir, &fuse.MountOptions{FsName: "queuectl-test", Name: "disk",
		DirectMountStrict: true, DisableXAttrs: true})
	if err != nil {
		return err
	}
	go func() { // this goroutine runs until the process exits
		io.Copy(io.Discard, os.Stdin)
		cleanUpOrphan(dir)
		os.Exit(1)
	}()
	server.Serve()
	// Wait until the parent kills this process, or until the goroutine above sees that the parent is gone.
	select {}
}

// cleanUpOrphan cleans up if the parent process has died. It ends the services, unmounts the disks with their
// loop devices, and removes the files. The FUSE connection closes when this process exits. That also ends all
// processes that wait for a reply of this server.
func cleanUpOrphan(mountDir string) {
	time.AfterFunc(10*time.Second, func() { os.Exit(1) })
	dir := filepath.Dir(mountDir)
	for _, line := range processesWithArg(dir) {
		killListed(line)
	}
	for _, name := range []string{"disk", "fuse"} {
		syscall.Unmount(filepath.Join(dir, name), syscall.MNT_DETACH)
	}
	images, _ := filepath.Glob(filepath.Join(dir, "cut.img.*"))
	for _, name := range append(images, filepath.Join(dir, "base"), filepath.Join(dir, "log")) {
		os.Remove(name)
	}
}

func (s *exportedDir) attr(node uint64, a *fuse.Attr) fuse.Status {
	a.Ino, a.Nlink, a.Mode = node, 1, syscall.S_IFREG|0o644
	switch node {
	case fuse.FUSE_ROOT_ID:
		a.Mode = syscall.S_IFDIR | 0o755
	case imageNode:
		a.Size = uint64(len(s.content))
	case stuckNode:
		a.Size = 4096
	}
	return fuse.OK
}

// Lookup implements fuse.RawFileSystem.
func (s *exportedDir) Lookup(_ <-chan struct{}, _ *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	node := map[string]uint64{"disk.img": imageNode, "stuck": stuckNode}[name]
	if node == 0 {
		return fuse.ENOENT
	}
	out.NodeId = node
	out.SetEntryTimeout(time.Hour)
	out.SetAttrTimeout(time.Hour)
	return s.attr(node, &out.Attr)
}

// GetAttr implements fuse.RawFileSystem.
func (s *exportedDir) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return s.attr(in.NodeId, &out.Attr)
}

// SetAttr implements fuse.RawFileSystem.
func (s *exportedDir) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return s.attr(in.NodeId, &out.Attr)
}

// Open implements fuse.RawFileSystem. A read of the stuck file uses direct I/O, so the reader
// waits for the reply and not for a page of the cache. No signal ends that wait.
func (s *exportedDir) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.NodeId == stuckNode {
		out.OpenFlags = fuse.FOPEN_DIRECT_IO
	}
	return fuse.OK
}

// Flush implements fuse.RawFileSystem. It is called when a descriptor is closed and does not flush
// data.
func (s *exportedDir) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }

// Read implements fuse.RawFileSystem.
func (s *exportedDir) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if in.NodeId == stuckNode {
		select {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := copy(buf, s.content[min(in.Offset, uint64(len(s.content))):])
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// Write implements fuse.RawFileSystem.
func (s *exportedDir) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.NodeId != imageNode || in.Offset+uint64(len(data)) > uint64(len(s.content)) {
		return 0, fuse.EIO
	}
	copy(s.content[in.Offset:], data)
	return uint32(len(data)), s.logRecordLocked(in.Offset, data)
}

// Fsync implements fuse.RawFileSystem.
func (s *exportedDir) Fsync(<-chan struct{}, *fuse.FsyncIn) fuse.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logRecordLocked(0, nil)
}

// logRecordLocked logs a write or a flush. The caller holds mu.
func (s *exportedDir) logRecordLocked(offset uint64, data []byte) fuse.Status {
	record := bits.LittleEndian.AppendUint64(make([]byte, 0, 16+len(data)), offset)
	record = bits.LittleEndian.AppendUint64(record, uint64(len(data)))
	if _, err := s.log.Write(append(record, data...)); err != nil {
		return fuse.EIO
	}
	return fuse.OK
}

// disk is a served disk from the client's side: an ext4 file system on a loop device on the served
// file disk.img.
type disk struct {
	testing.TB
	dir            string // base directory; contains the directories fuse (served), disk and cut (mount points)
	log            *os.File
	initialContent []byte // initial content of the disk
	server         *exec.Cmd
	ended          chan error
	connection     string // number of the FUSE connection, needed to abort it
}

// newDisk makes and serves a disk of the given size in MiB. With size 0 it serves only the stuck
// file.
func newDisk(t testing.TB, mib int64) *disk {
	t.Helper()
	dir, err := os.MkdirTemp(shm(), "qd")
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{TB: t, dir: dir, ended: make(chan error, 1)}
	t.Cleanup(func() {
		d.close()
		os.RemoveAll(dir)
	})
	for _, name := range []string{"fuse", "disk"} {
		if err := os.Mkdir(d.path(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	makeImage(t, d.path("base"), mib)
	if d.initialContent, err = os.ReadFile(d.path("base")); err != nil {
		t.Fatal(err)
	}
	d.serve()
	return d
}

// shm returns the directory for files in memory, "" if the system has none.
func shm() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// makeImage makes an image with an empty ext4 file system, or an empty file if mib is 0.
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

func (d *disk) path(name string) string { return filepath.Join(d.dir, name) }

// serve starts the server and waits until its directory is mounted.
func (d *disk) serve() {
	d.Helper()
	image, err := os.Open(d.path("base"))
	if err != nil {
		d.Fatal(err)
	}
	defer image.Close()
	if d.log, err = os.OpenFile(d.path("log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); err != nil {
		d.Fatal(err)
	}
	stderr, err := os.Create(d.path("said"))
	if err != nil {
		d.Fatal(err)
	}
	defer stderr.Close()
	self, err := os.Executable()
	if err != nil {
		d.Fatal(err)
	}
	d.server = exec.Command(self)
	d.server.Env = append(os.Environ(), diskRole+"="+d.path("fuse"))
	d.server.ExtraFiles, d.server.Stdout, d.server.Stderr = []*os.File{image, d.log}, stderr, stderr
	// The server ends when its standard input is closed, at the latest when this process ends.
	if _, err = d.server.StdinPipe(); err == nil {
		err = d.server.Start()
	}
	if err != nil {
		d.Fatal(err)
	}
	go func() { d.ended <- d.server.Wait() }() // close receives the result
	for deadline := time.Now().Add(20 * time.Second); d.connection == ""; time.Sleep(time.Millisecond) {
		if d.connection = mountNumber(d.path("fuse")); time.Now().After(deadline) {
			text, _ := os.ReadFile(d.path("said"))
			d.Fatalf("the disk's server does not serve: %s", text)
		}
	}
}

// mountNumber returns the minor device number of the mount at path, "" if nothing is mounted
// there. It does not access the mount.
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

// abort ends the server and thereby the FUSE connection, so processes that wait for a reply get an error. If
// the kernel exposes the connection in a file system, abort also aborts it there, in case the server hangs.
func (d *disk) abort() {
	d.server.Process.Kill()
	os.WriteFile("/sys/fs/fuse/connections/"+d.connection+"/abort", []byte("1"), 0)
}

// close ends the server and unmounts everything. It does not wait for processes that hang.
func (d *disk) close() {
	if d.server == nil || d.server.Process == nil {
		return
	}
	hangs := time.AfterFunc(20*time.Second, d.abort)
	defer hangs.Stop()
	if mountNumber(d.path("disk")) != "" && syscall.Unmount(d.path("disk"), 0) != nil {
		d.abort()
		syscall.Unmount(d.path("disk"), syscall.MNT_DETACH)
	}
	d.abort()
	<-d.ended
	syscall.Unmount(d.path("fuse"), syscall.MNT_DETACH)
	d.log.Close()
	d.server = nil
}

// logPosition returns the length of the log. The disk has received every write and flush whose record is
// before this position.
func (d *disk) logPosition() int64 {
	info, err := d.log.Stat()
	if err != nil {
		d.Errorf("the disk's log: %v", err)
		return 0
	}
	return info.Size()
}

// record is a write, or a flush if it has no data. end is the log position after it.
type record struct {
	end    int64
	offset uint64
	data   []byte
}

// records reads the log.
func (d *disk) records() (list []record) {
	d.Helper()
	raw, err := os.ReadFile(d.path("log"))
	if err != nil {
		d.Fatal(err)
	}
	for at := 0; len(raw)-at >= 16; {
		offset, size := bits.LittleEndian.Uint64(raw[at:]), int(bits.LittleEndian.Uint64(raw[at+8:]))
		if len(raw)-at-16 < size {
			break
		}
		data := raw[at+16 : at+16+size]
		at += 16 + size
		list = append(list, record{int64(at), offset, data})
	}
	return list
}

// Kinds of power cuts. They differ in which of the writes since the last flush survive.
const (
	keepsAll = iota
	keepsNone
	keepsWrites  // a random subset of the writes
	keepsSectors // a random subset of the sectors of each write
	keepsKinds
)

const sector = 512 // in bytes; a disk writes a sector completely or not at all

// cutter makes images of the disk after power cuts. Calls must have ascending positions.
type cutter struct {
	records []record
	durable []byte // content as of the last flush
	flushed int    // number of records up to the last flush
	written int    // number of records up to the cut
}

// contentAfter returns the content of the disk after a power cut at a log position: all writes before the
// last flush, and a random selection of the later ones that depends on kind.
func (c *cutter) contentAfter(position int64, kind int, rng *rand.Rand) []byte {
	for ; c.written < len(c.records) && c.records[c.written].end <= position; c.written++ {
		if len(c.records[c.written].data) > 0 {
			continue
		}
		for _, r := range c.records[c.flushed:c.written] {
			copy(c.durable[r.offset:], r.data)
		}
		c.flushed = c.written + 1
	}
	image := append([]byte(nil), c.durable...)
	for _, r := range c.records[c.flushed:c.written] {
		if kind == keepsAll || kind == keepsWrites && rng.IntN(2) == 0 {
			copy(image[r.offset:], r.data)
		}
		for at := 0; kind == keepsSectors && at < len(r.data); at += sector {
			if rng.IntN(2) == 0 {
				copy(image[r.offset+uint64(at):], r.data[at:min(at+sector, len(r.data))])
			}
		}
	}
	return image
}

// mountImage mounts an image on a loop device that disappears with the mount.
func mountImage(image, dir string) error {
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount %s: %w: %s", image, err, out)
	}
	return nil
}

// unmount unmounts a directory, waiting until no process uses it.
func unmount(dir string) error {
	err := syscall.Unmount(dir, 0)
	for deadline := time.Now().Add(10 * time.Second); err == syscall.EBUSY; err = syscall.Unmount(dir, 0) {
		if time.Now().After(deadline) {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

// needsDisks skips the test where disks cannot be made.
func needsDisks(t testing.TB, devices ...string) {
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
