package rundir

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/runner/wire"
)

// The table of running attempts is a file that the runner maps into memory. It consists of a header, and one
// slot for each running attempt. A write to the table needs no system call, and is kept even if the runner is
// killed by SIGKILL. See docs/decisions/0056.
const (
	tableSlotBytes = 64
	MaxTableSlots  = 4096 // maximum number of slots; each worker needs one
)

// MappedRunningTable is the table of running attempts of this runner. Only the worker that uses a slot writes to it.
type MappedRunningTable struct {
	tableSlots        tableSlots
	file              *os.File
	reservedDiskBytes int64 // size in bytes of the start of the file that has disk space
}

// CreateRunningTable creates the table of running attempts for a new runner in runnerDir. runnerPID and
// runnerStartTicks identify the runner's process. runnerStartTicks is its start time, as returned by
// process.ThisProcessStartTicks.
func CreateRunningTable(runnerDir string, mode os.FileMode, runnerPID int, runnerStartTicks int64) (*MappedRunningTable,
	error) {
	f, err := os.OpenFile(filepath.Join(runnerDir, RunningTableFileName), os.O_CREATE|os.O_RDWR, mode)
	if err != nil {
		return nil, fmt.Errorf("the runner cannot start, because it cannot create its list of running jobs: %w", err)
	}
	if err := f.Truncate((MaxTableSlots + 1) * tableSlotBytes); err != nil {
		return nil, fmt.Errorf("the runner cannot start, because it cannot enlarge its list of running jobs to %d bytes: "+
			"%w; check the disk and the limit of file sizes (ulimit -f)", (MaxTableSlots+1)*tableSlotBytes, err)
	}
	mem, err := mapFile(f, (MaxTableSlots+1)*tableSlotBytes)
	if err != nil {
		return nil, fmt.Errorf("the runner cannot start, because it cannot map its list of running jobs, %s; check the free "+
			"memory and the disk: %w", f.Name(), err)
	}
	t := &MappedRunningTable{tableSlots: mem, file: f}
	if _, err := t.ReserveSlots(1); err != nil {
		return nil, err
	}
	dev, ino, err := fileID(f)
	if err != nil {
		return nil, fmt.Errorf("the runner cannot start, because it cannot check its list of running jobs, %s; check the "+
			"disk: %w", f.Name(), err)
	}
	t.writeSlot(0, int64(runnerPID), runnerStartTicks, dev, ino)
	t.SetLeasesExpire(false)
	return t, nil
}

// ReserveSlots reserves disk space for the given number of slots. It returns how many slots have disk space now. If the
// disk is full, a write to a slot without disk space would kill the runner (SIGBUS).
func (t *MappedRunningTable) ReserveSlots(slotCount int) (int, error) {
	page := make([]byte, 4096)
	for t.reservedDiskBytes < int64(slotCount+1)*tableSlotBytes {
		if _, err := t.file.WriteAt(page, t.reservedDiskBytes); err != nil {
			return int(t.reservedDiskBytes/tableSlotBytes) - 1,
				fmt.Errorf("cannot reserve disk space for the runner's list of running jobs: %w", err)
		}
		t.reservedDiskBytes += int64(len(page))
	}
	return slotCount, nil
}

// Close unmaps and closes the file. The caller must not write to the table afterwards.
func (t *MappedRunningTable) Close() error {
	return errors.Join(unmapFile(t.tableSlots), t.file.Close())
}

// writeSlot writes the first fields of a slot. Slot 0 is the header.
func (t *MappedRunningTable) writeSlot(slot int64, fields ...int64) {
	for i, f := range fields {
		t.tableSlots.setField(int(slot), i, f)
	}
}

// SetJournalSize stores the size of the journal, so that a service can notice if a part of the journal is missing. The
// runner may die between two writes. So SetJournalSize writes the fields in an order in which the stored size is never
// too large, not even while the journal changes to a new segment.
func (t *MappedRunningTable) SetJournalSize(size JournalSize) {
	if int64(size.newestSegmentNumber) != t.tableSlots.field(0, journalSizeField) {
		t.tableSlots.setField(0, journalSizeField+1, 0)
	}
	t.tableSlots.setField(0, journalSizeField, int64(size.newestSegmentNumber))
	t.tableSlots.setField(0, journalSizeField+1, size.newestSegmentBytes)
	t.tableSlots.setField(0, journalSizeField+2, size.olderSegmentsBytes)
}

// journalSizeField is the index of the first header field about the journal. The fields before it are the
// runner's pid and start time, and the device and inode number of the table's file.
const journalSizeField = 4

// leasesExpireField is the index of a header field with two numbers. The lower 32 bits are 1 if the service's leases
// expire, and otherwise 0. The upper 32 bits are a checksum of the fields before journalSizeField. If the checksum is
// wrong, these fields are damaged. Readers then ignore the pid. They also ignore the device and inode number, which
// normally show whether the directory is a copy.
const leasesExpireField = 7

// SetLeasesExpire stores whether the leases of the runner's service expire.
func (t *MappedRunningTable) SetLeasesExpire(expire bool) {
	n := uint64(headerChecksum(t.tableSlots)) << 32
	if expire {
		n |= 1
	}
	t.tableSlots.setField(0, leasesExpireField, int64(n))
}

// headerChecksum returns the checksum of the header fields before journalSizeField.
func headerChecksum(tableBytes []byte) uint32 {
	return crc32.ChecksumIEEE(tableBytes[:8*journalSizeField])
}

// SetStartingAttempt stores an attempt in its slot before the attempt's process exists. SetAttemptProcess adds the
// process.
func (t *MappedRunningTable) SetStartingAttempt(slot int64, lease wire.Lease, startedAtMillis int64) {
	t.writeSlot(slot, 0, lease.Fence, 0, startedAtMillis)
	t.writeSlot(slot, lease.Seq)
}

// SetAttemptProcess stores the main process of the attempt in a slot.
func (t *MappedRunningTable) SetAttemptProcess(slot int64, mainPID int, startedAtMillis int64) {
	t.tableSlots.setField(int(slot), 3, startedAtMillis)
	t.tableSlots.setField(int(slot), 2, int64(mainPID))
}

// FreeSlot frees a slot. Call it after the result of its attempt is in the journal.
func (t *MappedRunningTable) FreeSlot(slot int64) { t.writeSlot(slot, 0) }
