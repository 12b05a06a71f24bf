package output

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// An encoded log in a database row is a list of records. A record begins with one byte: the number of the stream, plus
// gapRecordBit if the record is a gap. Two varints follow: the milliseconds since the previous record (zigzag), and the
// length. If the record is not a gap, the data follows. If the gap is a result of damage, damagedRecordBit is set too,
// and another varint contains the number of bytes of the stream before the gap.
const (
	gapRecordBit     = 0x80
	damagedRecordBit = 0x20
)

// Encode encodes all bytes and gaps of the log. It returns nil for an empty log.
func (l *Log) Encode() (b []byte, err error) {
	var lastTime int64
	err = l.readAllChunks(MaxMemoryBytes, func(chunks []Chunk) error {
		b, lastTime = AppendEncodedChunks(b, lastTime, chunks)
		return nil
	})
	return b, err
}

// readAllChunks reads the whole log. It passes the chunks to handleChunks. Each call of handleChunks gets about
// bytesPerRead bytes.
func (l *Log) readAllChunks(bytesPerRead int, handleChunks func([]Chunk) error) error {
	var c StreamCursor
	for {
		chunks, next, done, err := l.Read(c, bytesPerRead)
		if err == nil {
			err = handleChunks(chunks)
		}
		if err != nil || done || next == c {
			return err
		}
		c = next
	}
}

// EncodeHead encodes about the first maxBytes bytes that the log keeps, and a gap for the rest of each stream.
// keptBytes is the number of bytes of output in the result.
func (l *Log) EncodeHead(maxBytes int) (b []byte, keptBytes int64) {
	// Ignore the error: bytes that cannot be read are counted in the gaps below.
	chunks, next, _, _ := l.Read(StreamCursor{}, maxBytes)
	for _, c := range chunks {
		keptBytes += int64(len(c.Data))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.streams {
		if gap := l.streams[s].writtenBytes - next[s]; gap > 0 {
			chunks = append(chunks, Chunk{Stream: Stream(s), DroppedBytes: gap})
		}
	}
	b, _ = AppendEncodedChunks(nil, 0, chunks)
	return b, keptBytes
}

// AppendEncodedChunks appends chunks to b as records. It returns the extended b, and the time of the last chunk. A
// record contains the time since the previous chunk. For the first record, that is the time since lastTimeMillis.
func AppendEncodedChunks(b []byte, lastTimeMillis int64, chunks []Chunk) ([]byte, int64) {
	for _, c := range chunks {
		kind, n := byte(c.Stream), int64(len(c.Data))
		switch {
		case c.DroppedBytes > 0:
			kind, n = kind|gapRecordBit, c.DroppedBytes
		case c.DamagedBytes > 0:
			kind, n = kind|gapRecordBit|damagedRecordBit, c.DamagedBytes
		}
		b = binary.AppendVarint(append(b, kind), c.ReadTimeMillis-lastTimeMillis)
		b = append(binary.AppendUvarint(b, uint64(n)), c.Data...)
		if c.DamagedBytes > 0 {
			b = binary.AppendUvarint(b, uint64(c.StreamOffset))
		}
		lastTimeMillis = c.ReadTimeMillis
	}
	return b, lastTimeMillis
}

// damagedOutputError returns the error for a log in a database row that contains an invalid record. format and args
// describe the record.
func damagedOutputError(format string, args ...any) error {
	return fmt.Errorf("the stored output is damaged (%w); check the database with: queuectl doctor --verify",
		fmt.Errorf(format, args...))
}

// maxRecordBytes limits the size of a record, so that a damaged length cannot use up all memory.
const maxRecordBytes = 4 * MaxMemoryBytes

// Decode passes each chunk of a log in a database row, in order, to handleChunk. If a record is invalid or cut, Decode
// first passes on the chunks before this record, and then returns an error.
func Decode(r io.Reader, handleChunk func(Chunk) error) error {
	in := bufio.NewReader(r)
	for at := int64(0); ; {
		kind, err := in.ReadByte()
		if err == io.EOF {
			return nil
		}
		damaged := kind&(gapRecordBit|damagedRecordBit) == gapRecordBit|damagedRecordBit
		if damaged {
			kind &^= damagedRecordBit
		}
		c, n := Chunk{Stream: Stream(kind &^ gapRecordBit)}, uint64(0)
		elapsed := int64(0)
		if err == nil {
			elapsed, err = binary.ReadVarint(in)
		}
		if err == nil {
			n, err = binary.ReadUvarint(in)
		}
		if err == nil && damaged {
			var offset uint64
			offset, err = binary.ReadUvarint(in)
			c.StreamOffset = int64(offset)
		}
		at += elapsed
		c.ReadTimeMillis = at
		switch {
		case err != nil:
			return damagedOutputError("a part of it is cut off or invalid: %w", err)
		case c.Stream > Stderr:
			return damagedOutputError("a part of it belongs to neither stdout nor stderr, but to stream %d", c.Stream)
		case damaged:
			if c.DamagedBytes = int64(n); c.DamagedBytes <= 0 || c.StreamOffset < 0 {
				return damagedOutputError("a part of it is marked as lost, with the length %d (must be 1 or more) and the "+
					"position %d (must be 0 or more)", c.DamagedBytes, c.StreamOffset)
			}
		case kind&gapRecordBit != 0:
			if c.DroppedBytes = int64(n); c.DroppedBytes <= 0 {
				return damagedOutputError("a part of it is marked as dropped to save space, with the length %d (must be 1 or "+
					"more)", c.DroppedBytes)
			}
		case n > maxRecordBytes:
			return damagedOutputError("a part of it is %d bytes long, more than the maximum of %d", n, maxRecordBytes)
		default:
			c.Data = make([]byte, n)
			if _, err := io.ReadFull(in, c.Data); err != nil {
				return damagedOutputError("a part of it is cut off: %w", err)
			}
		}
		if err := handleChunk(c); err != nil {
			return err
		}
	}
}
