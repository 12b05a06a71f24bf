package runner

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// result returns the frame of a job's result.
func result(seq int64) []byte {
	return wire.Append(nil, &wire.Result{Attempt: wire.Attempt{Lease: wire.Lease{Seq: seq, Fence: 1}}, Output: bytes.Repeat([]byte("x"), 100)})
}

func newJournal(t *testing.T) *journal {
	t.Helper()
	j, err := openJournal(t.TempDir(), 0o600, func(journalSize) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.file.Close() })
	return j
}

func put(t *testing.T, j *journal, seqs ...int64) (segments []int) {
	t.Helper()
	for _, seq := range seqs {
		n, err := j.append(result(seq))
		if err != nil {
			t.Fatal(err)
		}
		segments = append(segments, n)
	}
	return segments
}

// checkJournal checks which jobs have results in a dead runner's journal.
func checkJournal(t *testing.T, dir, when string, want ...int64) {
	t.Helper()
	results, _, err := readJournal(dir, journalSize{}, func(wire.Lease) bool { return true })
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	var got []int64
	for _, r := range results {
		got = append(got, r.Seq)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: got results of %v, want %v", when, got, want)
	}
}

// Appended results are read back in order from a journal that is still open, as it is after a SIGKILL.
func TestJournalIsReadAsWritten(t *testing.T) {
	j := newJournal(t)
	checkJournal(t, j.dir, "empty")
	put(t, j, 1, 2, 3)
	checkJournal(t, j.dir, "three results", 1, 2, 3)
	checkJournal(t, t.TempDir(), "no journal")
}

// Results are read back in order when the window moves, when one result is larger than a window, and
// when no window is used.
func TestJournalMovesWindow(t *testing.T) {
	for _, windows := range []bool{true, false} {
		j := newJournal(t)
		j.canMap = windows && j.canMap
		var want []int64
		for seq := int64(1); j.size < 3*windowBytes; seq++ {
			put(t, j, seq)
			if j.canMap != (j.window != nil) {
				t.Fatalf("result %d: windows %v, and one is there: %v", seq, j.canMap, j.window != nil)
			}
			if want = append(want, seq); seq%1000 == 0 {
				large := wire.Append(nil, &wire.Result{Attempt: wire.Attempt{Lease: wire.Lease{Seq: -seq, Fence: 1}}, Output: make([]byte, windowBytes)})
				if _, err := j.append(large); err != nil {
					t.Fatal(err)
				}
				want = append(want, -seq)
			}
		}
		checkJournal(t, j.dir, fmt.Sprintf("windows: %v", windows), want...)
	}
}

// If another process truncates a segment while it is mapped, the runner survives and writes later
// results.
func TestRunnerSurvivesTruncatedSegment(t *testing.T) {
	j := newJournal(t)
	put(t, j, 1)
	if err := os.Truncate(j.path(1), 0); err != nil {
		t.Fatal(err)
	}
	put(t, j, 2)
	j.size = segmentBytes + 1
	put(t, j, 3)
	checkJournal(t, j.dir, "after it was cut short", 3)
}

// If the last record is cut off at any byte, the records before it are still read.
func TestTornRecordSparesEarlierRecords(t *testing.T) {
	j := newJournal(t)
	put(t, j, 1, 2)
	whole, err := os.ReadFile(j.path(1))
	if err != nil {
		t.Fatal(err)
	}
	whole = whole[:j.size]
	for cut := len(whole) / 2; cut < len(whole); cut++ {
		if err := os.WriteFile(j.path(1), whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		checkJournal(t, j.dir, "torn", 1)
	}
}

// A flipped bit anywhere in a record is detected: that record is not returned, but those before it are.
func TestDamagedRecordIsNotReturned(t *testing.T) {
	raw := []byte(nil)
	for seq := range int64(3) {
		frame := result(seq + 1)
		raw = append(binary.LittleEndian.AppendUint32(raw, crc32.ChecksumIEEE(frame)), frame...)
	}
	size := len(raw) / 3
	for i := range size * 8 {
		damaged := slices.Clone(raw)
		damaged[size+i/8] ^= 1 << (i % 8)
		if got, _ := parseJournal(damaged); len(got) != 1 || got[0].Seq != 1 {
			t.Fatalf("bit %d: got %d results, want the first alone", i, len(got))
		}
	}
}

// When a segment has its full size, the journal continues in a new one. Segments are read in numeric
// order, so segment 10 comes after segment 9.
func TestJournalContinuesInSegments(t *testing.T) {
	j := newJournal(t)
	var want []int64
	for seq := range int64(12) {
		put(t, j, seq)
		want = append(want, seq)
		j.size = segmentBytes + 1
	}
	if j.n != 12 {
		t.Errorf("got %d segments, want 12", j.n)
	}
	checkJournal(t, j.dir, "twelve segments", want...)
}

// A segment is removed when all its results are acknowledged, in any order, and not before. The current
// segment is not removed.
func TestAcknowledgedSegmentsAreRemoved(t *testing.T) {
	j := newJournal(t)
	put(t, j, 1, 2)
	j.size = segmentBytes + 1
	put(t, j, 3)
	j.ack(1)
	checkJournal(t, j.dir, "one of two acknowledged", 1, 2, 3)
	j.ack(1)
	checkJournal(t, j.dir, "both acknowledged", 3)
	if _, err := os.Stat(j.path(1)); !os.IsNotExist(err) {
		t.Errorf("the first segment is still there: %v", err)
	}
	j.ack(2)
	put(t, j, 4)
	checkJournal(t, j.dir, "small segment, nothing emptied", 3, 4)
	j.size = resetBytes + 1
	j.ack(2)
	checkJournal(t, j.dir, "large segment, all acknowledged")
	put(t, j, 5)
	checkJournal(t, j.dir, "after it was emptied", 5)
}

// newTable creates the running table of a runner with pid 4711 and start time 99.
func newTable(t *testing.T, dir string) *table {
	t.Helper()
	table, err := makeTable(dir, 0o600, 4711, 99)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if table.mem != nil {
			table.close()
		}
	})
	return table
}

// newNotes creates the running table (see newTable) and the journal of a runner in a new directory.
func newNotes(t *testing.T) (dir string, table *table, j *journal) {
	t.Helper()
	dir = t.TempDir()
	table = newTable(t, dir)
	j, err := openJournal(dir, 0o600, table.setJournalSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.file.Close() })
	return dir, table, j
}

// After a runner has died, its running table shows its pid and the running attempts.
func TestRunningTableIsReadBack(t *testing.T) {
	dir := t.TempDir()
	table := newTable(t, dir)
	table.setStarting(1, wire.Lease{Seq: 5, Fence: 6}, 7)
	table.setForked(1, 8, 8)
	table.setStarting(3, wire.Lease{Seq: 9, Fence: 10}, 11)
	table.setStarting(maxSlots, wire.Lease{Seq: 12, Fence: 13}, 14)
	table.setForked(maxSlots, 15, 16)
	table.free(maxSlots)
	got, err := readTable(dir)
	pid, ticks, running := got.pid, got.ticks, got.running
	want := []wire.Attempt{{Lease: wire.Lease{Seq: 5, Fence: 6}, Slot: 1, PID: 8, StartedAt: 8}, {Lease: wire.Lease{Seq: 9, Fence: 10}, Slot: 3, StartedAt: 11}}
	if err != nil || pid != 4711 || ticks != 99 || !slices.Equal(running, want) {
		t.Errorf("got %d, %d, %+v, %v, want 4711, 99, %+v", pid, ticks, running, err, want)
	}
	table.setStarting(1, wire.Lease{Seq: 20, Fence: 21}, 22)
	if got, _ := readTable(dir); len(got.running) == 0 || got.running[0].PID != 0 || got.running[0].Seq != 20 {
		t.Errorf("got %+v, want the new attempt without the old one's pid", running)
	}
}

// The files of an unresponsive runner show which attempts it has started. Its running table lists the
// running attempts. Its journal lists the attempts that have ended and whose results no service has
// received. An attempt without a process may not have started yet.
func TestFilesShowStartsOfUnresponsiveRunner(t *testing.T) {
	dir, table, j := newNotes(t)
	of := func(seq int64) wire.Lease { return wire.Lease{Seq: seq, Fence: 1} }
	table.setStarting(1, of(1), 7)
	table.setStarting(2, of(2), 7)
	put(t, j, 2)
	table.free(2)
	table.setStarting(4, of(4), 7)
	table.setForked(4, 4711, 8)
	begun, ok := Begun(dir, []wire.Lease{of(1), of(2), of(3), of(4)})
	if want := map[wire.Lease]bool{of(1): false, of(2): true, of(4): true}; !ok || !maps.Equal(begun, want) {
		t.Errorf("got %v, %t; want %v", begun, ok, want)
	}
	j.file.Close() // on Windows, an open file cannot be removed
	if err := os.Remove(j.path(1)); err != nil {
		t.Fatal(err)
	}
	if _, ok := Begun(dir, []wire.Lease{of(2)}); ok {
		t.Error("a runner without its journal can tell")
	}
}

// A damaged boot ID counts as missing. If it were taken for an earlier boot, the processes of the
// runner would be taken for ended.
func TestDamagedBootIDCountsAsMissing(t *testing.T) {
	boot, err := process.BootID()
	if err != nil {
		t.Fatal(err)
	}
	for noted, c := range map[string]struct{ same, damaged bool }{
		NoteOf(boot): {true, false}, "": {true, true}, boot[:1]: {true, true}, boot: {true, true}, "x" + NoteOf(boot)[1:]: {true, true}, NoteOf("x" + boot[1:]): {false, true},
	} {
		dir := t.TempDir()
		newTable(t, dir)
		if err := os.WriteFile(filepath.Join(dir, bootName), []byte(noted), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := Read(dir, nil); r.SameBoot != c.same || r.Damaged != c.damaged || err != nil {
			t.Errorf("%q: got same boot %t, damaged %t, %v, want %t, %t", noted, r.SameBoot, r.Damaged, err, c.same, c.damaged)
		}
	}
}

// The copy of a running table shows the attempts but no runner process, so no process of the original
// runner is ended.
func TestCopiedTableNamesNoRunner(t *testing.T) {
	dir, clone := t.TempDir(), t.TempDir()
	table := newTable(t, dir)
	table.setStarting(1, wire.Lease{Seq: 5, Fence: 6}, 7)
	raw, err := os.ReadFile(filepath.Join(dir, tableName))
	if err == nil {
		err = os.WriteFile(filepath.Join(clone, tableName), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readTable(clone); got.pid != 0 || len(got.running) != 1 || got.running[0].Seq != 5 || err != nil {
		t.Errorf("the copy: got %+v, %v, want pid 0 and the attempt", got, err)
	}
	table.close()
	table.mem = nil
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if got, err := readTable(moved); got.pid != 4711 || err != nil {
		t.Errorf("moved: got %d, %v, want 4711", got.pid, err)
	}
}

// Slots have disk space before they are used, and no slot without disk space is used: on a full disk,
// writing to it would kill the runner.
func TestUsedSlotsHaveDiskSpace(t *testing.T) {
	dir := t.TempDir()
	table := newTable(t, dir)
	table.setStarting(1, wire.Lease{Seq: 5, Fence: 6}, 7)
	if n, err := table.reserve(1000); n != 1000 || err != nil {
		t.Errorf("got room for %d, %v, want 1000", n, err)
	}
	if n := allocated(t, table.file); n < 1001*slotBytes {
		t.Errorf("%d bytes have their place", n)
	}
	if got, _ := readTable(dir); len(got.running) != 1 || got.running[0].Seq != 5 {
		t.Errorf("got %v, want what was there before", got.running)
	}
	table.file.Close() // closing the file makes writes fail, as on a full disk
	if n, err := table.reserve(maxSlots); n < 1000 || n == maxSlots || err == nil {
		t.Errorf("got room for %d, %v, want about 1000 and why", n, err)
	}
	if n, err := table.reserve(500); n != 500 || err != nil {
		t.Errorf("got room for %d, %v, want 500, which there is", n, err)
	}
}

// A runner that died before it had a running table has run no attempts.
func TestNoTableMeansNothingRan(t *testing.T) {
	dir := t.TempDir()
	for _, half := range []int{-1, 0, slotBytes - 1} {
		if half >= 0 {
			if err := os.WriteFile(filepath.Join(dir, tableName), make([]byte, half), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := readTable(dir); got.pid != 0 || got.ticks != 0 || got.running != nil || got.intact || err != nil {
			t.Errorf("%d bytes: got %+v, %v", half, got, err)
		}
	}
}

// A valid reference names only a file in the output directory, so Purge removes nothing else.
func TestValidRefNamesOnlyOutputs(t *testing.T) {
	if ref := OutputRef(wire.Lease{Seq: 12, Fence: 3}); ref != "12-3" || !ValidRef(ref) {
		t.Errorf("got %q, want 12-3 and valid", ref)
	}
	root := t.TempDir()
	for _, p := range []string{"output/12-3", "output/x", "victim"} {
		path := filepath.Join(root, p)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	Purge(root, []string{"12-3", "../victim", "x", "", ".", "..", "/victim", "1\x002", "99-9"})
	for p, want := range map[string]bool{"output/12-3": false, "output/x": true, "victim": true, "output": true} {
		if _, err := os.Stat(filepath.Join(root, p)); (err == nil) != want {
			t.Errorf("%s: is there %v, want %v", p, err == nil, want)
		}
	}
}

// No input makes the journal parser panic. Damaged input after a valid record does not hide that
// record.
func FuzzJournal(f *testing.F) {
	frame := result(1)
	record := append(binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(frame)), frame...)
	f.Add(record)
	f.Add(append(slices.Clone(record), record[:9]...))
	f.Add([]byte{1, 2, 3, 4, 1, 0, 0, 0, 10})
	f.Fuzz(func(t *testing.T, raw []byte) {
		alone, _ := parseJournal(raw)
		if both, _ := parseJournal(append(slices.Clone(record), raw...)); len(both) != len(alone)+1 || both[0].Seq != 1 {
			t.Fatalf("%x: got %d results alone and %d behind a good one", raw, len(alone), len(both))
		}
	})
}

// A running table with a damaged header names no runner, but is not taken for a copy either. The
// process trees of a copy would not be ended, because they belong to another runner.
func TestDamagedHeaderIsNoCopy(t *testing.T) {
	for at := range 8 * journalField {
		dir := t.TempDir()
		newTable(t, dir)
		f, err := os.OpenFile(filepath.Join(dir, tableName), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		f.ReadAt(b, int64(at))
		b[0] ^= 1
		f.WriteAt(b, int64(at))
		f.Close()
		if is, err := readTable(dir); is.intact || is.pid != 0 || err != nil {
			t.Fatalf("byte %d: %+v, %v", at, is, err)
		}
	}
}
