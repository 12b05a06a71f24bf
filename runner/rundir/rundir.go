// Package rundir reads and writes the files by which a runner is found, and by which the service learns
// what a dead runner has done.
//
// A runner and the service that finds it may come from different builds, so the names and formats in
// this package never change. Start with the names below. Journal holds the results that the service has
// not acknowledged, and Table the running attempts. Lock distinguishes a living runner from a dead one.
package rundir

import "strings"

// Names in the runners' directory, whose path the service chooses. It contains one directory for each
// runner that lives or has left files. It also contains the directories with the names below.
const (
	OutputsDirName    = "output"
	WorkspacesDirName = "jobs"    // one directory per runner, for the private directories of attempts
	ProgramsDirName   = "program" // copies of the program, on systems that cannot replace a running program

	// AccountDirPrefix begins the name of a directory that contains the directories of runners that have
	// switched to an account. The rest of the name is the name of that account.
	AccountDirPrefix = "as-"
)

// Names in a runner's own directory.
const (
	LockFileName      = "lock" // locked while the runner lives
	SocketFileName    = "run.sock"
	BootIDFileName    = "boot-id"
	TableFileName     = "running" // running table, with one slot per worker
	journalFilePrefix = "journal" // results, in segments journal.1, journal.2, …
	sparedFileName    = "spared"  // process groups that jobs were allowed to leave behind
	tmpdirFileName    = "tmpdir"  // the runner's job_tmpdir; missing if it has none
)

// IsRunnerDirName reports whether a name in the runners' directory is that of a runner's directory.
func IsRunnerDirName(name string) bool {
	return name != OutputsDirName && name != WorkspacesDirName && name != ProgramsDirName &&
		!strings.HasPrefix(name, AccountDirPrefix)
}
