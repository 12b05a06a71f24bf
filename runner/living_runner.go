package runner

import (
	"fmt"
	"slices"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// StartedAttempts reports which attempts a living runner has started. It works for an unresponsive
// runner too, because it reads only files in the runner's directory: the running table and, for
// attempts that have ended, the journal. hasProcess maps an attempt to false if the table does not
// name its process yet, so the runner may not have started it. ok is false if the files cannot be
// read.
func StartedAttempts(dir string, leases []wire.Lease) (hasProcess map[wire.Lease]bool, ok bool) {
	hasProcess = map[wire.Lease]bool{}
	// Read the table before the journal: an attempt leaves the table only after its result is in the
	// journal.
	t, err := rundir.ReadTable(dir)
	for _, a := range t.Attempts {
		hasProcess[a.Lease] = a.PID != 0
	}
	isWanted := func(l wire.Lease) bool { return slices.Contains(leases, l) }
	results, complete, journalErr := rundir.ReadJournal(dir, t.JournalSize, isWanted)
	for _, r := range results {
		hasProcess[r.Lease] = true
	}
	return hasProcess, err == nil && journalErr == nil && t.Intact && complete
}

// PIDOf returns the pid of the living runner of a directory, or 0 if it is unknown.
func PIDOf(dir string) int64 {
	t, _, _ := readLivingTable(dir)
	return int64(t.PID)
}

// readLivingTable reads a living runner's table. owner is the account that the runner's directory belongs
// to, or nil if it does not belong to an account. An account can write anything into its table, so pid
// is set to 0 unless that process belongs to the account.
func readLivingTable(dir string) (t rundir.RunningTable, owner *uint32, err error) {
	if owner, err = ownerUID(dir); err == nil {
		t, err = rundir.ReadTable(dir)
	}
	if owner != nil && !process.IsOwnedBy(*owner, t.PID) {
		t.PID = 0
	}
	return t, owner, err
}

// Kill kills the runner of a directory, unless it has ended.
func Kill(dir string) error { return signalRunner(dir, process.Kill) }

// signalRunner calls send for the process of the living runner of a directory.
func signalRunner(dir string, send func(pid int, ticks int64, owner *uint32) error) error {
	t, owner, err := readLivingTable(dir)
	if err != nil {
		return err
	}
	if t.PID == 0 {
		return fmt.Errorf("cannot end the runner in %s, because the pid in its files is missing or belongs to a process of "+
			"another account; find the process \"queuectl runner\" with ps, and end it", dir)
	}
	if err := send(t.PID, t.StartTicks, owner); err != nil {
		return fmt.Errorf("cannot end the runner in %s; check whether its process %d belongs to another account: %w", dir,
			t.PID, err)
	}
	return nil
}
