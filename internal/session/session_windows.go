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

// Windows tells processes from the highest level down, each once those before it have ended or their time is
// over; all start at 0x280, and so do jobs. The service comes first: one that is told after its runner would
// have what that has ended run again.
// See docs/decisions/0091.
const (
	Service = 0x3ff
	Runner  = 0x3fe
)

// Notify returns a context that ends with ErrEnds when the session does. From then on Windows waits for this
// process until stop. The console tells of it, but not a process that has none or has loaded user32.dll
// (learn.microsoft.com, SetConsoleCtrlHandler), and so does a window that nobody sees. An error says why there
// is no window; the context is of use all the same.
func Notify(parent context.Context, level uintptr) (ctx context.Context, stop func(), err error) {
	var session uint32
	known := windows.ProcessIdToSessionId(windows.GetCurrentProcessId(), &session) == nil
	return notify(parent, level, !known || session != 0) // nobody logs off from session 0, which is of services
}

func notify(parent context.Context, level uintptr, windowed bool) (ctx context.Context, stop func(), err error) {
	setProcessShutdownParameters.Call(level, 0) // if it is refused the order is another
	ctx, cancel := context.WithCancelCause(parent)
	w := &window{ends: func() { cancel(ErrEnds) }, closes: func() { cancel(ErrClosed) }, stopped: make(chan struct{})}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	setConsoleCtrlHandler.Call(console(), 1) // it is asked before that of the signals, which tells not which event it was
	var loops sync.WaitGroup
	loops.Go(func() { w.listen(told) })
	if windowed {
		made := make(chan error)
		loops.Go(func() { w.run(made) })
		err = <-made
	}
	return Under(ctx), sync.OnceFunc(func() {
		close(w.stopped)
		if w.thread != 0 {
			postThreadMessage.Call(w.thread, wmNull, 0, 0)
		}
		loops.Wait()
		setConsoleCtrlHandler.Call(console(), 0)
		cancel(nil)
	}), err
}

// lastEvent is the last event of the console, and console what hears of each and leaves what follows from it to others.
var (
	lastEvent atomic.Uint32
	console   = sync.OnceValue(func() uintptr { return windows.NewCallback(heard) })
)

func heard(event uintptr) (handled uintptr) {
	lastEvent.Store(uint32(event))
	return 0
}

// window hears that the session ends, as a window and from the console.
type window struct {
	ends    func()
	closes  func()
	stopped chan struct{}
	thread  uintptr // of its messages
}

// listen hears what the console says.
func (w *window) listen(told chan os.Signal) {
	defer signal.Stop(told)
	select {
	case <-told:
		if lastEvent.Load() == ctrlClose {
			w.closes()
		} else {
			w.ends()
		}
		<-w.stopped // what it says then ends nothing either
	case <-w.stopped:
	}
}

// run makes the window, says so, and hears its messages until w is stopped.
func (w *window) run(made chan<- error) {
	runtime.LockOSThread() // to which the messages come; it ends with this
	w.thread = uintptr(windows.GetCurrentThreadId())
	module, _, _ := getModuleHandle.Call(0)
	class := &classEx{procedure: windows.NewCallback(w.take), module: module, name: windows.StringToUTF16Ptr("queuectl")}
	class.size = uint32(unsafe.Sizeof(*class))
	var window uintptr
	atom, _, err := registerClass.Call(uintptr(unsafe.Pointer(class)))
	if atom != 0 {
		defer unregisterClass.Call(atom, module)
		window, _, err = createWindow.Call(0, atom, 0, 0, 0, 0, 0, 0, 0, 0, module, 0)
	}
	if window == 0 {
		made <- fmt.Errorf("create the window that receives the logoff message: %w", err)
		return
	}
	defer destroyWindow.Call(window)
	made <- nil
	for m := new(message); ; {
		if more, _, _ := getMessage.Call(uintptr(unsafe.Pointer(m)), 0, 0, 0); int32(more) <= 0 {
			return
		}
		select {
		case <-w.stopped:
			return
		default:
			dispatchMessage.Call(uintptr(unsafe.Pointer(m)))
		}
	}
}

// take answers a message of the window.
func (w *window) take(window uintptr, what uint32, yes, why uintptr) uintptr {
	ofSession := why&closeApp == 0 || why&(logoff|critical) != 0 // an installer that wants a file replaced ends no session
	switch {
	case what == wmQueryEndSession && ofSession:
		return 1
	case what == wmEndSession && ofSession && yes != 0:
		w.ends()
		<-w.stopped // Windows may end a process that has answered
		return 0
	case what == wmQueryEndSession, what == wmEndSession, what == wmClose:
		return 0
	}
	r, _, _ := defWindowProc.Call(window, uintptr(what), yes, why)
	return r
}

// classEx is WNDCLASSEXW.
type classEx struct {
	size, style              uint32
	procedure                uintptr
	extraClass, extraWindow  int32
	module, icon, cursor, bg uintptr
	menu, name               *uint16
	small                    uintptr
}

// message is MSG.
type message struct {
	window     uintptr
	what       uint32
	yes, why   uintptr
	time, x, y int32
	_          uint32
}

const (
	ctrlClose         = 2 // CTRL_CLOSE_EVENT
	wmNull            = 0x0
	wmClose           = 0x10
	wmQueryEndSession = 0x11
	wmEndSession      = 0x16
	closeApp          = 0x1        // ENDSESSION_CLOSEAPP
	critical          = 0x40000000 // ENDSESSION_CRITICAL
	logoff            = 0x80000000 // ENDSESSION_LOGOFF
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
