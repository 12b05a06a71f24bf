package cleanstart

import (
	"os"
	"testing"
)

// What systemd gives one unit goes no further (sd_notify(3), sd_listen_fds(3), systemd.exec(5)); the
// settings of the service stay.
func TestResetDropsWhatHoldsForOneProcess(t *testing.T) {
	dropped := []string{"NOTIFY_SOCKET", "LISTEN_FDS", "JOURNAL_STREAM", "WATCHDOG_USEC", "CREDENTIALS_DIRECTORY"}
	kept := []string{"QUEUECTL_WORKERS", "NOTIFY"}
	for _, name := range append(dropped, kept...) {
		t.Setenv(name, "1")
	}
	resetEnvironment()
	for _, name := range dropped {
		if value, set := os.LookupEnv(name); set {
			t.Errorf("%s is %q", name, value)
		}
	}
	for _, name := range kept {
		if _, set := os.LookupEnv(name); !set {
			t.Errorf("%s is gone", name)
		}
	}
}
