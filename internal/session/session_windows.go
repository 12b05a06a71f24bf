package session

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// ServiceShutdownLevel and RunnerShutdownLevel are shutdown levels. Windows first notifies the processes with the
// highest level. When these processes have ended or timed out, Windows notifies the processes with the next lower
// level. Jobs have level 0x280, with which every process starts.
//
// The service has the highest level. If Windows notified the runner first, the jobs would end with the runner, and the
// service would retry them. See docs/decisions/0091.
const (
	ServiceShutdownLevel = 0x3ff
	RunnerShutdownLevel  = 0x3fe
)

// NotifyContext returns a context that ends with ErrSessionEnding when the session ends. Windows then waits until
// this process calls the function stop.
//
// Usually Windows notifies a process through its console. But it does not do so if the process has no console, or has
// loaded user32.dll (learn.microsoft.com, SetConsoleCtrlHandler). In that case an invisible window receives the
// notification. If NotifyContext cannot create this window, err is not nil, but ctx still ends with a notification from
// the console.
func NotifyContext(parent context.Context, shutdownLevel uintptr) (ctx context.Context, stop func(), err error) {
	var sessionID uint32
	known := windows.ProcessIdToSessionId(windows.GetCurrentProcessId(), &sessionID) == nil
	// Session 0 is the session of services. No user can log off there, so no window is needed.
	return notifyContext(parent, shutdownLevel, !known || sessionID != 0)
}

// notifyContext implements NotifyContext.
func notifyContext(parent context.Context, shutdownLevel uintptr, createsWindow bool) (ctx context.Context, stop func(),
	err error) {
	// Ignore an error, because the level only determines the order in which Windows notifies processes.
	setProcessShutdownParameters.Call(shutdownLevel, 0)
	ctx, cancel := context.WithCancelCause(parent)
	w := &sessionWatcher{
		onSessionEnd:   func() { cancel(ErrSessionEnding) },
		onConsoleClose: func() { cancel(ErrConsoleClosed) },
		done:           make(chan struct{}),
	}
	events := make(chan os.Signal, 1)
	signal.Notify(events, syscall.SIGTERM)
	// Package os/signal does not report which console event occurred. So add a handler that records the event. Windows
	// calls it before the handler of os/signal.
	setConsoleCtrlHandler.Call(consoleHandler(), 1)
	var listeners sync.WaitGroup
	listeners.Go(func() { w.watchConsoleEvents(events) })
	if createsWindow {
		made := make(chan error)
		listeners.Go(func() { w.runMessageWindow(made) })
		err = <-made
	}
	return MarkSessionContext(ctx), sync.OnceFunc(func() {
		close(w.done)
		if w.windowThreadID != 0 {
			postThreadMessage.Call(w.windowThreadID, wmNull, 0, 0)
		}
		listeners.Wait()
		setConsoleCtrlHandler.Call(consoleHandler(), 0)
		cancel(nil)
	}), err
}

// lastConsoleEvent is the last console event, as recorded by handleConsoleEvent. consoleHandler returns the address of
// handleConsoleEvent, in the form that Windows needs.
var (
	lastConsoleEvent atomic.Uint32
	consoleHandler   = sync.OnceValue(func() uintptr { return windows.NewCallback(handleConsoleEvent) })
)

// handleConsoleEvent records a console event. It returns 0, so that Windows also calls the next handler, which is the
// one of os/signal.
func handleConsoleEvent(event uintptr) (handled uintptr) {
	lastConsoleEvent.Store(uint32(event))
	return 0
}

// sessionWatcher receives the notification that the session ends. An invisible window or the console delivers it.
type sessionWatcher struct {
	onSessionEnd   func()
	onConsoleClose func()
	done           chan struct{} // closed by the function stop that NotifyContext returns
	windowThreadID uintptr       // id of the thread that receives the window's messages
}

// watchConsoleEvents waits for a notification from the console. Package os/signal sends it to the channel.
func (w *sessionWatcher) watchConsoleEvents(events chan os.Signal) {
	defer signal.Stop(events)
	select {
	case <-events:
		if lastConsoleEvent.Load() == ctrlCloseEvent {
			w.onConsoleClose()
		} else {
			w.onSessionEnd()
		}
		<-w.done // ignore later notifications until the process calls stop
	case <-w.done:
	}
}

// runMessageWindow creates the invisible window, and then sends nil or an error to windowCreated. It then handles the
// window's messages until w.done is closed.
func (w *sessionWatcher) runMessageWindow(windowCreated chan<- error) {
	runtime.LockOSThread() // Windows sends the messages to this thread, which ends with the goroutine
	w.windowThreadID = uintptr(windows.GetCurrentThreadId())
	module, _, _ := getModuleHandle.Call(0)
	class := &windowClass{
		windowProcedure: windows.NewCallback(w.handleWindowMessage), module: module,
		name: windows.StringToUTF16Ptr("queuectl"),
	}
	class.structBytes = uint32(unsafe.Sizeof(*class))
	var windowHandle uintptr
	atom, _, err := registerClass.Call(uintptr(unsafe.Pointer(class)))
	if atom != 0 {
		defer unregisterClass.Call(atom, module)
		windowHandle, _, err = createWindow.Call(0, atom, 0, 0, 0, 0, 0, 0, 0, 0, module, 0)
	}
	if windowHandle == 0 {
		windowCreated <- fmt.Errorf("cannot create the window that receives the logoff message: %w", err)
		return
	}
	defer destroyWindow.Call(windowHandle)
	windowCreated <- nil
	for m := new(windowMessage); ; {
		if more, _, _ := getMessage.Call(uintptr(unsafe.Pointer(m)), 0, 0, 0); int32(more) <= 0 {
			return
		}
		select {
		case <-w.done:
			return
		default:
			dispatchMessage.Call(uintptr(unsafe.Pointer(m)))
		}
	}
}

// handleWindowMessage handles a message of the window.
func (w *sessionWatcher) handleWindowMessage(windowHandle uintptr, messageID uint32, sessionEnding,
	reason uintptr) uintptr {
	// Windows also sends these messages if an installer wants to replace a file of this program. The user's
	// session does not end then.
	ofSession := reason&endSessionCloseApp == 0 || reason&(endSessionLogoff|endSessionCritical) != 0
	switch {
	case messageID == wmQueryEndSession && ofSession:
		return 1
	case messageID == wmEndSession && ofSession && sessionEnding != 0:
		w.onSessionEnd()
		<-w.done // Windows may end the process when this function returns, so wait until the process calls stop
		return 0
	case messageID == wmQueryEndSession, messageID == wmEndSession, messageID == wmClose:
		return 0
	}
	r, _, _ := defWindowProc.Call(windowHandle, uintptr(messageID), sessionEnding, reason)
	return r
}

// windowClass has the layout of WNDCLASSEXW.
type windowClass struct {
	structBytes, style                uint32
	windowProcedure                   uintptr
	extraClassBytes, extraWindowBytes int32
	module, icon, cursor, background  uintptr
	menu, name                        *uint16
	smallIcon                         uintptr
}

// windowMessage has the layout of MSG.
type windowMessage struct {
	windowHandle   uintptr
	messageID      uint32
	wParam, lParam uintptr
	time, x, y     int32
	_              uint32
}

const (
	ctrlCloseEvent     = 2 // CTRL_CLOSE_EVENT
	wmNull             = 0x0
	wmClose            = 0x10
	wmQueryEndSession  = 0x11
	wmEndSession       = 0x16
	endSessionCloseApp = 0x1        // ENDSESSION_CLOSEAPP
	endSessionCritical = 0x40000000 // ENDSESSION_CRITICAL
	endSessionLogoff   = 0x80000000 // ENDSESSION_LOGOFF
)

var (
	kernel32                     = windows.NewLazySystemDLL("kernel32.dll")
	getModuleHandle              = kernel32.NewProc("GetModuleHandleW")
	setConsoleCtrlHandler        = kernel32.NewProc("SetConsoleCtrlHandler")
	setProcessShutdownParameters = kernel32.NewProc("SetProcessShutdownParameters")
	user32                       = windows.NewLazySystemDLL("user32.dll")
	registerClass                = user32.NewProc("RegisterClassExW")
	unregisterClass              = user32.NewProc("UnregisterClassW")
	createWindow                 = user32.NewProc("CreateWindowExW")
	destroyWindow                = user32.NewProc("DestroyWindow")
	getMessage                   = user32.NewProc("GetMessageW")
	dispatchMessage              = user32.NewProc("DispatchMessageW")
	postThreadMessage            = user32.NewProc("PostThreadMessageW")
	defWindowProc                = user32.NewProc("DefWindowProcW")
)
