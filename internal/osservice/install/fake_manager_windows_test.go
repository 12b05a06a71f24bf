package install

import (
	"errors"
	"time"

	kardianos "github.com/kardianos/service"
	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
)

// manager fakes the service manager and records the calls.
type manager struct {
	kardianos.Service // nil; only the methods defined below are called

	refuses     error // error that a start returns
	profile     error // error that the removal of the account's profile returns
	s           *Service
	registered  bool
	state       svc.State // of the service
	exit        uint32    // exit code of a service that cannot start; 0 if it can
	slow        int       // number of status queries during a start or stop; each one reports progress
	hangs       bool      // a start or stop reports no progress
	ignoresStop bool      // the service ignores a request to stop
	line        string    // command line of the service
	run         string    // the command that Windows runs at logon
	calls       []string

	// These fields hold the settings that the installer has made, and the last status.
	actions   []mgr.RecoveryAction
	reset     uint32        // seconds without a failure until the first action applies again
	nonCrash  bool          // actions also follow an exit with an error code
	preshut   time.Duration // time for the service to stop before a shutdown
	sid       uint32        // type of the service's SID
	privilege string
	st        windows.SERVICE_STATUS_PROCESS
}

// newManager returns a fake service manager. Its field s is a stopped service that is not registered: the
// user's own if userService is true, otherwise the system's.
func newManager(userService bool) *manager {
	m := &manager{state: svc.Stopped}
	o := Options{User: userService, Program: `C:\Program Files\queuectl\queuectld.exe`, Client: "client",
		Paths: config.Paths{StateDir: `C:\ProgramData\queuectl`, Socket: `\\.\pipe\queuectl`,
			SettingsFile: `C:\ProgramData\queuectl\queuectl.toml`}}
	o.Direct = DirectControl{
		Start: func() error { m.record("begin"); m.state = svc.Running; return nil },
		Stop: func(keep bool) error {
			if m.ignoresStop {
				return queue.ErrUnavailable
			}
			if m.record("end"); keep {
				m.record("keep jobs")
			}
			m.state = svc.Stopped
			return nil
		},
		IsAnswering: func() bool { return m.state == svc.Running },
	}
	m.s = &Service{Options: o, unit: m, elevated: true,
		open: func() (serviceEntry, error) {
			if !m.registered {
				return nil, windows.ERROR_SERVICE_DOES_NOT_EXIST
			}
			return listedService{m}, nil
		},
		addSource:          func(string) error { m.record("source"); return nil },
		removeSource:       func(string) error { m.record("no source"); return windows.ERROR_FILE_NOT_FOUND },
		secure:             func(string, string) error { m.record("secure"); return nil },
		checkTrust:         func(string) error { return nil },
		installRunner:      func(client string) error { m.record("runner " + client); return nil },
		tidyRunners:        func(client string) { m.record("tidy " + client) },
		removeRunners:      func(client string) error { m.record("no runner " + client); return nil },
		profile:            func(sid string) error { m.record("no profile " + sid); return m.profile },
		logonCommand:       func() (string, error) { return m.run, nil },
		setLogonCommand:    func(line string) error { m.run = line; return nil },
		removeLogonCommand: func() error { m.run = ""; return registry.ErrNotExist },
	}
	return m
}

func (m *manager) record(what string) { m.calls = append(m.calls, what) }

// takeCalls returns the calls since the previous call.
func (m *manager) takeCalls() []string {
	list := m.calls
	m.calls = nil
	return list
}

func (m *manager) Install() error {
	m.record("install")
	m.registered, m.line = true, m.s.commandLine()
	return nil
}

func (m *manager) Uninstall() error {
	m.record("uninstall")
	m.registered = false
	return errors.New("RemoveEventLogSource() failed")
}

func (m *manager) Start() error {
	m.record("start")
	if m.refuses != nil {
		return m.refuses
	}
	if m.state != svc.Stopped {
		return windows.ERROR_SERVICE_ALREADY_RUNNING
	}
	m.state = svc.StartPending
	return nil
}

// listedService implements serviceEntry for the service in the fake service manager.
type listedService struct{ *manager }

func (l listedService) SetRecoveryActions(a []mgr.RecoveryAction, reset uint32) error {
	l.actions, l.reset = a, reset
	return nil
}
func (l listedService) SetRecoveryActionsOnNonCrashFailures(yes bool) error {
	l.nonCrash = yes
	return nil
}
func (l listedService) setPreshutdownTimeout(within time.Duration) error {
	l.preshut = within
	return nil
}
func (l listedService) setSIDType(kind uint32) error   { l.sid = kind; return nil }
func (l listedService) setPrivilege(name string) error { l.privilege = name; return nil }
func (l listedService) command() (string, error)       { return l.line, nil }
func (l listedService) setCommand(line string) error   { l.record("command"); l.line = line; return nil }
func (l listedService) Close() error                   { return nil }
func (l listedService) Control(svc.Cmd) (svc.Status, error) {
	l.record("stop")
	if l.state == svc.Stopped {
		return svc.Status{}, windows.ERROR_SERVICE_NOT_ACTIVE
	}
	l.state = svc.StopPending
	return svc.Status{}, nil
}

func (l listedService) status() (windows.SERVICE_STATUS_PROCESS, error) {
	st := &l.st
	if pending := l.state == svc.StartPending || l.state == svc.StopPending; pending && !l.hangs {
		st.CheckPoint++
		time.Sleep(10 * time.Second) // the service reports progress every 10 seconds
		if l.slow--; l.slow < 0 {
			l.state = map[svc.State]svc.State{svc.StartPending: svc.Running, svc.StopPending: svc.Stopped}[l.state]
			if l.exit != 0 {
				l.state, st.Win32ExitCode, st.ServiceSpecificExitCode = svc.Stopped, uint32(windows.ERROR_SERVICE_SPECIFIC_ERROR),
					l.exit
			}
		}
	}
	st.CurrentState = uint32(l.state)
	return *st, nil
}
