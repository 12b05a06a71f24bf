package rundir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/runner/wire"
)

// tableSlots is the contents of the file with a table of running attempts.
type tableSlots []byte

// field returns the i-th number of a slot.
func (s tableSlots) field(slot, i int) int64 {
	return int64(binary.LittleEndian.Uint64(s[slot*slotBytes+8*i:]))
}

// setField sets the i-th number of a slot.
func (s tableSlots) setField(slot, i int, n int64) {
	binary.LittleEndian.PutUint64(s[slot*slotBytes+8*i:], uint64(n))
}

// RunningTable is the parsed content of a runner's table of running attempts.
type RunningTable struct {
	// PID and StartTicks are the pid and the start time of the runner's process. If the directory is a copy,
	// PID is 0: the stored pid is that of the original runner, which may be alive.
	PID         int
	StartTicks  int64
	Attempts    []wire.Attempt
	JournalSize JournalSize
	Intact      bool // the file has its full size and a valid header
}

// ReadTable reads the table of running attempts in a runner's directory. If the file is missing, the result
// is empty. If the file is too short, the result may be incomplete, and Intact is false.
func ReadTable(dir string) (t RunningTable, err error) {
	f, err := OpenRegular(filepath.Join(dir, TableFileName))
	if errors.Is(err, os.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, fmt.Errorf("cannot read the runner's list of running jobs: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, (MaxSlots+1)*slotBytes))
	dev, ino, err2 := fileID(f)
	if err := errors.Join(err, err2); err != nil {
		return t, fmt.Errorf("cannot read the runner's list of running jobs: %w", err)
	}
	if len(raw) < slotBytes {
		return t, nil
	}
	field := tableSlots(raw).field
	t.JournalSize = JournalSize{
		segment: int(field(0, journalField)), segmentBytes: field(0, journalField+1), olderBytes: field(0, journalField+2),
	}
	sumValid := uint32(uint64(field(0, leasesExpireField))>>32) == headerChecksum(raw)
	t.Intact = len(raw) == (MaxSlots+1)*slotBytes && field(0, 0) != 0 && sumValid
	for slot := 1; slot < len(raw)/slotBytes; slot++ {
		if seq := field(slot, 0); seq != 0 {
			t.Attempts = append(t.Attempts, wire.Attempt{
				Lease: wire.Lease{Seq: seq, Fence: field(slot, 1)},
				Slot:  int64(slot), PID: field(slot, 2), StartedAtMillis: field(slot, 3),
			})
		}
	}
	if sumValid && field(0, 2) == dev && field(0, 3) == ino {
		t.PID, t.StartTicks = int(field(0, 0)), field(0, 1)
	}
	return t, nil
}
