// Package systemd communicates with systemd: it receives sockets, reports the state of the service,
// and queries units. Without systemd it does nothing.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/coreos/go-systemd/v22/journal"
)

// Notify sends assignments such as READY=1 to the service manager, see sd_notify(3). Without a service manager
// it does nothing. See docs/decisions/0081.
func Notify(assignments ...string) {
	daemon.SdNotify(false, strings.Join(assignments, "\n"))
}

// stopTimeoutExtension is how much time a stopping service requests from the service manager in one message. The
// service must request more before that time has passed.
const stopTimeoutExtension = 40 * time.Second

// ExtendStopTimeout asks the service manager to wait longer for the service to stop. Call it at least
// every 15 seconds while the service is stopping.
func ExtendStopTimeout() {
	Notify("EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(stopTimeoutExtension.Microseconds(), 10))
}

// LogToJournal writes a message with fields to the journal. It returns an error if there is no journal or
// the journal rejects the message.
func LogToJournal(message string, priority int, fields map[string]string) error {
	return journal.Send(message, journal.Priority(priority), fields)
}

// firstSocketFD is the first descriptor that the service manager passes, as defined by
// sd_listen_fds(3).
const firstSocketFD = 3

// DashboardSocketName is the name (FileDescriptorName= of systemd.socket(5)) of sockets for the dashboard.
const DashboardSocketName = "web"

// Sockets holds the sockets that the service manager has opened for this process.
type Sockets struct {
	ControlSocket    *net.UnixListener // nil if the service manager has opened none
	DashboardSockets []net.Listener    // sockets with the name DashboardSocketName
	SocketErrors     []error           // errors of descriptors that cannot be used
}

// InheritedSockets returns the sockets that the service manager has passed to this process. It can be called
// only once. It closes sockets that it cannot use.
func InheritedSockets() (Sockets, error) {
	var result Sockets
	pid, n, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(name) // child processes must not inherit these variables
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return result, nil
	}
	sockets, err := strconv.Atoi(n)
	if err != nil {
		return result, fmt.Errorf("the environment variable LISTEN_FDS is %q, but must be the number of sockets "+
			"that systemd passes to the service; correct it or unset it", n)
	}
	for fd := range max(0, min(sockets, maxInheritedSockets)) {
		f := os.NewFile(uintptr(firstSocketFD+fd), "socket")
		l, err := net.FileListener(f)
		f.Close() // net.FileListener has duplicated the descriptor
		if err != nil {
			if call, ok := errors.AsType[*os.SyscallError](err); ok { // leave out the names that package net adds
				err = call.Err
			}
			result.SocketErrors = append(result.SocketErrors, fmt.Errorf("file descriptor %d: %w", firstSocketFD+fd, err))
			continue
		}
		u, unix := l.(*net.UnixListener)
		if unix {
			u.SetUnlinkOnClose(false)
		}
		switch {
		case fd < len(names) && names[fd] == DashboardSocketName:
			result.DashboardSockets = append(result.DashboardSockets, l)
		case unix && result.ControlSocket == nil:
			result.ControlSocket = u
		default:
			l.Close()
		}
	}
	return result, nil
}

// maxInheritedSockets is the largest number of sockets that InheritedSockets accepts.
const maxInheritedSockets = 16

// WatchdogTimeout returns how long the service manager waits for a keep-alive message before it ends this
// process. 0 means that it waits forever.
func WatchdogTimeout() time.Duration {
	d, _ := daemon.SdWatchdogEnabled(false) // d is 0 if an environment variable is invalid
	return d
}

// Unit is the name of a systemd unit, such as queuectl.service. systemctl searches for it among the units of the
// system or, in a user's service, among those of the user.
type Unit string

// unitQueryTimeout is the timeout of one query about a unit. If systemd does not answer in time, the caller tries again
// later.
const unitQueryTimeout = time.Second

// runSystemctl runs systemctl and returns its output, or "" if that fails.
func runSystemctl(timeout time.Duration, args ...string) string {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if os.Getenv("MANAGERPID") != "" { // systemd.exec(5): systemd sets this variable only for units of a user
		args = append([]string{"--user"}, args...)
	}
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.WaitDelay = timeout
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// IsStopping reports whether the unit is being stopped and will not be restarted. It returns false if systemd
// does not answer in time.
func (u Unit) IsStopping(timeout time.Duration) bool {
	for line := range strings.Lines(runSystemctl(timeout, "list-jobs", "--no-legend", "--full", "--no-pager")) {
		if f := strings.Fields(line); len(f) >= 3 && f[1] == string(u) && f[2] == "stop" {
			return true
		}
	}
	return false
}

// IsInactive reports whether the unit is not running and systemd is not about to start it. It returns false if
// systemd does not answer in time.
func (u Unit) IsInactive() bool {
	said := runSystemctl(unitQueryTimeout, "show", "-p", "ActiveState", "-p", "Job", string(u))
	if said == "" {
		return false
	}
	for line := range strings.Lines(said) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), "="); {
		case name == "Job" && value != "" && value != "0":
			return false
		case name == "ActiveState" && value != "inactive" && value != "failed":
			return false
		}
	}
	return true
}

// StopUnits stops the units that match unitPattern, and waits until they have ended. The option ignore-dependencies is
// necessary because the caller's unit is being stopped too. Otherwise systemd could first wait for the caller's unit,
// which ends only after StopUnits has returned.
func StopUnits(unitPattern string, timeout time.Duration) {
	runSystemctl(timeout, "--job-mode=ignore-dependencies", "stop", unitPattern)
}

// MonotonicUsecLine returns the line that Notify must send together with RELOADING=1. monotonicNow is the current time
// of the monotonic clock.
func MonotonicUsecLine(monotonicNow time.Duration) string {
	return "MONOTONIC_USEC=" + strconv.FormatInt(monotonicNow.Microseconds(), 10)
}
