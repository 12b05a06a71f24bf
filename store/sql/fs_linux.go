package sql

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/failpoint"
)

// fileSystems lists file systems by their magic numbers. These come from linux/magic.h, or from the source
// of the file system if they are missing there.
var fileSystems = map[int64]fileSystem{
	0x6969:     {name: "NFS", refused: true},
	0x517b:     {name: "SMB", refused: true},
	0xfe534d42: {name: "SMB", refused: true},
	0xff534d42: {name: "CIFS", refused: true},
	0x01021997: {name: "9p", refused: true},
	0x65735546: {name: "FUSE", refused: true},
	0x00c36400: {name: "Ceph", refused: true},
	0x5346414f: {name: "AFS", refused: true},
	0x6b414653: {name: "AFS", refused: true},
	0x73757245: {name: "Coda", refused: true},
	0x7461636f: {name: "OCFS2", refused: true},
	0x01161970: {name: "GFS2", refused: true},
	0x0bd00bd0: {name: "Lustre", refused: true},
	0x786f4256: {name: "vboxsf", refused: true},
	0x01021994: {name: "tmpfs", note: "files there are only in memory, so all jobs are lost at a reboot"},
	0x858458f6: {name: "ramfs", note: "files there are only in memory, so all jobs are lost at a reboot"},
	0x794c7630: {name: "overlay", note: "files there are lost when the container is removed"},
}

// fileSystemOf returns the file system of a directory.
func fileSystemOf(dir string) (fileSystem, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fileSystem{}, fmt.Errorf("cannot check the file system of %s: %w", dir, err)
	}
	magic := int64(uint32(s.Type))
	if failpoint.On("nfs") {
		magic = 0x6969
	}
	if f, ok := fileSystems[magic]; ok {
		return f, nil
	}
	return fileSystem{name: fmt.Sprintf("a local file system (%#x)", magic)}, nil
}

// refusedNames lists the file systems that are refused.
func refusedNames() string {
	var names []string
	for _, f := range fileSystems {
		if f.refused && !slices.Contains(names, f.name) {
			names = append(names, f.name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// freeInodes returns how many more files can be created below dir, or -1 if that is unknown.
func freeInodes(dir string) int64 {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil || s.Files == 0 {
		return -1
	}
	return int64(s.Ffree)
}
