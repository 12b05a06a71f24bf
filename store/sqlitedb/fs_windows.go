package sqlitedb

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/failpoint"
)

// FileSystemOf returns the file system of a directory, after following links and mapped drives.
func FileSystemOf(dir string) (fileSystem, error) {
	wrong := func(err error) (fileSystem, error) {
		return fileSystem{}, fmt.Errorf("cannot check the file system of %s: %w", dir, err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return wrong(err)
	}
	defer f.Close()
	path, name := make([]uint16, windows.MAX_LONG_PATH), make([]uint16, windows.MAX_PATH+1)
	if _, err := windows.GetFinalPathNameByHandle(windows.Handle(f.Fd()), &path[0], uint32(len(path)), 0); err != nil {
		return wrong(err)
	}
	if err := windows.GetVolumeInformationByHandle(windows.Handle(f.Fd()), nil, 0, nil, nil, nil, &name[0],
		uint32(len(name))); err != nil {
		return wrong(err)
	}
	real := windows.UTF16ToString(path)
	root, err := windows.UTF16PtrFromString(filepath.VolumeName(real) + `\`)
	if err != nil {
		return wrong(err)
	}
	if failpoint.IsEnabled("nfs") {
		real = `\\?\UNC\server\share`
	}
	return classifyVolumeFileSystem(real, windows.GetDriveType(root), windows.UTF16ToString(name)), nil
}

// classifyVolumeFileSystem returns the file system that contains path. The path has no links. driveType and
// fileSystemName are the type of the drive and the name of the file system, as Windows reports them.
func classifyVolumeFileSystem(path string, driveType uint32, fileSystemName string) fileSystem {
	switch {
	case strings.HasPrefix(path, `\\?\UNC\`), driveType == windows.DRIVE_REMOTE:
		return fileSystem{Name: "a network drive", IsUnsupported: true}
	case driveType == windows.DRIVE_RAMDISK:
		return fileSystem{Name: "a RAM disk",
			Warning: "files there are only in memory, so all jobs are lost when Windows restarts"}
	case strings.Contains(strings.ToUpper(fileSystemName), "FAT"):
		return fileSystem{Name: fileSystemName,
			Warning: "this file system, unlike NTFS and ReFS, has no access control, and a power failure can damage it"}
	}
	return fileSystem{Name: fileSystemName}
}

// UnsupportedFileSystemNames returns text for the user that lists the file systems on which no queue may be stored.
func UnsupportedFileSystemNames() string { return "network drives" }

// allocateWALIndex does nothing: disk blocks have at least 4 KiB on this system, and SQLite itself allocates
// every such block.
func allocateWALIndex(string) error { return nil }
