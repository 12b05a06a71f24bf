package install

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	kardianos "github.com/kardianos/service"
	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
	"golang.org/x/sys/windows/svc/mgr"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/osservice"
	"github.com/queuectl/queuectl/queue"
)

// ServiceAccountName is the account of the system's service. It is a virtual account: Windows creates it only for
// this service, and it has no password.
const ServiceAccountName = `NT SERVICE\` + ServiceName

// adminOnlyMessage is the message for a caller without the rights to manage the system's service.
const adminOnlyMessage = "only an administrator can %s the system's service; in an elevated prompt " +
	"(right-click, Run as administrator), run: queuectl service %[1]s; or use --user for your own service"

// Service is queuectl as a service of Windows. A user's own service is not a Windows service: it
// starts when the user logs on and ends when the user logs off.
type Service struct {
	Options
	kardianosService  kardianos.Service
	openService       func() (serviceRegistration, error) // opens the service in the service manager
	secureStateDir    func(dir, file string) error        // creates the state directory, or restricts the access to it
	checkProgramTrust func(program string) error          // returns an error if other accounts could replace a program
	removeProfile     func(sid string) error              // removes an account's profile
	callerIsAdmin     bool                                // the caller has the rights of an administrator

	addEventSource, removeEventSource func(name string) error // add and remove an event log source

	// These functions handle the copies of the runner program, which are in a directory next to the program.
	// installRunnerCopy adds a copy of the current version. removeUnusedRunnerCopies removes the copies of other versions
	// that are not running. removeRunnerCopies removes all copies.
	installRunnerCopy, removeRunnerCopies func(clientPath string) error
	removeUnusedRunnerCopies              func(clientPath string)

	// These functions handle the command that Windows runs when this user logs on. logonCommand returns "" if
	// Windows runs no such command.
	logonCommand       func() (string, error)
	setLogonCommand    func(line string) error
	removeLogonCommand func() error
}

// New returns the service that the options select.
func New(o Options) (*Service, error) {
	s := &Service{
		Options: o, secureStateDir: secureStateDir, checkProgramTrust: checkProgramTrust, removeProfile: removeProfile,
		callerIsAdmin:  windows.GetCurrentProcessToken().IsElevated(),
		addEventSource: addEventLogSource, removeEventSource: eventlog.Remove,
		installRunnerCopy: installRunnerCopy, removeUnusedRunnerCopies: removeUnusedRunnerCopies,
		removeRunnerCopies: removeRunnerCopies,
		logonCommand:       osservice.UserServiceCommand, setLogonCommand: setLogonCommand,
		removeLogonCommand: removeLogonCommand,
	}
	var err error
	s.kardianosService, err = kardianos.New(nil, &kardianos.Config{
		Name:        ServiceName,
		DisplayName: "queuectl job queue",
		Description: "Runs jobs from a durable queue of commands and keeps them across restarts.",
		UserName:    ServiceAccountName,
		Executable:  o.DaemonPath,
		Arguments:   o.serviceManagerArguments(),
	})
	s.openService = s.openRegistration
	return s, err
}

// serviceManagerArguments returns the arguments with which the service manager starts the program.
func (o Options) serviceManagerArguments() []string {
	words := o.serveArguments()
	return append([]string{words[0], "--service"}, words[1:]...)
}

// IsRegistered reports whether the service is registered. It also returns true if it cannot query the service
// manager.
func (s *Service) IsRegistered() bool {
	if s.IsUserService {
		line, err := s.logonCommand()
		return err == nil && line != ""
	}
	e, err := s.openService()
	if err == nil {
		e.Close()
	}
	return !errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST)
}

// Install registers and starts the service. If the service is already registered with another command,
// Install updates the registration and restarts the service. Running jobs continue.
func (s *Service) Install() error {
	if s.IsUserService {
		return s.installUserService()
	}
	if err := s.checkControlAllowed("install"); err != nil {
		return err
	}
	for _, program := range []string{s.DaemonPath, s.ClientPath} {
		if err := s.checkProgramTrust(program); err != nil {
			return err
		}
	}
	changed := false
	if s.IsRegistered() {
		var err error
		if changed, err = s.updateRegistration(); err != nil {
			return err
		}
		// Restrict the directory before the registration. Otherwise Windows could start the service with
		// files that another user has put there.
	} else if err := s.secureStateDir(s.ServicePaths.StateDir, s.ServicePaths.SettingsFile); err != nil {
		return err
	} else if err := s.kardianosService.Install(); err != nil {
		return err
	}
	if err := s.Configure(); err != nil {
		return err
	}
	begin := s.Start
	if changed && s.IsRunning() {
		begin = s.Restart
	}
	if err := begin(); err != nil {
		return err
	}
	return s.RemoveOldRunnerCopies()
}

// commandLine returns the command with which the service manager starts the service.
func (s *Service) commandLine() string {
	words := []string{syscall.EscapeArg(s.DaemonPath)}
	for _, word := range s.serviceManagerArguments() {
		words = append(words, syscall.EscapeArg(word))
	}
	return strings.Join(words, " ")
}

// updateRegistration makes a registered service start this program. changed reports whether the service started another
// command before.
func (s *Service) updateRegistration() (changed bool, err error) {
	e, err := s.openService()
	if err != nil {
		return false, err
	}
	defer e.Close()
	have, err := e.registeredCommand()
	if err != nil || have == s.commandLine() {
		return false, err
	}
	return true, e.setRegisteredCommand(s.commandLine())
}

// Configure sets up a registered service: its directory, the runner program, recovery actions, the event log source,
// the time limit at a shutdown, and a SID for access lists. It also removes most privileges of the service. Configure
// may be called again.
func (s *Service) Configure() error {
	if err := s.checkControlAllowed("prepare"); err != nil {
		return err
	}
	e, err := s.openService()
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		return s.NotRegisteredError()
	}
	if err != nil {
		return err
	}
	defer e.Close()
	if err := s.secureStateDir(s.ServicePaths.StateDir, s.ServicePaths.SettingsFile); err != nil {
		return err
	}
	return errors.Join(
		actionError("configure the runner program", s.installRunnerCopy(s.ClientPath)),
		actionError("configure recovery actions", e.SetRecoveryActions(recoveryActions,
			uint32(failureCountResetTime/time.Second))),
		actionError("configure the recovery from a nonzero exit code",
			ignoreUnsupportedError(e.SetRecoveryActionsOnNonCrashFailures(true))),
		actionError("configure the time that the service gets before a shutdown",
			ignoreUnsupportedError(e.setPreshutdownTimeout(preshutdownTimeout))),
		actionError("configure the service's SID type",
			ignoreUnsupportedError(e.setSIDType(windows.SERVICE_SID_TYPE_UNRESTRICTED))),
		actionError("configure the service's privileges", ignoreUnsupportedError(e.restrictToPrivilege(keptPrivilege))),
		actionError("configure the event log source", s.addEventSource(ServiceName)),
	)
}

// recoveryActions lists what the service manager does after the first failure, the second, and so on. After
// the last entry, it repeats the last action. The delays grow, because a service with wrong settings fails
// again and again, and would fill the event log.
var recoveryActions = []mgr.RecoveryAction{
	{Type: mgr.ServiceRestart, Delay: time.Second},
	{Type: mgr.ServiceRestart, Delay: time.Second},
	{Type: mgr.ServiceRestart, Delay: 5 * time.Second},
	{Type: mgr.ServiceRestart, Delay: 15 * time.Second},
	{Type: mgr.ServiceRestart, Delay: time.Minute},
}

// keptPrivilege is the only privilege that the service and its jobs keep. It lets them traverse directories,
// and every user has it. By default, Windows would also give the service SeImpersonatePrivilege, with which a
// program can obtain the rights of the system. The service can identify its clients without any privilege.
const keptPrivilege = "SeChangeNotifyPrivilege"

const (
	// failureCountResetTime is how long the service must run without a failure until Windows counts failures from 0
	// again.
	failureCountResetTime = 24 * time.Hour
	// preshutdownTimeout is the longest time that a shutdown of Windows waits for the service to end its jobs.
	preshutdownTimeout = 180 * time.Second
)

// actionError returns an error that says what could not be done, such as "configure recovery actions". It returns
// nil if err is nil.
func actionError(action string, err error) error {
	if err != nil {
		return fmt.Errorf("cannot %s: %w", action, err)
	}
	return nil
}

// ignoreUnsupportedError returns nil if err means that the service manager does not support a setting, as under
// Wine. The service can run without that setting. ignoreUnsupportedError returns any other error unchanged.
func ignoreUnsupportedError(err error) error {
	if errors.Is(err, windows.ERROR_INVALID_LEVEL) {
		return nil
	}
	return err
}

// RemoveOldRunnerCopies removes the runner programs of other versions. Call it only when an upgrade can no longer be
// undone, because an undone upgrade needs the old runner program. A runner program that is still running is kept, and
// the next upgrade removes it.
func (s *Service) RemoveOldRunnerCopies() error {
	if err := s.checkControlAllowed("prepare --tidy"); err != nil {
		return err
	}
	s.removeUnusedRunnerCopies(s.ClientPath)
	return nil
}

// UndoConfiguration removes what Configure has created outside the service's directory and the service manager. It
// also removes what Windows has created for the service's account.
func (s *Service) UndoConfiguration() error {
	if err := s.checkControlAllowed("prepare --undo"); err != nil {
		return err
	}
	programs := s.removeRunnerCopies(s.ClientPath)
	profile := s.removeProfile(accounts.ServiceSID(ServiceName))
	source := s.removeEventSource(ServiceName)
	if errors.Is(source, windows.ERROR_FILE_NOT_FOUND) {
		source = nil
	}
	return errors.Join(actionError("remove the event log source", source),
		actionError("remove the profile of the account "+ServiceAccountName, profile),
		actionError("remove the runner programs", programs))
}

// Uninstall stops the service and removes the registration. wasRegistered reports whether the service was
// registered. Uninstall keeps the queue and the settings.
func (s *Service) Uninstall() (wasRegistered bool, err error) {
	if s.IsUserService {
		return s.uninstallUserService()
	}
	if err := s.checkControlAllowed("uninstall"); err != nil {
		return true, err
	}
	if wasRegistered = s.IsRegistered(); wasRegistered {
		if err := s.Stop(false); err != nil {
			return wasRegistered, err
		}
		// kardianosService.Uninstall also returns an error if only the event log source is missing. In that case the service
		// is no longer registered.
		if err := s.kardianosService.Uninstall(); err != nil && s.IsRegistered() {
			return wasRegistered, err
		}
	}
	return wasRegistered, s.UndoConfiguration()
}

// Start starts the service. It returns when the service accepts connections.
func (s *Service) Start() error {
	return s.controlIfAllowed("start", func() error {
		if s.IsUserService {
			return s.DirectControl.Start()
		}
		err := s.kardianosService.Start()
		switch {
		case errors.Is(err, windows.ERROR_SERVICE_LOGON_FAILED):
			return fmt.Errorf("cannot log on the service's account (error 1069: %w); its password is wrong, or it may not log "+
				"on as a service; allow this in secpol.msc, Local Policies, User Rights Assignment, Log on as a service", err)
		case err != nil && !errors.Is(err, windows.ERROR_SERVICE_ALREADY_RUNNING):
			return err
		}
		return s.waitForState(svc.Running)
	})
}

// Stop stops the service. Its jobs finish or return to the queue. With keepJobs the jobs continue, and the
// next service adopts them. Windows does not restart a service that exits normally.
func (s *Service) Stop(keepJobs bool) error {
	return s.controlIfAllowed("stop", func() error {
		if s.IsUserService {
			return s.stopUserService(keepJobs)
		}
		if keepJobs && s.IsRunning() {
			if err := s.DirectControl.Stop(true); err != nil {
				return err
			}
			return s.waitForState(svc.Stopped)
		}
		return s.stopAndWait()
	})
}

// Restart restarts the service. If the service answers requests, its jobs continue to run.
func (s *Service) Restart() error {
	return s.controlIfAllowed("restart", func() error {
		if s.IsUserService {
			return errors.Join(s.stopUserService(true), s.DirectControl.Start())
		}
		if s.IsRunning() && s.DirectControl.Stop(true) != nil {
			if err := s.stopAndWait(); err != nil {
				return err
			}
		}
		if err := s.waitForState(svc.Stopped); err != nil {
			return err
		}
		return s.Start()
	})
}

// stopAndWait stops the service through the service manager and waits until it has stopped.
func (s *Service) stopAndWait() error {
	e, err := s.openService()
	if err != nil {
		return err
	}
	_, err = e.Control(svc.Stop)
	e.Close()
	if err != nil && !errors.Is(err, windows.ERROR_SERVICE_NOT_ACTIVE) &&
		!errors.Is(err, windows.ERROR_SERVICE_CANNOT_ACCEPT_CTRL) {
		return err
	}
	return s.waitForState(svc.Stopped)
}

// serviceStatePollInterval is how often waitForState queries a starting or stopping service. stateChangeStallTimeout is
// how long such a service may report no progress, unless it has announced a longer time.
const (
	serviceStatePollInterval = 50 * time.Millisecond
	stateChangeStallTimeout  = 60 * time.Second
)

// waitForState waits until the service is in wantedState. If the service should run but has stopped, waitForState
// returns the reason.
func (s *Service) waitForState(wantedState svc.State) error {
	e, err := s.openService()
	if err != nil {
		return err
	}
	defer e.Close()
	point, lastProgress := uint32(0), time.Now()
	for {
		st, err := e.queryStatus()
		switch {
		case err != nil:
			return err
		case svc.State(st.CurrentState) == wantedState:
			return nil
		case wantedState == svc.Running && svc.State(st.CurrentState) == svc.Stopped:
			return s.serviceStartError(&st)
		case st.CheckPoint != point:
			point, lastProgress = st.CheckPoint, time.Now()
		}
		if within := max(stateChangeStallTimeout,
			time.Duration(st.WaitHint)*time.Millisecond); time.Since(lastProgress) > within {
			return queue.Errorf(queue.CodeUnavailable,
				"the service has made no progress for %s; see: sc query %s, and the event log (Event Viewer, "+
					"Windows Logs, Application)", within, ServiceName)
		}
		time.Sleep(serviceStatePollInterval)
	}
}

// serviceStartError returns the error for a service that ended while starting.
func (s *Service) serviceStartError(st *windows.SERVICE_STATUS_PROCESS) error {
	code := fmt.Sprintf("exit code %d", st.ServiceSpecificExitCode)
	if st.Win32ExitCode != uint32(windows.ERROR_SERVICE_SPECIFIC_ERROR) {
		code = windows.Errno(st.Win32ExitCode).Error()
	}
	return queue.Errorf(queue.CodeUnavailable, "the service did not start (%s); see %s and the event log (Event Viewer, "+
		"Windows Logs, Application, source %s)",
		code, filepath.Join(s.ServicePaths.StateDir, config.WindowsServiceLogName), ServiceName)
}

// IsRunning reports whether the service runs or is starting.
func (s *Service) IsRunning() bool {
	if s.IsUserService {
		return s.DirectControl.IsAnswering()
	}
	e, err := s.openService()
	// Only users who are logged on at the machine itself may query the service manager. For any other user,
	// IsAnswering connects to the service instead.
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		return s.DirectControl.IsAnswering()
	}
	if err != nil {
		return false
	}
	defer e.Close()
	st, err := e.queryStatus()
	return err == nil && (svc.State(st.CurrentState) == svc.Running || svc.State(st.CurrentState) == svc.StartPending)
}

// StartCommand returns the command that starts the service.
func (s *Service) StartCommand() string {
	if s.IsUserService {
		start, _ := osservice.FindUserService()
		return start
	}
	return "sc start " + ServiceName
}

// addEventLogSource adds a source of the Windows event log if the source does not exist. The event log then
// shows the messages of this source unchanged.
func addEventLogSource(name string) error {
	err := eventlog.InstallAsEventCreate(name, eventlog.Error|eventlog.Warning|eventlog.Info)
	// Only the text of the error shows that the source already exists.
	if err != nil && strings.Contains(err.Error(), "already exists") {
		return nil
	}
	return err
}
