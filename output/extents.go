package output

import (
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"sort"
)

// fileExtent is a range of bytes of a region (a ring buffer, see store.go) in the file, with one checksum (CRC-32C). A
// write adds bytes to the last extent until that extent has extentBytes bytes. Further bytes begin a new extent.
//
// A read verifies the checksums of whole extents. So a write must not overwrite any byte of an extent while one of its
// bytes is still kept. Therefore the file has space for one extent more than the region's capacity.
type fileExtent struct {
	regionOffset int64 // offset in the region; it keeps growing although the region is a ring
	byteCount    int64
	checksum     uint32 // CRC-32C of the bytes of the extent
}

// endOffset returns the offset after the last byte of the extent.
func (e *fileExtent) endOffset() int64 { return e.regionOffset + e.byteCount }

// extentBytes is the maximum size of an extent. It is also the number of bytes that are lost if one byte is damaged. It
// equals maxRecordDataBytes, the number of bytes that are lost in the output file of an ended attempt. Each extent
// takes 24 bytes of memory.
const extentBytes = maxRecordDataBytes

// checkedExtent caches the bytes of the extent that was read last. So several small reads from one extent verify its
// checksum only once.
type checkedExtent struct {
	region *ringRegion
	extent fileExtent
	bytes  []byte
}

// fileCapacity returns the number of bytes for which the file has space: the region's capacity and one extent.
func (r *ringRegion) fileCapacity() int64 { return r.capacity + extentBytes }

// writeRegionToFile writes bytes at an offset of a region to the file, and stores their checksums in memory.
func (s *blockStore) writeRegionToFile(r *ringRegion, offset int64, p []byte) error {
	overwritten := offset + int64(len(p)) - r.fileCapacity()
	r.extents = r.extents[r.firstExtentIndexAfter(overwritten-1):]
	err := visitBlocks(offset, p, fileBlockBytes, r.fileCapacity(), func(blockNumber, blockOffset int64, p []byte) error {
		for int64(len(r.fileBlockNumbers)) <= blockNumber {
			r.fileBlockNumbers = append(r.fileBlockNumbers, noFileBlockNumber)
		}
		if r.fileBlockNumbers[blockNumber] == noFileBlockNumber {
			r.fileBlockNumbers[blockNumber] = s.fileBlockCount
			s.fileBlockCount++
		}
		_, err := s.file.WriteAt(p, r.fileBlockNumbers[blockNumber]*fileBlockBytes+blockOffset)
		return err
	})
	if err != nil {
		return err
	}
	for len(p) > 0 {
		i := len(r.extents) - 1
		if i < 0 || r.extents[i].endOffset() != offset || r.extents[i].byteCount == extentBytes {
			r.extents = append(r.extents, fileExtent{regionOffset: offset})
			i++
		}
		e := &r.extents[i]
		n := min(extentBytes-e.byteCount, int64(len(p)))
		e.checksum = crc32.Update(e.checksum, castagnoliTable(), p[:n])
		e.byteCount += n
		p, offset = p[n:], offset+n
	}
	return nil
}

// firstExtentIndexAfter returns the index of the first extent that begins after an offset.
func (r *ringRegion) firstExtentIndexAfter(offset int64) int {
	return sort.Search(len(r.extents), func(i int) bool { return r.extents[i].regionOffset > offset })
}

// extentAt returns the extent that contains the byte at an offset. It returns nil if no extent contains the byte.
func (r *ringRegion) extentAt(offset int64) *fileExtent {
	if i := r.firstExtentIndexAfter(offset) - 1; i >= 0 && offset < r.extents[i].endOffset() {
		return &r.extents[i]
	}
	return nil
}

// readRegionFromFile reads bytes of a region from the file, and returns the number of bytes read. If the extent of
// the next byte is damaged or missing, it returns ErrOutputDamaged.
func (s *blockStore) readRegionFromFile(r *ringRegion, offset int64, p []byte) (n int, err error) {
	checked := &s.lastCheckedExtent
	for n < len(p) {
		e := r.extentAt(offset + int64(n))
		if e == nil {
			return n, ErrOutputDamaged
		}
		if checked.region != r || checked.extent != *e {
			checked.region, checked.bytes = nil, slices.Grow(checked.bytes[:0], extentBytes)[:e.byteCount]
			readBlock := func(blockNumber, blockOffset int64, p []byte) error {
				_, err := s.file.ReadAt(p, r.fileBlockNumbers[blockNumber]*fileBlockBytes+blockOffset)
				return err
			}
			err := visitBlocks(e.regionOffset, checked.bytes, fileBlockBytes, r.fileCapacity(), readBlock)
			if errors.Is(err, io.EOF) || err == nil && crc32.Checksum(checked.bytes, castagnoliTable()) != e.checksum {
				err = ErrOutputDamaged
			}
			if err != nil {
				return n, err
			}
			checked.region, checked.extent = r, *e
		}
		n += copy(p[n:], checked.bytes[offset+int64(n)-e.regionOffset:])
	}
	return n, nil
}

// damagedByteCount returns how many of the n bytes at an offset to report as damaged if the first of these bytes is
// damaged: the bytes in the extent of the first byte or, if that byte is in no extent, all n.
func (r *ringRegion) damagedByteCount(offset, n int64) int64 {
	if e := r.extentAt(offset); e != nil {
		return min(n, e.endOffset()-offset)
	}
	return n
}
