package rundir

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/windows"
)

// allocatedBytes returns for how many bytes of a file the file system has allocated space.
func allocatedBytes(t *testing.T, f *os.File) int64 {
	t.Helper()
	var info struct { // FILE_STANDARD_INFO
		allocation, end int64
		links           uint32
		deleted, isDir  bool
	}
	if err := windows.GetFileInformationByHandleEx(windows.Handle(f.Fd()), windows.FileStandardInfo,
		(*byte)(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info))); err != nil {
		t.Fatal(err)
	}
	return info.allocation
}
