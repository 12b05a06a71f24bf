package output

import (
	"os"
	"slices"
)

// blockStore keeps the bytes of a log's regions: up to MaxMemoryBytes bytes in memory, and more in one file. It adds a
// block to the file when the block is first written, so the file has only blocks that are used. The checksums for the
// file stay in memory (extents.go), because only this process reads the file. The mutex mu of the Log guards the store.
type blockStore struct {
	createFile        func() (*os.File, error) // creates the file when it is needed
	memBlocks         []memBlock               // blocks in memory, in order for each region; nil once the file exists
	memBytes          int64                    // number of bytes in memBlocks
	file              *os.File
	fileBlockCount    int64 // number of blocks in the file
	lastCheckedExtent checkedExtent
}

// ringRegion is a ring buffer in the store. It keeps the bytes that were written last, at most capacity bytes.
type ringRegion struct {
	capacity int64
	// fileBlockNumbers contains, for each block of the region, the number of the block in the file. It is
	// noFileBlockNumber if the block was never written.
	fileBlockNumbers []int64
	extents          []fileExtent
}

// memBlock keeps consecutive bytes of a region in memory.
type memBlock struct {
	region       *ringRegion
	regionOffset int64 // offset of the first byte; it keeps growing although the region is a ring
	bytes        []byte
}

// endOffset returns the offset after the last byte of the block.
func (b *memBlock) endOffset() int64 { return b.regionOffset + int64(len(b.bytes)) }

const (
	fileBlockBytes    = 64 << 10 // size of a block of the file
	maxMemBlocks      = 64       // maximum number of blocks in memory; bytes after a gap in a region begin a new block
	noFileBlockNumber = -1
)

// writeRegion writes the bytes p at an offset of a region. p must not be longer than the capacity of the region, and
// must not overlap bytes of an earlier write. If writeRegion fails, the older bytes whose space in the ring p would
// have taken are lost.
func (s *blockStore) writeRegion(r *ringRegion, offset int64, p []byte) error {
	if s.file == nil && s.writeRegionToMemory(r, offset, p) {
		return nil
	}
	if s.file == nil {
		if err := s.moveToFile(); err != nil {
			return err
		}
	}
	return s.writeRegionToFile(r, offset, p)
}

// writeRegionToMemory writes bytes of a region to memory. If memory has no space for them, it writes nothing and
// returns false.
func (s *blockStore) writeRegionToMemory(r *ringRegion, offset int64, p []byte) bool {
	last := -1 // index of the last block of the region; -1 if it has none
	for i := range s.memBlocks {
		b := &s.memBlocks[i]
		if b.region != r {
			continue
		}
		last = i
		overwritten := min(max(0, offset+int64(len(p))-r.capacity-b.regionOffset), int64(len(b.bytes)))
		b.regionOffset, b.bytes, s.memBytes = b.regionOffset+overwritten, b.bytes[overwritten:], s.memBytes-overwritten
	}
	if s.memBytes+int64(len(p)) > MaxMemoryBytes {
		return false
	}
	if last < 0 || s.memBlocks[last].endOffset() != offset {
		s.memBlocks = slices.DeleteFunc(s.memBlocks, func(b memBlock) bool { return len(b.bytes) == 0 })
		if len(s.memBlocks) == maxMemBlocks {
			return false
		}
		last = len(s.memBlocks)
		s.memBlocks = append(s.memBlocks, memBlock{region: r, regionOffset: offset})
	}
	s.memBlocks[last].bytes = append(s.memBlocks[last].bytes, p...)
	s.memBytes += int64(len(p))
	return true
}

// moveToFile creates the file, writes the bytes in memory to it, and frees that memory.
func (s *blockStore) moveToFile() error {
	f, err := s.createFile()
	if err != nil {
		return err
	}
	s.file = f
	for _, b := range s.memBlocks {
		if err == nil {
			err = s.writeRegionToFile(b.region, b.regionOffset, b.bytes)
		}
	}
	if err != nil {
		for _, b := range s.memBlocks {
			b.region.fileBlockNumbers, b.region.extents = nil, nil
		}
		deleteFile(f)
		s.file, s.fileBlockCount = nil, 0
		return err
	}
	s.memBlocks, s.memBytes = nil, 0
	return nil
}

// readRegion reads bytes of a region, from the given offset on, and returns the number of bytes read. If the next byte
// is damaged, it returns ErrOutputDamaged.
func (s *blockStore) readRegion(r *ringRegion, offset int64, p []byte) (int, error) {
	if s.file != nil {
		return s.readRegionFromFile(r, offset, p)
	}
	for _, b := range s.memBlocks {
		if b.region == r && offset >= b.regionOffset && offset < b.endOffset() {
			copy(p, b.bytes[offset-b.regionOffset:])
		}
	}
	return len(p), nil
}

// discard frees the memory and deletes the file.
func (s *blockStore) discard() {
	if s.file != nil {
		deleteFile(s.file)
	}
	*s = blockStore{}
}

func deleteFile(f *os.File) {
	f.Close() // ignore the error, because the file is deleted
	os.Remove(f.Name())
}

// visitBlocks splits the bytes p, which begin at an offset of a region, at the ends of the region's blocks. For each
// part, it calls visitBlock with the number of the block, the offset in the block, and the bytes. Each block has
// blockBytes bytes. The region is a ring of capacity bytes.
func visitBlocks(offset int64, p []byte, blockBytes, capacity int64,
	visitBlock func(blockNumber, blockOffset int64, p []byte) error) error {
	for offset %= capacity; len(p) > 0; offset %= capacity {
		n := min(int64(len(p)), blockBytes-offset%blockBytes, capacity-offset)
		if err := visitBlock(offset/blockBytes, offset%blockBytes, p[:n]); err != nil {
			return err
		}
		p, offset = p[n:], offset+n
	}
	return nil
}
