// Package runner locates, starts and talks to runners: the processes that run commands and outlive the
// service. It also cleans up after a runner that has died.
//
// Start with Location, which finds and starts runners. Client is a connection to a living runner. Recover
// ends what a dead runner has left, and returns what its files say. The runner itself is package
// runner/daemon, its files are package rundir, and the way to root's rights is package
// runner/launcher.
package runner

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// OutputPath returns the path of the file that an OutputRef names.
func OutputPath(root, ref string) string { return filepath.Join(root, rundir.OutputsDirName, ref) }

// OutputSize returns the size of an output file, or 0 if the file is missing. Jobs of an account's
// runner can write to the file, so OutputSize returns at most the largest valid size for the given
// limit per stream.
func OutputSize(root, ref string, limit int64) int64 {
	info, err := os.Lstat(OutputPath(root, ref))
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return min(info.Size(), 2*limit+limit/2+maxFramingBytes)
}

// maxFramingBytes bounds how many bytes an output file has in addition to the output and the overhead that
// grows with it.
const maxFramingBytes = 1 << 20

// IsolatedSuffix ends the name of the directory of a runner that runs one isolated job.
const IsolatedSuffix = ".alone"

// IsIsolated reports whether the runner of a directory runs one isolated job only.
func IsIsolated(dir string) bool { return strings.HasSuffix(dir, IsolatedSuffix) }

// WorkerName returns the name of a runner's worker, given its slot.
func WorkerName(dir string, slot int64) string {
	if IsIsolated(dir) {
		pid, _, _ := strings.Cut(filepath.Base(dir), ".")
		return "lone-" + pid
	}
	return WorkerID(slot)
}

// WorkerID returns the name of the worker that uses a slot.
func WorkerID(slot int64) string { return "w" + strconv.FormatInt(slot, 10) }

// OutputRef returns the name of the output file of a lease.
func OutputRef(l wire.Lease) string {
	return strconv.FormatInt(l.Seq, 10) + "-" + strconv.FormatInt(l.Fence, 10)
}

// IsOutputRef reports whether a reference is valid. A valid reference names only files in the output
// directory.
func IsOutputRef(ref string) bool {
	return ref != "" && strings.Trim(ref, "0123456789-") == ""
}

// RemoveOutputs deletes output files below root.
func RemoveOutputs(root string, refs []string) {
	for _, ref := range refs {
		if IsOutputRef(ref) {
			os.Remove(OutputPath(root, ref)) // an error does not matter, since the file may be gone already
		}
	}
}
