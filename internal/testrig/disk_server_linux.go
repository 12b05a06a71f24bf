package testrig

import (
	bits "encoding/binary"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// These constants are the FUSE node ids (inode numbers) of the served files.
const (
	imageFileNodeID = 2 // file disk.img, the content of the disk
	stuckFileNodeID = 3 // file stuck, on which every read hangs
)

// fuseServedDir is the directory that the server exports. It logs every write and every flush before it replies.
// A log record consists of an offset, a size and the bytes. The record of a flush has the size 0.
type fuseServedDir struct {
	fuse.RawFileSystem

	mu          sync.Mutex
	diskContent []byte   // guarded by mu
	writeLog    *os.File // guarded by mu
}

// serveDisk serves a disk in dir until this process is killed or its parent ends. It returns only if it fails.
func serveDisk(dir string) error {
	image, err := io.ReadAll(os.NewFile(3, "image"))
	if err != nil {
		return err
	}
	s := &fuseServedDir{RawFileSystem: fuse.NewDefaultRawFileSystem(), diskContent: image, writeLog: os.NewFile(4, "log")}
	server, err := fuse.NewServer(s, dir, &fuse.MountOptions{FsName: "queuectl-test", Name: "disk",
		DirectMountStrict: true, DisableXAttrs: true})
	if err != nil {
		return err
	}
	go func() { // this goroutine runs until the process exits
		io.Copy(io.Discard, os.Stdin)
		cleanUpAfterParentDeath(dir)
		os.Exit(1)
	}()
	server.Serve()
	// Wait until the parent kills this process, or until the goroutine above sees that the parent has ended.
	select {}
}

// cleanUpAfterParentDeath cleans up after the parent process (the test) has died. It ends the services, unmounts the
// disks with their loop devices, and removes the files. When this process exits, the FUSE connection closes. Then
// processes that still wait for a reply of this server get an error and can end.
func cleanUpAfterParentDeath(mountDir string) {
	time.AfterFunc(10*time.Second, func() { os.Exit(1) })
	dir := filepath.Dir(mountDir)
	for _, line := range ProcessesWithArg(dir) {
		KillListedProcess(line)
	}
	for _, name := range []string{"disk", "fuse"} {
		syscall.Unmount(filepath.Join(dir, name), syscall.MNT_DETACH)
	}
	images, _ := filepath.Glob(filepath.Join(dir, "cut.img.*"))
	for _, name := range append(images, filepath.Join(dir, "base"), filepath.Join(dir, "log")) {
		os.Remove(name)
	}
}

// fillNodeAttributes stores the attributes of a node in *a.
func (d *fuseServedDir) fillNodeAttributes(node uint64, a *fuse.Attr) fuse.Status {
	a.Ino, a.Nlink, a.Mode = node, 1, syscall.S_IFREG|0o644
	switch node {
	case fuse.FUSE_ROOT_ID:
		a.Mode = syscall.S_IFDIR | 0o755
	case imageFileNodeID:
		a.Size = uint64(len(d.diskContent))
	case stuckFileNodeID:
		a.Size = 4096
	}
	return fuse.OK
}

// Lookup implements fuse.RawFileSystem.
func (d *fuseServedDir) Lookup(_ <-chan struct{}, _ *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	node := map[string]uint64{"disk.img": imageFileNodeID, "stuck": stuckFileNodeID}[name]
	if node == 0 {
		return fuse.ENOENT
	}
	out.NodeId = node
	out.SetEntryTimeout(time.Hour)
	out.SetAttrTimeout(time.Hour)
	return d.fillNodeAttributes(node, &out.Attr)
}

// GetAttr implements fuse.RawFileSystem.
func (d *fuseServedDir) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return d.fillNodeAttributes(in.NodeId, &out.Attr)
}

// SetAttr implements fuse.RawFileSystem.
func (d *fuseServedDir) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return d.fillNodeAttributes(in.NodeId, &out.Attr)
}

// Open implements fuse.RawFileSystem. For the file "stuck" it requests direct I/O. A reader then waits for a
// reply of the server, and no signal interrupts that wait.
func (d *fuseServedDir) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.NodeId == stuckFileNodeID {
		out.OpenFlags = fuse.FOPEN_DIRECT_IO
	}
	return fuse.OK
}

// Flush implements fuse.RawFileSystem. The kernel calls it when a descriptor is closed. Despite its name, it does not
// request a flush to the disk. Fsync does.
func (d *fuseServedDir) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }

// Read implements fuse.RawFileSystem.
func (d *fuseServedDir) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if in.NodeId == stuckFileNodeID {
		select {}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := copy(buf, d.diskContent[min(in.Offset, uint64(len(d.diskContent))):])
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// Write implements fuse.RawFileSystem.
func (d *fuseServedDir) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if in.NodeId != imageFileNodeID || in.Offset+uint64(len(data)) > uint64(len(d.diskContent)) {
		return 0, fuse.EIO
	}
	copy(d.diskContent[in.Offset:], data)
	return uint32(len(data)), d.logWriteLocked(in.Offset, data)
}

// Fsync implements fuse.RawFileSystem.
func (d *fuseServedDir) Fsync(<-chan struct{}, *fuse.FsyncIn) fuse.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.logWriteLocked(0, nil)
}

// logWriteLocked appends a write to the log, or a flush if data is nil. The caller holds mu.
func (d *fuseServedDir) logWriteLocked(offset uint64, data []byte) fuse.Status {
	record := bits.LittleEndian.AppendUint64(make([]byte, 0, 16+len(data)), offset)
	record = bits.LittleEndian.AppendUint64(record, uint64(len(data)))
	if _, err := d.writeLog.Write(append(record, data...)); err != nil {
		return fuse.EIO
	}
	return fuse.OK
}
