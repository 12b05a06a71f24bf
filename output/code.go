package output

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// An encoded log is a row of records: one byte (the stream, plus 0x80 for a
// gap), the time since the record before as a zigzag varint of milliseconds, and
// a varint length, followed by so many bytes unless it is a gap.
const gapBit = 0x80

// EncodeTo writes all that the log keeps.
func (l *Log) EncodeTo(w io.Writer) error {
	var c Cursor
	var at int64
	for {
		chunks, next, done, err := l.Read(c, InMemory)
		if err != nil {
			return err
		}
		record := make([]byte, 0, InMemory+64)
		record, at = AppendChunks(record, at, chunks)
		if _, err := w.Write(record); err != nil {
			return err
		}
		if done || next == c {
			return nil
		}
		c = next
	}
}

// Encode returns all that the log keeps; nil for an empty log.
func (l *Log) Encode() ([]byte, error) {
	var b bytes.Buffer
	err := l.EncodeTo(&b)
	if b.Len() == 0 {
		return nil, err
	}
	return b.Bytes(), err
}

// EncodeHead returns the first bytes that the log keeps, at most about max, and gaps
// in place of all others; and how many bytes it holds.
func (l *Log) EncodeHead(max int) (b []byte, kept int64) {
	chunks, next, _, _ := l.Read(Cursor{}, max) // what cannot be read is a gap
	for _, c := range chunks {
		kept += int64(len(c.Data))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.streams {
		if gap := l.streams[s].total - next[s]; gap > 0 {
			chunks = append(chunks, Chunk{Stream: Stream(s), Dropped: gap})
		}
	}
	b, _ = AppendChunks(nil, 0, chunks)
	return b, kept
}

// AppendChunks appends chunks as records that follow one of time at, and
// returns the last one's time.
func AppendChunks(b []byte, at int64, chunks []Chunk) ([]byte, int64) {
	for _, c := range chunks {
		kind, n := byte(c.Stream), int64(len(c.Data))
		if c.Dropped > 0 {
			kind, n = kind|gapBit, c.Dropped
		}
		b = append(b, kind)
		b = binary.AppendVarint(b, c.At-at)
		at = c.At
		b = binary.AppendUvarint(b, uint64(n))
		b = append(b, c.Data...)
	}
	return b, at
}

// maxRecord bounds a record's bytes, so that a damaged file cannot ask for all
// memory.
const maxRecord = 4 * InMemory

// Decode calls each with every chunk of an encoded log, in order. A log that
// ends in the middle of a record, or holds one that cannot be, is an error after
// the chunks before it.
func Decode(r io.Reader, each func(Chunk) error) error {
	in := bufio.NewReader(r)
	var at int64
	for {
		kind, err := in.ReadByte()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		delta, err := binary.ReadVarint(in)
		if err != nil {
			return fmt.Errorf("damaged output: %w", noEOF(err))
		}
		n, err := binary.ReadUvarint(in)
		if err != nil {
			return fmt.Errorf("damaged output: %w", noEOF(err))
		}
		at += delta
		c := Chunk{Stream: Stream(kind &^ gapBit), At: at}
		if c.Stream > Stderr {
			return fmt.Errorf("damaged output: no such stream: %d", c.Stream)
		}
		if kind&gapBit != 0 {
			c.Dropped = int64(n)
		} else {
			if n > maxRecord {
				return fmt.Errorf("damaged output: a record of %d bytes", n)
			}
			c.Data = make([]byte, n)
			if _, err := io.ReadFull(in, c.Data); err != nil {
				return fmt.Errorf("damaged output: %w", noEOF(err))
			}
		}
		if err := each(c); err != nil {
			return err
		}
	}
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
