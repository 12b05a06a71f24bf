package output

import (
	"cmp"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"slices"
)

// fileExtent is a range of bytes of a region (a ring buffer, see store.go) in the file, with one checksum
// (CRC-32C). A write extends the last extent up to extentBytes and then begins a new one.
//
// A read checks whole extents. So while a byte of an extent is kept, none of its bytes may be overwritten.
// Therefore the file has space for one extent more than the region's capacity.
type fileExtent struct {
	offset    int64 // offset in the region; it keeps growing, although the region is a ring
	byteCount int64
	checksum  uint32 // CRC-32C of these bytes
}

// extentBytes is the maximum size of an extent, and so the number of bytes that one damaged byte can cost. It
// equals the maximum in the output file of an ended attempt, recordBytes. Each extent takes 24 bytes of memory.
const extentBytes = recordBytes

// checkedExtent caches the bytes of the extent that was checked last, so that several small reads from one
// extent check it only once.
type checkedExtent struct {
	region *ringRegion
	extent fileExtent
	bytes  []byte
}

// fileCapacity returns the number of bytes for which the file has space: the region's capacity and one extent.
func (r *ringRegion) fileCapacity() int64 { return r.capacity + extentBytes }

// writeRegionToFile writes bytes at an offset of a region in a file, and stores their checksums. *blockCount is the
// number of blocks in the file, which writeRegionToFile updates.
func writeRegionToFile(f *os.File, blockCount *int64, r *ringRegion, offset int64, p []byte) error {
	overwritten := offset + int64(len(p)) - r.fileCapacity()
	r.extents = r.extents[r.firstExtentAfter(overwritten-1):]
	if err := writeBlocks(f, blockCount, r, offset, p); err != nil {
		return err
	}
	for len(p) > 0 {
		i := len(r.extents) - 1
		if i < 0 || r.extents[i].offset+r.extents[i].byteCount != offset || r.extents[i].byteCount == extentBytes {
			r.extents = append(r.extents, fileExtent{offset: offset})
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

// firstExtentAfter returns the index of the first extent that begins after an offset.
func (r *ringRegion) firstExtentAfter(offset int64) int {
	i, found := slices.BinarySearchFunc(r.extents, offset, func(e fileExtent,
		at int64) int {
		return cmp.Compare(e.offset, at)
	})
	if found {
		i++
	}
	return i
}

// readRegionFromFile reads bytes of a region from the file, and returns the number of bytes read. If the extent of
// the next byte is damaged or missing, it returns ErrOutputDamaged.
func (s *blockStore) readRegionFromFile(r *ringRegion, offset int64, p []byte) (n int, err error) {
	for n < len(p) {
		i := r.firstExtentAfter(offset+int64(n)) - 1
		if i < 0 || offset+int64(n) >= r.extents[i].offset+r.extents[i].byteCount {
			return n, ErrOutputDamaged
		}
		e := r.extents[i]
		if s.lastCheckedExtent.region != r || s.lastCheckedExtent.extent != e {
			s.lastCheckedExtent.region, s.lastCheckedExtent.bytes = nil, slices.Grow(s.lastCheckedExtent.bytes[:0],
				extentBytes)[:e.byteCount]
			readBlock := func(blockNumber, blockOffset int64, p []byte) error {
				_, err := s.file.ReadAt(p, r.fileBlockNumbers[blockNumber]*fileBlockBytes+blockOffset)
				return err
			}
			err := visitBlocks(e.offset, s.lastCheckedExtent.bytes, fileBlockBytes, r.fileCapacity(), readBlock)
			if errors.Is(err, io.EOF) || err == nil && crc32.Checksum(s.lastCheckedExtent.bytes,
				castagnoliTable()) != e.checksum {
				err = ErrOutputDamaged
			}
			if err != nil {
				return n, err
			}
			s.lastCheckedExtent.region, s.lastCheckedExtent.extent = r, e
		}
		n += copy(p[n:], s.lastCheckedExtent.bytes[offset+int64(n)-e.offset:])
	}
	return n, nil
}

// damagedByteCount returns how many of the n bytes at an offset to report as damaged if the first of them is
// damaged: those in the extent of that byte, or all n if the byte is in no extent.
func (r *ringRegion) damagedByteCount(offset, n int64) int64 {
	if i := r.firstExtentAfter(offset) - 1; i >= 0 && offset < r.extents[i].offset+r.extents[i].byteCount {
		return min(n, r.extents[i].offset+r.extents[i].byteCount-offset)
	}
	return n
}
