package sqlitedb

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/queue"
)

// Network drives are rejected, whatever path leads to them. The user is warned about file systems in memory
// or without access control.
func TestClassifyVolumeFileSystem(t *testing.T) {
	for _, c := range []struct {
		path    string
		kind    uint32
		name    string
		refused bool
		noted   bool
	}{
		{`\\?\C:\ProgramData\queuectl`, windows.DRIVE_FIXED, "NTFS", false, false},
		{`\\?\D:\q`, windows.DRIVE_FIXED, "ReFS", false, false},
		{`\\?\UNC\server\share\q`, windows.DRIVE_NO_ROOT_DIR, "NTFS", true, false},
		{`\\?\Z:\q`, windows.DRIVE_REMOTE, "NTFS", true, false},
		{`\\?\R:\q`, windows.DRIVE_RAMDISK, "NTFS", false, true},
		{`\\?\E:\q`, windows.DRIVE_REMOVABLE, "FAT32", false, true},
		{`\\?\E:\q`, windows.DRIVE_FIXED, "exFAT", false, true},
	} {
		f := classifyVolumeFileSystem(c.path, c.kind, c.name)
		if err := f.CheckSupported(`Q:\q`); f.IsUnsupported != c.refused || c.refused != errors.Is(err, queue.ErrInvalid) ||
			(f.Warning != "") != c.noted {
			t.Errorf("%+v: got %+v, %v", c, f, err)
		}
	}
}

// For a local directory, the name of the file system and the free space are known.
func TestLocalDirectoryIsAccepted(t *testing.T) {
	dir := t.TempDir()
	if f, err := FileSystemOf(dir); err != nil || f.IsUnsupported || f.Name == "" {
		t.Errorf("got %+v, %v", f, err)
	}
	if disk, err := DiskSpaceOf(dir); err != nil || disk.FreeBytes < 1<<20 || disk.FreeBytes > 1<<60 {
		t.Errorf("%d bytes are free, %v", disk.FreeBytes, err)
	}
	if _, err := FileSystemOf(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
}
