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
	slotBytes = 64
	MaxSlots  = 4096 // maximum number of slots; each worker needs one
)

// Table is the table of running attempts of this runner. Only the worker that uses a slot writes to it.
type Table struct {
	mem           tableSlots
	file          *os.File
	reservedBytes int64 // size in bytes of the start of the file that has disk space
}

// CreateTable creates the table of running attempts for a new runner in dir. pid and startTicks identify the
// runner's process. startTicks is its start time, as returned by process.OwnStartTicks.
func CreateTable(dir string, mode os.FileMode, pid int, startTicks int64) (*Table, error) {
	f, err := os.OpenFile(filepath.Join(dir, TableFileName), os.O_CREATE|os.O_RDWR, mode)
	if err != nil {
		return nil, fmt.Errorf("the runner cannot start, because it cannot create its list of running jobs: %w", err)
	}
	if err := f.Truncate((MaxSlots + 1) * slotBytes); err != nil {
		return nil, fmt.Errorf("the runner cannot start, because it cannot enlarge its list of running jobs to %d bytes: "+
			"%w; check the disk and the limit of file sizes (ulimit -f)", (MaxSlots+1)*slotBytes, err)
	}
	mem, err := mapFile(f, (MaxSlots+1)*slotBytes)
	if err != nil {
		return nil, fmt.Errorf("the runner cannot start, because it cannot map its list of running jobs, %s; check the free "+
			"memory and the disk: %w", f.Name(), err)
	}
	t := &Table{mem: mem, file: f}
	if _, err := t.ReserveSlots(1); err != nil {
		return nil, err
	}
	dev, ino, err := fileID(f)
	if err != nil {
		return nil, fmt.Errorf("the runner cannot start, because it cannot check its list of running jobs, %s; check the "+
			"disk: %w", f.Name(), err)
	}
	t.writeSlot(0, int64(pid), startTicks, dev, ino)
	t.SetLeasesExpire(false)
	return t, nil
}

// ReserveSlots reserves disk space for the given number of slots, and returns how many slots have disk space
// now. A write to a slot without disk space would kill the runner (SIGBUS) if the disk is full.
func (t *Table) ReserveSlots(slots int) (int, error) {
	page := make([]byte, 4096)
	for t.reservedBytes < int64(slots+1)*slotBytes {
		if _, err := t.file.WriteAt(page, t.reservedBytes); err != nil {
			return int(t.reservedBytes/slotBytes) - 1, fmt.Errorf("cannot reserve disk space for the runner's list of running "+
				"jobs: %w", err)
		}
		t.reservedBytes += int64(len(page))
	}
	return slots, nil
}

// Close unmaps and closes the file. The caller must not write to the table afterwards.
func (t *Table) Close() error { return errors.Join(unmapFile(t.mem), t.file.Close()) }

// writeSlot writes the first fields of a slot. Slot 0 is the header.
func (t *Table) writeSlot(slot int64, fields ...int64) {
	for i, f := range fields {
		t.mem.setField(int(slot), i, f)
	}
}

// SetJournalSize stores the size of the journal, so that a service can notice if a part of the journal is
// missing. The runner may die at any time. So the stored size is never too large, not even while the journal
// changes to a new segment.
func (t *Table) SetJournalSize(size JournalSize) {
	if int64(size.segment) != t.mem.field(0, journalField) {
		t.mem.setField(0, journalField+1, 0)
	}
	t.mem.setField(0, journalField, int64(size.segment))
	t.mem.setField(0, journalField+1, size.segmentBytes)
	t.mem.setField(0, journalField+2, size.olderBytes)
}

// journalField is the index of the first header field about the journal. The fields before it are the
// runner's pid and start time, and the device and inode number of the table's file.
const journalField = 4

// leasesExpireField is the index of a header field with two numbers. The lower 32 bits are 1 if the service's
// leases expire, and otherwise 0. The upper 32 bits are a checksum of the fields before journalField. If the
// checksum is wrong, these fields are damaged. Readers then ignore the pid, and do not take the directory for
// a copy because of a wrong device or inode number.
const leasesExpireField = 7

// SetLeasesExpire stores whether the leases of the runner's service expire.
func (t *Table) SetLeasesExpire(expire bool) {
	n := uint64(headerChecksum(t.mem)) << 32
	if expire {
		n |= 1
	}
	t.mem.setField(0, leasesExpireField, int64(n))
}

// headerChecksum returns the checksum of the header fields before journalField.
func headerChecksum(mem []byte) uint32 { return crc32.ChecksumIEEE(mem[:8*journalField]) }

// SetStarting stores an attempt in its slot before the attempt's process exists. SetProcess adds the process.
func (t *Table) SetStarting(slot int64, l wire.Lease, startedAtMillis int64) {
	t.writeSlot(slot, 0, l.Fence, 0, startedAtMillis)
	t.writeSlot(slot, l.Seq)
}

// SetProcess stores the main process of the attempt in a slot.
func (t *Table) SetProcess(slot int64, pid int, startedAtMillis int64) {
	t.mem.setField(int(slot), 3, startedAtMillis)
	t.mem.setField(int(slot), 2, int64(pid))
}

// FreeSlot frees a slot. Call it after the result of its attempt is in the journal.
func (t *Table) FreeSlot(slot int64) { t.writeSlot(slot, 0) }
