package term

import (
	"errors"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// IsTerminal reports whether a file is a console that shows colours.
func IsTerminal(f *os.File) bool {
	var mode uint32
	return windows.GetConsoleMode(windows.Handle(f.Fd()), &mode) == nil &&
		mode&windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING != 0
}

// pipeReaderPollInterval is how often awaitPipeReaderGone checks whether a pipe has a reader. It polls, because Windows
// has no notification for that.
const pipeReaderPollInterval = time.Second

// awaitPipeReaderGone waits until all processes have closed the reading end of a pipe. It returns the error that
// a write would return then. It returns nil immediately if f is not a pipe.
func awaitPipeReaderGone(f *os.File) error {
	for pipeState(f) == pipeStateOpen {
		time.Sleep(pipeReaderPollInterval)
	}
	if pipeState(f) == pipeStateClosing {
		return windows.ERROR_NO_DATA
	}
	return nil
}

// The first constants are states of a pipe. The last one is the information class that queries the state. ntifs.h
// defines them.
const (
	pipeStateUnknown         = 0
	pipeStateOpen            = 3
	pipeStateClosing         = 4
	filePipeLocalInformation = 24
)

// pipeState returns the state of a pipe, or pipeStateUnknown if f is not a pipe.
func pipeState(f *os.File) uint32 {
	var status windows.IO_STATUS_BLOCK
	var pipeInfo struct { // FILE_PIPE_LOCAL_INFORMATION
		_     [8]uint32
		state uint32
		_     uint32
	}
	h := windows.Handle(f.Fd())
	if kind, err := windows.GetFileType(h); err != nil || kind != windows.FILE_TYPE_PIPE {
		return pipeStateUnknown
	}
	if windows.NtQueryInformationFile(h, &status, (*byte)(unsafe.Pointer(&pipeInfo)), uint32(unsafe.Sizeof(pipeInfo)),
		filePipeLocalInformation) != nil {
		return pipeStateUnknown
	}
	return pipeInfo.state
}

// PrepareOutput prepares an output file. On a console it enables colour sequences. If the process has no
// output, as in a Windows service, it returns the null device.
func PrepareOutput(f *os.File) *os.File {
	if kind, err := windows.GetFileType(windows.Handle(f.Fd())); kind == windows.FILE_TYPE_UNKNOWN && err != nil {
		if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
			return null
		}
	}
	var mode uint32
	h := windows.Handle(f.Fd())
	if windows.GetConsoleMode(h, &mode) == nil {
		// If this call fails, IsTerminal returns false for f.
		windows.SetConsoleMode(h, mode|windows.ENABLE_PROCESSED_OUTPUT|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING)
	}
	return f
}

// IsClosedPipeError reports whether a write failed because the pipe has no reader.
func IsClosedPipeError(err error) bool {
	return errors.Is(err, windows.ERROR_BROKEN_PIPE) || errors.Is(err, windows.ERROR_NO_DATA)
}
