package session

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	procFindWindowEx          = user32.NewProc("FindWindowExW")
	procSendMessageTimeout    = user32.NewProc("SendMessageTimeoutW")
	procGetShutdownParameters = kernel32.NewProc("GetProcessShutdownParameters")
)

// findOwnWindow returns the handle of this process's invisible window, or 0 if it has none.
func findOwnWindow() (windowHandle uintptr) {
	class := windows.StringToUTF16Ptr("queuectl")
	for {
		if windowHandle, _, _ = procFindWindowEx.Call(0, windowHandle, uintptr(unsafe.Pointer(class)), 0); windowHandle == 0 {
			return 0
		}
		var pid uint32
		if windows.GetWindowThreadProcessId(windows.HWND(windowHandle), &pid); pid == windows.GetCurrentProcessId() {
			return windowHandle
		}
	}
}

// sendMessage sends a message to a window and waits up to a second for the window's answer.
func sendMessage(windowHandle uintptr, messageID uint32, wParam, lParam uintptr) (answer uintptr, answered bool) {
	ok, _, _ := procSendMessageTimeout.Call(windowHandle, uintptr(messageID), wParam, lParam, 0, 1000,
		uintptr(unsafe.Pointer(&answer)))
	return answer, ok != 0
}

// notifyContext creates an invisible window, to which Windows sends a message when the session ends. Windows then waits
// until the process calls the function stop. The context is not cancelled if the user cancels the logoff, if an
// installer sends the message, or if another program closes the window.
func TestWindowReceivesSessionEnd(t *testing.T) {
	for range 2 { // the second round checks that a window can be created after the first one is closed
		ctx, stop, err := notifyContext(t.Context(), ServiceShutdownLevel, true)
		if err != nil {
			t.Fatal(err)
		}
		window := findOwnWindow()
		if window == 0 {
			t.Fatal("no window")
		}
		var level, flags uint32
		if procGetShutdownParameters.Call(uintptr(unsafe.Pointer(&level)),
			uintptr(unsafe.Pointer(&flags))); level != ServiceShutdownLevel ||
			flags != 0 {
			t.Errorf("notified at level %#x, flags %d", level, flags)
		}
		for _, c := range []struct {
			what             uint32
			yes, why, answer uintptr
		}{
			{wmQueryEndSession, 0, 0, 1},
			{wmQueryEndSession, 0, 0x80000000, 1}, // ENDSESSION_LOGOFF
			{wmEndSession, 0, 0x80000000, 0},
			{wmQueryEndSession, 0, endSessionCloseApp, 0},
			{wmQueryEndSession, 0, endSessionCloseApp | endSessionLogoff, 1},
			{wmEndSession, 1, endSessionCloseApp, 0},
			{wmClose, 0, 0, 0},
		} {
			if answer, ok := sendMessage(window, c.what, c.yes, c.why); !ok || answer != c.answer || ctx.Err() != nil {
				t.Errorf("%+v: %d, %v, %v", c, answer, ok, ctx.Err())
			}
		}
		answered := make(chan bool)
		go func() {
			_, ok := sendMessage(window, wmEndSession, 1, endSessionCloseApp|endSessionCritical)
			answered <- ok
		}()
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Second):
			t.Fatal("not notified")
		}
		if why := context.Cause(ctx); !errors.Is(why, ErrSessionEnding) {
			t.Error(why)
		}
		if <-answered {
			t.Error("Windows may end the process before it has finished")
		}
		stop()
		if findOwnWindow() != 0 {
			t.Error("the window is still there")
		}
	}
}

// A service of the machine creates no window, because a window would use memory (the desktop heap) that its
// jobs need. Windows notifies the service before its runner, and the runner before jobs.
func TestSessionEndNotifiesServiceBeforeRunner(t *testing.T) {
	_, stop, err := notifyContext(t.Context(), RunnerShutdownLevel, false)
	if err != nil || findOwnWindow() != 0 {
		t.Errorf("a window %#x, %v", findOwnWindow(), err)
	}
	stop()
	if ServiceShutdownLevel <= RunnerShutdownLevel || RunnerShutdownLevel <= 0x280 {
		t.Error("the shutdown levels are in another order")
	}
}

// If the user closes the console window, ConsoleClosed returns true and IsEnding returns false.
func TestClosedConsoleIsNotSessionEnd(t *testing.T) {
	// 5 is CTRL_LOGOFF_EVENT, and 6 is CTRL_SHUTDOWN_EVENT.
	for event, want := range map[uintptr]string{ctrlCloseEvent: "closes", 5: "ends", 6: "ends"} {
		got := make(chan string, 1)
		w := &sessionWatcher{onSessionEnd: func() { got <- "ends" }, onConsoleClose: func() { got <- "closes" },
			done: make(chan struct{})}
		events := make(chan os.Signal, 1)
		if handleConsoleEvent(event) != 0 {
			t.Error("the event does not reach the next handler")
		}
		events <- syscall.SIGTERM
		close(w.done)
		for len(got) == 0 && len(events) > 0 {
			w.watchConsoleEvents(events)
		}
		if how := <-got; how != want {
			t.Errorf("event %d %s, want %s", event, how, want)
		}
	}
	lastConsoleEvent.Store(0)
}
