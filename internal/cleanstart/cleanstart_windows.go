package cleanstart

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	kernel32               = windows.NewLazySystemDLL("kernel32.dll")
	getProcessAffinityMask = kernel32.NewProc("GetProcessAffinityMask")
	setProcessAffinityMask = kernel32.NewProc("SetProcessAffinityMask")
)

// NewProcessCreationFlags make a new process start with the normal priority and the normal error mode, instead of the
// priority and the error mode of its caller.
const NewProcessCreationFlags = windows.NORMAL_PRIORITY_CLASS | windows.CREATE_DEFAULT_ERROR_MODE

// ResetInheritedAttributes lets this process use every processor of the system. It need not close handles, because a
// Go program passes only the handles that it names to a new process.
func ResetInheritedAttributes() {
	var processMask, systemMask uintptr
	self := uintptr(windows.CurrentProcess())
	got, _, _ := getProcessAffinityMask.Call(self, uintptr(unsafe.Pointer(&processMask)),
		uintptr(unsafe.Pointer(&systemMask)))
	if got != 0 && processMask != systemMask {
		setProcessAffinityMask.Call(self, systemMask)
	}
}

// SetCloseOnExec does nothing, because a Go program passes only the handles that it names to a new process.
func SetCloseOnExec() error { return nil }

// DescribeInheritedAttributes reports nothing.
func DescribeInheritedAttributes() []string { return nil }
