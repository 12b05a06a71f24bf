package rundir

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/runner/wire"
)

// A service must be able to read the files of runners of earlier versions, so the file formats never change.
func TestRunnerFileFormatsNeverChange(t *testing.T) {
	dir, table, j := newRunnerFiles(t)
	table.setTestFileID(1, 2)
	table.SetStartingAttempt(2, wire.Lease{Seq: 5, Fence: 6}, 7)
	table.SetAttemptProcess(2, 8, 9)
	table.SetLeasesExpire(true)
	if _, err := j.AppendResult(wire.AppendFrame(nil, &wire.DropStartReply{Lease: wire.Lease{Seq: 1, Fence: 2},
		StartDropped: true})); err != nil {
		t.Fatal(err)
	}
	if err := AppendBackgroundPGID(dir, 4711, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		// The header, slot 1 and slot 2 of the table. Each group of 16 digits is a number of 8 bytes, little
		// endian.
		"running": "6712000000000000" + "6300000000000000" + "0100000000000000" + "0200000000000000" +
			"0100000000000000" + "0c00000000000000" + "0000000000000000" + "01000000f746a071" +
			strings.Repeat("00", tableSlotBytes) +
			"0500000000000000" + "0600000000000000" + "0800000000000000" + "0900000000000000",
		"journal.1": "95c02219" + "04000000" + "11" + "020401", // CRC, length, type, fields
		"spared":    hex.EncodeToString([]byte("4711\n")),
	} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(raw[:min(len(raw), len(want)/2)]); got != want {
			t.Errorf("%s: got\n%s, want\n%s", name, got, want)
		}
	}
	if got, want := AppendChecksum("boot"), "boot46edaec4"; got != want {
		t.Errorf("note: got %s, want %s", got, want)
	}
}

// setTestFileID sets the device and inode numbers in the header to constants, because the real numbers differ
// in each test run.
func (t *MappedRunningTable) setTestFileID(dev, ino int64) { t.writeSlot(0, 4711, 99, dev, ino) }
