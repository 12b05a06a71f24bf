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

// fakeServiceManager fakes the service manager and records the calls.
type fakeServiceManager struct {
	kardianos.Service // nil; only the methods defined below are called

	startErr               error // error that a start returns
	removeProfileErr       error // error that the removal of the account's profile returns
	service                *Service
	registered             bool
	serviceState           svc.State // state of the service
	failedStartExitCode    uint32    // exit code of a service that cannot start; 0 if it can
	pendingStateQueryCount int       // number of status queries during a start or stop; each one reports progress
	reportsNoProgress      bool      // a start or stop reports no progress
	ignoresStop            bool      // the service ignores a request to stop
	commandLine            string    // command line of the service
	logonCommand           string    // the command that Windows runs at logon
	recordedCalls          []string

	// These fields hold the settings that the installer has made, and the status that was returned last.
	recoveryActions              []mgr.RecoveryAction
	failureCountResetSeconds     uint32        // seconds without a failure until the first action applies again
	recoversFromNonCrashFailures bool          // actions also follow an exit with an error code
	preshutdownTimeout           time.Duration // time for the service to stop before a shutdown
	sidType                      uint32        // type of the service's SID
	privilege                    string
	serviceStatus                windows.SERVICE_STATUS_PROCESS
}

// newFakeServiceManager returns a fake service manager. Its field service is the user's own service if userService is
// true, otherwise the system's. That service is not registered and does not run.
func newFakeServiceManager(userService bool) *fakeServiceManager {
	m := &fakeServiceManager{serviceState: svc.Stopped}
	o := Options{IsUserService: userService, DaemonPath: `C:\Program Files\queuectl\queuectld.exe`, ClientPath: "client",
		ServicePaths: config.Paths{StateDir: `C:\ProgramData\queuectl`, SocketPath: `\\.\pipe\queuectl`,
			SettingsFile: `C:\ProgramData\queuectl\queuectl.toml`}}
	o.DirectControl = DirectControl{
		Start: func() error { m.recordCall("begin"); m.serviceState = svc.Running; return nil },
		Stop: func(keepJobs bool) error {
			if m.ignoresStop {
				return queue.ErrUnavailable
			}
			if m.recordCall("end"); keepJobs {
				m.recordCall("keep jobs")
			}
			m.serviceState = svc.Stopped
			return nil
		},
		IsAnswering: func() bool { return m.serviceState == svc.Running },
	}
	m.service = &Service{Options: o, kardianosService: m, callerIsAdmin: true,
		openService: func() (serviceRegistration, error) {
			if !m.registered {
				return nil, windows.ERROR_SERVICE_DOES_NOT_EXIST
			}
			return fakeRegistration{m}, nil
		},
		addEventSource:           func(string) error { m.recordCall("source"); return nil },
		removeEventSource:        func(string) error { m.recordCall("no source"); return windows.ERROR_FILE_NOT_FOUND },
		secureStateDir:           func(string, string) error { m.recordCall("secure"); return nil },
		checkProgramTrust:        func(string) error { return nil },
		installRunnerCopy:        func(clientPath string) error { m.recordCall("runner " + clientPath); return nil },
		removeUnusedRunnerCopies: func(clientPath string) { m.recordCall("tidy " + clientPath) },
		removeRunnerCopies:       func(clientPath string) error { m.recordCall("no runner " + clientPath); return nil },
		removeProfile:            func(sid string) error { m.recordCall("no profile " + sid); return m.removeProfileErr },
		logonCommand:             func() (string, error) { return m.logonCommand, nil },
		setLogonCommand:          func(commandLine string) error { m.logonCommand = commandLine; return nil },
		removeLogonCommand:       func() error { m.logonCommand = ""; return registry.ErrNotExist },
	}
	return m
}

func (m *fakeServiceManager) recordCall(call string) { m.recordedCalls = append(m.recordedCalls, call) }

// takeRecordedCalls returns the calls since the previous call.
func (m *fakeServiceManager) takeRecordedCalls() []string {
	list := m.recordedCalls
	m.recordedCalls = nil
	return list
}

func (m *fakeServiceManager) Install() error {
	m.recordCall("install")
	m.registered, m.commandLine = true, m.service.commandLine()
	return nil
}

func (m *fakeServiceManager) Uninstall() error {
	m.recordCall("uninstall")
	m.registered = false
	return errors.New("RemoveEventLogSource() failed")
}

func (m *fakeServiceManager) Start() error {
	m.recordCall("start")
	if m.startErr != nil {
		return m.startErr
	}
	if m.serviceState != svc.Stopped {
		return windows.ERROR_SERVICE_ALREADY_RUNNING
	}
	m.serviceState = svc.StartPending
	return nil
}

// fakeRegistration implements serviceRegistration for the service in the fake service manager.
type fakeRegistration struct{ *fakeServiceManager }

func (l fakeRegistration) SetRecoveryActions(actions []mgr.RecoveryAction, resetPeriod uint32) error {
	l.recoveryActions, l.failureCountResetSeconds = actions, resetPeriod
	return nil
}
func (l fakeRegistration) SetRecoveryActionsOnNonCrashFailures(enabled bool) error {
	l.recoversFromNonCrashFailures = enabled
	return nil
}
func (l fakeRegistration) setPreshutdownTimeout(timeout time.Duration) error {
	l.preshutdownTimeout = timeout
	return nil
}
func (l fakeRegistration) setSIDType(sidType uint32) error       { l.sidType = sidType; return nil }
func (l fakeRegistration) restrictToPrivilege(name string) error { l.privilege = name; return nil }
func (l fakeRegistration) registeredCommand() (string, error)    { return l.commandLine, nil }
func (l fakeRegistration) setRegisteredCommand(commandLine string) error {
	l.recordCall("command")
	l.commandLine = commandLine
	return nil
}
func (l fakeRegistration) Close() error { return nil }
func (l fakeRegistration) Control(svc.Cmd) (svc.Status, error) {
	l.recordCall("stop")
	if l.serviceState == svc.Stopped {
		return svc.Status{}, windows.ERROR_SERVICE_NOT_ACTIVE
	}
	l.serviceState = svc.StopPending
	return svc.Status{}, nil
}

func (l fakeRegistration) queryStatus() (windows.SERVICE_STATUS_PROCESS, error) {
	st := &l.serviceStatus
	if pending := l.serviceState == svc.StartPending || l.serviceState == svc.StopPending; pending &&
		!l.reportsNoProgress {
		st.CheckPoint++
		time.Sleep(10 * time.Second) // the service reports progress every 10 seconds
		if l.pendingStateQueryCount--; l.pendingStateQueryCount < 0 {
			l.serviceState = map[svc.State]svc.State{svc.StartPending: svc.Running, svc.StopPending: svc.Stopped}[l.serviceState]
			if l.failedStartExitCode != 0 {
				l.serviceState, st.Win32ExitCode, st.ServiceSpecificExitCode = svc.Stopped,
					uint32(windows.ERROR_SERVICE_SPECIFIC_ERROR),
					l.failedStartExitCode
			}
		}
	}
	st.CurrentState = uint32(l.serviceState)
	return *st, nil
}
