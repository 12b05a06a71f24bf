package output

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
)

const (
	fileRecordBit      = 0x40     // bit in the kind byte that marks a record of a file
	trailerKind        = 0x3f     // kind byte of a trailer
	maxRecordDataBytes = 32 << 10 // maximum number of bytes of data in one record
	checksumBytes      = 4        // length of a checksum
	maxHeaderBytes     = 1 + 4*binary.MaxVarintLen64 + 2*checksumBytes
	trailerMagic       = "qctl-end" // last bytes of a file, which mark a complete trailer
	trailerBytes       = 1 + 5*8 + checksumBytes + len(trailerMagic)
	maxPrintedBytes    = 1 << 60  // maximum number of bytes of a stream; sums of two such numbers do not overflow
	readAheadBytes     = 64 << 10 // number of bytes that DecodeFile reads from the file at a time
)

// castagnoliTable returns the table for CRC-32C, which processors compute with one instruction. Package crc32
// builds the table at the first call. A package variable would build it at the start of every program,
// which would make the start of the client 0.1 ms slower.
func castagnoliTable() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// ErrOutputDamaged means that an output file is damaged or was cut.
var ErrOutputDamaged = errors.New("the output file is damaged")

// recordHeader is a record in a file without its data.
type recordHeader struct {
	Chunk                    // the chunk of the record, without Data
	prevRecordDistance int64 // distance in bytes to the stream's previous record; 0 for its first record
	streamPosition     int64 // number of bytes that the stream had printed before this record
	dataBytes          int64 // length of the data in bytes
	dataChecksum       uint32
	headerBytes        int64 // length of the header in bytes
}

// fileTrailer is the last part of a file. doc.go describes the format.
type fileTrailer struct {
	lastRecordOffsets [2]int64 // by stream: offset of the last record; -1 without records
	printedBytes      [2]int64 // by stream: number of printed bytes
}

// EncodeFile writes all bytes that the log keeps to w, in the file format of doc.go.
func (l *Log) EncodeFile(w io.Writer) error {
	t := fileTrailer{lastRecordOffsets: [2]int64{-1, -1}}
	at := int64(0)
	var b []byte
	err := l.readAllChunks(maxRecordDataBytes, func(chunks []Chunk) error {
		b = b[:0]
		for i := range chunks {
			begin, c := at+int64(len(b)), &chunks[i]
			// Write no record for damaged bytes. Readers calculate the number of missing bytes from the position of the next
			// record or from the trailer.
			if c.DamagedBytes > 0 {
				t.printedBytes[c.Stream] += c.DamagedBytes
				continue
			}
			distance := int64(0)
			if last := t.lastRecordOffsets[c.Stream]; last >= 0 {
				distance = begin - last
			}
			b = appendFileRecord(b, begin, distance, t.printedBytes[c.Stream], c)
			t.lastRecordOffsets[c.Stream] = begin
			t.printedBytes[c.Stream] += c.ByteLength()
		}
		at += int64(len(b))
		_, err := w.Write(b)
		return err
	})
	if err != nil {
		return err
	}
	_, err = w.Write(t.appendTo(nil, at))
	return err
}

// appendFileRecord appends the record of a chunk to b. offset is the record's offset in the file. prevRecordDistance
// and streamPosition are described at the type header.
func appendFileRecord(b []byte, offset, prevRecordDistance, streamPosition int64, c *Chunk) []byte {
	begin := len(b)
	kind := byte(c.Stream) | fileRecordBit
	if c.DroppedBytes > 0 {
		kind |= gapRecordBit
	}
	b = binary.AppendUvarint(append(b, kind), uint64(prevRecordDistance))
	b = binary.AppendVarint(b, c.ReadTimeMillis)
	b = binary.AppendUvarint(b, uint64(streamPosition))
	b = binary.AppendUvarint(b, uint64(c.ByteLength()))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(c.Data, castagnoliTable()))
	b = binary.LittleEndian.AppendUint32(b, checksumAt(offset, b[begin:]))
	return append(b, c.Data...)
}

// checksumAt returns a checksum of an offset in the file and of the bytes b at that offset.
func checksumAt(offset int64, b []byte) uint32 {
	encodedOffset := binary.LittleEndian.AppendUint64(nil, uint64(offset))
	return crc32.Update(crc32.Checksum(encodedOffset, castagnoliTable()), castagnoliTable(), b)
}

// parseHeader parses the header of a record. b contains the bytes of the file from offset on. ok is false
// if the header is missing or damaged.
func parseHeader(b []byte, offset int64) (h recordHeader, ok bool) {
	if len(b) == 0 || b[0]&^(gapRecordBit|1) != fileRecordBit {
		return h, false
	}
	kind := b[0]
	in := bytes.NewReader(b[1:])
	distance, err1 := binary.ReadUvarint(in)
	time, err2 := binary.ReadVarint(in)
	position, err3 := binary.ReadUvarint(in)
	n, err4 := binary.ReadUvarint(in)
	end := len(b) - in.Len()
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || in.Len() < 2*checksumBytes {
		return h, false
	}
	end += checksumBytes
	if binary.LittleEndian.Uint32(b[end:]) != checksumAt(offset, b[:end]) {
		return h, false
	}
	h = recordHeader{Chunk: Chunk{Stream: Stream(kind & 1), ReadTimeMillis: time}, prevRecordDistance: int64(distance),
		streamPosition: int64(position)}
	h.dataChecksum, h.headerBytes = binary.LittleEndian.Uint32(b[end-checksumBytes:]), int64(end+checksumBytes)
	if kind&gapRecordBit != 0 {
		h.DroppedBytes = int64(n)
		ok = n > 0 && n < maxPrintedBytes
	} else {
		h.dataBytes = int64(n)
		ok = n <= maxRecordBytes
	}
	return h, ok && distance <= uint64(offset) && position < maxPrintedBytes
}

// appendTo appends the encoded trailer to b. offset is the offset of the trailer in the file.
func (t fileTrailer) appendTo(b []byte, offset int64) []byte {
	begin := len(b)
	b = append(b, trailerKind)
	for _, n := range slices.Concat(t.lastRecordOffsets[:], t.printedBytes[:], []int64{offset}) {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return append(binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[begin:], castagnoliTable())), trailerMagic...)
}

// parseTrailer parses the trailer of a file. b contains the bytes of the file from offset on. ok is false
// if the trailer is missing or damaged.
func parseTrailer(b []byte, offset int64) (t fileTrailer, ok bool) {
	if len(b) != trailerBytes || b[0] != trailerKind || string(b[trailerBytes-len(trailerMagic):]) != trailerMagic {
		return t, false
	}
	field := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[1+8*i:])) }
	t = fileTrailer{lastRecordOffsets: [2]int64{field(0), field(1)}, printedBytes: [2]int64{field(2), field(3)}}
	sum := b[trailerBytes-len(trailerMagic)-checksumBytes:]
	ok = field(4) == offset && binary.LittleEndian.Uint32(sum) == crc32.Checksum(b[:len(b)-len(sum)], castagnoliTable())
	return t, ok && max(t.printedBytes[0], t.printedBytes[1]) < maxPrintedBytes
}

// DecodeFile passes every chunk of a file, in order, to handleChunk. fileBytes is the size that the file had
// when it was written. For damaged or missing bytes, DecodeFile passes a chunk with their number.
func DecodeFile(r io.ReaderAt, fileBytes int64, handleChunk func(Chunk) error) error {
	d := &outputFileReader{bufferedReader: bufferedReader{file: r, fileBytes: fileBytes, readAheadBytes: readAheadBytes},
		handleChunk: handleChunk}
	for at := int64(0); ; {
		h, err := d.nextHeader(at)
		if err == nil {
			err = d.emitRecord(&h, at)
			at += h.headerBytes + h.dataBytes
		} else if t, trailerErr := d.readTrailer(at); trailerErr == nil {
			return d.emitMissingTail(t)
		} else if errors.Is(err, ErrOutputDamaged) {
			damagedFrom := at
			if at, err = d.findNextRecord(at + 1); errors.Is(err, ErrOutputDamaged) {
				return d.emitLossOfUnknownStream(fileBytes - damagedFrom - int64(trailerBytes))
			}
			d.skippedBytes += at - damagedFrom
		}
		if err != nil {
			return err
		}
	}
}

// outputFileReader reads an output file from its beginning to its end.
type outputFileReader struct {
	bufferedReader
	handleChunk         func(Chunk) error
	emittedBytes        [2]int64 // by stream: bytes that were passed to handleChunk as data or gaps
	printedBytes        [2]int64 // by stream: bytes up to the end of the last record with a valid header
	lastChunkTimeMillis [2]int64 // by stream: time of the last chunk passed to handleChunk
	skippedBytes        int64    // number of bytes that were read without finding a valid header
}

// nextHeader reads the header at an offset. It returns ErrOutputDamaged if there is no valid header, or if the header
// does not fit the file and the records before it.
func (d *outputFileReader) nextHeader(offset int64) (recordHeader, error) {
	h, err := d.readHeader(offset)
	if err == nil && (h.streamPosition < d.printedBytes[h.Stream] || offset+h.headerBytes+h.dataBytes > d.fileBytes) {
		err = fmt.Errorf("%w: the record at byte %d is out of sequence", ErrOutputDamaged, offset)
	}
	return h, err
}

// emitRecord passes the chunk of a record to handleChunk. If bytes of the stream are missing before the record, it
// first passes a gap. If the record's data is damaged, emitRecord passes nothing. These bytes then count as missing
// before the next record of the stream.
func (d *outputFileReader) emitRecord(h *recordHeader, offset int64) error {
	c := h.Chunk
	d.printedBytes[c.Stream] = h.streamPosition + h.dataBytes + h.DroppedBytes
	if h.dataBytes > 0 {
		data, err := d.readExactly(offset+h.headerBytes, int(h.dataBytes))
		if errors.Is(err, ErrOutputDamaged) || err == nil && crc32.Checksum(data, castagnoliTable()) != h.dataChecksum {
			return nil
		}
		if err != nil {
			return err
		}
		c.Data = bytes.Clone(data)
	}
	if err := d.emitMissingGap(c.Stream, c.ReadTimeMillis, h.streamPosition); err != nil {
		return err
	}
	d.emittedBytes[c.Stream] += c.ByteLength()
	d.lastChunkTimeMillis[c.Stream] = c.ReadTimeMillis
	return d.handleChunk(c)
}

// emitMissingGap passes a gap to handleChunk if bytes of a stream are missing before a position. gapTimeMillis is the
// time of the gap.
func (d *outputFileReader) emitMissingGap(s Stream, gapTimeMillis, position int64) error {
	n := position - d.emittedBytes[s]
	if n <= 0 {
		return nil
	}
	c := Chunk{Stream: s, ReadTimeMillis: gapTimeMillis, DamagedBytes: n, StreamOffset: d.emittedBytes[s]}
	d.emittedBytes[s] = position
	return d.handleChunk(c)
}

// emitMissingTail passes a gap to handleChunk for each stream whose last bytes are missing.
func (d *outputFileReader) emitMissingTail(t fileTrailer) error {
	return errors.Join(d.emitMissingGap(Stdout, d.lastChunkTimeMillis[0], t.printedBytes[0]),
		d.emitMissingGap(Stderr, d.lastChunkTimeMillis[1], t.printedBytes[1]))
}

// emitLossOfUnknownStream passes gaps to handleChunk for the bytes that are missing in a file without a trailer. The
// last invalidBytes bytes of the file contain no valid record, so it is unknown to which stream they belong. The same
// is true for bytes that were skipped earlier, if no later record shows how much of its stream is missing.
func (d *outputFileReader) emitLossOfUnknownStream(invalidBytes int64) error {
	if err := d.emitMissingTail(fileTrailer{printedBytes: d.printedBytes}); err != nil {
		return err
	}
	if invalidBytes == 0 && d.skippedBytes == 0 {
		return nil // only the trailer is damaged or missing, so no output is lost
	}
	return d.handleChunk(Chunk{
		ReadTimeMillis: max(d.lastChunkTimeMillis[Stdout], d.lastChunkTimeMillis[Stderr]),
		DamagedBytes:   max(1, invalidBytes+d.skippedBytes),
		StreamUnknown:  true,
	})
}

// findNextRecord returns the offset of the first valid record or trailer at or after an offset. It returns
// ErrOutputDamaged if the rest of the file contains neither.
func (d *outputFileReader) findNextRecord(offset int64) (int64, error) {
	for ; ; offset++ {
		b, err := d.readExactly(offset, 1)
		if err != nil {
			return 0, err
		}
		switch {
		case b[0] == trailerKind:
			_, err = d.readTrailer(offset)
		case b[0]&^(gapRecordBit|1) == fileRecordBit:
			_, err = d.nextHeader(offset)
		default:
			continue
		}
		if !errors.Is(err, ErrOutputDamaged) {
			return offset, err
		}
	}
}

// readHeader reads the header of a record at an offset. It returns ErrOutputDamaged if no valid header is there.
func (w *bufferedReader) readHeader(offset int64) (recordHeader, error) {
	b, err := w.readUpTo(offset, maxHeaderBytes)
	if err != nil {
		return recordHeader{}, err
	}
	if h, ok := parseHeader(b, offset); ok {
		return h, nil
	}
	return recordHeader{}, fmt.Errorf("%w: no valid record at byte %d", ErrOutputDamaged, offset)
}

// readTrailer reads the trailer at an offset. It returns ErrOutputDamaged if no valid trailer is there.
func (w *bufferedReader) readTrailer(offset int64) (fileTrailer, error) {
	if offset+int64(trailerBytes) != w.fileBytes {
		return fileTrailer{}, ErrOutputDamaged
	}
	b, err := w.readExactly(offset, trailerBytes)
	if err != nil {
		return fileTrailer{}, err
	}
	if t, ok := parseTrailer(b, offset); ok {
		return t, nil
	}
	return fileTrailer{}, fmt.Errorf("%w: the end of the file is missing", ErrOutputDamaged)
}

// CheckFile checks a file and returns how many bytes of output are damaged or lost. fileBytes is the size that
// the file had when it was written. If only the trailer is damaged, CheckFile returns 0 and ErrOutputDamaged.
func CheckFile(r io.ReaderAt, fileBytes int64) (damagedBytes int64, err error) {
	err = DecodeFile(r, fileBytes, func(c Chunk) error {
		damagedBytes += c.DamagedBytes
		return nil
	})
	if err == nil {
		_, err = (&bufferedReader{file: r, fileBytes: fileBytes}).readTrailer(fileBytes - int64(trailerBytes))
	}
	return damagedBytes, err
}
