package main

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// leaveConsole lets go of a console that was made for this process alone: Windows makes
// one for what it starts at logon.
func leaveConsole() {
	var list [2]uint32
	if n, _, _ := getConsoleProcessList.Call(uintptr(unsafe.Pointer(&list[0])), uintptr(len(list))); n == 1 {
		freeConsole.Call()
	}
}

var (
	kernel32              = windows.NewLazySystemDLL("kernel32.dll")
	freeConsole           = kernel32.NewProc("FreeConsole")
	getConsoleProcessList = kernel32.NewProc("GetConsoleProcessList")
)
