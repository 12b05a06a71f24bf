package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/session"
)

// detachConsole closes the console of this process if no other process uses the console. Windows opens a console for
// the service when it starts the service at logon.
func detachConsole() {
	var processIDs [2]uint32
	if n, _, _ := getConsoleProcessList.Call(uintptr(unsafe.Pointer(&processIDs[0])), uintptr(len(processIDs))); n == 1 {
		freeConsole.Call()
	}
}

// contextUntilStopSignal returns a context that ends on Ctrl-C or when the user's session ends.
func contextUntilStopSignal(ctx context.Context, log io.Writer) (context.Context, context.CancelFunc) {
	ctx, end, err := session.NotifyContext(ctx, session.ServiceShutdownLevel)
	if err != nil {
		fmt.Fprintf(log, "queuectl: cannot detect when you log off (%v); jobs that run when you log off may end as lost\n",
			err)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	return ctx, func() { stop(); end() }
}

var (
	kernel32              = windows.NewLazySystemDLL("kernel32.dll")
	freeConsole           = kernel32.NewProc("FreeConsole")
	getConsoleProcessList = kernel32.NewProc("GetConsoleProcessList")
)
