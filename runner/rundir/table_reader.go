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

// field returns one of the numbers in a slot. fieldIndex counts from 0.
func (s tableSlots) field(slot, fieldIndex int) int64 {
	return int64(binary.LittleEndian.Uint64(s[slot*tableSlotBytes+8*fieldIndex:]))
}

// setField sets one of the numbers in a slot. fieldIndex counts from 0.
func (s tableSlots) setField(slot, fieldIndex int, value int64) {
	binary.LittleEndian.PutUint64(s[slot*tableSlotBytes+8*fieldIndex:], uint64(value))
}

// RunningTable is the parsed content of a runner's table of running attempts.
type RunningTable struct {
	// RunnerPID and RunnerStartTicks are the pid and the start time of the runner's process. If the directory is a copy,
	// RunnerPID is 0: the stored pid is that of the original runner, which may be alive.
	RunnerPID        int
	RunnerStartTicks int64
	Attempts         []wire.Attempt
	JournalSize      JournalSize
	IsIntact         bool // the file has its full size and a valid header
}

// ReadRunningTable reads the table of running attempts in a runner's directory. If the file is missing, the result is
// empty. If the file is too short, the result may be incomplete, and IsIntact is false.
func ReadRunningTable(runnerDir string) (t RunningTable, err error) {
	f, err := OpenRegularFile(filepath.Join(runnerDir, RunningTableFileName))
	if errors.Is(err, os.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, fmt.Errorf("cannot read the runner's list of running jobs: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, (MaxTableSlots+1)*tableSlotBytes))
	dev, ino, err2 := fileID(f)
	if err := errors.Join(err, err2); err != nil {
		return t, fmt.Errorf("cannot read the runner's list of running jobs: %w", err)
	}
	if len(raw) < tableSlotBytes {
		return t, nil
	}
	field := tableSlots(raw).field
	t.JournalSize = JournalSize{
		newestSegmentNumber: int(field(0, journalSizeField)), newestSegmentBytes: field(0, journalSizeField+1),
		olderSegmentsBytes: field(0, journalSizeField+2),
	}
	sumValid := uint32(uint64(field(0, leasesExpireField))>>32) == headerChecksum(raw)
	t.IsIntact = len(raw) == (MaxTableSlots+1)*tableSlotBytes && field(0, 0) != 0 && sumValid
	for slot := 1; slot < len(raw)/tableSlotBytes; slot++ {
		if seq := field(slot, 0); seq != 0 {
			t.Attempts = append(t.Attempts, wire.Attempt{
				Lease:     wire.Lease{Seq: seq, Fence: field(slot, 1)},
				TableSlot: int64(slot), PID: field(slot, 2), StartedAtMillis: field(slot, 3),
			})
		}
	}
	if sumValid && field(0, 2) == dev && field(0, 3) == ino {
		t.RunnerPID, t.RunnerStartTicks = int(field(0, 0)), field(0, 1)
	}
	return t, nil
}
