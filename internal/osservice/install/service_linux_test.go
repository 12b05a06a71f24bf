package install

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/osservice"
	"github.com/queuectl/queuectl/queue"
)

// fakeMachine fakes a machine. It has its own root directory for files, and records commands instead of executing
// them.
type fakeMachine struct {
	service          *Service
	rootDir          string
	recordedCommands []string
}

func newFakeMachine(t *testing.T, o Options) *fakeMachine {
	m := &fakeMachine{rootDir: t.TempDir()}
	t.Setenv("HOME", filepath.Join(m.rootDir, "home"))
	o.DaemonPath, o.ClientPath = "/bin/true", "/bin/true" // root owns /bin/true, and every user can see it
	m.service = &Service{Options: o, rootDir: m.rootDir, callerIsAdmin: true}
	m.service.runCommand = func(name string, args ...string) error {
		m.recordedCommands = append(m.recordedCommands, name+" "+strings.Join(args, " "))
		return nil
	}
	return m
}

// takeRecordedCommands returns the commands that were recorded since the previous call.
func (m *fakeMachine) takeRecordedCommands() []string {
	list := m.recordedCommands
	m.recordedCommands = nil
	return list
}

// listFiles lists the files on the machine.
func (m *fakeMachine) listFiles(t *testing.T) (paths []string) {
	err := filepath.WalkDir(m.rootDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			paths = append(paths, strings.TrimPrefix(path, m.rootDir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// wantEqualLists fails the test if two lists differ. The message begins with errorPrefix.
func wantEqualLists(t *testing.T, errorPrefix string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", errorPrefix, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Install writes all files and starts the service. Uninstall removes everything except the settings. A second
// call of Install or of Uninstall changes nothing.
func TestSystemServiceIsInstalledAndUninstalled(t *testing.T) {
	m := newFakeMachine(t, systemServiceOptions)
	if err := m.service.Install(); err != nil {
		t.Fatal(err)
	}
	settings := []string{"/etc/queuectl/queuectl.toml", "/etc/queuectl/runner.conf"}
	units := []string{"/etc/systemd/system/queuectl-runner.socket", "/etc/systemd/system/queuectl-runner@.service",
		"/etc/systemd/system/queuectl-web.socket", "/etc/systemd/system/queuectl.service",
		"/etc/systemd/system/queuectl.socket"}
	wantEqualLists(t, "files", m.listFiles(t), slices.Sorted(slices.Values(slices.Concat(settings, units,
		[]string{"/etc/sysusers.d/queuectl.conf", "/etc/tmpfiles.d/queuectl.conf"}))))
	const enable = "systemctl enable --now queuectl.socket queuectl-runner.socket queuectl.service"
	wantEqualLists(t, "asked", m.takeRecordedCommands(), []string{"systemd-sysusers queuectl.conf",
		"systemd-tmpfiles --create queuectl.conf",
		"systemctl daemon-reload", enable})

	if err := m.service.Install(); err != nil {
		t.Fatal(err)
	}
	wantEqualLists(t, "asked the second time", m.takeRecordedCommands(),
		[]string{"systemd-sysusers queuectl.conf", "systemd-tmpfiles --create queuectl.conf", "systemctl daemon-reload",
			enable})

	if was, err := m.service.Uninstall(); err != nil || !was {
		t.Fatal(was, err)
	}
	wantEqualLists(t, "files afterwards", m.listFiles(t), settings)
	wantEqualLists(t, "asked to uninstall", m.takeRecordedCommands(),
		[]string{"systemctl disable --now queuectl.service queuectl.socket queuectl-runner.socket queuectl-web.socket",
			"systemctl stop queuectl-runner.slice queuectl.slice", "systemctl daemon-reload"})
	if was, err := m.service.Uninstall(); err != nil || was {
		t.Fatal(was, err)
	}
	wantEqualLists(t, "asked to uninstall the second time", m.takeRecordedCommands(), nil)
}

// Install of a user's own service writes only units, to the user's directory. It does not write the other
// files that the system's service has.
func TestUserServiceIsInstalledAndUninstalled(t *testing.T) {
	m := newFakeMachine(t, userServiceOptions)
	if err := m.service.Install(); err != nil {
		t.Fatal(err)
	}
	userUnits := "/home/.config/systemd/user/"
	wantEqualLists(t, "files", m.listFiles(t), []string{userUnits + "queuectl-runner.socket", userUnits +
		"queuectl-runner@.service",
		userUnits + "queuectl.service", userUnits + "queuectl.socket"})
	wantEqualLists(t, "asked", m.takeRecordedCommands(), []string{"systemctl --user daemon-reload",
		"systemctl --user enable --now queuectl.socket queuectl-runner.socket queuectl.service"})
	if start, registered := osservice.FindUserService(); !registered || start != "systemctl --user start queuectl" {
		t.Errorf("got %q, %v", start, registered)
	}
	if was, err := m.service.Uninstall(); err != nil || !was {
		t.Fatal(was, err)
	}
	wantEqualLists(t, "files afterwards", m.listFiles(t), nil)
}

// Install replaces files that are out of date, and then restarts the service. It keeps settings files, because
// a user may have edited them.
func TestInstallUpdatesOutdatedFiles(t *testing.T) {
	for _, name := range []string{mainServiceUnit, "queuectl.socket"} {
		m := newFakeMachine(t, systemServiceOptions)
		if err := m.service.Install(); err != nil {
			t.Fatal(err)
		}
		m.takeRecordedCommands()
		unit, settings := filepath.Join(m.service.unitDir(), name), filepath.Join(m.rootDir, "/etc/queuectl/queuectl.toml")
		for _, path := range []string{unit, settings} {
			if err := os.WriteFile(path, []byte("# old\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.service.Install(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(unit); err != nil || string(got) != m.service.adaptedPackageFileText(name) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
		if got, err := os.ReadFile(settings); err != nil || string(got) != "# old\n" {
			t.Errorf("settings: got %q, %v", got, err)
		}
		if asked := m.takeRecordedCommands(); asked[len(asked)-1] != "systemctl try-restart queuectl.service" {
			t.Errorf("%s: asked %q, want a restart at the end", name, asked)
		}
	}
}

// If a package owns a unit, Install and Uninstall change nothing, and the error names the unit.
func TestInstallKeepsPackagedUnits(t *testing.T) {
	for _, path := range []string{"/usr/lib/systemd/system/queuectl.service",
		"/lib/systemd/system/queuectl-runner.socket"} {
		m := newFakeMachine(t, systemServiceOptions)
		if err := errors.Join(os.MkdirAll(filepath.Dir(m.rootDir+path), 0o755),
			os.WriteFile(m.rootDir+path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		before := m.listFiles(t)
		install := m.service.Install()
		_, uninstall := m.service.Uninstall()
		for _, err := range []error{install, uninstall} {
			if !errors.Is(err, queue.ErrWrongState) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: got %v", path, err)
			}
		}
		wantEqualLists(t, "files", m.listFiles(t), before)
		wantEqualLists(t, "asked", m.takeRecordedCommands(), nil)
		if !m.service.IsRegistered() {
			t.Error("it does not count as registered")
		}
	}
}

// If a package has installed units since Install, Uninstall replaces the units of Install by the units of the package.
// If the units of Install were enabled and running, the units of the package are enabled and running afterwards. A
// second Install returns an error that explains this.
func TestUninstallSwitchesToPackagedUnits(t *testing.T) {
	m := newFakeMachine(t, systemServiceOptions)
	if err := m.service.Install(); err != nil {
		t.Fatal(err)
	}
	m.takeRecordedCommands()
	var want []string
	for _, name := range []string{"queuectl-runner.socket", "queuectl-runner@.service", "queuectl.service",
		"queuectl.socket"} {
		path := "/usr/lib/systemd/system/" + name
		if err := errors.Join(os.MkdirAll(filepath.Dir(m.rootDir+path), 0o755),
			os.WriteFile(m.rootDir+path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		want = append(want, path)
	}
	if err := m.service.Install(); !errors.Is(err, queue.ErrWrongState) ||
		!strings.Contains(err.Error(), "queuectl service uninstall") {
		t.Errorf("Install: got %v", err)
	}
	wantEqualLists(t, "asked to install", m.takeRecordedCommands(), nil)
	m.service.callerIsAdmin = false
	if _, err := m.service.Uninstall(); !errors.Is(err, queue.ErrDenied) {
		t.Errorf("Uninstall of another than root: got %v", err)
	}
	m.service.callerIsAdmin = true
	if was, err := m.service.Uninstall(); err != nil || !was {
		t.Fatal(was, err)
	}
	wantEqualLists(t, "files", m.listFiles(t), append([]string{"/etc/queuectl/queuectl.toml", "/etc/queuectl/runner.conf"},
		want...))
	wantEqualLists(t, "asked to uninstall", m.takeRecordedCommands(),
		[]string{"systemctl daemon-reload", "systemctl is-enabled --quiet queuectl.service",
			"systemctl reenable queuectl.service", "systemctl is-enabled --quiet queuectl-web.socket",
			"systemctl reenable queuectl-web.socket", "systemctl try-restart queuectl.service"})
	if _, err := m.service.Uninstall(); !errors.Is(err, queue.ErrWrongState) ||
		!strings.Contains(err.Error(), "remove the package") {
		t.Errorf("Uninstall once more: got %v", err)
	}
}

// Without systemd, the error contains the command for another init system. docs/install.md contains the same
// command.
func TestErrorWithoutSystemdExplainsOtherInit(t *testing.T) {
	page, err := os.ReadFile("../../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	line := "queuectl " + strings.Join(systemServiceOptions.serveArguments(), " ")
	if !strings.Contains(string(page), "\n"+line+"\n") {
		t.Errorf("docs/install.md lacks %q", line)
	}
	if err := systemServiceOptions.noSystemdError(); !errors.Is(err, queue.ErrUnsupported) ||
		!strings.Contains(err.Error(), "/usr/local/bin/"+line+";") {
		t.Errorf("got %v, want %q in it", err, line)
	}
	if err := userServiceOptions.noSystemdError(); !errors.Is(err, queue.ErrUnsupported) ||
		!strings.HasSuffix(err.Error(), "run: queuectl serve") {
		t.Errorf("got %v", err)
	}
}

// For a service that is not registered, each command returns an error that says how to register it. If the
// caller is not root, each command for the system's service returns an error with the command to run as root.
func TestUnregisteredOrUnprivilegedControlFails(t *testing.T) {
	m := newFakeMachine(t, systemServiceOptions)
	stop := func() error { return m.service.Stop(false) }
	for _, do := range []func() error{m.service.Start, stop, m.service.Restart} {
		if err := do(); !errors.Is(err, queue.ErrNotFound) || !strings.Contains(err.Error(), "service install") {
			t.Errorf("got %v", err)
		}
	}
	if err := m.service.Install(); err != nil {
		t.Fatal(err)
	}
	m.service.callerIsAdmin = false
	m.takeRecordedCommands()
	for _, do := range []func() error{m.service.Install, m.service.Start, stop, m.service.Restart,
		func() error { _, err := m.service.Uninstall(); return err }} {
		if err := do(); !errors.Is(err, queue.ErrDenied) || !strings.Contains(err.Error(), "sudo queuectl service") {
			t.Errorf("got %v", err)
		}
	}
	wantEqualLists(t, "asked", m.takeRecordedCommands(), nil)
	m.service.callerIsAdmin = true
	if err := errors.Join(m.service.Start(), m.service.Restart(), stop()); err != nil {
		t.Error(err)
	}
	wantEqualLists(t, "asked as root", m.takeRecordedCommands(), []string{"systemctl start queuectl.service",
		"systemctl restart queuectl.service", "systemctl stop queuectl.service"})
	if err := m.service.Stop(true); !errors.Is(err, queue.ErrInvalid) ||
		!strings.Contains(err.Error(), "service restart") {
		t.Errorf("stopped, but not its jobs: got %v", err)
	}
	wantEqualLists(t, "asked to keep jobs", m.takeRecordedCommands(), nil)
}

// Install rejects programs that other users could replace, and programs that the sandbox hides.
func TestInstallRejectsUntrustedPrograms(t *testing.T) {
	if err := checkProgramTrust("/bin/true"); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/home/eve/queuectl", "/root/queuectl", "/tmp/queuectl", "/dev/null"} {
		if err := checkProgramTrust(path); !errors.Is(err, queue.ErrWrongState) || !strings.Contains(err.Error(),
			"/usr/local/bin") {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

// The error about a program that other users could replace contains advice. Usually the advice is to copy the
// program. If root owns the path, or if a copy would not help, the advice is to restrict the permissions.
func TestUntrustedProgramErrorContainsAdvice(t *testing.T) {
	const bin, there = "/usr/local/bin/queuectld", "/opt/queuectld"
	for _, c := range []struct {
		program, path string
		owner         uint32
		mode          os.FileMode
		want          string
	}{
		{bin, "/usr/local/bin", 0, 0o775, "run: chmod g-w /usr/local/bin"},
		{there, "/opt", 0, 0o775, "run: chmod g-w /opt"},
		{bin, bin, 0, 0o775, "run: chmod g-w " + bin},
		{bin, bin, 1000, 0o755, "run: chown root: " + bin + " && chmod go-w " + bin},
		{bin, "/usr/local/bin", 0, 0o777, "run: chown root: /usr/local/bin && chmod go-w /usr/local/bin"},
		{there, there, 1000, 0o755, "copy both programs first: install /opt/queuectl /opt/queuectld /usr/local/bin/ && " +
			"/usr/local/bin/queuectl service install"},
		{there, "/opt", 0, 0o777, "copy both programs first: install /opt/queuectl /opt/queuectld /usr/local/bin/ && " +
			"/usr/local/bin/queuectl service install"},
	} {
		if got := untrustedProgramAdvice(c.program, c.path, c.owner, c.mode); got != c.want {
			t.Errorf("%s, %s of %d with %v: got %q, want %q", c.program, c.path, c.owner, c.mode, got, c.want)
		}
	}
}
