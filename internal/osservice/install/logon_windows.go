package install

import (
	"errors"
	"syscall"

	"golang.org/x/sys/windows/registry"

	"github.com/queuectl/queuectl/internal/osservice"
)

// setLogonCommand sets the command that Windows runs when this user logs on. It is stored in the user's
// registry.
func setLogonCommand(line string) error {
	k, _, err := registry.CreateKey(registry.CURRENT_USER, osservice.RunKey, registry.SET_VALUE)
	if err != nil {
		return err
	}
	defer k.Close()
	return k.SetStringValue(Name, line)
}

// removeLogonCommand removes the command that setLogonCommand has set. It returns registry.ErrNotExist if there
// is none.
func removeLogonCommand() error {
	k, err := registry.OpenKey(registry.CURRENT_USER, osservice.RunKey, registry.SET_VALUE)
	if err != nil {
		return err
	}
	defer k.Close()
	return k.DeleteValue(Name)
}

// logonCommandText is the name of the command at logon in messages.
const logonCommandText = "the command that starts your service at logon (value " + Name + " of the registry key " +
	`HKEY_CURRENT_USER\` + osservice.RunKey + ")"

// installUserService starts the user's own service now and at each logon.
func (s *Service) installUserService() error {
	if err := s.setLogonCommand(syscall.EscapeArg(s.Program) + " serve --background"); err != nil {
		return cannot("configure "+logonCommandText, err)
	}
	return s.Direct.Start()
}

// uninstallUserService stops the user's own service, which then no longer starts at logon. was reports whether
// it was registered.
func (s *Service) uninstallUserService() (was bool, err error) {
	if was = s.IsRegistered(); !was {
		return false, nil
	}
	if err := s.stopUserService(false); err != nil {
		return was, err
	}
	err = s.removeLogonCommand()
	if errors.Is(err, registry.ErrNotExist) {
		err = nil
	}
	return was, cannot("remove "+logonCommandText, err)
}

// stopUserService stops the user's own service if it runs.
func (s *Service) stopUserService(keepJobs bool) error {
	if !s.Direct.IsAnswering() {
		return nil
	}
	return s.Direct.Stop(keepJobs)
}
