// Package cleanstart gives a process that outlives its caller the attributes of a fresh process, so
// that one caller's limits do not hold for the jobs of all later ones. Start with Reset.
//
// execve(2), fork(2), prctl(2) and credentials(7) list what a process inherits. An account may
// change most of it, and Reset does. Inherited reports what it may not change, as far as a process
// can see it: namespaces, the root directory, Landlock rules, security labels and the login uid
// look the same whether the machine or the caller set them.
package cleanstart

import "os"

// callersVariables hold for one process or systemd unit alone. With them a service would report itself
// as its caller's unit.
var callersVariables = []string{
	"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "MAINPID", "INVOCATION_ID",
	"JOURNAL_STREAM", "CREDENTIALS_DIRECTORY", "FDSTORE", "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE",
	"OLDPWD",
}

// resetEnvironment removes the variables that hold for the caller's process alone.
func resetEnvironment() {
	for _, name := range callersVariables {
		os.Unsetenv(name)
	}
}
