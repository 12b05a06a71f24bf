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
	uid  int // uid of the caller
	unit kardianos.Service
}

// New returns the service that the options select.
func New(o Options) (*Service, error) {
	if err := o.checkPlainPaths(); err != nil {
		return nil, err
	}
	unit, err := kardianos.New(nil, &kardianos.Config{
		Name:       Name,
		Executable: o.Program,
		Option:     kardianos.KeyValue{"LaunchdConfig": o.adaptedFile("launchd.plist"), "UserService": o.User},
	})
	if err != nil {
		return nil, err
	}
	return &Service{Options: o, uid: os.Geteuid(), unit: unit}, nil
}

// plistPath returns the path of the service's file for launchd.
func (s *Service) plistPath() string {
	if s.User {
		return osservice.PlistPath()
	}
	return filepath.Join("/Library/LaunchDaemons", Name+".plist")
}

// IsRegistered reports whether the service is registered.
func (s *Service) IsRegistered() bool {
	_, err := os.Stat(s.plistPath())
	return err == nil
}

// Install registers and starts the service. If the service is already registered with other settings,
// Install updates the registration and restarts the service.
func (s *Service) Install() error {
	if err := s.checkAllowed("install", s.uid == 0); err != nil {
		return err
	}
	if have, err := os.ReadFile(s.plistPath()); err == nil {
		if string(have) == s.adaptedFile("launchd.plist") && s.IsRunning() {
			return nil
		}
		if _, err := s.Uninstall(); err != nil {
			return err
		}
	}
	if err := s.unit.Install(); err != nil {
		return err
	}
	return s.unit.Start()
}

// Uninstall stops the service and removes the registration. wasRegistered reports whether the service was
// registered. Uninstall keeps the queue and the settings.
func (s *Service) Uninstall() (wasRegistered bool, err error) {
	if err := s.checkAllowed("uninstall", s.uid == 0); err != nil {
		return true, err
	}
	err = s.unit.Uninstall()
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return true, err
}

// control starts, stops or restarts the service.
func (s *Service) control(verb string) error { return kardianos.Control(s.unit, verb) }

// IsRunning reports whether the service runs or is starting.
func (s *Service) IsRunning() bool {
	status, err := s.unit.Status()
	return err == nil && status == kardianos.StatusRunning
}

// StartCommand returns the command that starts the service.
func (s *Service) StartCommand() string { return "launchctl load " + s.plistPath() }
