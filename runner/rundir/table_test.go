package rundir

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/queuectl/queuectl/runner/wire"
)

// newRunningTable creates the table of running attempts of a runner with pid 4711 and start time 99, in clock ticks.
func newRunningTable(t *testing.T, dir string) *MappedRunningTable {
	t.Helper()
	table, err := CreateRunningTable(dir, 0o600, 4711, 99)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if table.tableSlots != nil {
			table.Close()
		}
	})
	return table
}

// newRunnerFiles creates the files of a runner in a new directory: its table of running attempts (see
// newRunningTable) and its journal of results.
func newRunnerFiles(t *testing.T) (dir string, table *MappedRunningTable, j *Journal) {
	t.Helper()
	dir = t.TempDir()
	table = newRunningTable(t, dir)
	j, err := OpenJournal(dir, 0o600, table.SetJournalSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.segmentFile.Close() })
	return dir, table, j
}

// After a runner has died, its table names its pid and the running attempts.
func TestRunningTableIsReadBack(t *testing.T) {
	dir := t.TempDir()
	table := newRunningTable(t, dir)
	table.SetStartingAttempt(1, wire.Lease{Seq: 5, Fence: 6}, 7)
	table.SetAttemptProcess(1, 8, 8)
	table.SetStartingAttempt(3, wire.Lease{Seq: 9, Fence: 10}, 11)
	table.SetStartingAttempt(MaxTableSlots, wire.Lease{Seq: 12, Fence: 13}, 14)
	table.SetAttemptProcess(MaxTableSlots, 15, 16)
	table.FreeSlot(MaxTableSlots)
	got, err := ReadRunningTable(dir)
	pid, ticks, running := got.RunnerPID, got.RunnerStartTicks, got.Attempts
	want := []wire.Attempt{
		{Lease: wire.Lease{Seq: 5, Fence: 6}, TableSlot: 1, PID: 8, StartedAtMillis: 8},
		{Lease: wire.Lease{Seq: 9, Fence: 10}, TableSlot: 3, StartedAtMillis: 11},
	}
	if err != nil || pid != 4711 || ticks != 99 || !slices.Equal(running, want) {
		t.Errorf("the table has pid %d, ticks %d, attempts %+v, error %v; want 4711, 99, %+v",
			pid, ticks, running, err, want)
	}
	table.SetStartingAttempt(1, wire.Lease{Seq: 20, Fence: 21}, 22)
	if got, _ := ReadRunningTable(dir); len(got.Attempts) == 0 || got.Attempts[0].PID != 0 || got.Attempts[0].Seq != 20 {
		t.Errorf("the table has the attempts %+v, want the new attempt without the pid of the old one", running)
	}
}

// A copy of a runner's table names the attempts, but not the runner's process. Otherwise the process of the
// original runner could be killed.
func TestCopiedRunningTableNamesNoRunner(t *testing.T) {
	dir, clone := t.TempDir(), t.TempDir()
	table := newRunningTable(t, dir)
	table.SetStartingAttempt(1, wire.Lease{Seq: 5, Fence: 6}, 7)
	raw, err := os.ReadFile(filepath.Join(dir, RunningTableFileName))
	if err == nil {
		err = os.WriteFile(filepath.Join(clone, RunningTableFileName), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ReadRunningTable(clone); got.RunnerPID != 0 || len(got.Attempts) != 1 || got.Attempts[0].Seq != 5 ||
		err != nil {
		t.Errorf("the copy: got %+v, %v, want pid 0 and the attempt", got, err)
	}
	table.Close()
	table.tableSlots = nil
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadRunningTable(moved); got.RunnerPID != 4711 || err != nil {
		t.Errorf("the moved table has pid %d, error %v; want 4711", got.RunnerPID, err)
	}
}

// A slot has disk space before it is used. Without disk space, a write to the slot would kill the runner if
// the disk is full.
func TestTableSlotsHaveDiskSpaceBeforeUse(t *testing.T) {
	dir := t.TempDir()
	table := newRunningTable(t, dir)
	table.SetStartingAttempt(1, wire.Lease{Seq: 5, Fence: 6}, 7)
	if n, err := table.ReserveSlots(1000); n != 1000 || err != nil {
		t.Errorf("ReserveSlots returned %d slots, %v; want 1000", n, err)
	}
	if n := allocatedBytes(t, table.file); n < 1001*tableSlotBytes {
		t.Errorf("only %d bytes of the table have disk space", n)
	}
	if got, _ := ReadRunningTable(dir); len(got.Attempts) != 1 || got.Attempts[0].Seq != 5 {
		t.Errorf("the running attempts are %v, want them unchanged", got.Attempts)
	}
	table.file.Close() // writes now fail, like on a full disk
	if n, err := table.ReserveSlots(MaxTableSlots); n < 1000 || n == MaxTableSlots || err == nil {
		t.Errorf("ReserveSlots without disk space returned %d slots, %v; want about 1000 and an error", n, err)
	}
	if n, err := table.ReserveSlots(500); n != 500 || err != nil {
		t.Errorf("ReserveSlots of existing slots returned %d, %v; want 500", n, err)
	}
}

// A runner without a complete table header died before it ran any attempt.
func TestMissingTableHeaderMeansNoAttempts(t *testing.T) {
	dir := t.TempDir()
	for _, half := range []int{-1, 0, tableSlotBytes - 1} {
		if half >= 0 {
			if err := os.WriteFile(filepath.Join(dir, RunningTableFileName), make([]byte, half), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := ReadRunningTable(dir); got.RunnerPID != 0 || got.RunnerStartTicks != 0 || got.Attempts != nil ||
			got.IsIntact ||
			err != nil {
			t.Errorf("a table of %d bytes was read as %+v, error %v", half, got, err)
		}
	}
}

// If the header of a table is damaged, the runner's pid is unknown, but the directory does not count as a copy. If it
// did, the attempts would be taken for those of another runner, and their processes would not be ended.
func TestDamagedTableHeaderDoesNotMeanCopy(t *testing.T) {
	for at := range 8 * journalSizeField {
		dir := t.TempDir()
		newRunningTable(t, dir)
		f, err := os.OpenFile(filepath.Join(dir, RunningTableFileName), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		f.ReadAt(b, int64(at))
		b[0] ^= 1
		f.WriteAt(b, int64(at))
		f.Close()
		if got, err := ReadRunningTable(dir); got.IsIntact || got.RunnerPID != 0 || err != nil {
			t.Fatalf("damage in byte %d: the table was read as %+v, error %v", at, got, err)
		}
	}
}
