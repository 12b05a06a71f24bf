package install

import (
	"errors"
	"syscall"

	"golang.org/x/sys/windows/registry"

	"github.com/queuectl/queuectl/internal/osservice"
)

// setLogonCommand sets the command that Windows runs when this user logs on. It is stored in the user's
// registry.
func setLogonCommand(commandLine string) error {
	k, _, err := registry.CreateKey(registry.CURRENT_USER, osservice.LogonRunKey, registry.SET_VALUE)
	if err != nil {
		return err
	}
	defer k.Close()
	return k.SetStringValue(ServiceName, commandLine)
}

// removeLogonCommand removes the command that setLogonCommand has set. It returns registry.ErrNotExist if no command is
// set.
func removeLogonCommand() error {
	k, err := registry.OpenKey(registry.CURRENT_USER, osservice.LogonRunKey, registry.SET_VALUE)
	if err != nil {
		return err
	}
	defer k.Close()
	return k.DeleteValue(ServiceName)
}

// logonCommandText is how messages describe the command that Windows runs at logon.
const logonCommandText = "the command that starts your service at logon (value " + ServiceName +
	" of the registry key " +
	`HKEY_CURRENT_USER\` + osservice.LogonRunKey + ")"

// installUserService starts the user's own service now and at each logon.
func (s *Service) installUserService() error {
	if err := s.setLogonCommand(syscall.EscapeArg(s.DaemonPath) + " serve --background"); err != nil {
		return actionError("configure "+logonCommandText, err)
	}
	return s.DirectControl.Start()
}

// uninstallUserService stops the user's own service and removes the command that starts it at logon. wasRegistered
// reports whether such a command existed.
func (s *Service) uninstallUserService() (wasRegistered bool, err error) {
	if wasRegistered = s.IsRegistered(); !wasRegistered {
		return false, nil
	}
	if err := s.stopUserService(false); err != nil {
		return wasRegistered, err
	}
	err = s.removeLogonCommand()
	if errors.Is(err, registry.ErrNotExist) {
		err = nil
	}
	return wasRegistered, actionError("remove "+logonCommandText, err)
}

// stopUserService stops the user's own service if it runs.
func (s *Service) stopUserService(keepJobs bool) error {
	if !s.DirectControl.IsAnswering() {
		return nil
	}
	return s.DirectControl.Stop(keepJobs)
}
