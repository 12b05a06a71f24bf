package runner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// The running table is a file that the runner maps into memory: a header, and one slot for each running
// attempt. Writing to it takes no system call, and the contents survive a SIGKILL of the runner.
// See docs/decisions/0056.
const (
	slotBytes = 64
	maxSlots  = 4096 // bounds the number of workers
)

// table is the running table of this runner. Only the worker that uses a slot writes to it.
type table struct {
	mem           []byte
	file          *os.File
	reservedBytes int64 // size of the part of the file that has disk space reserved, in bytes
}

func makeTable(dir string, mode os.FileMode, pid int, ticks int64) (*table, error) {
	f, err := os.OpenFile(filepath.Join(dir, tableName), os.O_CREATE|os.O_RDWR, mode)
	if err != nil {
		return nil, fmt.Errorf("cannot create the runner's table of running jobs: %w", err)
	}
	if err := f.Truncate((maxSlots + 1) * slotBytes); err != nil {
		return nil, fmt.Errorf("cannot create the runner's table of running jobs: %w", err)
	}
	mem, err := mapFile(f, 0, (maxSlots+1)*slotBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot map the runner's table of running jobs: %w", err)
	}
	t := &table{mem: mem, file: f}
	if _, err := t.reserve(1); err != nil {
		return nil, err
	}
	dev, ino, err := fileID(f)
	if err != nil {
		return nil, fmt.Errorf("cannot check the runner's table of running jobs: %w", err)
	}
	t.write(0, int64(pid), ticks, dev, ino)
	t.setLeasesExpire(false)
	return t, nil
}

// reserve reserves disk space for the given number of slots, and returns how many slots have disk space
// now. On a full disk, the first write to a slot without reserved space would kill the runner (SIGBUS).
func (t *table) reserve(slots int) (int, error) {
	page := make([]byte, 4096)
	for t.reservedBytes < int64(slots+1)*slotBytes {
		if _, err := t.file.WriteAt(page, t.reservedBytes); err != nil {
			return int(t.reservedBytes/slotBytes) - 1, fmt.Errorf("cannot allocate the runner's table of running jobs: %w", err)
		}
		t.reservedBytes += int64(len(page))
	}
	return slots, nil
}

// close unmaps and closes the file. Nothing may be written to the table afterwards.
func (t *table) close() error { return errors.Join(unmapFile(t.mem), t.file.Close()) }

// write writes the first fields of a slot. Slot 0 is the header.
func (t *table) write(slot int64, fields ...int64) {
	b := t.mem[slot*slotBytes : (slot+1)*slotBytes]
	for i, f := range fields {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(f))
	}
}

// setJournalSize stores the size of the journal, so that a service can detect that a part of the
// journal is missing. While the journal changes to a new segment, the stored size is never larger than
// the real one.
func (t *table) setJournalSize(w journalSize) {
	header := t.mem[:slotBytes]
	put := func(field int, n int64) { binary.LittleEndian.PutUint64(header[8*field:], uint64(n)) }
	if int64(w.segment) != slots(header).field(0, journalField) {
		put(journalField+1, 0)
	}
	put(journalField, int64(w.segment))
	put(journalField+1, w.bytes)
	put(journalField+2, w.older)
}

// journalField is the first header field about the journal. The fields before it are the runner's pid
// and start time, and the device and inode number of the table's file.
const journalField = 4

// leasesExpireField is a header field. The lower half is 1 while the service's leases are limited in
// time, and otherwise 0. The upper half is a checksum of the fields before journalField. A header with
// a wrong checksum is damaged: its pid is not used, and its directory is not taken for a copy.
const leasesExpireField = 7

// setLeasesExpire stores whether the service's leases are limited in time.
func (t *table) setLeasesExpire(on bool) {
	n := uint64(headerSum(t.mem)) << 32
	if on {
		n |= 1
	}
	binary.LittleEndian.PutUint64(t.mem[8*leasesExpireField:], n)
}

// headerSum returns the checksum of the fields before journalField.
func headerSum(mem []byte) uint32 { return crc32.ChecksumIEEE(mem[:8*journalField]) }

// setStarting stores an attempt in its slot before the fork. setForked adds the process after the fork.
func (t *table) setStarting(slot int64, l wire.Lease, startedAt int64) {
	t.write(slot, 0, l.Fence, 0, startedAt)
	t.write(slot, l.Seq)
}

func (t *table) setForked(slot int64, pid int, startedAt int64) {
	binary.LittleEndian.PutUint64(t.mem[slot*slotBytes+24:], uint64(startedAt))
	binary.LittleEndian.PutUint64(t.mem[slot*slotBytes+16:], uint64(pid))
}

// free frees a slot, after the result is in the journal.
func (t *table) free(slot int64) { t.write(slot, 0) }

// slots is the contents of a running table.
type slots []byte

// field returns the i-th number of a slot.
func (s slots) field(slot, i int) int64 {
	return int64(binary.LittleEndian.Uint64(s[slot*slotBytes+8*i:]))
}

// runningTable is the parsed running table of a dead runner.
type runningTable struct {
	// pid and ticks are the pid and the start time of the runner's process. pid is 0 if the directory
	// is a copy: the process with the stored pid, and its jobs, then belong to the original directory,
	// whose runner may be alive.
	pid     int
	ticks   int64
	running []wire.Attempt
	journal journalSize
	intact  bool // the table has its full size, and its header is valid
}

// readTable reads a dead runner's table. The result is empty if the file is missing, and may be
// incomplete if the file is too short.
func readTable(dir string) (t runningTable, err error) {
	f, err := openPlain(filepath.Join(dir, tableName))
	if errors.Is(err, os.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, fmt.Errorf("cannot read the runner's table of running jobs: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, (maxSlots+1)*slotBytes))
	dev, ino, err2 := fileID(f)
	if err := errors.Join(err, err2); err != nil {
		return t, fmt.Errorf("cannot read the runner's table of running jobs: %w", err)
	}
	if len(raw) < slotBytes {
		return t, nil
	}
	field := slots(raw).field
	t.journal = journalSize{segment: int(field(0, journalField)), bytes: field(0, journalField+1), older: field(0, journalField+2)}
	sumValid := uint32(uint64(field(0, leasesExpireField))>>32) == headerSum(raw)
	t.intact = len(raw) == (maxSlots+1)*slotBytes && field(0, 0) != 0 && sumValid
	for slot := 1; slot < len(raw)/slotBytes; slot++ {
		if seq := field(slot, 0); seq != 0 {
			t.running = append(t.running, wire.Attempt{
				Lease: wire.Lease{Seq: seq, Fence: field(slot, 1)},
				Slot:  int64(slot), PID: field(slot, 2), StartedAt: field(slot, 3),
			})
		}
	}
	if sumValid && field(0, 2) == dev && field(0, 3) == ino {
		t.pid, t.ticks = int(field(0, 0)), field(0, 1)
	}
	return t, nil
}

// Begun reports which attempts a living runner has started. It works for an unresponsive runner too,
// because it reads only files in the runner's directory: the running table and, for attempts that have
// ended, the journal. begun maps an attempt to false if the table does not name its process yet, so the
// runner may not have started it. ok is false if the files cannot be read.
func Begun(dir string, leases []wire.Lease) (begun map[wire.Lease]bool, ok bool) {
	begun = map[wire.Lease]bool{}
	// Read the table before the journal: an attempt leaves the table only after its result is in the
	// journal.
	t, err := readTable(dir)
	for _, a := range t.running {
		begun[a.Lease] = a.PID != 0
	}
	results, complete, err2 := readJournal(dir, t.journal, func(l wire.Lease) bool { return slices.Contains(leases, l) })
	for _, r := range results {
		begun[r.Lease] = true
	}
	return begun, err == nil && err2 == nil && t.intact && complete
}

// PID returns the pid of the living runner of a directory, or 0 if it is unknown.
func PID(dir string) int64 {
	t, _, _ := readLiving(dir)
	return int64(t.pid)
}

// readLiving reads a living runner's table. owner is the account that the runner's directory belongs
// to, or nil if it does not belong to an account. An account can write anything into its table, so pid
// is set to 0 unless that process belongs to the account.
func readLiving(dir string) (t runningTable, owner *uint32, err error) {
	if owner, err = accountOf(dir); err == nil {
		t, err = readTable(dir)
	}
	if owner != nil && !process.Owns(*owner, t.pid) {
		t.pid = 0
	}
	return t, owner, err
}
