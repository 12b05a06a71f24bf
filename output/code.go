package output

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// An encoded log is a row of records: one byte (the stream, and bits below), a time as a
// zigzag varint of milliseconds, and a varint length, followed by so many bytes unless it is
// a gap. The time is that since the record before.
//
// In a file a record is linked: before its time a varint says how far back the record before
// it of the same stream begins (0: there is none), and its time is that since the first
// record of all. So the end of each stream can be read without the rest. A file ends in a
// trailer, which says where that end is; one without it was cut.
const (
	gapBit    = 0x80
	linkBit   = 0x40
	endOfFile = 0x3f // the trailer's first byte
)

// trailer is a file's: its magic comes last.
type trailer struct {
	first int64    // time of the first record
	last  [2]int64 // where the last record of each stream begins; -1 if there is none
	at    int64    // where the trailer begins
}

const (
	trailerBytes = 1 + 4*8 + len(trailerMagic)
	trailerMagic = "qctl-end"
)

func (t trailer) append(b []byte) []byte {
	b = append(b, endOfFile)
	for _, n := range []int64{t.first, t.last[0], t.last[1], t.at} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return append(b, trailerMagic...)
}

// parseTrailer reads the trailer that begins so far from a file's beginning; it is not ok if
// that is none.
func parseTrailer(b []byte, at int64) (t trailer, ok bool) {
	if len(b) != trailerBytes || b[0] != endOfFile || string(b[trailerBytes-len(trailerMagic):]) != trailerMagic {
		return t, false
	}
	field := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[1+8*i:])) }
	t = trailer{first: field(0), last: [2]int64{field(1), field(2)}, at: field(3)}
	return t, t.at == at
}

// EncodeTo writes all that the log keeps as a file that DecodeTail can read from its end.
func (l *Log) EncodeTo(w io.Writer) error {
	t := trailer{last: [2]int64{-1, -1}}
	var record []byte
	err := l.each(func(chunks []Chunk) error {
		record = record[:0]
		for _, c := range chunks {
			if t.last == [2]int64{-1, -1} {
				t.first = c.At
			}
			at := t.at + int64(len(record))
			back := int64(0)
			if before := t.last[c.Stream]; before >= 0 {
				back = at - before
			}
			since := c.At - t.first
			if at == 0 {
				since = c.At
			}
			record = appendRecord(record, linkBit, uint64(back), since, c)
			t.last[c.Stream] = at
		}
		t.at += int64(len(record))
		_, err := w.Write(record)
		return err
	})
	if err != nil {
		return err
	}
	_, err = w.Write(t.append(nil))
	return err
}

// Encode returns all that the log keeps; nil for an empty log.
func (l *Log) Encode() (b []byte, err error) {
	var at int64
	err = l.each(func(chunks []Chunk) error {
		b, at = AppendChunks(b, at, chunks)
		return nil
	})
	return b, err
}

// each reads the log from its beginning.
func (l *Log) each(do func([]Chunk) error) error {
	var c Cursor
	for {
		chunks, next, done, err := l.Read(c, InMemory)
		if err == nil {
			err = do(chunks)
		}
		if err != nil || done || next == c {
			return err
		}
		c = next
	}
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
		b = appendRecord(b, 0, 0, c.At-at, c)
		at = c.At
	}
	return b, at
}

func appendRecord(b []byte, link byte, back uint64, since int64, c Chunk) []byte {
	kind, n := byte(c.Stream)|link, int64(len(c.Data))
	if c.Dropped > 0 {
		kind, n = kind|gapBit, c.Dropped
	}
	b = append(b, kind)
	if link != 0 {
		b = binary.AppendUvarint(b, back)
	}
	b = binary.AppendVarint(b, since)
	b = binary.AppendUvarint(b, uint64(n))
	return append(b, c.Data...)
}

// ErrTruncated means that a log ends before its end: the rest of it is lost.
var ErrTruncated = errors.New("the output was cut short")

// maxRecord bounds a record's bytes, so that a damaged file cannot ask for all
// memory.
const maxRecord = 4 * InMemory

// header is a record without its bytes.
type header struct {
	Chunk  // without its Data
	linked bool
	back   int64
	since  int64
	n      int64 // bytes that follow
}

// readHeader reads a record's first part.
func readHeader(in io.ByteReader) (h header, err error) {
	kind, err := in.ReadByte()
	if err != nil {
		return h, err
	}
	if kind == endOfFile {
		return h, errEndOfFile
	}
	h.Stream, h.linked = Stream(kind&^(gapBit|linkBit)), kind&linkBit != 0
	if h.Stream > Stderr {
		return h, fmt.Errorf("damaged output: no such stream: %d", h.Stream)
	}
	if h.linked {
		back, err := binary.ReadUvarint(in)
		if err != nil {
			return h, cut(err)
		}
		h.back = int64(back)
	}
	if h.since, err = binary.ReadVarint(in); err != nil {
		return h, cut(err)
	}
	n, err := binary.ReadUvarint(in)
	switch {
	case err != nil:
		return h, cut(err)
	case kind&gapBit != 0:
		h.Dropped = int64(n)
		if h.Dropped <= 0 {
			return h, errors.New("damaged output: a gap of no size")
		}
	case n > maxRecord:
		return h, fmt.Errorf("damaged output: a record of %d bytes", n)
	default:
		h.n = int64(n)
	}
	return h, nil
}

var errEndOfFile = errors.New("the end of the file's records")

// cut says of a record that it has an end too early, or a varint that is none.
func cut(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return ErrTruncated
	}
	return fmt.Errorf("damaged output: %w", err)
}

// Decode calls each with every chunk of an encoded log, in order, up to the end or to a
// file's trailer. A log that ends in the middle of a record, and a file that ends without a
// trailer, is ErrTruncated after the chunks before it; one that holds a record that cannot be
// is another error. Of an empty one it cannot tell that it was cut.
func Decode(r io.Reader, each func(Chunk) error) error {
	in := bufio.NewReader(r)
	var at, first int64
	for file, records := false, 0; ; records++ {
		h, err := readHeader(in)
		switch {
		case err == io.EOF && file:
			return ErrTruncated
		case err == io.EOF || err == errEndOfFile && (file || records == 0):
			return nil
		case err == errEndOfFile:
			return errors.New("damaged output: a file's end behind records of no file")
		case err != nil:
			return err
		}
		file = file || h.linked
		switch {
		case !h.linked:
			at += h.since
		case records == 0:
			at, first = h.since, h.since
		default:
			at = first + h.since
		}
		c := h.Chunk
		c.At = at
		if c.Dropped == 0 {
			c.Data = make([]byte, h.n)
			if _, err := io.ReadFull(in, c.Data); err != nil {
				return cut(err)
			}
		}
		if err := each(c); err != nil {
			return err
		}
	}
}
