package daemon

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/internal/atomicfile"
	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
)

// addOutputToResult adds the output of an attempt to its result. Large output is stored in a file, which the result
// names.
func (s *server) addOutputToResult(a *attempt, result *wire.Result) {
	if a.outputLog.KeptBytes() == 0 && a.outputLog.DroppedBytes() == 0 {
		return
	}
	if a.outputLog.KeptBytes() <= output.MaxMemoryBytes {
		var err error
		if result.Output, err = a.outputLog.Encode(); err == nil && len(result.Output) <= 4*output.MaxMemoryBytes {
			return
		}
		result.Output = nil
	}
	ref := runner.OutputRef(leaseOf(a))
	path, mode := runner.OutputPath(s.RunnersDir, ref), s.dir.fileMode(0o600)
	err := writeOutputFile(path, mode, a.outputLog)
	// If the output directory was removed, create it again.
	if errors.Is(err, os.ErrNotExist) && os.Mkdir(filepath.Dir(path), s.dir.fileMode(0o700)) == nil {
		err = writeOutputFile(path, mode, a.outputLog)
	}
	if err != nil {
		s.Log.Error("a job's output was truncated, because its output file could not be written",
			"job", a.startFrame.Seq, "error", err)
		var keptBytes int64
		result.Output, keptBytes = a.outputLog.EncodeHead(output.MaxMemoryBytes)
		result.DroppedOutputBytes += a.outputLog.KeptBytes() - keptBytes
		if result.Error != "" {
			result.Error += "; "
		}
		result.Error += "output truncated: " + err.Error()
		return
	}
	result.OutputRef = ref
}

// writeOutputFile writes a log to a file, and syncs the file and its directory. Without the sync, a power failure could
// remove the file, but keep the result that names the file.
func writeOutputFile(path string, mode os.FileMode, l *output.Log) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if err = errors.Join(l.EncodeFile(f), f.Sync(), f.Close(), atomicfile.SyncDir(filepath.Dir(path))); err != nil {
		os.Remove(path) // an incomplete file would be worse than none
	}
	return err
}
