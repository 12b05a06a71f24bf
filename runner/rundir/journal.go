package rundir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/queuectl/queuectl/internal/atomicfile"
	"github.com/queuectl/queuectl/internal/failpoint"
)

// maxSegmentBytes is the size of a segment after which the journal continues in a new file. A segment
// without unacknowledged results is truncated only if it is larger than minTruncateBytes: a smaller one is
// not worth a system call.
const (
	maxSegmentBytes  = 64 << 20
	minTruncateBytes = 1 << 20
)

// Journal stores the results that the service has not acknowledged, in files. It does not sync them:
// written data survives the death of any process, but not a power cut.
//
// A record is a CRC-32 (IEEE) followed by the frame that it covers. Each record is one write. The methods may
// be called concurrently.
type Journal struct {
	dir  string
	mode os.FileMode // mode of the segment files
	// onResize receives the size of the journal: before the journal shrinks, and after it has grown.
	onResize func(JournalSize)

	// mu is held during writes, so that an incomplete record is removed before the next write.
	mu               sync.Mutex
	file             *os.File
	segmentNumber    int // number of the current segment
	segmentSize      int64
	unackedCounts    map[int]int   // number of unacknowledged results by segment
	olderSizes       map[int]int64 // sizes in bytes of the earlier segments that still hold results
	unsyncedSegments map[int]bool  // segments with data that a power cut may lose
	buf              []byte
}

// JournalSize is a lower bound for the size of an intact journal, in bytes: for the current segment,
// and for all older segments together.
type JournalSize struct {
	segment                  int
	segmentBytes, olderBytes int64
}

func OpenJournal(dir string, mode os.FileMode, note func(JournalSize)) (*Journal, error) {
	j := &Journal{
		dir: dir, mode: mode, onResize: note,
		unackedCounts: map[int]int{}, olderSizes: map[int]int64{}, unsyncedSegments: map[int]bool{},
	}
	return j, j.nextSegmentLocked()
}

// reportSizeLocked passes the size of the journal to onResize. The caller holds mu.
func (j *Journal) reportSizeLocked() {
	w := JournalSize{segment: j.segmentNumber, segmentBytes: j.segmentSize}
	for _, size := range j.olderSizes {
		w.olderBytes += size
	}
	j.onResize(w)
}

func (j *Journal) nextSegmentLocked() error {
	f, err := os.OpenFile(j.path(j.segmentNumber+1), os.O_CREATE|os.O_RDWR, j.mode)
	if err != nil {
		return fmt.Errorf("cannot open the result journal: %w", err)
	}
	if j.file != nil {
		j.file.Close() // an error does not matter, because all records are written
		if j.unackedCounts[j.segmentNumber] > 0 {
			j.olderSizes[j.segmentNumber] = j.segmentSize
		}
	}
	j.file, j.segmentSize = f, 0
	j.segmentNumber++
	j.reportSizeLocked()
	return nil
}

func (j *Journal) path(n int) string { return segmentPath(j.dir, n) }

func segmentPath(dir string, n int) string {
	return filepath.Join(dir, journalFilePrefix+"."+strconv.Itoa(n))
}

// Append writes the frame of a result. It returns the number of the segment, or 0 after an error.
func (j *Journal) Append(frame []byte) (segment int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if failpoint.IsEnabled("nojournal") {
		return 0, errors.New("the journal cannot be written")
	}
	if j.segmentSize > maxSegmentBytes {
		if err := j.nextSegmentLocked(); err != nil {
			return 0, err
		}
	}
	j.buf = binary.LittleEndian.AppendUint32(j.buf[:0], crc32.ChecksumIEEE(frame))
	j.buf = append(j.buf, frame...)
	if _, err := j.file.WriteAt(j.buf, j.segmentSize); err != nil {
		// Remove an incomplete record, because it would hide the records after it.
		return 0, errors.Join(err, j.file.Truncate(j.segmentSize))
	}
	j.segmentSize += int64(len(j.buf))
	j.unackedCounts[j.segmentNumber]++
	j.unsyncedSegments[j.segmentNumber] = true
	j.reportSizeLocked()
	return j.segmentNumber, nil
}

// Ack records that one result of a segment was acknowledged. It removes the file of a segment that
// holds no other results.
func (j *Journal) Ack(segment int) {
	if j.release(segment) {
		os.Remove(j.path(segment)) // if the file stays, the service ignores its results as outdated
	}
}

// release records that one result of a segment was acknowledged. It reports whether the segment's file
// can be removed. The file of the current segment cannot; instead, release may truncate it.
func (j *Journal) release(segment int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unackedCounts[segment]--; j.unackedCounts[segment] > 0 {
		return false
	}
	delete(j.unackedCounts, segment)
	if segment != j.segmentNumber {
		delete(j.unsyncedSegments, segment)
		delete(j.olderSizes, segment)
		j.reportSizeLocked()
		return segment != 0
	}
	if j.segmentSize > minTruncateBytes {
		size := j.segmentSize
		j.segmentSize = 0
		j.reportSizeLocked()
		if j.file.Truncate(0) != nil {
			j.segmentSize = size
			j.reportSizeLocked()
		}
	}
	return false
}

// Sync flushes all segments that hold new data, so that they survive a power cut.
func (j *Journal) Sync() error {
	j.mu.Lock()
	segments := slices.Sorted(maps.Keys(j.unsyncedSegments))
	j.unsyncedSegments = map[int]bool{}
	j.mu.Unlock()
	for i, n := range segments {
		err := syncFile(j.path(n))
		if err == nil && i == len(segments)-1 {
			err = atomicfile.SyncDir(j.dir) // without this, a power cut could remove the names of the segments
		}
		// A segment is missing if all its results were acknowledged.
		if err == nil || errors.Is(err, os.ErrNotExist) {
			continue
		}
		j.mu.Lock()
		for _, n := range segments[i:] {
			j.unsyncedSegments[n] = true
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

func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.file.Close()
}
