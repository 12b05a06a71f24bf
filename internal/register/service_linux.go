package register

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

	kardianos "github.com/kardianos/service"

	"github.com/queuectl/queuectl/internal/registered"
	"github.com/queuectl/queuectl/queue"
)

// Names of the units. The first is the service itself.
// See docs/decisions/0081.
const (
	mainUnit   = Name + ".service"
	runnerUnit = Name + "-runner@.service"
	webUnit    = Name + "-web.socket" // of the system's service, off until somebody enables it
)

// The slices hold every runner; the second holds the first.
var (
	sockets = []string{Name + ".socket", Name + "-runner.socket"}
	groups  = []string{Name + "-runner.slice", Name + ".slice"}
)

// Service is queuectl as a service of systemd.
type Service struct {
	Options
	root string // of all paths; not "" in tests
	uid  int    // who asks
	unit unit
	run  func(name string, args ...string) error
}

// New is the service that is meant. An error means that systemd does not run here, or
// not for this user.
func New(o Options) (*Service, error) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil, o.noSystemd()
	}
	if err := o.plain(); err != nil {
		return nil, err
	}
	if o.User {
		if err := session(); err != nil {
			return nil, err
		}
	}
	unit, err := kardianos.New(nil, &kardianos.Config{
		Name:       Name,
		Executable: o.Program,
		Option:     kardianos.KeyValue{"SystemdScript": o.text(o.source(mainUnit)), "UserService": o.User},
	})
	if err != nil {
		return nil, err
	}
	return &Service{Options: o, uid: os.Geteuid(), unit: unit, run: run}, nil
}

// source is the file of the packages that a unit is made of.
func (o Options) source(name string) string {
	if o.User {
		return "user/" + name
	}
	return name
}

// noSystemd says what an init has to start instead.
func (o Options) noSystemd() error {
	if o.User {
		return queue.Errorf(queue.CodeUnsupported, "systemd is not running; make your init system run: queuectl serve")
	}
	return queue.Errorf(queue.CodeUnsupported, "systemd is not running; make your init system run, as root: %s %s; or start your own service with: queuectl serve",
		o.Client, strings.Join(o.serve(), " "))
}

// session finds the user's systemd also where su or sudo have dropped the way to it.
func session() error {
	if os.Getenv("XDG_RUNTIME_DIR") != "" {
		return nil
	}
	uid := strconv.Itoa(os.Getuid())
	dir := filepath.Join("/run/user", uid)
	if _, err := os.Stat(dir); err != nil {
		return queue.Errorf(queue.CodeUnavailable, "systemd is not running for this user; log in, or keep it running without a login: loginctl enable-linger %s", uid)
	}
	return os.Setenv("XDG_RUNTIME_DIR", dir)
}

func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// systemctl speaks to the manager of this service.
func (s *Service) systemctl(args ...string) error {
	if s.User {
		args = append([]string{"--user"}, args...)
	}
	return s.run("systemctl", args...)
}

// folder is where the units are.
func (s *Service) folder() string {
	if s.User {
		return registered.Folder()
	}
	return filepath.Join(s.root, "/etc/systemd/system")
}

// owned is the path of a unit that a package has installed, "" if there is none.
func (s *Service) owned() string {
	if s.User {
		return ""
	}
	for _, dir := range []string{"/usr/lib/systemd/system", "/lib/systemd/system"} {
		for _, name := range append([]string{mainUnit, runnerUnit}, sockets...) {
			if path := filepath.Join(dir, name); exists(filepath.Join(s.root, path)) {
				return path
			}
		}
	}
	return ""
}

// shadows reports whether a package has brought units since Install wrote its own, which
// still stand before them. The file that it looks at Install alone writes, and Uninstall
// removes last.
func (s *Service) shadows() bool {
	return s.owned() != "" && exists(filepath.Join(s.root, tmpfiles))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Registered reports whether the system knows the service, by a package or by Install.
func (s *Service) Registered() bool {
	return s.owned() != "" || exists(filepath.Join(s.folder(), mainUnit))
}

// Install registers and starts the service. What is registered already is brought up to
// date, and restarted if it was not; running jobs go on.
func (s *Service) Install() error {
	if path := s.owned(); path != "" {
		remedy := "start them: systemctl enable --now " + mainUnit
		if s.shadows() {
			remedy = "switch to these units: queuectl service uninstall"
		}
		return queue.Errorf(queue.CodeWrongState, "a package has already installed the systemd units (%s); %s", path, remedy)
	}
	if err := s.allowed("install", s.uid == 0); err != nil {
		return err
	}
	if !s.User {
		for _, program := range []string{s.Program, s.Client} {
			if err := trusted(program); err != nil {
				return err
			}
		}
	}
	changed, err := s.writeFiles()
	if err != nil {
		return err
	}
	if !s.User {
		if err := errors.Join(s.run("systemd-sysusers", Name+".conf"), s.run("systemd-tmpfiles", "--create", Name+".conf")); err != nil {
			return err
		}
	}
	again, err := s.installMain()
	if err != nil {
		return err
	}
	if err := s.systemctl(slices.Concat([]string{"enable", "--now"}, sockets, []string{mainUnit})...); err != nil {
		return err
	}
	if changed || again {
		return s.systemctl("try-restart", mainUnit)
	}
	return nil
}

// installMain has kardianos write the main unit, unless it is there as it should be. It
// reports whether another was there.
func (s *Service) installMain() (replaced bool, err error) {
	path := filepath.Join(s.folder(), mainUnit)
	have, err := os.ReadFile(path)
	switch {
	case err == nil && string(have) == s.text(s.source(mainUnit)):
		return false, s.systemctl("daemon-reload")
	case err == nil:
		replaced = true
		if err := os.Remove(path); err != nil {
			return false, err
		}
	case !errors.Is(err, os.ErrNotExist):
		return false, err
	}
	return replaced, s.unit.Install()
}

// tmpfiles is the last of files.
const tmpfiles = "/etc/tmpfiles.d/queuectl.conf"

// file is one that stands beside the main unit.
type file struct {
	path, source string
	first        bool // only if there is none: a person changes it
}

// files are those beside the main unit.
func (s *Service) files() (list []file) {
	for _, name := range append([]string{runnerUnit}, sockets...) {
		list = append(list, file{path: filepath.Join(s.folder(), name), source: s.source(name)})
	}
	if s.User {
		return list
	}
	return append(list,
		file{path: filepath.Join(s.folder(), webUnit), source: s.source(webUnit)},
		file{path: filepath.Join(s.root, "/etc/queuectl/queuectl.toml"), source: "queuectl.toml", first: true},
		file{path: filepath.Join(s.root, "/etc/queuectl/runner.conf"), source: "runner.conf", first: true},
		file{path: filepath.Join(s.root, "/etc/sysusers.d/queuectl.conf"), source: "queuectl.sysusers"},
		file{path: filepath.Join(s.root, tmpfiles), source: "queuectl.tmpfiles"},
	)
}

// writeFiles writes what is not there as it should be, and reports whether a file was
// there that was not.
func (s *Service) writeFiles() (changed bool, err error) {
	for _, f := range s.files() {
		text := s.text(f.source)
		have, err := os.ReadFile(f.path)
		if err == nil && (f.first || string(have) == text) {
			continue
		}
		changed = changed || err == nil
		if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
			return changed, err
		}
		part := f.path + ".new"
		if err := os.WriteFile(part, []byte(text), 0o644); err != nil {
			return changed, err
		}
		if err := errors.Join(os.Chmod(part, 0o644), os.Rename(part, f.path)); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// Uninstall stops the service and takes the registration back; was is false if there was
// none. Queue, settings and accounts stay. Where a package has brought units since, those
// take over instead, and running jobs go on.
func (s *Service) Uninstall() (was bool, err error) {
	shadows := s.shadows()
	if path := s.owned(); path != "" && !shadows {
		return true, queue.Errorf(queue.CodeWrongState, "a package has installed the systemd units (%s); to remove the service, remove the package", path)
	}
	if err := s.allowed("uninstall", s.uid == 0); err != nil {
		return true, err
	}
	if shadows {
		return true, s.handOver()
	}
	was = s.Registered()
	if was {
		units := append([]string{mainUnit}, sockets...)
		if !s.User {
			units = append(units, webUnit)
		}
		if err := s.systemctl(append([]string{"disable", "--now"}, units...)...); err != nil {
			return was, err
		}
		if err := errors.Join(s.systemctl(append([]string{"stop"}, groups...)...), s.unit.Uninstall()); err != nil {
			return was, err
		}
	}
	removed, err := s.removeFiles()
	was = was || removed
	if err != nil || !was {
		return was, err
	}
	return was, s.systemctl("daemon-reload")
}

// handOver has the units of a package take the place of Install's, enabled and running as
// those were.
func (s *Service) handOver() error {
	if err := os.Remove(filepath.Join(s.folder(), mainUnit)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := s.removeFiles(); err != nil {
		return err
	}
	if err := s.systemctl("daemon-reload"); err != nil {
		return err
	}
	for _, unit := range []string{mainUnit, webUnit} {
		if s.systemctl("is-enabled", "--quiet", unit) == nil { // links lead to what is gone
			if err := s.systemctl("reenable", unit); err != nil {
				return err
			}
		}
	}
	return s.systemctl("try-restart", mainUnit)
}

// removeFiles removes what stands beside the main unit, but what a person changes, and
// reports whether there was any.
func (s *Service) removeFiles() (was bool, err error) {
	for _, f := range s.files() {
		if f.first {
			continue
		}
		err := os.Remove(f.path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return was, err
		}
		was = was || err == nil
	}
	return was, nil
}

// HowToStart is the command that does.
func (s *Service) HowToStart() string {
	if s.User {
		start, _ := registered.Own()
		return start
	}
	return "systemctl start " + Name
}

// hidden are folders that the service's sandbox does not show.
var hidden = []string{"/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/"}

// trusted refuses a program that root should not run, or that the service cannot see.
func trusted(program string) error {
	for _, dir := range hidden {
		if strings.HasPrefix(program, dir) {
			return queue.Errorf(queue.CodeWrongState, "the service cannot access files in %s; %s", dir, fmt.Sprintf(copyFirst, filepath.Dir(program)))
		}
	}
	for path := program; ; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && (st.Uid != 0 || info.Mode().Perm()&0o022 != 0) {
			return queue.Errorf(queue.CodeWrongState, "other users can change %s and so replace a program that runs as root; %s", path, remedy(program, path, st.Uid, info.Mode()))
		}
		if path == "/" {
			return nil
		}
	}
}

const copyFirst = "copy both programs first: install %[1]s/queuectl %[1]s/queuectld /usr/local/bin/ && /usr/local/bin/queuectl service install"

// remedy is what helps where path, which leads to the program, is not root's alone.
func remedy(program, path string, owner uint32, mode os.FileMode) string {
	switch {
	case owner == 0 && mode.Perm()&0o002 == 0: // as /usr/local/bin was in older Debians
		return "run: chmod g-w " + path
	case filepath.Dir(program) == "/usr/local/bin":
		return fmt.Sprintf("run: chown root: %[1]s && chmod go-w %[1]s", path)
	}
	return fmt.Sprintf(copyFirst, filepath.Dir(program))
}
