package install

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/osservice"
	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/queue"
)

// wantEqualLists fails the test if two lists differ. The message begins with errorPrefix.
func wantEqualLists(t *testing.T, errorPrefix string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", errorPrefix, got, want)
	}
}

// Install registers, configures and starts the service. It waits while the start makes progress. A second
// Install changes nothing. If the second Install has another program, it updates the registration, and jobs
// continue to run. Uninstall removes everything.
func TestInstallRegistersAndStartsService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeServiceManager(false)
		m.pendingStateQueryCount = 20
		if err := m.service.Install(); err != nil || m.serviceState != svc.Running {
			t.Fatal(m.serviceState, err)
		}
		wantEqualLists(t, "first", m.takeRecordedCalls(), "secure", "install", "secure", "runner client", "source", "start",
			"tidy client")
		if want := `"C:\Program Files\queuectl\queuectld.exe" serve --service --dir C:\ProgramData\queuectl ` +
			`--socket \\.\pipe\queuectl --config C:\ProgramData\queuectl\queuectl.toml`; m.commandLine != want {
			t.Errorf("got %s\nwant %s", m.commandLine, want)
		}
		if err := m.service.Install(); err != nil {
			t.Fatal(err)
		}
		wantEqualLists(t, "again", m.takeRecordedCalls(), "secure", "runner client", "source", "start", "tidy client")
		m.service.DaemonPath = `C:\q.exe`
		if err := m.service.Install(); err != nil || !strings.HasPrefix(m.commandLine, `C:\q.exe serve --service `) {
			t.Fatal(m.commandLine, err)
		}
		wantEqualLists(t, "another program", m.takeRecordedCalls(), "command", "secure", "runner client", "source", "end",
			"keep jobs",
			"start", "tidy client")
		if was, err := m.service.Uninstall(); !was || err != nil || m.registered {
			t.Errorf("uninstalled: %v, %v", was, err)
		}
		profile := "no profile S-1-5-80-" // the number of the account follows
		got := m.takeRecordedCalls()
		for i, what := range got {
			got[i] = what[:min(len(what), len(profile))]
		}
		wantEqualLists(t, "uninstalled", got, "stop", "uninstall", "no runner client", profile, "no source")
		m.removeProfileErr = windows.ERROR_SHARING_VIOLATION
		if err := m.service.UndoConfiguration(); !errors.Is(err, windows.ERROR_SHARING_VIOLATION) ||
			!strings.Contains(err.Error(), ServiceAccountName) {
			t.Errorf("a profile that cannot be removed: %v", err)
		}
		m.removeProfileErr = nil
		if was, err := m.service.Uninstall(); was || err != nil {
			t.Errorf("uninstalled twice: %v, %v", was, err)
		}
	})
}

// After a failure or a nonzero exit code, Windows restarts the service: first after 1 s, and after repeated
// failures later, up to a minute. Before a shutdown, the service gets three minutes. It has a SID for access
// lists. Neither the service nor its jobs have a privilege to act as another account.
func TestInstallConfiguresRecoveryAndPrivileges(t *testing.T) {
	m := newFakeServiceManager(false)
	if err := m.service.Configure(); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("not registered: %v", err)
	}
	m.registered = true
	if err := m.service.Configure(); err != nil {
		t.Fatal(err)
	}
	var want []mgr.RecoveryAction
	for _, seconds := range []time.Duration{1, 1, 5, 15, 60} {
		want = append(want, mgr.RecoveryAction{Type: mgr.ServiceRestart, Delay: seconds * time.Second})
	}
	wantEqualLists(t, "privileges", []string{m.privilege}, "SeChangeNotifyPrivilege")
	if !slices.Equal(m.recoveryActions, want) || m.failureCountResetSeconds != 86400 || !m.recoversFromNonCrashFailures ||
		m.preshutdownTimeout != 3*time.Minute || m.sidType != windows.SERVICE_SID_TYPE_UNRESTRICTED {
		t.Errorf("got %v, %d, %v, %v, %d", m.recoveryActions, m.failureCountResetSeconds, m.recoversFromNonCrashFailures,
			m.preshutdownTimeout, m.sidType)
	}
}

// The error about a failed start contains the exit code and where to find details. A start or stop without
// progress times out.
func TestStartFailureReportsExitCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeServiceManager(false)
		m.registered, m.failedStartExitCode = true, 78
		if err := m.service.Start(); !errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), "78") ||
			!strings.Contains(err.Error(), "service.log") {
			t.Errorf("got %v", err)
		}
		m.startErr = windows.ERROR_SERVICE_LOGON_FAILED
		if err := m.service.Start(); err == nil || !strings.Contains(err.Error(), "1069") ||
			!strings.Contains(err.Error(), "secpol.msc") {
			t.Errorf("got %v", err)
		}
		m.startErr = nil
		m.reportsNoProgress = true
		for _, do := range []func() error{m.service.Start, func() error { return m.service.Stop(false) }} {
			began := time.Now()
			if err := do(); !errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), "sc query") ||
				time.Since(began) > stateChangeStallTimeout+time.Second {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
		}
	})
}

// Restart and stop --keep-jobs leave jobs running. Restart also restarts a service that does not answer. For
// a service that is not registered, the error says how to register it.
func TestRestartKeepsJobsRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeServiceManager(false)
		for _, do := range []func() error{m.service.Start, m.service.Restart, func() error { return m.service.Stop(true) }} {
			if err := do(); !errors.Is(err, queue.ErrNotFound) || !strings.Contains(err.Error(), "service install") {
				t.Errorf("not registered: %v", err)
			}
		}
		m.registered, m.serviceState = true, svc.Running
		if err := m.service.Restart(); err != nil || m.serviceState != svc.Running {
			t.Error(m.serviceState, err)
		}
		wantEqualLists(t, "restarted", m.takeRecordedCalls(), "end", "keep jobs", "start")
		if err := m.service.Stop(true); err != nil || m.serviceState != svc.Stopped {
			t.Error(m.serviceState, err)
		}
		wantEqualLists(t, "stopped", m.takeRecordedCalls(), "end", "keep jobs")
		if err := errors.Join(m.service.Stop(true), m.service.Stop(false)); err != nil {
			t.Errorf("stopped twice: %v", err)
		}
		m.takeRecordedCalls()
		m.serviceState, m.ignoresStop = svc.Running, true
		if err := m.service.Restart(); err != nil || m.serviceState != svc.Running {
			t.Error(m.serviceState, err)
		}
		wantEqualLists(t, "restarted a deaf one", m.takeRecordedCalls(), "stop", "start")
	})
}

// If the caller is not elevated, a command changes nothing. The error says how to run the command elevated.
func TestUnelevatedCallerChangesNothing(t *testing.T) {
	m := newFakeServiceManager(false)
	m.registered, m.service.callerIsAdmin = true, false
	for _, do := range []func() error{m.service.Install, m.service.Configure, m.service.RemoveOldRunnerCopies,
		m.service.UndoConfiguration, m.service.Start, m.service.Restart,
		func() error { return m.service.Stop(true) }, func() error { _, err := m.service.Uninstall(); return err }} {
		if err := do(); !errors.Is(err, queue.ErrDenied) || !strings.Contains(err.Error(), "Run as administrator") {
			t.Errorf("got %v", err)
		}
	}
	wantEqualLists(t, "asked", m.takeRecordedCalls())
}

// The commands that control the system's service also control a user's own service, which starts at logon.
func TestUserServiceStartsAtLogon(t *testing.T) {
	m := newFakeServiceManager(true)
	m.service.callerIsAdmin = false
	if err := m.service.Start(); !errors.Is(err, queue.ErrNotFound) ||
		!strings.Contains(err.Error(), "service install --user") {
		t.Errorf("not registered: %v", err)
	}
	if was, err := m.service.Uninstall(); was || err != nil {
		t.Errorf("uninstalled nothing: %v, %v", was, err)
	}
	if err := m.service.Install(); err != nil || !m.service.IsRegistered() || !m.service.IsRunning() {
		t.Errorf("installed: %v", err)
	}
	if want := `"C:\Program Files\queuectl\queuectld.exe" serve --background`; m.logonCommand != want {
		t.Errorf("at logon: got %s, want %s", m.logonCommand, want)
	}
	wantEqualLists(t, "installed", m.takeRecordedCalls(), "begin")
	if err := errors.Join(m.service.Restart(), m.service.Stop(false), m.service.Stop(false),
		m.service.Start()); err != nil {
		t.Error(err)
	}
	wantEqualLists(t, "asked", m.takeRecordedCalls(), "end", "keep jobs", "begin", "end", "begin")
	if was, err := m.service.Uninstall(); !was || err != nil || m.service.IsRegistered() {
		t.Errorf("uninstalled: %v, %v", was, err)
	}
	wantEqualLists(t, "uninstalled", m.takeRecordedCalls(), "end")
}

// secureStateDir creates the service's directory. It accepts an existing directory only if no other user could
// have added files. It keeps an existing settings file.
func TestSecureStateDirRejectsForeignFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	file := filepath.Join(dir, "queuectl.toml")
	if err := secureStateDir(dir, file); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(file); err != nil || !strings.Contains(string(raw), "[access]") {
		t.Errorf("settings: %q, %v", raw, err)
	}
	if err := os.WriteFile(file, []byte("# mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := secureStateDir(dir, file); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "# mine\n" {
		t.Errorf("settings: %q, %v", raw, err)
	}
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := secureStateDir(open, filepath.Join(open, "queuectl.toml")); err != nil {
		t.Fatal(err)
	}
	if err := secureStateDir(file, file); !errors.Is(err, queue.ErrWrongState) {
		t.Errorf("a file instead of a directory: %v", err)
	}
	for sddl, fine := range map[string]bool{"O:SY": true, "O:BA": true, "O:" + accounts.ServiceSID(ServiceName): true,
		"O:WD": false, "O:BU": false, "O:" + accounts.ServiceSID("other"): false} {
		sd, err := windows.SecurityDescriptorFromString(sddl)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkTrustedOwner("it", sd); (err == nil) != fine {
			t.Errorf("%s: %v", sddl, err)
		}
	}
}

// Only the system, administrators and the service's account have access to the directory and to everything in
// it.
func TestStateDirDeniesOtherUsers(t *testing.T) {
	sd, err := windows.SecurityDescriptorFromString(stateDirSecurityDescriptor())
	if err != nil {
		t.Fatal(err)
	}
	wantStateDirDescriptor(t, "asked for", sd)
	t.Run("on the disk", func(t *testing.T) {
		skip.UnderWine(t, "needs access lists, which Wine lacks; the list itself is checked everywhere")
		made, open := filepath.Join(t.TempDir(), "made"), t.TempDir()
		for _, dir := range []string{made, open, made} {
			if err := createOrRestrictDir(dir); err != nil {
				t.Fatal(err)
			}
			sd, err := windows.GetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT,
				windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
			if err != nil {
				t.Fatal(err)
			}
			wantStateDirDescriptor(t, dir, sd)
		}
	})
}

// wantStateDirDescriptor checks that a security descriptor equals stateDirSecurityDescriptor.
func wantStateDirDescriptor(t *testing.T, errorPrefix string, sd *windows.SECURITY_DESCRIPTOR) {
	t.Helper()
	owner, _, err1 := sd.Owner()
	dacl, _, err2 := sd.DACL()
	control, _, err3 := sd.Control()
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	var entrySIDs []string
	for i := range uint32(dacl.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(dacl, i, &ace); err != nil {
			t.Fatal(err)
		}
		if below := uint8(windows.OBJECT_INHERIT_ACE | windows.CONTAINER_INHERIT_ACE); ace.Header.AceFlags != below ||
			ace.Mask != 0x1f01ff {
			t.Errorf("%s: entry %d is %+v", errorPrefix, i, ace)
		}
		entrySIDs = append(entrySIDs, (*windows.SID)(unsafe.Pointer(&ace.SidStart)).String())
	}
	if want := []string{"S-1-5-18", "S-1-5-32-544", accounts.ServiceSID(ServiceName)}; !slices.Equal(entrySIDs, want) ||
		control&windows.SE_DACL_PROTECTED == 0 || !owner.IsWellKnown(windows.WinBuiltinAdministratorsSid) {
		t.Errorf("%s: lets in %v, control %x, of %s; want %v", errorPrefix, entrySIDs, control, owner, want)
	}
}

// This test uses the real service manager. It installs, starts, stops and uninstalls the system's service,
// and checks that the installed service has the configuration that Configure sets.
func TestInstallWorksWithRealServiceManager(t *testing.T) {
	programs, err := windows.KnownFolderPath(windows.FOLDERID_ProgramFiles, 0)
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(programs, "queuectl-register-test")
	o := Options{DaemonPath: filepath.Join(base, "queuectl.exe"), ClientPath: filepath.Join(base, "queuectl.exe"),
		ServicePaths: config.Paths{StateDir: filepath.Join(base, "state"), SocketPath: `\\.\pipe\queuectl-register-test`,
			SettingsFile: filepath.Join(base, "state", "queuectl.toml")}}
	// The installed service is this test program. Unlike queuectl, it answers no requests, so a direct stop fails.
	o.DirectControl.Stop = func(bool) error { return queue.ErrUnavailable }
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if !s.callerIsAdmin || s.IsRegistered() {
		skip.MissingRequirement(t, "administrator", "needs an elevated prompt, and no service of that name; "+
			".ci/run runs it under Wine as an administrator")
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	copyTestProgram(t, o.DaemonPath)
	defer s.Uninstall()
	if err := s.Install(); err != nil {
		t.Fatal(err)
	}
	if !s.IsRegistered() || !s.IsRunning() {
		t.Error("the service does not run")
	}
	if err := s.Install(); err != nil {
		t.Errorf("installed twice: %v", err)
	}
	if source, err := registry.OpenKey(registry.LOCAL_MACHINE, `SYSTEM\CurrentControlSet\Services\EventLog\Application\`+
		ServiceName, registry.QUERY_VALUE); err != nil {
		t.Errorf("no source in the event log: %v", err)
	} else {
		source.Close()
	}
	if err := errors.Join(s.Stop(false), s.Stop(false), s.Start(), s.Restart()); err != nil {
		t.Error(err)
	}
	t.Run("as prepared", func(t *testing.T) {
		skip.UnderWine(t,
			"needs the configuration of a service; TestInstallConfiguresRecoveryAndPrivileges checks what is requested")
		checkConfiguredService(t)
	})
	if was, err := s.Uninstall(); !was || err != nil || s.IsRegistered() {
		t.Errorf("uninstalled: %v, %v", was, err)
	}
	if _, err := os.Stat(o.ServicePaths.SettingsFile); err != nil {
		t.Errorf("the settings are gone: %v", err)
	}
}

// checkConfiguredService checks that the service manager has stored what Configure sets.
func checkConfiguredService(t *testing.T) {
	m, err := mgr.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Disconnect()
	s, err := m.OpenService(ServiceName)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	actions, err1 := s.RecoveryActions()
	reset, err2 := s.ResetPeriod()
	nonCrash, err3 := s.RecoveryActionsOnNonCrashFailures()
	c, err4 := s.Config()
	if err := errors.Join(err1, err2, err3, err4); err != nil || !slices.Equal(actions, recoveryActions) ||
		reset != 86400 ||
		!nonCrash {
		t.Errorf("recovery: %v, %d, %v, %v", actions, reset, nonCrash, err)
	}
	if c.SidType != windows.SERVICE_SID_TYPE_UNRESTRICTED || c.StartType != mgr.StartAutomatic ||
		!strings.EqualFold(c.ServiceStartName, ServiceAccountName) {
		t.Errorf("configured: %+v", c)
	}
	var timeoutMs, neededBytes uint32
	if err := windows.QueryServiceConfig2(s.Handle, windows.SERVICE_CONFIG_PRESHUTDOWN_INFO,
		(*byte)(unsafe.Pointer(&timeoutMs)), 4, &neededBytes); err != nil || timeoutMs != 180_000 {
		t.Errorf("time before shutdown: %d ms, %v", timeoutMs, err)
	}
	var info struct {
		names      *uint16
		nameBuffer [256]uint16
	}
	if err := windows.QueryServiceConfig2(s.Handle, windows.SERVICE_CONFIG_REQUIRED_PRIVILEGES_INFO,
		(*byte)(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)), &neededBytes); err != nil || info.names == nil ||
		windows.UTF16PtrToString(info.names) != keptPrivilege {
		t.Errorf("privileges: %v", err)
	}
}

// The command that Windows runs at logon is stored in the user's registry.
func TestLogonCommandIsStoredInRegistry(t *testing.T) {
	if _, there := osservice.FindUserService(); there {
		skip.MissingRequirement(t, "no user service",
			"needs a user without a registered service; the user of .ci/run has none")
	}
	if err := setLogonCommand("queuectl-test"); err != nil {
		t.Fatal(err)
	}
	start, there := osservice.FindUserService()
	if err := removeLogonCommand(); !there || start == "" || !osservice.UserServiceEndsAtLogout() && err != nil {
		t.Errorf("registered: %v %q, %v", there, start, err)
	}
	if _, there := osservice.FindUserService(); there {
		t.Error("the command is still registered")
	}
}

// TestMain also implements the service that TestInstallWorksWithRealServiceManager starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "serve" && os.Args[2] == "--service" {
		if err := svc.Run(ServiceName, idleService{}); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// idleService is a service that does nothing until it is stopped.
type idleService struct{}

func (idleService) Execute(_ []string, requests <-chan svc.ChangeRequest, statuses chan<- svc.Status) (bool, uint32) {
	statuses <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop}
	for c := range requests {
		if c.Cmd == svc.Stop {
			break
		}
		statuses <- c.CurrentStatus
	}
	return false, 0
}

// copyTestProgram copies this test program.
func copyTestProgram(t *testing.T, destPath string) {
	self, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(destPath), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	f, err := os.Create(destPath)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, from); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
