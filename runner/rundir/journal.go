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

// A segment is one file of the journal. When a segment has reached maxSegmentBytes, the journal continues in a new
// segment. When all results in the newest segment are acknowledged, the journal truncates the segment if it is larger
// than minTruncatedSegmentBytes. Truncating a smaller segment is not worth a system call.
const (
	maxSegmentBytes          = 64 << 20
	minTruncatedSegmentBytes = 1 << 20
)

// Journal stores the results that the service has not acknowledged, in files. Only Sync flushes the files to the disk.
// Results that were written but not flushed survive the death of any process, but not a power cut.
//
// For each result, the journal contains a record: a CRC-32 (IEEE), followed by the Result frame that the CRC
// covers. Each record is written by one system call. The methods may be called concurrently.
type Journal struct {
	dir  string
	mode os.FileMode // mode of the segment files
	// onResize receives the new size of the journal. It is called before the journal shrinks and after it has
	// grown, so the last size that it received is never too large.
	onResize func(JournalSize)

	// mu guards all fields below. A write of a record holds mu until the record is complete or, after an error, removed
	// again. So the next record never follows an incomplete one.
	mu                    sync.Mutex
	segmentFile           *os.File      // file of the current segment
	segmentNumber         int           // number of the current segment
	segmentSize           int64         // size of the current segment, in bytes
	unackedCountBySegment map[int]int   // number of unacknowledged results, by the number of the segment
	olderSegmentSizes     map[int]int64 // sizes in bytes of the earlier segments that still hold results
	unsyncedSegments      map[int]bool  // segments with data that a power cut could destroy
	recordBuf             []byte        // reused to build each record
}

// JournalSize is the size of a journal in bytes: of the newest segment, and of all older segments together. A runner
// stores it in its table of running attempts. A journal that is smaller than its stored size is damaged.
type JournalSize struct {
	newestSegmentNumber                    int // number of the newest segment; 0 before the journal exists
	newestSegmentBytes, olderSegmentsBytes int64
}

// OpenJournal creates the journal of a new runner in the directory dir. onResize receives the size of the journal, as
// described for Journal.onResize.
func OpenJournal(dir string, mode os.FileMode, onResize func(JournalSize)) (*Journal, error) {
	j := &Journal{
		dir: dir, mode: mode, onResize: onResize,
		unackedCountBySegment: map[int]int{}, olderSegmentSizes: map[int]int64{}, unsyncedSegments: map[int]bool{},
	}
	return j, j.startSegmentLocked()
}

// reportSizeLocked passes the size of the journal to onResize. The caller holds mu.
func (j *Journal) reportSizeLocked() {
	w := JournalSize{newestSegmentNumber: j.segmentNumber, newestSegmentBytes: j.segmentSize}
	for _, size := range j.olderSegmentSizes {
		w.olderSegmentsBytes += size
	}
	j.onResize(w)
}

func (j *Journal) startSegmentLocked() error {
	f, err := os.OpenFile(j.segmentPath(j.segmentNumber+1), os.O_CREATE|os.O_RDWR, j.mode)
	if err != nil {
		return fmt.Errorf("cannot open the result journal: %w", err)
	}
	if j.segmentFile != nil {
		j.segmentFile.Close() // ignore an error, because all records are written
		if j.unackedCountBySegment[j.segmentNumber] > 0 {
			j.olderSegmentSizes[j.segmentNumber] = j.segmentSize
		}
	}
	j.segmentFile, j.segmentSize = f, 0
	j.segmentNumber++
	j.reportSizeLocked()
	return nil
}

func (j *Journal) segmentPath(segmentNumber int) string { return segmentPath(j.dir, segmentNumber) }

func segmentPath(dir string, segmentNumber int) string {
	return filepath.Join(dir, journalFilePrefix+"."+strconv.Itoa(segmentNumber))
}

// AppendResult writes a record with encodedResult, an encoded Result frame. It returns the number of the segment that
// contains the record, or 0 after an error.
func (j *Journal) AppendResult(encodedResult []byte) (segmentNumber int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if failpoint.IsEnabled("nojournal") {
		return 0, errors.New("the journal cannot be written")
	}
	if j.segmentSize > maxSegmentBytes {
		if err := j.startSegmentLocked(); err != nil {
			return 0, err
		}
	}
	j.recordBuf = binary.LittleEndian.AppendUint32(j.recordBuf[:0], crc32.ChecksumIEEE(encodedResult))
	j.recordBuf = append(j.recordBuf, encodedResult...)
	if _, err := j.segmentFile.WriteAt(j.recordBuf, j.segmentSize); err != nil {
		// Remove the incomplete record. Otherwise readers would not find the records after it.
		return 0, errors.Join(err, j.segmentFile.Truncate(j.segmentSize))
	}
	j.segmentSize += int64(len(j.recordBuf))
	j.unackedCountBySegment[j.segmentNumber]++
	j.unsyncedSegments[j.segmentNumber] = true
	j.reportSizeLocked()
	return j.segmentNumber, nil
}

// AckResult records that one result in a segment was acknowledged. When all results of a segment that is not the newest
// are acknowledged, AckResult removes the file of the segment.
func (j *Journal) AckResult(segmentNumber int) {
	if j.recordResultAck(segmentNumber) {
		// after an error, the file stays, and the service ignores its results as outdated
		os.Remove(j.segmentPath(segmentNumber))
	}
}

// recordResultAck records that one result in a segment was acknowledged. It reports whether the caller can remove
// the segment's file. For the newest segment, it returns false, but may truncate the file.
func (j *Journal) recordResultAck(segmentNumber int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unackedCountBySegment[segmentNumber]--; j.unackedCountBySegment[segmentNumber] > 0 {
		return false
	}
	delete(j.unackedCountBySegment, segmentNumber)
	if segmentNumber != j.segmentNumber {
		delete(j.unsyncedSegments, segmentNumber)
		delete(j.olderSegmentSizes, segmentNumber)
		j.reportSizeLocked()
		return segmentNumber != 0
	}
	if j.segmentSize > minTruncatedSegmentBytes {
		size := j.segmentSize
		j.segmentSize = 0
		j.reportSizeLocked()
		if j.segmentFile.Truncate(0) != nil {
			j.segmentSize = size
			j.reportSizeLocked()
		}
	}
	return false
}

// Sync flushes all segments with new data to the disk, so that the data survives a power cut.
func (j *Journal) Sync() error {
	j.mu.Lock()
	segments := slices.Sorted(maps.Keys(j.unsyncedSegments))
	j.unsyncedSegments = map[int]bool{}
	j.mu.Unlock()
	for i, n := range segments {
		err := syncFile(j.segmentPath(n))
		if err == nil && i == len(segments)-1 {
			err = atomicfile.SyncDir(j.dir) // otherwise a power cut could remove the files from the directory
		}
		// A missing segment was removed because all its results were acknowledged.
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
	return j.segmentFile.Close()
}
