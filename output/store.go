package output

import (
	"os"
	"slices"
)

// blockStore keeps the bytes of regions: up to MaxMemoryBytes bytes in memory, and more in one file. It
// allocates a block when the block is first written, so it uses only as much space as was written.
// The checksums of the bytes in the file stay in memory (extents.go), because only this process
// reads the file. The mu of the log guards the store.
type blockStore struct {
	createFile        func() (*os.File, error)
	memBlocks         []memBlock // blocks in memory; nil once the file exists
	memBytes          int64      // bytes in memBlocks
	file              *os.File
	fileBlockCount    int64 // number of blocks in the file
	lastCheckedExtent checkedExtent
}

// region is a ring buffer in the store. It keeps the last written bytes, at most capacity bytes.
type region struct {
	capacity  int64
	endOffset int64 // offset of the end of the newest byte, counted as if the region were not a ring
	// by block of the region, the number of the block in the file; noBlock if it was never written
	fileBlockNumbers []int64
	extents          []extent
}

// memBlock is a block of a region in memory. The slice bytes contains only the written part.
type memBlock struct {
	region *region
	number int64
	bytes  []byte
}

const (
	memBlockBytes  = 4 << 10  // size of a block in memory
	fileBlockBytes = 64 << 10 // size of a block of the file
	maxMemBlocks   = 64       // maximum number of blocks in memory, enough for MaxMemoryBytes bytes with some gaps
	noBlock        = -1
)

// write writes bytes at an offset of a region, at most as many as the region has room for. If it
// fails, the bytes that were stored there before are lost.
func (s *blockStore) write(r *region, at int64, p []byte) error {
	if s.file == nil && !s.fitsInMemory(r, at, p) {
		if err := s.moveToFile(); err != nil {
			return err
		}
	}
	if s.file != nil {
		return writeFile(s.file, &s.fileBlockCount, r, at, p)
	}
	r.endOffset = at + int64(len(p))
	eachBlock(at, p, memBlockBytes, r.capacity, func(number, from int64, p []byte) error {
		b := s.block(r, number)
		if b == nil {
			s.memBlocks = append(s.memBlocks, memBlock{region: r, number: number})
			b = &s.memBlocks[len(s.memBlocks)-1]
		}
		oldLength := len(b.bytes)
		if int64(oldLength) < from {
			b.bytes = append(b.bytes, make([]byte, from-int64(oldLength))...)
		}
		copied := copy(b.bytes[from:], p)
		b.bytes = append(b.bytes, p[copied:]...)
		s.memBytes += int64(len(b.bytes) - oldLength)
		return nil
	})
	return nil
}

// fitsInMemory reports whether bytes can be written to memory.
func (s *blockStore) fitsInMemory(r *region, at int64, p []byte) bool {
	used, blocks := s.memBytes, len(s.memBlocks)
	eachBlock(at, p, memBlockBytes, r.capacity, func(number, from int64, p []byte) error {
		oldLength := int64(0)
		if b := s.block(r, number); b != nil {
			oldLength = int64(len(b.bytes))
		} else {
			blocks++
		}
		used += max(0, from+int64(len(p))-oldLength)
		return nil
	})
	return used <= MaxMemoryBytes && blocks <= maxMemBlocks
}

// block returns a block of a region in memory, or nil if the block was not written. It searches
// from the newest block, which is usually the right one.
func (s *blockStore) block(r *region, number int64) *memBlock {
	for i := len(s.memBlocks) - 1; i >= 0; i-- {
		if b := &s.memBlocks[i]; b.region == r && b.number == number {
			return b
		}
	}
	return nil
}

// moveToFile moves the bytes in memory to a file.
func (s *blockStore) moveToFile() error {
	f, err := s.createFile()
	if err != nil {
		return err
	}
	var blocks int64
	for i, b := range s.memBlocks {
		first := slices.IndexFunc(s.memBlocks, func(other memBlock) bool { return other.region == b.region })
		if err == nil && first == i { // true once per region
			err = s.copyRegion(f, &blocks, b.region)
		}
	}
	if err != nil {
		for _, b := range s.memBlocks {
			b.region.fileBlockNumbers, b.region.extents = nil, nil
		}
		discard(f)
		return err
	}
	s.memBlocks, s.memBytes, s.file, s.fileBlockCount = nil, 0, f, blocks
	return nil
}

// copyRegion writes the bytes of a region in memory to a file, beginning with the oldest byte.
func (s *blockStore) copyRegion(f *os.File, blocks *int64, r *region) error {
	for at := max(0, r.endOffset-r.capacity); at < r.endOffset; {
		ringOffset := at % r.capacity
		blockOffset := ringOffset % memBlockBytes
		n := min(memBlockBytes-blockOffset, r.capacity-ringOffset, r.endOffset-at)
		if b := s.block(r, ringOffset/memBlockBytes); b != nil && blockOffset < int64(len(b.bytes)) {
			end := min(blockOffset+n, int64(len(b.bytes)))
			if err := writeFile(f, blocks, r, at, b.bytes[blockOffset:end]); err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}

// writeBlocks writes bytes to the blocks of a region in a file. *blocks is the number of blocks in
// the file.
func writeBlocks(f *os.File, blocks *int64, r *region, at int64, p []byte) error {
	return eachBlock(at, p, fileBlockBytes, r.fileCapacity(), func(number, from int64, p []byte) error {
		for int64(len(r.fileBlockNumbers)) <= number {
			r.fileBlockNumbers = append(r.fileBlockNumbers, noBlock)
		}
		if r.fileBlockNumbers[number] == noBlock {
			r.fileBlockNumbers[number] = *blocks
			*blocks++
		}
		_, err := f.WriteAt(p, r.fileBlockNumbers[number]*fileBlockBytes+from)
		return err
	})
}

// read reads bytes that were written and returns the number of bytes read. It returns ErrDamaged if
// the next byte is damaged.
func (s *blockStore) read(r *region, at int64, p []byte) (int, error) {
	if s.file != nil {
		return s.readFile(r, at, p)
	}
	err := eachBlock(at, p, memBlockBytes, r.capacity, func(number, from int64, p []byte) error {
		copy(p, s.block(r, number).bytes[from:])
		return nil
	})
	return len(p), err
}

// discard frees the memory and deletes the file.
func (s *blockStore) discard() {
	if s.file != nil {
		discard(s.file)
	}
	*s = blockStore{}
}

func discard(f *os.File) {
	f.Close() // ignore the error, because the file is deleted
	os.Remove(f.Name())
}

// eachBlock divides bytes at an offset of a region into parts, one per block. For each part, it
// calls the function process with the number of the block, the offset in the block, and the bytes.
// The region is a ring of capacity bytes.
func eachBlock(at int64, p []byte, size, capacity int64, process func(number, from int64, p []byte) error) error {
	for at %= capacity; len(p) > 0; at %= capacity {
		n := min(int64(len(p)), size-at%size, capacity-at)
		if err := process(at/size, at%size, p[:n]); err != nil {
			return err
		}
		p, at = p[n:], at+n
	}
	return nil
}
