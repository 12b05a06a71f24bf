package rundir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/runner/wire"
)

// maxJournalBytes bounds how many bytes of a journal are read. If the runner has switched to the account of its jobs,
// the jobs may have written anything into the journal.
const maxJournalBytes = 1 << 30

// ReadJournal reads the journal of a dead or unresponsive runner. It returns the results for whose leases selectsLease
// returns true. If a segment contains a damaged or incomplete record, ReadJournal ignores this record and the rest of
// the segment. minSize is the size that the runner stored in its table of running attempts. complete reports whether
// the journal has at least this size.
func ReadJournal(
	dir string, minSize JournalSize, selectsLease func(wire.Lease) bool,
) (results []*wire.Result, complete bool, err error) {
	segments, err := listSegmentNumbers(dir)
	if err != nil {
		return nil, false, err
	}
	found, read := JournalSize{newestSegmentNumber: minSize.newestSegmentNumber}, 0
	newestFound := minSize.newestSegmentNumber == 0 // true if the runner died before it created a journal
	for _, n := range segments {
		raw, err := ReadRegularFile(segmentPath(dir, n), maxSegmentBytes+2*wire.MaxFrameBytes)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false, fmt.Errorf("cannot read the result journal: %w", err)
		}
		if read += len(raw); read > maxJournalBytes {
			return nil, false, fmt.Errorf("the result journal (the files %s.* in %s) is larger than %d bytes, so it is "+
				"damaged; move these files away, which loses the results of the runner's last jobs", journalFilePrefix, dir,
				maxJournalBytes)
		}
		list, validBytes := parseSegment(raw)
		for _, r := range list {
			if selectsLease(r.Lease) {
				results = append(results, r)
			}
		}
		switch {
		case n == minSize.newestSegmentNumber:
			found.newestSegmentBytes, newestFound = int64(validBytes), true
		case n < minSize.newestSegmentNumber:
			found.olderSegmentsBytes += int64(validBytes)
		}
	}
	complete = newestFound && found.newestSegmentBytes >= minSize.newestSegmentBytes &&
		found.olderSegmentsBytes >= minSize.olderSegmentsBytes
	return results, complete, nil
}

// listSegmentNumbers lists the numbers of a journal's segments in ascending order.
func listSegmentNumbers(dir string) (segmentNumbers []int, err error) {
	names, err := filepath.Glob(filepath.Join(dir, journalFilePrefix+".*"))
	for _, name := range names {
		if n, err := strconv.Atoi(name[strings.LastIndexByte(name, '.')+1:]); err == nil {
			segmentNumbers = append(segmentNumbers, n)
		}
	}
	slices.Sort(segmentNumbers)
	return segmentNumbers, err
}

// parseSegment parses the records of a segment, up to the first damaged or incomplete one. validBytes is the
// total size of the records that it parsed.
func parseSegment(segmentBytes []byte) (results []*wire.Result, validBytes int) {
	for len(segmentBytes)-validBytes > 4 {
		record := segmentBytes[validBytes:]
		frame, n, err := wire.ParseFrame(record[4:])
		if err != nil || crc32.ChecksumIEEE(record[4:4+n]) != binary.LittleEndian.Uint32(record) {
			break
		}
		if r, ok := frame.(*wire.Result); ok {
			results = append(results, r)
		}
		validBytes += 4 + n
	}
	return results, validBytes
}
