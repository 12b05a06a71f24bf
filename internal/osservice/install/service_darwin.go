package install

import (
	"errors"
	"os"
	"path/filepath"

	kardianos "github.com/kardianos/service"

	"github.com/queuectl/queuectl/internal/osservice"
)

// Service is queuectl as a service of launchd.
type Service struct {
	Options
	callerIsAdmin  bool // the caller is root
	launchdService kardianos.Service
}

// New returns the service that the options select.
func New(o Options) (*Service, error) {
	if err := o.checkPathCharacters(); err != nil {
		return nil, err
	}
	unit, err := kardianos.New(nil, &kardianos.Config{
		Name:       ServiceName,
		Executable: o.DaemonPath,
		Option: kardianos.KeyValue{"LaunchdConfig": o.adaptedPackageFileText("launchd.plist"),
			"UserService": o.IsUserService},
	})
	if err != nil {
		return nil, err
	}
	return &Service{Options: o, callerIsAdmin: os.Geteuid() == 0, launchdService: unit}, nil
}

// plistPath returns the path of the property list file with which launchd runs the service.
func (s *Service) plistPath() string {
	if s.IsUserService {
		return osservice.PlistPath()
	}
	return filepath.Join("/Library/LaunchDaemons", ServiceName+".plist")
}

// IsRegistered reports whether the service is registered.
func (s *Service) IsRegistered() bool {
	_, err := os.Stat(s.plistPath())
	return err == nil
}

// Install registers and starts the service. If the service is already registered with other settings,
// Install updates the registration and restarts the service.
func (s *Service) Install() error {
	if err := s.checkControlAllowed("install"); err != nil {
		return err
	}
	if have, err := os.ReadFile(s.plistPath()); err == nil {
		if string(have) == s.adaptedPackageFileText("launchd.plist") && s.IsRunning() {
			return nil
		}
		if _, err := s.Uninstall(); err != nil {
			return err
		}
	}
	if err := s.launchdService.Install(); err != nil {
		return err
	}
	return s.launchdService.Start()
}

// Uninstall stops the service and removes the registration. wasRegistered reports whether the service was
// registered. Uninstall keeps the queue and the settings.
func (s *Service) Uninstall() (wasRegistered bool, err error) {
	if err := s.checkControlAllowed("uninstall"); err != nil {
		return true, err
	}
	err = s.launchdService.Uninstall()
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return true, err
}

// controlService starts, stops or restarts the service.
func (s *Service) controlService(verb string) error { return kardianos.Control(s.launchdService, verb) }

// IsRunning reports whether the service runs or is starting.
func (s *Service) IsRunning() bool {
	status, err := s.launchdService.Status()
	return err == nil && status == kardianos.StatusRunning
}

// StartCommand returns the command that starts the service.
func (s *Service) StartCommand() string { return "launchctl load " + s.plistPath() }
