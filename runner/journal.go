package runner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/runner/wire"
)

// segmentBytes is when the journal goes on in a new file; below resetBytes an
// empty one is not worth a system call.
// See docs/decisions/0057.
const (
	segmentBytes = 64 << 20
	resetBytes   = 1 << 20
)

// windowBytes is how much of a segment is mapped at a time.
const windowBytes = 128 << 10

// zeros are what stands where no record is yet: they end a segment that is read.
var zeros [windowBytes]byte

// journal keeps the results that are not acknowledged, in files, without
// fsync: what is written outlives every death of a process. A record is a
// CRC-32 (IEEE) of the frame that follows it. It goes into a window, a shared
// mapping of the end of the segment, where that is safe, for that is no system
// call; else it is one write. Its methods may be called at once.
type journal struct {
	dir  string
	mode os.FileMode   // of its files
	note func(written) // is told how much is in it, before less is and after more is

	mu       sync.Mutex // held over writes: half a record must be taken back before the next
	file     *os.File
	n        int // of the current segment
	size     int64
	window   []byte        // nil if there is none
	from     int64         // of the segment, where the window begins
	windows  bool          // there may be one
	unacked  map[int]int   // results by segment
	older    map[int]int64 // bytes of segments that are written no more
	unsynced map[int]bool  // segments that a power cut may lose
	buf      []byte
}

// written is how much of a journal there must be, in bytes: of the segment that is written,
// and of older ones.
type written struct {
	segment      int
	bytes, older int64
}

func openJournal(dir string, mode os.FileMode, note func(written)) (*journal, error) {
	j := &journal{dir: dir, mode: mode, note: note, unacked: map[int]int{}, older: map[int]int64{}, unsynced: map[int]bool{}}
	return j, j.next()
}

// noted tells how much is in the journal. The caller holds mu.
func (j *journal) noted() {
	w := written{segment: j.n, bytes: j.size}
	for _, size := range j.older {
		w.older += size
	}
	j.note(w)
}

func (j *journal) next() error {
	f, err := os.OpenFile(j.path(j.n+1), os.O_CREATE|os.O_RDWR, j.mode)
	if err != nil {
		return fmt.Errorf("open the result journal: %w", err)
	}
	if j.file != nil {
		j.file.Close() // its records are written
		if j.unacked[j.n] > 0 {
			j.older[j.n] = j.size
		}
	}
	j.unmap()
	j.file, j.size, j.windows = f, 0, staysWritable(f)
	j.n++
	j.noted()
	return nil
}

func (j *journal) path(n int) string { return segmentPath(j.dir, n) }

func segmentPath(dir string, n int) string {
	return filepath.Join(dir, journalName+"."+strconv.Itoa(n))
}

// append writes a result's frame and says which segment holds it, 0 if none does.
func (j *journal) append(frame []byte) (segment int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if failpoint.On("nojournal") {
		return 0, errors.New("the journal cannot be written")
	}
	if j.size > segmentBytes {
		if err := j.next(); err != nil {
			return 0, err
		}
	}
	j.buf = binary.LittleEndian.AppendUint32(j.buf[:0], crc32.ChecksumIEEE(frame))
	j.buf = append(j.buf, frame...)
	if !j.reach(len(j.buf)) || !j.store(j.buf) {
		if _, err := j.file.WriteAt(j.buf, j.size); err != nil {
			return 0, errors.Join(err, j.file.Truncate(j.size)) // half a record would hide those after it
		}
	}
	j.size += int64(len(j.buf))
	j.unacked[j.n]++
	j.unsynced[j.n] = true
	j.noted()
	return j.n, nil
}

// store copies a record into the window. If that fails, as after somebody has cut the file short, there is no window any more. The caller
// holds mu.
func (j *journal) store(record []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if !ok {
			recover()
			j.unmap()
			j.windows = false
		}
	}()
	copy(j.window[j.size-j.from:], record)
	return true
}

// reach reports whether the window has room for a record of n bytes, and moves it to the end of the segment if it must. What
// it shows has its place on the disk: a full one would end the runner at the first write to what has none. The caller holds mu.
func (j *journal) reach(n int) bool {
	if j.size+int64(n) <= j.from+int64(len(j.window)) {
		return true
	}
	j.unmap()
	from := j.size - j.size%int64(os.Getpagesize())
	used := int(j.size - from)
	if !j.windows || used+n > windowBytes {
		return false
	}
	_, err := j.file.WriteAt(zeros[used:], j.size)
	if err == nil {
		j.window, err = share(j.file, from, windowBytes)
	}
	if err != nil {
		j.file.Truncate(j.size) // a full disk has no room to spare
		j.windows, j.window = false, nil
		return false
	}
	j.from = from
	return true
}

// unmap gives the window up. The caller holds mu.
func (j *journal) unmap() {
	if j.window != nil {
		unshare(j.window) // nothing can be done about an error
		j.window, j.from = nil, 0
	}
}

// ack forgets a record of a segment; a segment without any is removed.
func (j *journal) ack(segment int) {
	if j.forget(segment) {
		os.Remove(j.path(segment)) // if it stays, its leases are stale
	}
}

// forget reports whether the file of a segment is of no more use.
func (j *journal) forget(segment int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unacked[segment]--; j.unacked[segment] > 0 {
		return false
	}
	delete(j.unacked, segment)
	if segment != j.n {
		delete(j.unsynced, segment)
		delete(j.older, segment)
		j.noted()
		return segment != 0
	}
	if j.size > resetBytes {
		size := j.size
		j.size = 0
		j.unmap() // which must not show what is not there
		j.noted()
		if j.file.Truncate(0) != nil {
			j.size = size
			j.noted()
		}
	}
	return false
}

// sync makes all segments that hold something survive a power cut.
func (j *journal) sync() error {
	j.mu.Lock()
	var segments []int
	for n := range j.unsynced {
		segments = append(segments, n)
	}
	clear(j.unsynced)
	j.mu.Unlock()
	slices.Sort(segments)
	for i, n := range segments {
		err := syncFile(j.path(n))
		if err == nil && i == len(segments)-1 {
			err = syncFolder(j.dir) // their names
		}
		if err == nil || errors.Is(err, os.ErrNotExist) { // acknowledged meanwhile
			continue
		}
		j.mu.Lock()
		for _, n := range segments[i:] {
			j.unsynced[n] = true
		}
		j.mu.Unlock()
		return err
	}
	return nil
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.unmap()
	return j.file.Close()
}

// maxJournal bounds what is read of a dead runner's journal, in bytes: an account's runner
// may have left anything there.
const maxJournal = 1 << 30

// readJournal reads the results of a dead runner's journal that are wanted. A record that
// is torn or damaged ends its segment. whole says that all is there which the runner noted.
func readJournal(dir string, least written, wanted func(wire.Lease) bool) (results []*wire.Result, whole bool, err error) {
	segments, err := segmentsOf(dir)
	if err != nil {
		return nil, false, err
	}
	there, read := written{segment: least.segment}, 0
	newest := least.segment == 0 // it died before it had a journal
	for _, n := range segments {
		raw, err := readPlain(segmentPath(dir, n), segmentBytes+2*wire.MaxFrame)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false, fmt.Errorf("read the result journal: %w", err)
		}
		if read += len(raw); read > maxJournal {
			return nil, false, fmt.Errorf("the result journal in %s is larger than %d bytes", dir, maxJournal)
		}
		list, good := parseJournal(raw)
		for _, r := range list {
			if wanted(r.Lease) {
				results = append(results, r)
			}
		}
		switch {
		case n == least.segment:
			there.bytes, newest = int64(good), true
		case n < least.segment:
			there.older += int64(good)
		}
	}
	return results, newest && there.bytes >= least.bytes && there.older >= least.older, nil
}

// segmentsOf lists the segments of a journal in order.
func segmentsOf(dir string) (segments []int, err error) {
	names, err := filepath.Glob(filepath.Join(dir, journalName+".*"))
	for _, name := range names {
		if n, err := strconv.Atoi(name[strings.LastIndexByte(name, '.')+1:]); err == nil {
			segments = append(segments, n)
		}
	}
	slices.Sort(segments)
	return segments, err
}

// parseJournal reads the records of a segment up to the first that is torn or damaged, and
// says how many bytes they have.
func parseJournal(raw []byte) (results []*wire.Result, good int) {
	for len(raw)-good > 4 {
		record := raw[good:]
		frame, n, err := wire.Parse(record[4:])
		if err != nil || crc32.ChecksumIEEE(record[4:4+n]) != binary.LittleEndian.Uint32(record) {
			break
		}
		if r, ok := frame.(*wire.Result); ok {
			results = append(results, r)
		}
		good += 4 + n
	}
	return results, good
}

// maxSpared bounds what is read of them, in bytes.
const maxSpared = 16 << 20

// readSpared reads the process groups that a dead runner's jobs may leave.
func readSpared(dir string) (map[int]bool, error) {
	spared := map[int]bool{}
	raw, err := readPlain(filepath.Join(dir, sparedName), maxSpared)
	if errors.Is(err, os.ErrNotExist) {
		return spared, nil
	}
	for line := range strings.Lines(string(raw)) {
		if pgid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			spared[pgid] = true
		}
	}
	return spared, err
}
