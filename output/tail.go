package output

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"unicode/utf8"
)

// DecodeTail passes the chunks at the end of a file, in order, to a function. The file had size bytes when it was
// written. The chunks contain at least the given number of bytes from the end of each stream, and the gaps between
// them. DecodeTail reads only about as many bytes as it passes on. If any of these bytes are damaged, it returns
// ErrDamaged without calling the function. DecodeFile can then read the undamaged part.
func DecodeTail(r io.ReaderAt, size int64, tail int, each func(Chunk) error) error {
	if size <= 0 || tail <= 0 {
		return nil
	}
	w := &window{r: r, size: size}
	t, err := w.readTrailer(size - int64(trailerBytes))
	if err != nil {
		return err
	}
	var records []record
	for s := range t.lastRecordOffset {
		list, err := w.lastRecords(t, Stream(s), tail)
		if err != nil {
			return err
		}
		records = append(records, list...)
	}
	slices.SortStableFunc(records, func(a, b record) int { return cmp.Compare(a.fileOffset, b.fileOffset) })
	for i := range records {
		if err := w.loadRecordData(&records[i]); err != nil {
			return err
		}
	}
	for _, rec := range records {
		if err := each(rec.Chunk); err != nil {
			return err
		}
	}
	return nil
}

// record is a record of a file, at the offset fileOffset. DecodeTail needs the last wantedBytes bytes of its
// data.
type record struct {
	header
	fileOffset  int64
	wantedBytes int
}

// loadRecordData reads all data of a record and verifies the checksum. It then keeps only about the last
// wantedBytes bytes, in rec.Data.
func (w *window) loadRecordData(rec *record) error {
	rec.Offset = rec.position
	if rec.dataBytes == 0 {
		return nil
	}
	b, err := w.readExactly(rec.fileOffset+rec.headerBytes, int(rec.dataBytes))
	if err != nil {
		return err
	}
	if crc32.Checksum(b, castagnoli()) != rec.dataChecksum {
		return fmt.Errorf("%w: invalid record at byte %d", ErrDamaged, rec.fileOffset)
	}
	begin := len(b) - rec.wantedBytes
	begin -= TrailingPartial(b[max(0, begin-utf8.UTFMax+1):begin]) // begin earlier if this would cut a character
	rec.Data, rec.Offset = bytes.Clone(b[begin:]), rec.position+int64(begin)
	return nil
}

// lastRecords returns the last records of a stream, in reverse order. It returns as many records as are
// needed for wantedBytes bytes of data.
func (w *window) lastRecords(t trailer, s Stream, wantedBytes int) (list []record, err error) {
	const perByte = 2 // maximum number of records per byte of data, because a gap may precede each byte
	end, position := w.size-int64(trailerBytes), t.printedBytes[s]
	for at, maxRecords := t.lastRecordOffset[s], perByte*wantedBytes; at >= 0 && wantedBytes > 0; maxRecords-- {
		if at >= end || maxRecords == 0 {
			return nil, fmt.Errorf("%w: the records in the file are not consecutive", ErrDamaged)
		}
		h, err := w.readHeader(at)
		if err != nil {
			return nil, err
		}
		if h.Stream != s || at+h.headerBytes+h.dataBytes > end || h.position+h.dataBytes+h.DroppedBytes != position {
			return nil, fmt.Errorf("%w: the records in the file are not consecutive", ErrDamaged)
		}
		n := int(min(h.dataBytes, int64(wantedBytes)))
		list = append(list, record{h, at, n})
		wantedBytes -= n
		if h.distance == 0 {
			break
		}
		end, position, at = at, h.position, at-h.distance
	}
	return list, nil
}

// window reads bytes of a file through a buffer. It may read more bytes than requested, and then serves
// later reads from the buffer.
type window struct {
	r         io.ReaderAt
	size      int64
	readAhead int    // number of bytes to read in one call if the file is read from its beginning to its end; 0 otherwise
	offset    int64  // offset in the file of the first byte in buf
	buf       []byte // buffered bytes of the file
}

// windowBytes is the minimum number of bytes that a window reads in one call if the last read was nearby in the file.
const windowBytes = 4 << 10

// readExactly reads n bytes, from the given offset on. The returned bytes are valid until the next read. If the
// file has fewer bytes, readExactly returns ErrDamaged.
func (w *window) readExactly(at int64, n int) ([]byte, error) {
	b, err := w.readUpTo(at, n)
	if err == nil && len(b) < n {
		err = fmt.Errorf("%w: the file ends too early, at byte %d", ErrDamaged, at+int64(len(b)))
	}
	return b, err
}

// readUpTo reads at least one and at most n bytes, from the given offset on. If the file ends before this
// offset, readUpTo returns ErrDamaged.
func (w *window) readUpTo(at int64, n int) ([]byte, error) {
	n = int(min(int64(n), w.size-at))
	if n <= 0 || at < 0 {
		return nil, fmt.Errorf("%w: the file ends too early, at byte %d", ErrDamaged, w.size)
	}
	if at < w.offset || at+int64(n) > w.offset+int64(len(w.buf)) {
		begin, end := at, at+int64(n)
		switch near := len(w.buf) > 0 && at > w.offset-windowBytes && at < w.offset+2*windowBytes; {
		case w.readAhead > 0:
			end = min(w.size, max(end, begin+int64(w.readAhead)))
		case near && at < w.offset:
			begin = max(0, min(begin, end-windowBytes))
		case near:
			end = min(w.size, max(end, begin+windowBytes))
		}
		w.offset, w.buf = begin, slices.Grow(w.buf[:0], int(end-begin))[:end-begin]
		got, err := w.r.ReadAt(w.buf, begin)
		w.buf = w.buf[:got]
		switch {
		case err != nil && err != io.EOF:
			w.buf = nil
			return nil, err
		case at >= begin+int64(got): // the file was truncated after it was opened
			return nil, fmt.Errorf("%w: the file ends too early, at byte %d", ErrDamaged, begin+int64(got))
		}
	}
	b := w.buf[at-w.offset:]
	return b[:min(n, len(b))], nil
}
