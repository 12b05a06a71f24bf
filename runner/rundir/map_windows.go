package rundir

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapFile maps size bytes from the start of a file into memory. A write to this memory changes the file
// immediately, so the change is kept even if this process dies.
func mapFile(f *os.File, size int) ([]byte, error) {
	m, err := windows.CreateFileMapping(windows.Handle(f.Fd()), nil, windows.PAGE_READWRITE, 0, uint32(size), nil)
	if err != nil {
		return nil, err
	}
	defer windows.CloseHandle(m) // the view keeps the mapping object alive
	const access = windows.FILE_MAP_READ | windows.FILE_MAP_WRITE
	at, err := windows.MapViewOfFile(m, access, 0, 0, uintptr(size))
	if err != nil {
		return nil, err
	}
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), size), nil
}

// unmapFile removes a mapping.
func unmapFile(mem []byte) error {
	return windows.UnmapViewOfFile(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// fileID returns two numbers that identify a file. A copy of the file that exists at the same time has other numbers.
func fileID(f *os.File) (dev, ino int64, err error) {
	var info windows.ByHandleFileInformation
	err = windows.GetFileInformationByHandle(windows.Handle(f.Fd()), &info)
	return int64(info.VolumeSerialNumber), int64(info.FileIndexHigh)<<32 | int64(info.FileIndexLow), err
}
