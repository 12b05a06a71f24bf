package runner

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// newRunningTable creates the table of running attempts of a runner with pid 4711 and start time 99, in clock ticks.
func newRunningTable(t *testing.T, dir string) *rundir.MappedRunningTable {
	t.Helper()
	table, err := rundir.CreateRunningTable(dir, 0o600, 4711, 99)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return table
}

// newRunnerFiles creates the files of a runner in a new directory: its table of running attempts (see
// newRunningTable) and its journal of results.
func newRunnerFiles(t *testing.T) (dir string, table *rundir.MappedRunningTable, j *rundir.Journal) {
	t.Helper()
	dir = t.TempDir()
	table = newRunningTable(t, dir)
	j, err := rundir.OpenJournal(dir, 0o600, table.SetJournalSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return dir, table, j
}

// appendResult appends the result of the attempt with lease l to the journal.
func appendResult(t *testing.T, j *rundir.Journal, l wire.Lease) {
	t.Helper()
	if _, err := j.AppendResult(wire.AppendFrame(nil, &wire.Result{Attempt: wire.Attempt{Lease: l}})); err != nil {
		t.Fatal(err)
	}
}

// The files of an unresponsive runner show which attempts it has started. The table lists the running attempts. If it
// contains no process for an attempt, the attempt may not have started yet. The journal lists the ended attempts whose
// results no service has received.
func TestRunnerFilesShowStartedAttempts(t *testing.T) {
	dir, table, j := newRunnerFiles(t)
	leaseOf := func(seq int64) wire.Lease { return wire.Lease{Seq: seq, Fence: 1} }
	table.SetStartingAttempt(1, leaseOf(1), 7)
	table.SetStartingAttempt(2, leaseOf(2), 7)
	appendResult(t, j, leaseOf(2))
	table.FreeSlot(2)
	table.SetStartingAttempt(4, leaseOf(4), 7)
	table.SetAttemptProcess(4, 4711, 8)
	hasProcess, ok := ReadStartedAttempts(dir, []wire.Lease{leaseOf(1), leaseOf(2), leaseOf(3), leaseOf(4)})
	want := map[wire.Lease]bool{leaseOf(1): false, leaseOf(2): true, leaseOf(4): true}
	if !ok || !maps.Equal(hasProcess, want) {
		t.Errorf("StartedAttempts returned %v, %t; want %v", hasProcess, ok, want)
	}
	j.Close() // on Windows, an open file cannot be removed
	if err := os.Remove(filepath.Join(dir, "journal.1")); err != nil {
		t.Fatal(err)
	}
	if _, ok := ReadStartedAttempts(dir, []wire.Lease{leaseOf(2)}); ok {
		t.Error("started attempts are reported for a runner without its journal")
	}
}

// The file with a runner's boot ID has a checksum. If the file is damaged, it counts as missing, and the runner counts
// as started since the last boot. Otherwise living processes of the runner could count as ended.
func TestDamagedBootIDCountsAsMissing(t *testing.T) {
	boot, err := process.BootID()
	if err != nil {
		t.Fatal(err)
	}
	for note, c := range map[string]struct{ same, damaged bool }{
		rundir.AppendChecksum(boot): {true, false}, "": {true, true}, boot[:1]: {true, true}, boot: {true, true},
		"x" + rundir.AppendChecksum(boot)[1:]: {true, true}, rundir.AppendChecksum("x" + boot[1:]): {false, true},
	} {
		dir := t.TempDir()
		newRunningTable(t, dir)
		if err := os.WriteFile(filepath.Join(dir, rundir.BootIDFileName), []byte(note), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := ReadDeadRunnerFiles(dir, nil); r.RunnerStartedThisBoot != c.same || r.RunnerFilesDamaged != c.damaged ||
			err != nil {
			t.Errorf("%q: got same boot %t, damaged %t, %v, want %t, %t", note, r.RunnerStartedThisBoot, r.RunnerFilesDamaged,
				err, c.same,
				c.damaged)
		}
	}
}
