// Package runner is a small second process that starts, limits, reaps and
// remembers attempts while the service is away; and the client to it.
//
// Serve is the process. Find, Spawn and Client are the service's side.
package runner

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/runner/wire"
)

// Names below the runners' folder, which the service names: one folder for each
// runner that lives or has left something, and one for outputs.
const (
	outputsName  = "output"
	placesName   = "jobs"    // of the private folders of attempts, in one for each runner
	programsName = "program" // copies that runners run, where a program that runs cannot be replaced
	lockName     = "lock"    // held for life: the test whether a runner lives
	sockName     = "run.sock"
	bootName     = "boot-id"
	journalName  = "journal" // results, in segments journal.1, journal.2, …
	tableName    = "running" // what runs, one slot a worker
	sparedName   = "spared"  // process groups that may live on
	tmpdirName   = "tmpdir"  // its job_tmpdir, if it was started with one
)

// OutputPath is the file that an OutputRef names.
func OutputPath(root, ref string) string { return filepath.Join(root, outputsName, ref) }

// OutputSize is how many bytes that file has, 0 if it is gone, and no more than one may have
// whose streams have this limit: that of an account is whatever the account makes of it.
func OutputSize(root, ref string, limit int64) int64 {
	info, err := os.Lstat(OutputPath(root, ref))
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return min(info.Size(), 2*limit+limit/2+maxFraming)
}

// maxFraming bounds what a file of output has beside its bytes and what grows with them.
const maxFraming = 1 << 20

// isolatedSuffix ends the name of the folder of a runner that runs one job alone.
const isolatedSuffix = ".alone"

// Isolated reports whether the runner of a folder runs one job alone.
func Isolated(dir string) bool { return strings.HasSuffix(dir, isolatedSuffix) }

// Worker names a worker of a runner, by its slot.
func Worker(dir string, slot int64) string {
	if Isolated(dir) {
		pid, _, _ := strings.Cut(filepath.Base(dir), ".")
		return "lone-" + pid
	}
	return WorkerID(slot)
}

// OutputRef names the output of a lease that is too large for its result.
func OutputRef(l wire.Lease) string {
	return strconv.FormatInt(l.Seq, 10) + "-" + strconv.FormatInt(l.Fence, 10)
}

// ValidRef keeps a reference from naming any other file.
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
			os.Remove(OutputPath(root, ref)) // what is gone already need not be deleted
		}
	}
}
