package install

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/queuectl/queuectl/internal/atomicfile"
	"github.com/queuectl/queuectl/internal/osservice"
	"github.com/queuectl/queuectl/queue"
)

// mainServiceUnit is the name of the unit of the service itself. webSocketUnit is the name of the unit for the socket
// of the web page. Only the system's service has webSocketUnit, and it is disabled until an administrator enables it.
// See docs/decisions/0081.
const (
	mainServiceUnit = ServiceName + ".service"
	webSocketUnit   = ServiceName + "-web.socket"
)

// commonUnits lists the units that both the system's service and a user's own service have. socketUnits are the sockets
// among them. sliceUnits lists two slices (groups of processes): every runner runs in the first slice, and the first
// slice is in the second one.
var (
	commonUnits = []string{mainServiceUnit, ServiceName + "-runner@.service", ServiceName + ".socket", ServiceName +
		"-runner.socket"}
	socketUnits = commonUnits[2:]
	sliceUnits  = []string{ServiceName + "-runner.slice", ServiceName + ".slice"}
)

// Service is queuectl as a service of systemd.
type Service struct {
	Options
	rootDir       string // directory that contains all paths; "" except in tests
	callerIsAdmin bool   // the caller is root
	runCommand    func(name string, args ...string) error
}

// New returns the service that the options select. It returns an error if systemd does not run, or if
// this user has no systemd manager.
func New(o Options) (*Service, error) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil, o.noSystemdError()
	}
	if err := o.checkPathCharacters(); err != nil {
		return nil, err
	}
	if o.IsUserService {
		if err := ensureRuntimeDir(); err != nil {
			return nil, err
		}
	}
	return &Service{Options: o, callerIsAdmin: os.Geteuid() == 0, runCommand: runCommand}, nil
}

// noSystemdError returns the error for a machine without systemd, with the command for its init system.
func (o Options) noSystemdError() error {
	if o.IsUserService {
		return queue.Errorf(queue.CodeUnsupported, "systemd is not running; make your init system run: queuectl serve")
	}
	return queue.Errorf(queue.CodeUnsupported, "systemd is not running; make your init system run, as root: %s %s; or "+
		"start your own service with: queuectl serve",
		o.ClientPath, strings.Join(o.serveArguments(), " "))
}

// ensureRuntimeDir sets XDG_RUNTIME_DIR if su or sudo has removed it, so that systemctl finds the user's
// manager.
func ensureRuntimeDir() error {
	if os.Getenv("XDG_RUNTIME_DIR") != "" {
		return nil
	}
	uid := strconv.Itoa(os.Getuid())
	dir := filepath.Join("/run/user", uid)
	if _, err := os.Stat(dir); err != nil {
		return queue.Errorf(queue.CodeUnavailable, "systemd is not running for this user; log in, or keep it running "+
			"without a login: loginctl enable-linger %s", uid)
	}
	return os.Setenv("XDG_RUNTIME_DIR", dir)
}

// runCommand executes a command. If the command fails, the error contains the command's output.
func runCommand(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// systemctlArgs returns the arguments with which systemctl addresses the manager of this service.
func (s *Service) systemctlArgs(args ...string) []string {
	if s.IsUserService {
		return append([]string{"--user"}, args...)
	}
	return args
}

// systemctl runs systemctl for the manager of this service.
func (s *Service) systemctl(args ...string) error {
	return s.runCommand("systemctl", s.systemctlArgs(args...)...)
}

// unitDir returns the directory in which Install puts the units.
func (s *Service) unitDir() string {
	if s.IsUserService {
		return osservice.UnitDir()
	}
	return filepath.Join(s.rootDir, "/etc/systemd/system")
}

// packagedUnitPath returns the path of a unit that a package has installed, or "" if no package has installed one.
func (s *Service) packagedUnitPath() string {
	if s.IsUserService {
		return ""
	}
	for _, dir := range []string{"/usr/lib/systemd/system", "/lib/systemd/system"} {
		for _, name := range commonUnits {
			if path := filepath.Join(dir, name); pathExists(filepath.Join(s.rootDir, path)) {
				return path
			}
		}
	}
	return ""
}

// shadowsPackagedUnits reports whether both a package and Install have installed units. In that case systemd uses
// the units of Install. shadowsPackagedUnits checks for the file that only Install writes and that Uninstall
// removes last.
func (s *Service) shadowsPackagedUnits() bool {
	return s.packagedUnitPath() != "" && pathExists(filepath.Join(s.rootDir, tmpfilesPath))
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// IsRegistered reports whether the service is registered, by a package or by Install.
func (s *Service) IsRegistered() bool {
	return s.packagedUnitPath() != "" || pathExists(filepath.Join(s.unitDir(), mainServiceUnit))
}

// Install registers and starts the service. If the service is already registered with other settings,
// Install updates the registration and restarts the service. Running jobs continue.
func (s *Service) Install() error {
	if path := s.packagedUnitPath(); path != "" {
		remedy := "start them with: systemctl enable --now " + mainServiceUnit
		if s.shadowsPackagedUnits() {
			remedy = "the older units in " + s.unitDir() + ", which do not belong to the package, take precedence; remove the " +
				"older units with: queuectl service uninstall"
		}
		return queue.Errorf(queue.CodeWrongState, "a package has already installed the systemd units (%s); %s", path, remedy)
	}
	if err := s.checkControlAllowed("install"); err != nil {
		return err
	}
	if !s.IsUserService {
		for _, program := range []string{s.DaemonPath, s.ClientPath} {
			if err := checkProgramTrust(program); err != nil {
				return err
			}
		}
	}
	changed, err := s.writeRegistrationFiles()
	if err != nil {
		return err
	}
	if !s.IsUserService {
		if err := errors.Join(s.runCommand("systemd-sysusers", ServiceName+".conf"),
			s.runCommand("systemd-tmpfiles", "--create", ServiceName+".conf")); err != nil {
			return err
		}
	}
	if err := s.systemctl("daemon-reload"); err != nil {
		return err
	}
	if err := s.systemctl(slices.Concat([]string{"enable", "--now"}, socketUnits,
		[]string{mainServiceUnit})...); err != nil {
		return err
	}
	if changed {
		return s.systemctl("try-restart", mainServiceUnit)
	}
	return nil
}

// tmpfilesPath is the path of the settings for systemd-tmpfiles. shadowsPackagedUnits checks whether this file
// exists. Therefore it is the last file that Install writes and Uninstall removes.
const tmpfilesPath = "/etc/tmpfiles.d/queuectl.conf"

// installedFile is a file of the registration.
type installedFile struct {
	installPath, packageFileName string // path of the installed file; name of the file in the packages
	keepExisting                 bool   // keep an existing file, because users edit it
}

// systemOnlyFiles lists the files of the registration that only the system's service has.
var systemOnlyFiles = []installedFile{
	{"/etc/systemd/system/" + webSocketUnit, webSocketUnit, false},
	{"/etc/queuectl/queuectl.toml", "queuectl.toml", true},
	{"/etc/queuectl/runner.conf", "runner.conf", true},
	{"/etc/sysusers.d/queuectl.conf", "queuectl.sysusers", false},
	{tmpfilesPath, "queuectl.tmpfiles", false},
}

// registrationFiles returns the files of the registration, in the order in which Install writes them and Uninstall
// removes them.
func (s *Service) registrationFiles() (installedFiles []installedFile) {
	packageDir := ""
	if s.IsUserService {
		packageDir = "user"
	}
	for _, name := range commonUnits {
		installedFiles = append(installedFiles,
			installedFile{filepath.Join(s.unitDir(), name), filepath.Join(packageDir, name), false})
	}
	if s.IsUserService {
		return installedFiles
	}
	for _, f := range systemOnlyFiles {
		f.installPath = filepath.Join(s.rootDir, f.installPath)
		installedFiles = append(installedFiles, f)
	}
	return installedFiles
}

// writeRegistrationFiles writes the files that are missing or out of date. changed reports whether it replaced an
// existing file.
func (s *Service) writeRegistrationFiles() (changed bool, err error) {
	for _, f := range s.registrationFiles() {
		text := s.adaptedPackageFileText(f.packageFileName)
		have, err := os.ReadFile(f.installPath)
		if err == nil && (f.keepExisting || string(have) == text) {
			continue
		}
		changed = changed || err == nil
		if err := os.MkdirAll(filepath.Dir(f.installPath), 0o755); err != nil {
			return changed, err
		}
		if err := atomicfile.Write(f.installPath, []byte(text), 0o644); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// Uninstall stops the service and removes the registration. wasRegistered reports whether the service was
// registered. Uninstall keeps the queue, the settings and the accounts. If a package has installed units since
// Install, the service and its running jobs continue with these units.
func (s *Service) Uninstall() (wasRegistered bool, err error) {
	shadows := s.shadowsPackagedUnits()
	if path := s.packagedUnitPath(); path != "" && !shadows {
		return true, queue.Errorf(queue.CodeWrongState,
			"a package has installed the systemd units (%s); to remove the service, remove the package", path)
	}
	if err := s.checkControlAllowed("uninstall"); err != nil {
		return true, err
	}
	if shadows {
		return true, s.switchToPackagedUnits()
	}
	wasRegistered = s.IsRegistered()
	if wasRegistered {
		disable := append([]string{"disable", "--now", mainServiceUnit}, socketUnits...)
		if !s.IsUserService {
			disable = append(disable, webSocketUnit)
		}
		if err := s.systemctl(disable...); err != nil {
			return wasRegistered, err
		}
		if err := s.systemctl(append([]string{"stop"}, sliceUnits...)...); err != nil {
			return wasRegistered, err
		}
	}
	removed, err := s.removeRegistrationFiles()
	wasRegistered = wasRegistered || removed
	if err != nil || !wasRegistered {
		return wasRegistered, err
	}
	return wasRegistered, s.systemctl("daemon-reload")
}

// switchToPackagedUnits removes the units of Install, so that systemd uses those of a package. If the units of
// Install were enabled or running, it enables or starts the units of the package.
func (s *Service) switchToPackagedUnits() error {
	if _, err := s.removeRegistrationFiles(); err != nil {
		return err
	}
	if err := s.systemctl("daemon-reload"); err != nil {
		return err
	}
	for _, unit := range []string{mainServiceUnit, webSocketUnit} {
		// The links that enable the unit point to the removed files, so create them again.
		if s.systemctl("is-enabled", "--quiet", unit) == nil {
			if err := s.systemctl("reenable", unit); err != nil {
				return err
			}
		}
	}
	return s.systemctl("try-restart", mainServiceUnit)
}

// removeRegistrationFiles removes the files of the registration, except those that users edit. anyExisted reports
// whether at least one of the files existed.
func (s *Service) removeRegistrationFiles() (anyExisted bool, err error) {
	for _, f := range s.registrationFiles() {
		if f.keepExisting {
			continue
		}
		err := os.Remove(f.installPath)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return anyExisted, err
		}
		anyExisted = anyExisted || err == nil
	}
	return anyExisted, nil
}

// controlService starts, stops or restarts the service.
func (s *Service) controlService(verb string) error { return s.systemctl(verb, mainServiceUnit) }

// IsRunning reports whether the service runs or is starting.
func (s *Service) IsRunning() bool {
	// Ignore the error: systemctl exits with a failure for every state except active, but also prints the state.
	state, _ := exec.Command("systemctl", s.systemctlArgs("is-active", mainServiceUnit)...).Output()
	return slices.Contains([]string{"active", "activating"}, strings.TrimSpace(string(state)))
}

// StartCommand returns the command that starts the service.
func (s *Service) StartCommand() string {
	if s.IsUserService {
		start, _ := osservice.FindUserService()
		return start
	}
	return "systemctl start " + ServiceName
}

// sandboxHiddenDirs lists the directories that are not visible in the service's sandbox.
var sandboxHiddenDirs = []string{"/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/"}

// checkProgramTrust returns an error if the service's sandbox hides the program, or if users other than root
// could replace it.
func checkProgramTrust(program string) error {
	for _, dir := range sandboxHiddenDirs {
		if strings.HasPrefix(program, dir) {
			return queue.Errorf(queue.CodeWrongState, "the service cannot access files in %s; %s", dir,
				fmt.Sprintf(copyProgramsAdvice, filepath.Dir(program)))
		}
	}
	for path := program; ; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && (st.Uid != 0 || info.Mode().Perm()&0o022 != 0) {
			return queue.Errorf(queue.CodeWrongState, "other users can change %s and so replace a program that runs as root; %s",
				path, untrustedProgramAdvice(program, path, st.Uid, info.Mode()))
		}
		if path == "/" {
			return nil
		}
	}
}

// copyProgramsAdvice is the advice to run the service from copies of the programs. %[1]s is the directory of the
// original programs.
const copyProgramsAdvice = "copy both programs first: install %[1]s/queuectl %[1]s/queuectld /usr/local/bin/ && " +
	"/usr/local/bin/queuectl service install"

// untrustedProgramAdvice returns what to do if users other than root can change untrustedPath, which is the path of the
// program or of one of its parent directories.
func untrustedProgramAdvice(program, untrustedPath string, ownerUID uint32, mode os.FileMode) string {
	switch {
	case ownerUID == 0 && mode.Perm()&0o002 == 0: // only a group may write, as in older Debian's /usr/local/bin
		return "run: chmod g-w " + untrustedPath
	case filepath.Dir(program) == "/usr/local/bin":
		return fmt.Sprintf("run: chown root: %[1]s && chmod go-w %[1]s", untrustedPath)
	}
	return fmt.Sprintf(copyProgramsAdvice, filepath.Dir(program))
}
