// Package runner is the process that starts and supervises commands and outlives the service. It also
// contains the code with which the service finds, starts and talks to that process.
//
// Start with Serve, which is the runner process. The service uses Home to find and start runners,
// Client to connect to one, and Recover to clean up after a dead one.
package runner

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/runner/wire"
)

// Names in the runners' directory, whose path the service chooses. It contains one directory for each
// runner that lives or has left files. It also contains one directory each for output files, private
// directories of jobs, and copies of the program. The names from lockName on are in a runner's own
// directory.
const (
	outputsName    = "output"
	workspacesName = "jobs"    // one directory per runner, for the private directories of attempts
	programsName   = "program" // copies of the program, on systems that cannot replace a running program
	lockName       = "lock"    // locked while the runner lives
	sockName       = "run.sock"
	bootName       = "boot-id"
	journalName    = "journal" // results, in segments journal.1, journal.2, …
	tableName      = "running" // running table, with one slot per worker
	sparedName     = "spared"  // process groups that jobs were allowed to leave behind
	tmpdirName     = "tmpdir"  // the runner's job_tmpdir; missing if it has none
)

// OutputPath returns the path of the file that an OutputRef names.
func OutputPath(root, ref string) string { return filepath.Join(root, outputsName, ref) }

// OutputSize returns the size of an output file, or 0 if the file is missing. Jobs of an account's
// runner can write to the file, so OutputSize returns at most the largest valid size for the given
// limit per stream.
func OutputSize(root, ref string, limit int64) int64 {
	info, err := os.Lstat(OutputPath(root, ref))
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return min(info.Size(), 2*limit+limit/2+maxFraming)
}

// maxFraming bounds how many bytes an output file has in addition to the output and the overhead that
// grows with it.
const maxFraming = 1 << 20

// isolatedSuffix ends the name of the directory of a runner that runs one isolated job.
const isolatedSuffix = ".alone"

// Isolated reports whether the runner of a directory runs one isolated job only.
func Isolated(dir string) bool { return strings.HasSuffix(dir, isolatedSuffix) }

// Worker returns the name of a runner's worker, given its slot.
func Worker(dir string, slot int64) string {
	if Isolated(dir) {
		pid, _, _ := strings.Cut(filepath.Base(dir), ".")
		return "lone-" + pid
	}
	return WorkerID(slot)
}

// OutputRef returns the name of the output file of a lease.
func OutputRef(l wire.Lease) string {
	return strconv.FormatInt(l.Seq, 10) + "-" + strconv.FormatInt(l.Fence, 10)
}

// ValidRef reports whether a reference is valid. A valid reference names only files in the output
// directory.
func ValidRef(ref string) bool {
	for _, c := range []byte(ref) {
		if (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return ref != ""
}

// Purge deletes output files below root.
func Purge(root string, refs []string) {
	for _, ref := range refs {
		if ValidRef(ref) {
			os.Remove(OutputPath(root, ref)) // an error does not matter, since the file may be gone already
		}
	}
}
