package output

import (
	"os"
	"slices"
)

// store keeps the bytes of regions: in memory up to InMemory bytes, then in one file. In both cases it
// allocates blocks when they are first written, so it takes only as much space as was written. The
// checksums of the bytes in the file stay in memory, since only this process reads the file
// (extents.go). The log's mu guards the store.
type store struct {
	spill  func() (*os.File, error)
	mem    []memBlock // blocks in memory; nil once there is a file
	used   int64      // bytes in mem
	file   *os.File
	blocks int64 // number of blocks in the file
	last   checkedExtent
}

// region is a ring buffer in the store. It keeps the last bytes written, at most room of them.
type region struct {
	room    int64
	end     int64   // number of bytes up to the end of the newest one, as if the region were not a ring
	blocks  []int64 // block number in the file of each block; noBlock for a block that was never written
	extents []extent
}

// memBlock is a block of a region in memory. bytes ends where the block was written up to.
type memBlock struct {
	of     *region
	number int64
	bytes  []byte
}

const (
	memBytes  = 4 << 10  // size of a block in memory
	fileBytes = 64 << 10 // size of a block of the file
	mostMem   = 64       // blocks in memory: enough for InMemory bytes with some gaps
	noBlock   = -1
)

// write writes bytes at an offset of a region, at most as many as the region has room for. If it fails,
// the earlier contents at this place are lost.
func (s *store) write(r *region, at int64, p []byte) error {
	if s.file == nil && !s.fits(r, at, p) {
		if err := s.toFile(); err != nil {
			return err
		}
	}
	if s.file != nil {
		return writeFile(s.file, &s.blocks, r, at, p)
	}
	r.end = at + int64(len(p))
	each(at, p, memBytes, r.room, func(number, from int64, p []byte) error {
		b := s.block(r, number)
		if b == nil {
			s.mem = append(s.mem, memBlock{of: r, number: number})
			b = &s.mem[len(s.mem)-1]
		}
		had := len(b.bytes)
		if int64(had) < from {
			b.bytes = append(b.bytes, make([]byte, from-int64(had))...)
		}
		over := copy(b.bytes[from:], p)
		b.bytes = append(b.bytes, p[over:]...)
		s.used += int64(len(b.bytes) - had)
		return nil
	})
	return nil
}

// fits reports whether bytes can be written to memory.
func (s *store) fits(r *region, at int64, p []byte) bool {
	used, blocks := s.used, len(s.mem)
	each(at, p, memBytes, r.room, func(number, from int64, p []byte) error {
		had := int64(0)
		if b := s.block(r, number); b != nil {
			had = int64(len(b.bytes))
		} else {
			blocks++
		}
		used += max(0, from+int64(len(p))-had)
		return nil
	})
	return used <= InMemory && blocks <= mostMem
}

// block returns a block in memory, or nil. It starts with the newest, which is usually the one.
func (s *store) block(r *region, number int64) *memBlock {
	for i := len(s.mem) - 1; i >= 0; i-- {
		if b := &s.mem[i]; b.of == r && b.number == number {
			return b
		}
	}
	return nil
}

// toFile moves the bytes in memory to a file.
func (s *store) toFile() error {
	f, err := s.spill()
	if err != nil {
		return err
	}
	var blocks int64
	for i, b := range s.mem {
		first := slices.IndexFunc(s.mem, func(other memBlock) bool { return other.of == b.of })
		if err == nil && first == i { // copy each region once
			err = s.copyRegion(f, &blocks, b.of)
		}
	}
	if err != nil {
		for _, b := range s.mem {
			b.of.blocks, b.of.extents = nil, nil
		}
		discard(f)
		return err
	}
	s.mem, s.used, s.file, s.blocks = nil, 0, f, blocks
	return nil
}

// copyRegion writes the bytes of a region in memory to a file, beginning with the oldest.
func (s *store) copyRegion(f *os.File, blocks *int64, r *region) error {
	for at := max(0, r.end-r.room); at < r.end; {
		place := at % r.room
		from := place % memBytes
		n := min(memBytes-from, r.room-place, r.end-at)
		if b := s.block(r, place/memBytes); b != nil && from < int64(len(b.bytes)) {
			if err := writeFile(f, blocks, r, at, b.bytes[from:min(from+n, int64(len(b.bytes)))]); err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}

// writeBlocks writes bytes to a region's blocks in a file. blocks is the number of blocks in the file.
func writeBlocks(f *os.File, blocks *int64, r *region, at int64, p []byte) error {
	return each(at, p, fileBytes, r.fileRoom(), func(number, from int64, p []byte) error {
		for int64(len(r.blocks)) <= number {
			r.blocks = append(r.blocks, noBlock)
		}
		if r.blocks[number] == noBlock {
			r.blocks[number] = *blocks
			*blocks++
		}
		_, err := f.WriteAt(p, r.blocks[number]*fileBytes+from)
		return err
	})
}

// read reads bytes that were written. It returns how many it has read, and ErrDamaged if the next byte
// is damaged.
func (s *store) read(r *region, at int64, p []byte) (int, error) {
	if s.file != nil {
		return s.readFile(r, at, p)
	}
	err := each(at, p, memBytes, r.room, func(number, from int64, p []byte) error {
		copy(p, s.block(r, number).bytes[from:])
		return nil
	})
	return len(p), err
}

// discard frees the memory and deletes the file.
func (s *store) discard() {
	if s.file != nil {
		discard(s.file)
	}
	*s = store{}
}

func discard(f *os.File) {
	f.Close() // an error does not matter, since the file is deleted
	os.Remove(f.Name())
}

// each divides bytes at an offset of a region into parts, one for each block. It calls do with the
// number of the block, the offset in the block, and the bytes. The region is a ring of room bytes.
func each(at int64, p []byte, size, room int64, do func(number, from int64, p []byte) error) error {
	for at %= room; len(p) > 0; at %= room {
		n := min(int64(len(p)), size-at%size, room-at)
		if err := do(at/size, at%size, p[:n]); err != nil {
			return err
		}
		p, at = p[n:], at+n
	}
	return nil
}
