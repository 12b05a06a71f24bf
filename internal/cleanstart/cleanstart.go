// Package cleanstart gives a process that outlives its caller the attributes of a fresh process, so
// that one caller's limits do not hold for the jobs of all later ones. Start with Environ and Reset.
//
// execve(2), fork(2), prctl(2) and credentials(7) list what a process inherits. An account may
// change most of it, and Reset does. Inherited reports what it may not change, as far as a process
// can see it: namespaces, the root directory, Landlock rules, security labels and the login uid
// look the same whether the machine or the caller set them.
package cleanstart

import (
	"os"
	"slices"
	"strings"
)

// callersVariables hold for one process or systemd unit alone. With them a service would report itself
// as its caller's unit.
var callersVariables = []string{
	"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "MAINPID", "INVOCATION_ID",
	"JOURNAL_STREAM", "CREDENTIALS_DIRECTORY", "FDSTORE", "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE",
	"OLDPWD",
}

// runtimeVariables are the variables that the Go runtime reads at its start, as package runtime documents them. They
// would steer the service for all its users.
var runtimeVariables = []string{"GOGC", "GOMEMLIMIT", "GODEBUG", "GOMAXPROCS", "GORACE", "GOTRACEBACK"}

// Environ returns the environment for a process that outlives this one: that of this process without the variables that
// hold for this process alone, or that steer the Go runtime.
func Environ() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		dropped := func(n string) bool { return strings.EqualFold(n, name) } // Windows ignores case
		return slices.ContainsFunc(callersVariables, dropped) || slices.ContainsFunc(runtimeVariables, dropped)
	})
}
