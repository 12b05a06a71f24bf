// Package rundir reads and writes the files in a runner's directory. A service uses these files to find the
// runner, and to learn which attempts a dead runner has started and how they ended.
//
// A runner and the service that finds it may be of different versions, so the names and formats in this package never
// change. Start with the names below. Journal stores the results that the service has not acknowledged.
// MappedRunningTable stores the running attempts. A living runner holds a lock on the file LockFileName.
package rundir

import "strings"

// Names in the runners' directory, whose path the service chooses. The runners' directory also contains one
// directory for each runner that is alive or has left files.
const (
	OutputsDirName    = "output"
	WorkspacesDirName = "jobs"    // one directory per runner, for the private directories of attempts
	ProgramsDirName   = "program" // copies of the program, on systems that cannot replace a running program

	// AccountDirPrefix, followed by the name of an account, is the name of a directory that contains the
	// directories of the runners that have switched to this account.
	AccountDirPrefix = "as-"
)

// Names in a runner's own directory.
const (
	LockFileName            = "lock" // locked while the runner is alive
	SocketFileName          = "run.sock"
	BootIDFileName          = "boot-id"
	RunningTableFileName    = "running" // table of running attempts (see MappedRunningTable)
	journalFilePrefix       = "journal" // results, in segments journal.1, journal.2, …
	backgroundPGIDsFileName = "spared"  // process groups that jobs were allowed to leave running
	jobTmpdirFileName       = "tmpdir"  // the runner's setting job_tmpdir; missing if it has none
)

// IsRunnerDirName reports whether an entry of the runners' directory with this name is a runner's directory.
func IsRunnerDirName(name string) bool {
	return name != OutputsDirName && name != WorkspacesDirName && name != ProgramsDirName &&
		!strings.HasPrefix(name, AccountDirPrefix)
}
