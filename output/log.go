// Package output keeps an attempt's output: one capped log of both streams that
// can be followed while it grows.
package output

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// Stream tells standard output from standard error.
type Stream uint8

// The streams.
const (
	Stdout Stream = 0
	Stderr Stream = 1
)

// InMemory is how many bytes a log keeps before it goes to a file, and the most
// that travels inside a result.
const InMemory = 64 << 10

// Chunk is a piece of one stream. A gap has no Data: Dropped bytes of the
// stream were not kept.
type Chunk struct {
	Stream  Stream
	At      int64 // milliseconds since 1970, when it was read
	Data    []byte
	Dropped int64
}

// Cursor is how far a reader has come in each stream, in bytes written, kept or
// not.
type Cursor [2]int64

// Log is the log of one attempt. Of each stream it keeps the first and the last
// half of the limit, in the order of arrival. Its methods may be called at once.
type Log struct {
	limit int64
	spill func() (*os.File, error)

	mu      sync.Mutex
	streams [2]stream
	index   []entry
	mem     []byte   // the kept bytes, until they are more than InMemory
	file    *os.File // the kept bytes, from then on
	end     int64    // of the bytes in mem or file
	dead    int64    // of these, no longer kept
	closed  bool
	gone    bool          // it was discarded
	changed chan struct{} // made when somebody waits
}

type stream struct {
	total int64 // bytes written
	head  int64 // bytes kept of the first half
	tail  int64 // bytes kept of the last half
}

// entry is a run of kept bytes.
type entry struct {
	stream Stream
	tail   bool
	at     int64
	pos    int64 // in its stream
	off    int64 // in mem or file
	n      int64 // 0 when dropped
}

// New makes a log that keeps at most limit bytes of each stream. spill makes
// the file for a log that grows past InMemory; the log deletes it in the end.
func New(limit int64, spill func() (*os.File, error)) *Log {
	return &Log{limit: limit, spill: spill}
}

// Append adds bytes that were read at an instant. It copies them. What cannot be
// stored counts as dropped.
func (l *Log) Append(s Stream, at int64, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(p) == 0 || l.closed {
		return
	}
	st := &l.streams[s]
	if room := (l.limit+1)/2 - st.head; room > 0 && st.total == st.head {
		n := min(room, int64(len(p)))
		l.add(s, false, at, p[:n])
		p = p[n:]
	}
	if half := l.limit / 2; int64(len(p)) > half {
		skip := int64(len(p)) - half
		st.total += skip
		p = p[skip:]
	}
	if len(p) > 0 {
		l.add(s, true, at, p)
		l.trim(s)
	}
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// add stores bytes as the newest entry, or at the end of it.
func (l *Log) add(s Stream, tail bool, at int64, p []byte) {
	st := &l.streams[s]
	pos := st.total
	st.total += int64(len(p))
	off, err := l.put(p)
	if err != nil {
		return // counted as written, never kept: a gap
	}
	if tail {
		st.tail += int64(len(p))
	} else {
		st.head += int64(len(p))
	}
	if k := len(l.index) - 1; k >= 0 {
		e := &l.index[k]
		if e.stream == s && e.tail == tail && e.n > 0 && e.n < InMemory && at-e.at < 10 && e.off+e.n == off && e.pos+e.n == pos {
			e.n += int64(len(p))
			return
		}
	}
	l.index = append(l.index, entry{s, tail, at, pos, off, int64(len(p))})
}

// put stores bytes and says where. It moves the log to a file, or its live
// bytes together, when that is due.
func (l *Log) put(p []byte) (int64, error) {
	if l.dead > 1<<20 && l.dead > l.end/2 || l.file == nil && l.end+int64(len(p)) > InMemory {
		if err := l.repack(int64(len(p))); err != nil {
			return 0, err
		}
	}
	off := l.end
	if l.file == nil {
		l.mem = append(l.mem, p...)
	} else if _, err := l.file.WriteAt(p, off); err != nil {
		return 0, err
	}
	l.end += int64(len(p))
	return off, nil
}

// repack copies the live bytes to where there is room for more of them.
func (l *Log) repack(more int64) error {
	var mem []byte
	var file *os.File
	if l.end-l.dead+more > InMemory || l.file != nil {
		var err error
		if file, err = l.spill(); err != nil {
			return err
		}
	}
	index := make([]entry, 0, len(l.index))
	var end int64
	for _, e := range l.index {
		if e.n == 0 {
			continue
		}
		p := make([]byte, e.n)
		if err := l.load(p, e.off); err != nil {
			discard(file)
			return err
		}
		if file == nil {
			mem = append(mem, p...)
		} else if _, err := file.WriteAt(p, end); err != nil {
			discard(file)
			return err
		}
		e.off = end
		end += e.n
		index = append(index, e)
	}
	discard(l.file)
	l.index, l.mem, l.file, l.end, l.dead = index, mem, file, end, 0
	return nil
}

func discard(f *os.File) {
	if f != nil {
		f.Close() // it is deleted unread
		os.Remove(f.Name())
	}
}

func (l *Log) load(p []byte, off int64) error {
	if l.file == nil {
		copy(p, l.mem[off:])
		return nil
	}
	_, err := l.file.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

// trim drops the oldest bytes of a stream's last half that are too many.
func (l *Log) trim(s Stream) {
	st := &l.streams[s]
	for k := range l.index {
		over := st.tail - l.limit/2
		if over <= 0 {
			return
		}
		e := &l.index[k]
		if e.stream != s || !e.tail || e.n == 0 {
			continue
		}
		n := min(over, e.n)
		e.off, e.pos, e.n = e.off+n, e.pos+n, e.n-n
		st.tail -= n
		l.dead += n
	}
}

// ErrDiscarded means that a log holds nothing any more.
var ErrDiscarded = errors.New("the output was given back")

// Read returns what follows a cursor: chunks of at most about max bytes in all
// and where the next Read goes on. done means that nothing will follow.
func (l *Log) Read(c Cursor, max int) (chunks []Chunk, next Cursor, done bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next = c
	if l.gone {
		return nil, next, false, ErrDiscarded
	}
	for _, e := range l.index {
		if e.n == 0 || e.pos+e.n <= next[e.stream] {
			continue
		}
		if max <= 0 {
			return chunks, next, false, nil
		}
		if gap := e.pos - next[e.stream]; gap > 0 {
			chunks = append(chunks, Chunk{Stream: e.stream, At: e.at, Dropped: gap})
			next[e.stream] = e.pos
		}
		skip := next[e.stream] - e.pos
		n := min(e.n-skip, int64(max))
		p := make([]byte, n)
		if err := l.load(p, e.off+skip); err != nil {
			return chunks, next, false, fmt.Errorf("read output: %w", err)
		}
		chunks = append(chunks, Chunk{Stream: e.stream, At: e.at, Data: p})
		next[e.stream] += n
		max -= int(n)
		if n < e.n-skip {
			return chunks, next, false, nil
		}
	}
	for s := range l.streams { // what could not be stored at the very end
		if gap := l.streams[s].total - next[s]; gap > 0 && l.closed {
			chunks = append(chunks, Chunk{Stream: Stream(s), Dropped: gap})
			next[s] += gap
		}
	}
	return chunks, next, l.closed, nil
}

// Changed is closed at the next Append or Close; at once after Close.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
		if l.closed {
			close(l.changed)
		}
	}
	return l.changed
}

// Close says that no more follows.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	if l.changed != nil {
		close(l.changed)
	}
}

// Discard gives back what the log holds; a Read that comes then fails.
func (l *Log) Discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	discard(l.file)
	l.file, l.mem, l.index, l.gone = nil, nil, nil, true
}

// Dropped is how many bytes were written but are not kept.
func (l *Log) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for _, st := range l.streams {
		n += st.total - st.head - st.tail
	}
	return n
}

// Kept is how many bytes are kept.
func (l *Log) Kept() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for _, st := range l.streams {
		n += st.head + st.tail
	}
	return n
}
