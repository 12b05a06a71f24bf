package service

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/statedir"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/doctor"
)

// rootRunnersDir returns the directory of the runners that run as root, for a service that is not running. The
// directory is known only for the service that the packages install, which has the standard state directory. For any
// other service, rootRunnersDir returns "".
func rootRunnersDir(p config.Paths) string {
	if p.StateDir == config.SystemPaths().StateDir {
		return config.RootRunnerDir
	}
	return ""
}

// restoreTempDir returns the directory in which RestoreBackup collects the output files of a backup.
func restoreTempDir(p config.Paths) string { return filepath.Join(p.StateDir, "restore.outputs") }

// EndRunnersTimeout limits how long EndRunners waits for the runners in one directory to end.
func EndRunnersTimeout() time.Duration { return runner.StopGracePeriod() + endRunnersTimeoutMargin }

// EndRunners ends the runners of a queue whose service is not running, and returns their number. The jobs of these
// runners get SIGTERM and, after the grace period, SIGKILL, as when the system shuts down. The results are kept for the
// next service. rootRunnersPath is the directory of the runners that run as root; "" means the directory that
// rootRunnersDir returns.
func EndRunners(p config.Paths, rootRunnersPath string) (endedCount int, err error) {
	lock, err := lockStateDir(p.StateDir)
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	for _, h := range runnerLocations(p, rootRunnersPath) {
		n, failed := h.EndAllRunners(EndRunnersTimeout())
		endedCount, err = endedCount+n, errors.Join(err, failed)
	}
	return endedCount, err
}

// runnerLocations returns the locations of all runners of a service. rootRunnersPath is the directory of the runners
// that run as root; "" means the directory that rootRunnersDir returns.
func runnerLocations(p config.Paths, rootRunnersPath string) []runner.RunnersLocation {
	homes := []runner.RunnersLocation{{RunnersDir: cluster.RunnersDir(p)}}
	if rootRunnersPath = cmp.Or(rootRunnersPath, rootRunnersDir(p)); rootRunnersPath != "" {
		homes = append(homes, runner.RunnersLocation{RunnersDir: rootRunnersPath})
	}
	return homes
}

// HasLivingRunners reports whether runners of a stopped service are alive. It ignores directories that it may not read.
// rootRunnersPath is the directory of the runners that run as root; "" means the directory that rootRunnersDir returns.
func HasLivingRunners(p config.Paths, rootRunnersPath string) bool {
	return slices.ContainsFunc(runnerLocations(p, rootRunnersPath), func(h runner.RunnersLocation) bool {
		dirs, _ := h.ListRunnerDirs()
		return slices.ContainsFunc(dirs, func(dir string) bool {
			lives, err := runner.IsAlive(dir)
			return lives && err == nil
		})
	})
}

// endRunnersTimeoutMargin is how long EndRunners waits for a runner in addition to the grace period of its jobs.
const endRunnersTimeoutMargin = 10 * time.Second

// RestoreResult describes a restored backup: the numbers of restored jobs and output files, and the directory to which
// the queue's previous files were moved. PreviousFilesDir is "" if the queue had no files before.
type RestoreResult struct {
	RestoredJobs     int64  `json:"jobs"`
	RestoredOutputs  int64  `json:"outputs"`
	PreviousFilesDir string `json:"aside"`
}

// RestoreBackup replaces a queue by the backup in backupFile, and moves the queue's previous files to another
// directory. It fails if a service or a runner uses the queue. It calls reportProgress with the number of bytes that it
// has copied and with the total number.
func RestoreBackup(p config.Paths, backupFile string, reportProgress func(done, total int64)) (
	result RestoreResult, err error) {
	if _, err := os.Stat(backupFile); err != nil {
		return result, queue.Errorf(queue.CodeNotFound, "%v", err)
	}
	if location, err := locationFromSettings(p); err != nil || location.URL != "" {
		return result, cmp.Or(err, error(doctor.ErrStoreHasNoFiles))
	}
	if err := statedir.Create(p.StateDir); err != nil {
		return result, err
	}
	lock, err := lockStateDir(p.StateDir)
	if err != nil {
		return result, err
	}
	defer lock.Close()
	live, err := runner.RunnersLocation{RunnersDir: cluster.RunnersDir(p)}.ListLivingRunnerDirs()
	if err != nil {
		return result, err
	}
	if len(live) > 0 {
		return result, queue.Errorf(queue.CodeWrongState,
			"jobs of the queue in %[1]s are still running (runner %[2]s); end them first: queuectl --dir %[3]s "+
				"service stop --runners", p.StateDir, filepath.Base(live[0]), queue.QuoteShellWord(p.StateDir))
	}
	tmp := restoreTempDir(p)
	defer os.RemoveAll(tmp)
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(filepath.Dir(runner.OutputPath(tmp, "1")), 0o700)); err != nil {
		return result, err
	}
	got, replace, err := restoreStore(p.StateDir, backupFile, func(ref string) (io.WriteCloser, error) {
		if !runner.IsOutputRef(ref) {
			return nil, queue.InvalidFieldError("backup", "contains an output file with the invalid name %q; use another backup",
				ref)
		}
		return os.OpenFile(runner.OutputPath(tmp, ref), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	}, reportProgress)
	if err != nil {
		return result, err
	}
	result.RestoredJobs, result.RestoredOutputs = got.RestoredJobs, got.RestoredOutputs
	result.PreviousFilesDir = filepath.Join(p.StateDir, "before-restore-"+time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Mkdir(result.PreviousFilesDir, 0o700); err != nil {
		return result, err
	}
	err = replace(result.PreviousFilesDir, func() error {
		if err := os.Rename(cluster.RunnersDir(p), filepath.Join(result.PreviousFilesDir, "runner")); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot move the old output files aside, so nothing was restored: %w; solve this, then repeat "+
				"the restore (the old database is in %s)", err, result.PreviousFilesDir)
		}
		if err := os.Rename(tmp, cluster.RunnersDir(p)); err != nil {
			return fmt.Errorf("cannot move the restored output files into place, so nothing was restored: %w; solve this, then "+
				"repeat the restore (the old files are in %s)", err, result.PreviousFilesDir)
		}
		return nil
	})
	if err != nil {
		return result, err
	}
	if os.Remove(result.PreviousFilesDir) == nil { // succeeds only if the directory is empty
		result.PreviousFilesDir = ""
	}
	return result, nil
}
