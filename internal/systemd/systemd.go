// Package systemd speaks to systemd: it takes its sockets, tells it how the service is,
// and asks it what is to become of a unit. Where there is no systemd it does nothing.
package systemd

import (
	"context"
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

// Notify tells the service manager how this service is; see sd_notify(3). Who does not
// listen is not told.
// See docs/decisions/0081.
func Notify(lines ...string) {
	daemon.SdNotify(false, strings.Join(lines, "\n"))
}

// longer is how long the manager is to wait for the next sign of a stop that has more to
// do.
const longer = 40 * time.Second

// Longer tells the service manager that a stop takes longer; say it again within a
// quarter of a minute as long as it does.
func Longer() { Notify("EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(longer.Microseconds(), 10)) }

// Log writes a message with fields to the journal. An error means that there is none, or
// that it cannot take it.
func Log(message string, priority int, fields map[string]string) error {
	return journal.Send(message, journal.Priority(priority), fields)
}

// firstSocket is the descriptor of the first socket that the service manager hands over,
// as sd_listen_fds(3) says.
const firstSocket = 3

// WebSocket is the name (FileDescriptorName= of systemd.socket(5)) of sockets of the page.
const WebSocket = "web"

// Sockets are those that the service manager has opened for this process.
type Sockets struct {
	Control *net.UnixListener // nil if there is none
	Web     []net.Listener    // those that have the name WebSocket
	Useless []error           // why others are of no use
}

// Listening takes the sockets of this process, which can be done once. Those that are of
// no use are closed.
func Listening() (Sockets, error) {
	var has Sockets
	pid, n, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(name) // they are nobody else's
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return has, nil
	}
	sockets, err := strconv.Atoi(n)
	if err != nil {
		return has, fmt.Errorf("LISTEN_FDS is %q, not a number of sockets: %w", n, err)
	}
	for fd := range max(0, min(sockets, maxSockets)) {
		f := os.NewFile(uintptr(firstSocket+fd), "socket")
		l, err := net.FileListener(f)
		f.Close() // l has its own
		if err != nil {
			has.Useless = append(has.Useless, fmt.Errorf("file descriptor %d: %w", firstSocket+fd, err))
			continue
		}
		u, unix := l.(*net.UnixListener)
		if unix {
			u.SetUnlinkOnClose(false)
		}
		switch {
		case fd < len(names) && names[fd] == WebSocket:
			has.Web = append(has.Web, l)
		case unix && has.Control == nil:
			has.Control = u
		default:
			l.Close()
		}
	}
	return has, nil
}

// maxSockets bounds how many sockets are looked at.
const maxSockets = 16

// Watchdog is how long the service manager waits for a sign of life before it ends this
// process, 0 if for ever.
func Watchdog() time.Duration {
	d, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return 0 // what it says cannot be read: it means nobody else
	}
	return d
}

// Unit is a unit of the manager that this process belongs to: the system's, or the
// user's own.
type Unit string

// askFor bounds a question that is asked again and again.
const askFor = time.Second

// systemctl asks the manager; "" if it cannot be asked.
func systemctl(within time.Duration, args ...string) string {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if os.Getenv("MANAGERPID") != "" { // systemd.exec(5): set for units of a user alone
		args = append([]string{"--user"}, args...)
	}
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.WaitDelay = within
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// Stopping reports whether the unit is being stopped, rather than restarted or not asked
// for anything. It is false if the manager does not answer within a while.
func (u Unit) Stopping(within time.Duration) bool {
	for line := range strings.Lines(systemctl(within, "list-jobs", "--no-legend", "--full", "--no-pager")) {
		if f := strings.Fields(line); len(f) >= 3 && f[1] == string(u) && f[2] == "stop" {
			return true
		}
	}
	return false
}

// Unwanted reports whether the unit does not run and nothing is about to start it.
func (u Unit) Unwanted() bool {
	said := systemctl(askFor, "show", "-p", "ActiveState", "-p", "Job", string(u))
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

// StopAll stops the units that match a pattern and returns once they have ended. Those
// that are to be stopped before them are not waited for: the caller is part of the end
// of one.
func StopAll(pattern string, within time.Duration) {
	systemctl(within, "--job-mode=ignore-dependencies", "stop", pattern)
}

// Monotonic is the line that goes with RELOADING=1, with the time now.
func Monotonic(now time.Duration) string {
	return "MONOTONIC_USEC=" + strconv.FormatInt(now.Microseconds(), 10)
}
