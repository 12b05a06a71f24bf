// Package cleanstart gives a process that outlives its caller the attributes of a fresh process. Otherwise the resource
// limits and the environment of one caller would apply to the jobs of all later callers. Start with InheritableEnviron
// and ResetInheritedAttributes.
//
// The manual pages execve(2), fork(2), prctl(2) and credentials(7) list what a process inherits.
// ResetInheritedAttributes resets the attributes that the account may change. DescribeInheritedAttributes reports the
// inherited attributes that were not reset, if the process can detect them. Some cannot be detected: namespaces, the
// root directory, Landlock rules, security labels and the login uid look the same whether the machine or the caller set
// them.
package cleanstart

import (
	"os"
	"slices"
	"strings"
)

// nonInheritableVariables are the environment variables that a process must not inherit if it outlives its caller.
//
// systemd sets most of the variables before GOGC for one process or unit. A service that inherited them would
// act as the unit of its caller, for example in messages to systemd.
//
// The variables from GOGC on configure the Go runtime. The values of one caller would affect the service for
// all its users.
var nonInheritableVariables = []string{
	"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "MAINPID",
	"INVOCATION_ID", "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY", "FDSTORE", "SYSTEMD_EXEC_PID",
	"MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "OLDPWD",
	"GOGC", "GOMEMLIMIT", "GODEBUG", "GOMAXPROCS", "GORACE", "GOTRACEBACK",
}

// InheritableEnviron returns the environment for a process that outlives this one. It is the environment of
// this process without nonInheritableVariables.
func InheritableEnviron() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		// Windows ignores the case of a variable's name.
		return slices.ContainsFunc(nonInheritableVariables, func(n string) bool { return strings.EqualFold(n, name) })
	})
}
