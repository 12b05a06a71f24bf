package cleanstart

import (
	"slices"
	"testing"
)

// InheritableEnviron drops the variables that systemd sets for one unit (sd_notify(3), sd_listen_fds(3),
// systemd.exec(5)) and the variables of the Go runtime. It keeps the settings of the service.
func TestInheritableEnvironDropsPerProcessVariables(t *testing.T) {
	dropped := []string{
		"NOTIFY_SOCKET", "LISTEN_FDS", "JOURNAL_STREAM", "WATCHDOG_USEC", "CREDENTIALS_DIRECTORY",
		"GOGC", "GOMEMLIMIT", "GODEBUG", "GOMAXPROCS", "GORACE", "GOTRACEBACK",
	}
	kept := []string{"QUEUECTL_WORKERS", "NOTIFY", "GOPATH"}
	for _, name := range append(dropped, kept...) {
		t.Setenv(name, "1")
	}
	got := InheritableEnviron()
	for _, name := range dropped {
		if slices.Contains(got, name+"=1") {
			t.Errorf("the variable %s is passed on", name)
		}
	}
	for _, name := range kept {
		if !slices.Contains(got, name+"=1") {
			t.Errorf("the variable %s is missing", name)
		}
	}
}
