package osservice

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/config"
)

// If a client started the service on demand, the advice is to register the service and to enable its unit. If
// init started the service, there is no advice, because init starts it at boot.
func TestBootAdviceSaysWhatIsMissing(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	booted := t.TempDir()
	own := ServiceProcess{ServiceKind: config.UserService, StartedOnDemand: true, ParentPID: 1}
	advice := func(p ServiceProcess, want string) {
		t.Helper()
		if got := bootAdvice(p, booted); got != want {
			t.Errorf("%+v: got %q, want %q", p, got, want)
		}
	}
	advice(own, "queuectl service install --user")
	advice(ServiceProcess{ServiceKind: config.UserService, ParentPID: os.Getpid()}, "queuectl service install --user")
	advice(ServiceProcess{ServiceKind: config.DirectoryService, ParentPID: os.Getpid()}, initSystemAdvice)
	advice(ServiceProcess{ServiceKind: config.DirectoryService, ParentPID: initPID}, "")

	booted = filepath.Join(booted, "missing") // the code takes a missing directory to mean that systemd does not run
	advice(own, "make the init system run: queuectl serve")
	advice(ServiceProcess{ServiceKind: config.SystemService, ParentPID: os.Getpid()},
		"make the init system start this service")
	advice(ServiceProcess{ServiceKind: config.DirectoryService, ParentPID: os.Getpid()},
		"make the init system start this service")
	booted = t.TempDir()

	unit := filepath.Join(UnitDir(), ServiceName+".service")
	wants := filepath.Join(UnitDir(), "default.target.wants")
	if err := os.MkdirAll(wants, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(unit, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	own = ServiceProcess{ServiceKind: config.UserService, SystemdUnit: ServiceName + ".service", ParentPID: os.Getpid()}
	advice(own, "systemctl --user enable queuectl")
	if err := os.Symlink(unit, filepath.Join(wants, ServiceName+".service")); err != nil {
		t.Fatal(err)
	}
	if isUserLingering() {
		advice(own, "")
	} else {
		advice(own, "loginctl enable-linger")
	}
}
