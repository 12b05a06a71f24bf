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

// The running table is a shared file mapping: a header and one slot for each
// worker. Writing it is no system call, and what is written outlives a SIGKILL.
// See docs/decisions/0056.
const (
	slotBytes = 64
	maxSlots  = 4096 // so many workers at most
)

// table is the running table of this runner. A slot is written by its worker
// alone.
type table struct {
	mem    []byte
	file   *os.File
	backed int64 // bytes that have their place on the disk
}

func makeTable(dir string, mode os.FileMode, pid int, ticks int64) (*table, error) {
	f, err := os.OpenFile(filepath.Join(dir, tableName), os.O_CREATE|os.O_RDWR, mode)
	if err != nil {
		return nil, fmt.Errorf("create the runner's table of running jobs: %w", err)
	}
	if err := f.Truncate((maxSlots + 1) * slotBytes); err != nil {
		return nil, fmt.Errorf("create the runner's table of running jobs: %w", err)
	}
	mem, err := share(f, 0, (maxSlots+1)*slotBytes)
	if err != nil {
		return nil, fmt.Errorf("map the runner's table of running jobs: %w", err)
	}
	t := &table{mem: mem, file: f}
	if _, err := t.reserve(1); err != nil {
		return nil, err
	}
	dev, ino, err := identity(f)
	if err != nil {
		return nil, fmt.Errorf("check the runner's table of running jobs: %w", err)
	}
	t.write(0, int64(pid), ticks, dev, ino)
	t.leased(false)
	return t, nil
}

// reserve sees to it that so many slots have their place on the disk, and says
// how many have. A full disk would end the runner at the first write to one that
// has none.
func (t *table) reserve(slots int) (int, error) {
	page := make([]byte, 4096)
	for t.backed < int64(slots+1)*slotBytes {
		if _, err := t.file.WriteAt(page, t.backed); err != nil {
			return int(t.backed/slotBytes) - 1, fmt.Errorf("allocate the runner's table of running jobs: %w", err)
		}
		t.backed += int64(len(page))
	}
	return slots, nil
}

// close lets go of the file. Nothing may be written after it.
func (t *table) close() error { return errors.Join(unshare(t.mem), t.file.Close()) }

// write fills a slot; slot 0 is the header.
func (t *table) write(slot int64, fields ...int64) {
	b := t.mem[slot*slotBytes : (slot+1)*slotBytes]
	for i, f := range fields {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(f))
	}
}

// keeps notes how much is in the journal: a service sees whether it is all there. Of what
// is noted while the journal goes on in a new segment no moment claims more than there is.
func (t *table) keeps(w written) {
	header := t.mem[:slotBytes]
	put := func(field int, n int64) { binary.LittleEndian.PutUint64(header[8*field:], uint64(n)) }
	if int64(w.segment) != slots(header).field(0, journalField) {
		put(journalField+1, 0)
	}
	put(journalField, int64(w.segment))
	put(journalField+1, w.bytes)
	put(journalField+2, w.older)
}

// journalField is the first of the header's fields about the journal; those before it are
// the runner's pid and start, and the device and number of the table's file.
const journalField = 4

// leasedField is that of the header whose lower half is 1 while the service has its leases for a time only. Its upper half is a checksum of
// the fields before journalField: a header of which a bit is lost names no runner, and no copy of one.
const leasedField = 7

// leased notes whether it has.
func (t *table) leased(is bool) {
	n := uint64(headerSum(t.mem)) << 32
	if is {
		n |= 1
	}
	binary.LittleEndian.PutUint64(t.mem[8*leasedField:], n)
}

// headerSum is that checksum.
func headerSum(mem []byte) uint32 { return crc32.ChecksumIEEE(mem[:8*journalField]) }

// begin notes an attempt before its fork, and forked what came of it.
func (t *table) begin(slot int64, l wire.Lease, at int64) {
	t.write(slot, 0, l.Fence, 0, at)
	t.write(slot, l.Seq)
}

func (t *table) forked(slot int64, pid int, at int64) {
	binary.LittleEndian.PutUint64(t.mem[slot*slotBytes+24:], uint64(at))
	binary.LittleEndian.PutUint64(t.mem[slot*slotBytes+16:], uint64(pid))
}

// end frees a slot, after the result is in the journal.
func (t *table) end(slot int64) { t.write(slot, 0) }

// slots is a running table as it is read.
type slots []byte

// field is the i-th number of a slot.
func (s slots) field(slot, i int) int64 {
	return int64(binary.LittleEndian.Uint64(s[slot*slotBytes+8*i:]))
}

// runningTable is what a dead runner's table says.
type runningTable struct {
	// pid and ticks are those of the runner. The table of a copied folder names nobody
	// (pid 0): the process with that number, and what it ran, is of the folder that was
	// copied, and may live there.
	pid     int
	ticks   int64
	running []wire.Attempt
	journal written
	whole   bool // as a runner makes it
}

// readTable reads a dead runner's table. One that is gone, or cut short, tells nothing.
func readTable(dir string) (t runningTable, err error) {
	f, err := openPlain(filepath.Join(dir, tableName))
	if errors.Is(err, os.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, fmt.Errorf("read the runner's table of running jobs: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, (maxSlots+1)*slotBytes))
	dev, ino, err2 := identity(f)
	if err := errors.Join(err, err2); err != nil {
		return t, fmt.Errorf("read the runner's table of running jobs: %w", err)
	}
	if len(raw) < slotBytes {
		return t, nil
	}
	field := slots(raw).field
	t.journal = written{segment: int(field(0, journalField)), bytes: field(0, journalField+1), older: field(0, journalField+2)}
	sound := uint32(uint64(field(0, leasedField))>>32) == headerSum(raw)
	t.whole = len(raw) == (maxSlots+1)*slotBytes && field(0, 0) != 0 && sound
	for slot := 1; slot < len(raw)/slotBytes; slot++ {
		if seq := field(slot, 0); seq != 0 {
			t.running = append(t.running, wire.Attempt{
				Lease: wire.Lease{Seq: seq, Fence: field(slot, 1)},
				Slot:  int64(slot), PID: field(slot, 2), StartedAt: field(slot, 3),
			})
		}
	}
	if sound && field(0, 2) == dev && field(0, 3) == ino {
		t.pid, t.ticks = int(field(0, 0)), field(0, 1)
	}
	return t, nil
}

// Begun returns those of the given attempts that a running runner has begun. It reads the running table and, for
// attempts that have ended, the journal in the runner's directory, so even an unresponsive runner can be checked. The
// value is false while the table does not name the attempt's process; the runner may not have started it yet. ok is
// false if the files cannot be read.
func Begun(dir string, leases []wire.Lease) (begun map[wire.Lease]bool, ok bool) {
	begun = map[wire.Lease]bool{}
	// Read the table before the journal: an attempt leaves the table only after its result is in the journal.
	t, err := readTable(dir)
	for _, a := range t.running {
		begun[a.Lease] = a.PID != 0
	}
	results, whole, err2 := readJournal(dir, t.journal, func(l wire.Lease) bool { return slices.Contains(leases, l) })
	for _, r := range results {
		begun[r.Lease] = true
	}
	return begun, err == nil && err2 == nil && t.whole && whole
}

// PID is the process of the living runner of a folder, 0 if that cannot be told.
func PID(dir string) int64 {
	t, _, _ := readLiving(dir)
	return int64(t.pid)
}

// readLiving reads a living runner's table, and whose runner it is, nil if it is no
// account's. An account's table names its process only if that is the account's: what is
// in the folder is for the account to say.
func readLiving(dir string) (t runningTable, of *uint32, err error) {
	if of, err = accountOf(dir); err == nil {
		t, err = readTable(dir)
	}
	if of != nil && !process.Owns(*of, t.pid) {
		t.pid = 0
	}
	return t, of, err
}
