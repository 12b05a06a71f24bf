package queue_test

import (
	"errors"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// Signals have the names and numbers of signal(7) for Linux on x86 and ARM. Real-time signals have the names
// and numbers of glibc (kill -l).
func TestSignalNamesMatchLinux(t *testing.T) {
	for n, want := range map[int]string{
		1: "SIGHUP", 2: "SIGINT", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2",
		13: "SIGPIPE", 15: "SIGTERM",
		16: "SIGSTKFLT", 17: "SIGCHLD", 18: "SIGCONT", 19: "SIGSTOP", 24: "SIGXCPU", 28: "SIGWINCH", 31: "SIGSYS",
		34: "SIGRTMIN", 35: "SIGRTMIN+1", 64: "SIGRTMIN+30",
	} {
		if got := queue.SignalName(n); got != want {
			t.Errorf("signal %d is %s, want %s", n, got, want)
		}
		if got, err := queue.ParseSignal(want); got != n || err != nil {
			t.Errorf("%s is %d, %v, want %d", want, got, err, n)
		}
	}
	for _, n := range []int{0, -1, 32, 33, 65} {
		if got := queue.SignalText(n); got != queue.SignalName(n) {
			t.Errorf("signal %d is shown as %q", n, got)
		}
	}
	if got, want := queue.SignalText(10), "signal 10 (SIGUSR1)"; got != want {
		t.Errorf("SignalText returned %q, want %q", got, want)
	}
}

// ParseSignal accepts names and numbers, and rejects other texts with a hint.
func TestParseSignalAcceptsNamesAndNumbers(t *testing.T) {
	for text, want := range map[string]int{"usr1": 10, "SIGSEGV": 11, "9": 9, "64": 64, "RTMIN": 34, "SIGRTMIN+2": 36} {
		if got, err := queue.ParseSignal(text); got != want || err != nil {
			t.Errorf("%s: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "65", "SIG", "RTMIN+31", "RTMIN-1", "RTMIN2", "TEMR"} {
		if _, err := queue.ParseSignal(text); !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("%q: %v, want %v", text, err, queue.ErrInvalid)
		}
	}
}
