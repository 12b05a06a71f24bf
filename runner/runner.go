// Package runner finds, starts and controls runners: the processes that run the jobs' commands and outlive
// the service. It also handles what a dead runner has left.
//
// Start with RunnersLocation, which finds and starts runners. Client is a connection to a living runner.
// RecoverDeadRunner ends the processes that a dead runner left behind, and returns the results in the runner's files.
// The program of the runner is in package runner/daemon. Package runner/rundir defines the runner's files, and package
// runner/launcher starts runners as root.
package runner

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// OutputPath returns the path of an output file below runnersDir, a directory that contains runners' directories.
// outputRef is a name returned by OutputRef.
func OutputPath(runnersDir, outputRef string) string {
	return filepath.Join(runnersDir, rundir.OutputsDirName, outputRef)
}

// CappedOutputFileBytes returns the size of an output file in bytes, or 0 if the file is missing. If the runner has
// switched to an account, jobs of this account can make the file larger than the runner would. So CappedOutputFileBytes
// returns at most the size of a file with maxStreamBytes bytes of output of each stream.
func CappedOutputFileBytes(runnersDir, outputRef string, maxStreamBytes int64) int64 {
	info, err := os.Lstat(OutputPath(runnersDir, outputRef))
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return min(info.Size(), 2*maxStreamBytes+maxStreamBytes/2+maxOutputFramingBytes)
}

// maxOutputFramingBytes is an upper limit for the bytes of an output file that are not output, such as the trailer.
const maxOutputFramingBytes = 1 << 20

// IsolatedRunnerDirSuffix is the end of the directory name of a runner that runs only one isolated job. A job is
// isolated if it may have killed its previous runner.
const IsolatedRunnerDirSuffix = ".alone"

// IsIsolatedRunnerDir reports whether the runner that uses a directory runs only one isolated job.
func IsIsolatedRunnerDir(runnerDir string) bool {
	return strings.HasSuffix(runnerDir, IsolatedRunnerDirSuffix)
}

// WorkerName returns the name of a worker of the runner in runnerDir. slot is the number of the worker.
func WorkerName(runnerDir string, slot int64) string {
	if IsIsolatedRunnerDir(runnerDir) {
		pid, _, _ := strings.Cut(filepath.Base(runnerDir), ".")
		return "lone-" + pid
	}
	return WorkerSlotName(slot)
}

// WorkerSlotName returns the name of the worker with the number slot, for example "w3" for 3.
func WorkerSlotName(slot int64) string { return "w" + strconv.FormatInt(slot, 10) }

// OutputRef returns the name of the file with the output of the attempt with this lease.
func OutputRef(l wire.Lease) string {
	return strconv.FormatInt(l.Seq, 10) + "-" + strconv.FormatInt(l.Fence, 10)
}

// IsOutputRef reports whether outputRef is a valid name of an output file. A valid name cannot lead to a file outside
// the output directory.
func IsOutputRef(outputRef string) bool {
	return outputRef != "" && strings.Trim(outputRef, "0123456789-") == ""
}

// RemoveOutputs deletes the output files with the names outputRefs below the directory runnersDir. It ignores errors
// and invalid names.
func RemoveOutputs(runnersDir string, outputRefs []string) {
	for _, ref := range outputRefs {
		if IsOutputRef(ref) {
			os.Remove(OutputPath(runnersDir, ref)) // ignore an error, because the file may already be gone
		}
	}
}
