package output

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"
)

// maxInline bounds an encoded log that is no file, in bytes.
const maxInline = 4 * InMemory

// DecodeTail calls each with chunks of an encoded log, in order: at least the last so many
// bytes of each stream, and the gaps among them. Of a file, of so many bytes, it reads about
// as much as it hands over. Of one that was cut it reads nothing but that: ErrTruncated.
func DecodeTail(r io.ReaderAt, size int64, tail int, each func(Chunk) error) error {
	if size <= 0 || tail <= 0 {
		return nil
	}
	w := &window{r: r, size: size}
	first, err := w.get(0, 1)
	if err != nil {
		return err
	}
	if first[0] != endOfFile && first[0]&linkBit == 0 {
		if size > maxInline {
			return fmt.Errorf("damaged output: %d bytes that are no file", size)
		}
		return Decode(io.NewSectionReader(r, 0, size), each)
	}
	at := size - int64(trailerBytes)
	end, err := w.get(at, trailerBytes)
	if err != nil {
		return err
	}
	t, ok := parseTrailer(end, at)
	if !ok {
		return ErrTruncated
	}
	var records []record
	for s := range t.last {
		list, err := w.back(t, Stream(s), tail)
		if err != nil {
			return err
		}
		records = append(records, list...)
	}
	slices.SortStableFunc(records, func(a, b record) int { return cmp.Compare(a.at, b.at) })
	for _, rec := range records {
		if rec.Dropped == 0 {
			before := min(utf8.UTFMax-1, int(rec.data-rec.begin)) // the end may begin in a character
			b, err := w.get(rec.data-int64(before), before+rec.n)
			if err != nil {
				return err
			}
			rec.Data = bytes.Clone(b[before-Unfinished(b[:before]):])
		}
		if err := each(rec.Chunk); err != nil {
			return err
		}
	}
	return nil
}

// record is one in a file: where it begins, and which of its bytes are wanted.
type record struct {
	Chunk
	at    int64
	begin int64 // of its bytes
	data  int64 // of those that are wanted
	n     int
}

// back lists the last records of a stream, from the last one back, that have so many bytes
// together; of the first of them only what is needed.
func (w *window) back(t trailer, s Stream, need int) (list []record, err error) {
	const perByte = 2 // records, of which one may be a gap
	end := t.at
	for at, most := t.last[s], perByte*need; at >= 0 && need > 0; most-- {
		h, data, err := w.header(t, at)
		if err != nil {
			return nil, err
		}
		if at >= end || h.Stream != s || data+h.n > end || h.back < 0 || h.back > at || most == 0 {
			return nil, errors.New("damaged output: records that do not follow each other")
		}
		c := h.Chunk
		if c.At = t.first + h.since; at == 0 {
			c.At = h.since
		}
		n := int(min(h.n, int64(need)))
		list = append(list, record{c, at, data, data + h.n - int64(n), n})
		need -= n
		if h.back == 0 {
			break
		}
		end, at = at, at-h.back
	}
	return list, nil
}

// maxHeader is the most bytes that a record's first part has.
const maxHeader = 1 + 3*binary.MaxVarintLen64

// header reads the first part of the record that begins at a place, and says where its bytes
// begin.
func (w *window) header(t trailer, at int64) (h header, data int64, err error) {
	if at >= t.at {
		return h, 0, errors.New("damaged output: a record behind the last one")
	}
	b, err := w.get(at, int(min(maxHeader, t.at-at)))
	if err != nil {
		return h, 0, err
	}
	in := bytes.NewReader(b)
	if h, err = readHeader(in); err == nil && !h.linked {
		err = errors.New("damaged output: a record of no file")
	}
	return h, at + int64(len(b)-in.Len()), err
}

// window reads bytes of a file. Where reads follow each other closely it reads more at once.
type window struct {
	r    io.ReaderAt
	size int64
	at   int64 // of buf
	buf  []byte
}

const windowBytes = 4 << 10

// get reads so many bytes from a place on. They are its own until the next call.
func (w *window) get(at int64, n int) ([]byte, error) {
	if at < 0 || at+int64(n) > w.size {
		return nil, ErrTruncated
	}
	if at < w.at || at+int64(n) > w.at+int64(len(w.buf)) {
		begin, end := at, at+int64(n)
		switch near := len(w.buf) > 0 && at > w.at-windowBytes && at < w.at+2*windowBytes; {
		case near && at < w.at:
			begin = max(0, min(begin, end-windowBytes))
		case near:
			end = min(w.size, max(end, begin+windowBytes))
		}
		w.at, w.buf = begin, slices.Grow(w.buf[:0], int(end-begin))[:end-begin]
		if got, err := w.r.ReadAt(w.buf, begin); got < len(w.buf) {
			w.buf = nil
			if err == io.EOF {
				return nil, ErrTruncated // it is shorter than it was said to be
			}
			return nil, fmt.Errorf("read output: %w", err)
		}
	}
	return w.buf[at-w.at:][:n], nil
}
