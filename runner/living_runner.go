package runner

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// ReadStartedAttempts reports which attempts a living runner has started. It reads only files in the runner's
// directory: the table of running attempts, and the journal of results. So it also works while the runner is
// unresponsive.
//
// hasProcess contains all attempts in the table, and those of the given leases that are in the journal. For an attempt
// in the table without a process, the value is false: the runner may or may not have started it. For all other
// attempts, the value is true. ok is false if the files cannot be read or are damaged.
func ReadStartedAttempts(runnerDir string, leases []wire.Lease) (hasProcess map[wire.Lease]bool, ok bool) {
	hasProcess = map[wire.Lease]bool{}
	// Read the table before the journal: an attempt leaves the table only after its result is in the
	// journal.
	t, err := rundir.ReadRunningTable(runnerDir)
	for _, a := range t.Attempts {
		hasProcess[a.Lease] = a.PID != 0
	}
	isWanted := func(l wire.Lease) bool { return slices.Contains(leases, l) }
	results, complete, journalErr := rundir.ReadJournal(runnerDir, t.JournalSize, isWanted)
	for _, r := range results {
		hasProcess[r.Lease] = true
	}
	return hasProcess, err == nil && journalErr == nil && t.IsIntact && complete
}

// LivingRunnerPID returns the pid of the living runner that uses a directory, or 0 if the pid is unknown.
func LivingRunnerPID(runnerDir string) int64 {
	t, _, _ := readLivingRunnerTable(runnerDir)
	return int64(t.RunnerPID)
}

// readLivingRunnerTable reads a living runner's table of running attempts. accountUID is the uid of the account that
// the runner has switched to, or nil if it has not switched. Jobs of this account can write a wrong pid into the table.
// So readLivingRunnerTable sets t.RunnerPID to 0 if the process with this pid does not belong to the account.
func readLivingRunnerTable(runnerDir string) (t rundir.RunningTable, accountUID *uint32, err error) {
	if accountUID, err = switchedAccountUID(runnerDir); err == nil {
		t, err = rundir.ReadRunningTable(runnerDir)
	}
	if accountUID != nil && !process.IsOwnedBy(*accountUID, t.RunnerPID) {
		t.RunnerPID = 0
	}
	return t, accountUID, err
}

// KillRunnerByDir kills the living runner that uses a directory. If the runner has ended, KillRunnerByDir does nothing.
func KillRunnerByDir(runnerDir string) error { return signalRunner(runnerDir, syscall.SIGKILL) }

// signalRunner sends a signal to the living runner that uses a directory. If the runner has switched to an account, the
// process must belong to this account.
func signalRunner(runnerDir string, signal syscall.Signal) error {
	t, owner, err := readLivingRunnerTable(runnerDir)
	if err != nil {
		return err
	}
	if t.RunnerPID == 0 {
		return fmt.Errorf("cannot end the runner in %s, because the pid in its files is missing or belongs to a process of "+
			"another account; find the process \"queuectl runner\" with ps, and end it", runnerDir)
	}
	if err := process.SignalProcess(t.RunnerPID, t.RunnerStartTicks, owner, signal); err != nil {
		return fmt.Errorf("cannot end the runner in %s; check whether its process %d belongs to another account: %w",
			runnerDir, t.RunnerPID, err)
	}
	return nil
}
