package install

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"
)

// serviceRegistration is the service as registered in the service manager. Its methods are those that the library
// github.com/kardianos/service does not provide.
type serviceRegistration interface {
	SetRecoveryActions(actions []mgr.RecoveryAction, resetPeriod uint32) error
	SetRecoveryActionsOnNonCrashFailures(enabled bool) error
	setPreshutdownTimeout(timeout time.Duration) error
	setSIDType(sidType uint32) error
	restrictToPrivilege(name string) error
	registeredCommand() (string, error) // the command line of the service
	setRegisteredCommand(commandLine string) error
	Control(svc.Cmd) (svc.Status, error)
	queryStatus() (windows.SERVICE_STATUS_PROCESS, error)
	Close() error
}

// openRegistration opens the service in the service manager for queries. If the caller is elevated, it also
// requests the rights to change, start and stop the service.
func (s *Service) openRegistration() (serviceRegistration, error) {
	rights := uint32(windows.SERVICE_QUERY_STATUS | windows.SERVICE_QUERY_CONFIG)
	if s.callerIsAdmin {
		// The right to start the service is needed to set a restart as a recovery action.
		rights |= windows.SERVICE_CHANGE_CONFIG | windows.SERVICE_START | windows.SERVICE_STOP
	}
	manager, err := windows.OpenSCManager(nil, nil, windows.SC_MANAGER_CONNECT)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the service manager: %w", err)
	}
	defer windows.CloseServiceHandle(manager)
	name, err := windows.UTF16PtrFromString(ServiceName)
	if err != nil {
		return nil, err
	}
	h, err := windows.OpenService(manager, name, rights)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s in the service manager: %w", ServiceName, err)
	}
	return managedService{&mgr.Service{Name: ServiceName, Handle: h}}, nil
}

// managedService implements serviceRegistration with the Windows service manager.
type managedService struct{ *mgr.Service }

func (m managedService) setPreshutdownTimeout(timeout time.Duration) error {
	ms := uint32(timeout.Milliseconds()) // SERVICE_PRESHUTDOWN_INFO consists of this one number
	return windows.ChangeServiceConfig2(m.Handle, windows.SERVICE_CONFIG_PRESHUTDOWN_INFO, (*byte)(unsafe.Pointer(&ms)))
}

func (m managedService) setSIDType(sidType uint32) error {
	return windows.ChangeServiceConfig2(m.Handle, windows.SERVICE_CONFIG_SERVICE_SID_INFO,
		(*byte)(unsafe.Pointer(&sidType)))
}

// restrictToPrivilege sets the only privilege that the service keeps.
func (m managedService) restrictToPrivilege(name string) error {
	list, err := windows.UTF16FromString(name)
	if err != nil {
		return err
	}
	list = append(list, 0) // a zero ends each name, and another zero ends the list
	first := &list[0]      // SERVICE_REQUIRED_PRIVILEGES_INFO consists of this one pointer
	return windows.ChangeServiceConfig2(m.Handle, windows.SERVICE_CONFIG_REQUIRED_PRIVILEGES_INFO,
		(*byte)(unsafe.Pointer(&first)))
}

// maxServiceConfigBytes is the size of the buffer for a service's configuration, in bytes. A configuration is
// never larger.
const maxServiceConfigBytes = 8 << 10

func (m managedService) registeredCommand() (string, error) {
	// Use a slice of uint64, because the buffer contains pointers and must be aligned.
	raw := make([]uint64, maxServiceConfigBytes/8)
	c := (*windows.QUERY_SERVICE_CONFIG)(unsafe.Pointer(&raw[0]))
	need := uint32(0)
	if err := windows.QueryServiceConfig(m.Handle, c, maxServiceConfigBytes, &need); err != nil {
		return "", fmt.Errorf("the installed service %s was not updated, because its command line cannot be read; "+
			"run queuectl service uninstall, then install it again: %w", ServiceName, err)
	}
	return windows.UTF16PtrToString(c.BinaryPathName), nil
}

func (m managedService) setRegisteredCommand(commandLine string) error {
	p, err := windows.UTF16PtrFromString(commandLine)
	if err != nil {
		return err
	}
	const noChange = windows.SERVICE_NO_CHANGE
	return windows.ChangeServiceConfig(m.Handle, noChange, noChange, noChange, p, nil, nil, nil, nil, nil, nil)
}

func (m managedService) queryStatus() (st windows.SERVICE_STATUS_PROCESS, err error) {
	need := uint32(0)
	err = windows.QueryServiceStatusEx(m.Handle, windows.SC_STATUS_PROCESS_INFO, (*byte)(unsafe.Pointer(&st)),
		uint32(unsafe.Sizeof(st)), &need)
	return st, err
}
