package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/runner/rundir"
)

// RunnersLocation says where a service's runners keep their directories, and how to start a runner.
type RunnersLocation struct {
	// RunnersDir is the directory that contains the runners' directories. It belongs to the service's account,
	// or to root.
	RunnersDir string
	// RunnerCommand is the command line that starts a runner under the service's own account. RunnerLog receives the
	// messages of this runner.
	RunnerCommand []string
	RunnerLog     *os.File
	// SpawnSocketPath is the path of a socket. For each connection to the socket, systemd or the launcher starts a runner
	// as root. The service can then read the files in RunnersDir, but not change them. SpawnSocketPath is "" if the
	// service starts its runners itself.
	SpawnSocketPath string
	// SwitchToAccount is the account to which a runner that was started as root switches, permanently, before it accepts
	// jobs. If SwitchToAccount is "", the runner keeps running as root, and starts each job under the job's account.
	SwitchToAccount string
	// SpawnsAsServiceAccount means that runners started through SpawnSocketPath have the service's own account instead of
	// root, and have their directories in the service's directory. This is the case if the systemd manager of the user
	// listens on the socket.
	SpawnsAsServiceAccount bool
	// JobTmpdir is the setting job_tmpdir for runners of the service's own account. It is the directory in which jobs get
	// their private directories. "" means a directory below RunnersDir.
	JobTmpdir string
	// LauncherPID is the pid of the launcher that listens on SpawnSocketPath, or 0 if this service has started no
	// launcher.
	LauncherPID int
}

// HasExternalRunnersDir reports whether the runners' directory belongs to another account, so that the service cannot
// change it.
func (l RunnersLocation) HasExternalRunnersDir() bool {
	return l.SpawnSocketPath != "" && !l.SpawnsAsServiceAccount
}

// RunnersRunAsRoot reports whether the runners run as root and start each job under that job's account.
func (l RunnersLocation) RunnersRunAsRoot() bool {
	return l.HasExternalRunnersDir() && l.SwitchToAccount == ""
}

// DirForNewRunners returns the directory in which new runners create their directories.
func (l RunnersLocation) DirForNewRunners() string {
	if l.SpawnSocketPath != "" && l.SwitchToAccount != "" {
		return filepath.Join(l.RunnersDir, rundir.AccountDirPrefix+l.SwitchToAccount)
	}
	return l.RunnersDir
}

// allRunnerParentDirs returns all directories that may contain runners' directories.
func (l RunnersLocation) allRunnerParentDirs() []string {
	// The pattern is valid, so Glob cannot fail.
	others, _ := filepath.Glob(filepath.Join(l.RunnersDir, rundir.AccountDirPrefix+"*"))
	return append([]string{l.RunnersDir}, others...)
}

// RunnerHasSwitchedAccount reports whether the runner that uses a directory has switched from root to another account.
// The runner's jobs run under the same account, so they may have changed anything in the directory. See
// docs/decisions/0076.
func RunnerHasSwitchedAccount(runnerDir string) bool {
	return strings.HasPrefix(filepath.Base(filepath.Dir(runnerDir)), rundir.AccountDirPrefix)
}

// ListRunnerDirs lists the directories of all runners, living and dead. The account of a runner can change the mode of
// the directory above. If the service may not read that directory, ListRunnerDirs skips the runner.
func (l RunnersLocation) ListRunnerDirs() (runnerDirs []string, err error) {
	for _, root := range l.allRunnerParentDirs() {
		entries, err := os.ReadDir(root)
		if errors.Is(err, os.ErrNotExist) || err != nil && root != l.RunnersDir {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list runners: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && rundir.IsRunnerDirName(e.Name()) {
				runnerDirs = append(runnerDirs, filepath.Join(root, e.Name()))
			}
		}
	}
	return runnerDirs, nil
}

// ListLivingRunnerDirs lists the directories of the runners that are alive or whose state cannot be checked.
func (l RunnersLocation) ListLivingRunnerDirs() (livingDirs []string, err error) {
	dirs, err := l.ListRunnerDirs()
	for _, dir := range dirs {
		if alive, failed := IsAlive(dir); alive || failed != nil {
			livingDirs = append(livingDirs, dir)
		}
	}
	return livingDirs, err
}

// OutputDirs lists the directories that may contain output files.
func (l RunnersLocation) OutputDirs() (outputDirs []string) {
	for _, root := range l.allRunnerParentDirs() {
		outputDirs = append(outputDirs, filepath.Join(root, rundir.OutputsDirName))
	}
	return outputDirs
}

// OpenOutput opens an output file. outputRef is the name of the file, as returned by OutputRef.
func (l RunnersLocation) OpenOutput(outputRef string) (*os.File, error) {
	if !IsOutputRef(outputRef) {
		return nil, fmt.Errorf("the database names the output file %q, which is not a valid name; check the database with: "+
			"queuectl doctor --verify", outputRef)
	}
	for _, root := range l.allRunnerParentDirs() {
		f, err := rundir.OpenRegularFile(OutputPath(root, outputRef))
		if !errors.Is(err, os.ErrNotExist) {
			return f, err
		}
	}
	return nil, &os.PathError{Op: "open", Path: OutputPath(l.RunnersDir, outputRef), Err: os.ErrNotExist}
}

// SpawnTimeout bounds the time that a runner takes to start.
const SpawnTimeout = 10 * time.Second

// SpawnRunner starts a runner, waits until the runner accepts connections, and returns its directory. If forIsolatedJob
// is true, the runner runs only one job, which must be isolated.
func (l RunnersLocation) SpawnRunner(forIsolatedJob bool) (runnerDir string, err error) {
	name := ""
	if l.SpawnSocketPath != "" {
		name, err = l.sendSpawnRequest(SpawnRequest{ForIsolatedJob: forIsolatedJob, SwitchToAccount: l.SwitchToAccount,
			JobTmpdir: l.JobTmpdir})
	} else {
		name, err = l.spawnRunner(forIsolatedJob)
	}
	if err != nil {
		return "", fmt.Errorf("cannot start a runner: %w", err)
	}
	return filepath.Join(l.DirForNewRunners(), name), nil
}

// KillRunner kills an unresponsive runner with SIGKILL. The runner's jobs continue until RecoverDeadRunner ends them.
// If the service may not signal the runner, KillRunner sends a request to SpawnSocketPath. A process of root then kills
// the runner.
func (l RunnersLocation) KillRunner(runnerDir string) error {
	if !l.HasExternalRunnersDir() {
		return KillRunnerByDir(runnerDir)
	}
	name, err := filepath.Rel(l.RunnersDir, runnerDir)
	if err == nil {
		_, err = l.sendSpawnRequest(SpawnRequest{RunnerDirToKill: filepath.ToSlash(name)})
	}
	return err
}

// EndAllRunners asks all living runners to end. After the timeout, it kills the remaining runners and their jobs. It
// returns the number of runners that have ended.
func (l RunnersLocation) EndAllRunners(timeout time.Duration) (endedCount int, err error) {
	live, err := l.ListLivingRunnerDirs()
	signalErrs := map[string]error{}
	for _, dir := range live {
		signalErrs[dir] = signalRunner(dir, syscall.SIGTERM)
	}
	deadline := time.Now().Add(timeout)
	for _, dir := range live {
		for alive := true; alive && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if alive, _ = IsAlive(dir); !alive {
				endedCount++
			}
		}
		if alive, _ := IsAlive(dir); !alive {
			continue // the runner has ended, so an error of signalRunner does not matter
		}
		err = errors.Join(err, signalErrs[dir])
		if failed := KillRunnerByDir(dir); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		endedCount++
		_, failed := EndProcessTrees(dir, nil)
		err = errors.Join(err, failed)
	}
	return endedCount, err
}
