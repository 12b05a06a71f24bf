package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
)

// Location says where a service's runners keep their directories, and how to start a runner.
type Location struct {
	// Dir is the directory that contains the runners' directories. It belongs to the service's account,
	// or to root.
	Dir string
	// Command is the command line that starts a runner under the service's own account. Log receives the
	// messages of this runner.
	Command []string
	Log     *os.File
	// SpawnSocket is the path of a socket. For each connection to it, systemd or the launcher starts a runner
	// as root. The service can then read the files in Dir, but not change them. SpawnSocket is "" if the
	// service starts its runners itself.
	SpawnSocket string
	// Account is the account to which a runner that was started as root switches, permanently, before it
	// accepts jobs. If Account is "", the runner keeps running as root and starts each job under that job's
	// account.
	Account string
	// SpawnsOwnAccount means that runners started through SpawnSocket have the service's own account instead
	// of root, and keep their directories in the service's directory. This is the case if the user's own
	// systemd manager listens on the socket.
	SpawnsOwnAccount bool
	// Tmpdir is the setting job_tmpdir for runners of the service's own account: the directory for the jobs'
	// private directories. "" means a directory below Dir.
	Tmpdir string
	// LauncherPID is the pid of the launcher that listens on SpawnSocket, or 0 if this service has started no
	// launcher.
	LauncherPID int
}

// IsExternal reports whether the runners' directory belongs to another account, so that the service cannot
// change it.
func (l Location) IsExternal() bool { return l.SpawnSocket != "" && !l.SpawnsOwnAccount }

// OwnedByRoot reports whether the runners run as root and start each job under that job's account.
func (l Location) OwnedByRoot() bool { return l.IsExternal() && l.Account == "" }

// NewRunnersDir returns the directory in which new runners create their directories.
func (l Location) NewRunnersDir() string {
	if l.SpawnSocket != "" && l.Account != "" {
		return filepath.Join(l.Dir, rundir.AccountDirPrefix+l.Account)
	}
	return l.Dir
}

// allRunnersDirs returns all directories that may contain runners' directories.
func (l Location) allRunnersDirs() []string {
	// Glob cannot fail, because the pattern is valid.
	others, _ := filepath.Glob(filepath.Join(l.Dir, rundir.AccountDirPrefix+"*"))
	return append([]string{l.Dir}, others...)
}

// HasSwitchedAccount reports whether the runner that uses a directory has switched from root to another
// account. Jobs of this runner have the same account, so they may have changed anything in the directory.
// See docs/decisions/0076.
func HasSwitchedAccount(dir string) bool {
	return strings.HasPrefix(filepath.Base(filepath.Dir(dir)), rundir.AccountDirPrefix)
}

// ListDirs lists the directories of all runners, living and dead. It skips runners whose parent directory it
// may not read, because their account has changed its mode.
func (l Location) ListDirs() (dirs []string, err error) {
	for _, root := range l.allRunnersDirs() {
		entries, err := os.ReadDir(root)
		if errors.Is(err, os.ErrNotExist) || err != nil && root != l.Dir {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list runners: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && rundir.IsRunnerDirName(e.Name()) {
				dirs = append(dirs, filepath.Join(root, e.Name()))
			}
		}
	}
	return dirs, nil
}

// ListLiving lists the directories of the runners that are alive or whose state cannot be checked.
func (l Location) ListLiving() (livingDirs []string, err error) {
	dirs, err := l.ListDirs()
	for _, dir := range dirs {
		if alive, failed := IsAlive(dir); alive || failed != nil {
			livingDirs = append(livingDirs, dir)
		}
	}
	return livingDirs, err
}

// OutputDirs lists the directories that may contain output files.
func (l Location) OutputDirs() (outputDirs []string) {
	for _, root := range l.allRunnersDirs() {
		outputDirs = append(outputDirs, filepath.Join(root, rundir.OutputsDirName))
	}
	return outputDirs
}

// OpenOutput opens an output file. ref is its name, as returned by OutputRef.
func (l Location) OpenOutput(ref string) (*os.File, error) {
	if !IsOutputRef(ref) {
		return nil, fmt.Errorf("the database names the output file %q, which is not a valid name; check the database with: "+
			"queuectl doctor --verify", ref)
	}
	for _, root := range l.allRunnersDirs() {
		f, err := rundir.OpenRegular(OutputPath(root, ref))
		if !errors.Is(err, os.ErrNotExist) {
			return f, err
		}
	}
	return nil, &os.PathError{Op: "open", Path: OutputPath(l.Dir, ref), Err: os.ErrNotExist}
}

// StartTimeout bounds the time that a runner takes to start.
const StartTimeout = 10 * time.Second

// Spawn starts a runner, waits until it accepts connections, and returns its directory. If isolated is true,
// the runner runs one isolated job only.
func (l Location) Spawn(isolated bool) (dir string, err error) {
	name := ""
	if l.SpawnSocket != "" {
		name, err = l.requestRunner(SpawnRequest{Isolated: isolated, Account: l.Account, Tmpdir: l.Tmpdir})
	} else {
		name, err = l.spawn(isolated)
	}
	if err != nil {
		return "", fmt.Errorf("cannot start a runner: %w", err)
	}
	return filepath.Join(l.NewRunnersDir(), name), nil
}

// KillRunner kills an unresponsive runner with SIGKILL. Its jobs continue until Recover ends them. If the
// service may not signal the runner, KillRunner sends a request to SpawnSocket, so that a process of root
// kills the runner.
func (l Location) KillRunner(dir string) error {
	if !l.IsExternal() {
		return KillByDir(dir)
	}
	name, err := filepath.Rel(l.Dir, dir)
	if err == nil {
		_, err = l.requestRunner(SpawnRequest{KillDir: filepath.ToSlash(name)})
	}
	return err
}

// EndAllRunners asks all living runners to end. After the timeout, it kills the runners that are left, and
// their jobs. It returns the number of runners that ended.
func (l Location) EndAllRunners(timeout time.Duration) (endedCount int, err error) {
	live, err := l.ListLiving()
	signalErrs := map[string]error{}
	for _, dir := range live {
		signalErrs[dir] = signalRunner(dir, process.Terminate)
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
		if failed := KillByDir(dir); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		endedCount++
		_, failed := EndTrees(dir, nil)
		err = errors.Join(err, failed)
	}
	return endedCount, err
}
