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

// DecodeTail passes the chunks at the end of a file, in order, to handleChunk. They contain at least the last tailBytes
// bytes of each stream, and the gaps between these bytes. fileBytes is the size that the file had when it was written.
//
// DecodeTail reads little more than these bytes. If any of them are damaged, it returns ErrOutputDamaged without
// calling handleChunk. The caller can then use DecodeFile to read the undamaged part.
func DecodeTail(r io.ReaderAt, fileBytes int64, tailBytes int, handleChunk func(Chunk) error) error {
	if fileBytes <= 0 || tailBytes <= 0 {
		return nil
	}
	w := &bufferedReader{file: r, fileBytes: fileBytes}
	t, err := w.readTrailer(fileBytes - int64(trailerBytes))
	if err != nil {
		return err
	}
	var records []fileRecord
	for s := range t.lastRecordOffsets {
		list, err := w.lastRecords(t, Stream(s), tailBytes)
		if err != nil {
			return err
		}
		records = append(records, list...)
	}
	slices.SortStableFunc(records, func(a, b fileRecord) int { return cmp.Compare(a.fileOffset, b.fileOffset) })
	for i := range records {
		if err := w.loadRecordData(&records[i]); err != nil {
			return err
		}
	}
	for _, rec := range records {
		if err := handleChunk(rec.Chunk); err != nil {
			return err
		}
	}
	return nil
}

// fileRecord is a record in a file. DecodeTail needs only the last tailDataBytes bytes of the record's data.
type fileRecord struct {
	recordHeader
	fileOffset    int64
	tailDataBytes int
}

// loadRecordData reads all data of a record and verifies the checksum. It then keeps only about the last
// wantedDataBytes bytes, in rec.Data.
func (w *bufferedReader) loadRecordData(rec *fileRecord) error {
	rec.StreamOffset = rec.streamPosition
	if rec.dataBytes == 0 {
		return nil
	}
	b, err := w.readExactly(rec.fileOffset+rec.headerBytes, int(rec.dataBytes))
	if err != nil {
		return err
	}
	if crc32.Checksum(b, castagnoliTable()) != rec.dataChecksum {
		return fmt.Errorf("%w: invalid record at byte %d", ErrOutputDamaged, rec.fileOffset)
	}
	begin := len(b) - rec.tailDataBytes
	// begin earlier if this would cut a character
	begin -= TrailingPartialCharacterBytes(b[max(0, begin-utf8.UTFMax+1):begin])
	rec.Data, rec.StreamOffset = bytes.Clone(b[begin:]), rec.streamPosition+int64(begin)
	return nil
}

// lastRecords returns the last records of a stream, beginning with the last one. Together they have at least
// minDataBytes bytes of data, if the stream has that many.
func (w *bufferedReader) lastRecords(t fileTrailer, s Stream, minDataBytes int) (records []fileRecord, err error) {
	const recordsPerByte = 2 // maximum number of records per byte of data: a gap may precede each byte
	end, position := w.fileBytes-int64(trailerBytes), t.printedBytes[s]
	for at, maxRecords := t.lastRecordOffsets[s], recordsPerByte*minDataBytes; at >= 0 &&
		minDataBytes > 0; maxRecords-- {
		if at >= end || maxRecords == 0 {
			return nil, fmt.Errorf("%w: the records in the file are not consecutive", ErrOutputDamaged)
		}
		h, err := w.readHeader(at)
		if err != nil {
			return nil, err
		}
		if h.Stream != s || at+h.headerBytes+h.dataBytes > end || h.streamPosition+h.dataBytes+h.DroppedBytes != position {
			return nil, fmt.Errorf("%w: the records in the file are not consecutive", ErrOutputDamaged)
		}
		n := int(min(h.dataBytes, int64(minDataBytes)))
		records = append(records, fileRecord{h, at, n})
		minDataBytes -= n
		if h.prevRecordDistance == 0 {
			break
		}
		end, position, at = at, h.streamPosition, at-h.prevRecordDistance
	}
	return records, nil
}

// bufferedReader reads bytes of a file through a buffer. It may read more than requested, to serve later reads.
type bufferedReader struct {
	file             io.ReaderAt
	fileBytes        int64
	readAheadBytes   int    // bytes to read in one call while the file is read from beginning to end; 0 otherwise
	bufferFileOffset int64  // offset in the file of the first byte in buffer
	buffer           []byte // buffered bytes of the file
}

// minReadBytes is the minimum number of bytes that a bufferedReader reads in one call if the previous read was
// at a nearby offset.
const minReadBytes = 4 << 10

// readExactly reads n bytes, from the given offset on. The returned bytes are valid until the next read. If the
// file has fewer bytes, readExactly returns ErrOutputDamaged.
func (w *bufferedReader) readExactly(offset int64, n int) ([]byte, error) {
	b, err := w.readUpTo(offset, n)
	if err == nil && len(b) < n {
		err = fmt.Errorf("%w: the file ends too early, at byte %d", ErrOutputDamaged, offset+int64(len(b)))
	}
	return b, err
}

// readUpTo reads at least one and at most n bytes, from the given offset on. If the file ends before this
// offset, readUpTo returns ErrOutputDamaged.
func (w *bufferedReader) readUpTo(offset int64, n int) ([]byte, error) {
	n = int(min(int64(n), w.fileBytes-offset))
	if n <= 0 || offset < 0 {
		return nil, fmt.Errorf("%w: the file ends too early, at byte %d", ErrOutputDamaged, w.fileBytes)
	}
	if offset < w.bufferFileOffset || offset+int64(n) > w.bufferFileOffset+int64(len(w.buffer)) {
		begin, end := offset, offset+int64(n)
		if w.readAheadBytes > 0 {
			end = min(w.fileBytes, max(end, begin+int64(w.readAheadBytes)))
		} else if len(w.buffer) > 0 && offset > w.bufferFileOffset-minReadBytes &&
			offset < w.bufferFileOffset+2*minReadBytes {
			begin, end = max(0, min(begin, end-minReadBytes)), min(w.fileBytes, max(end, begin+minReadBytes))
		}
		w.bufferFileOffset, w.buffer = begin, slices.Grow(w.buffer[:0], int(end-begin))[:end-begin]
		got, err := w.file.ReadAt(w.buffer, begin)
		w.buffer = w.buffer[:got]
		switch {
		case err != nil && err != io.EOF:
			w.buffer = nil
			return nil, err
		case offset >= begin+int64(got): // the file was truncated after it was opened
			return nil, fmt.Errorf("%w: the file ends too early, at byte %d", ErrOutputDamaged, begin+int64(got))
		}
	}
	b := w.buffer[offset-w.bufferFileOffset:]
	return b[:min(n, len(b))], nil
}
