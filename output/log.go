package output

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Stream is standard output or standard error.
// See docs/decisions/0061.
type Stream uint8

// The streams of an attempt.
const (
	Stdout Stream = 0
	Stderr Stream = 1
)

// InMemory is the largest number of bytes that a log keeps in memory, and the largest output that is
// sent within a result. A larger log is in a file.
const InMemory = 64 << 10

// Chunk is a piece of one stream. A gap has no Data: it stands for Dropped bytes of the stream that
// were not kept, or for Damaged bytes that were kept and cannot be read any more.
type Chunk struct {
	Stream  Stream
	At      int64 // time when the bytes were read, in milliseconds since 1970
	Data    []byte
	Dropped int64
	Damaged int64
	Offset  int64 // bytes of the stream before this chunk; set for damaged bytes, and by DecodeTail

	// StreamUnknown reports that the Damaged bytes may belong to either stream or to both. Stream is
	// then Stdout, and cursors count them there. Offset has no meaning, and At is the time of the chunk
	// before them.
	StreamUnknown bool
}

// Length returns the number of bytes of its stream that a chunk holds or replaces.
func (c *Chunk) Length() int64 { return int64(len(c.Data)) + c.Dropped + c.Damaged }

// After returns a chunk without its first n bytes.
func (c Chunk) After(n int64) Chunk {
	switch {
	case c.Dropped > 0:
		c.Dropped -= n
	case c.Damaged > 0:
		c.Damaged, c.Offset = c.Damaged-n, c.Offset+n
	default:
		c.Data = c.Data[n:]
	}
	return c
}

// Cursor is a reader's position in each stream, in bytes that were written, whether they were kept or
// not. A negative position counts from the end of what was written.
type Cursor [2]int64

// Log captures the output of one attempt. Of each stream it keeps the first and the last half of the
// limit. It keeps the order in which the bytes arrived. The order gets coarser if the streams alternate
// so often that storing the order would take more memory than the output. The methods may be called
// concurrently.
type Log struct {
	most int // largest number of pieces in the first halves, and in the last halves

	mu      sync.Mutex
	streams [2]stream
	arrived int64 // pieces so far; the number of the next piece
	store   store
	closed  bool
	gone    bool          // discarded
	changed chan struct{} // closed at the next change; nil if no reader waits
	masks   [2]*mask      // one per stream; nil if nothing is masked
}

// stream describes the kept bytes of one stream.
type stream struct {
	total int64  // bytes written, without those in held
	held  []byte // beginning of a character whose other bytes have not been read yet
	// aligned is the position at which the last half is known to begin with a whole character.
	aligned    int64
	head, tail half
}

// half keeps one half of a stream: the bytes at consecutive positions, in a region of the store. The
// region of the last half is a ring, in which new bytes overwrite the oldest.
type half struct {
	first  int64 // position of its first byte
	kept   int64 // number of bytes
	pieces pieces
	region region
}

// New creates a log that keeps at most limit bytes of each stream. spill creates the file for a log
// that grows beyond InMemory. The log deletes the file in Discard.
func New(limit int64, spill func() (*os.File, error)) *Log {
	l := &Log{most: int(min(max(limit/bytesPerPiece, leastPieces), mostPieces)), store: store{spill: spill}}
	for s := range l.streams {
		st := &l.streams[s]
		st.head.region.room = (limit + 1) / 2
		st.tail.first, st.tail.region.room = (limit+1)/2, limit/2
	}
	return l
}

// Append adds a copy of bytes that were read at the time at. Bytes that cannot be stored count as
// dropped. If p ends within a UTF-8 character, that character can be read only once its other bytes
// were added, or after Close.
func (l *Log) Append(s Stream, at int64, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(p) == 0 || l.closed || l.gone {
		return
	}
	if m := l.masks[s]; m != nil {
		p = m.pass(p)
	}
	l.keep(s, at, l.streams[s].whole(p))
}

// keep stores bytes that end between characters. The caller holds mu.
func (l *Log) keep(s Stream, at int64, p []byte) {
	if len(p) == 0 {
		return
	}
	st := &l.streams[s]
	if n := min(st.head.region.room-st.total, int64(len(p))); n > 0 {
		if n < int64(len(p)) {
			n -= int64(Unfinished(p[:n]))
			st.endHead(st.total + n)
		}
		l.add(s, &st.head, at, p[:n])
		p = p[n:]
	}
	// The last bytes of p alone fill the last half, so drop the first ones.
	if over := int64(len(p)) - st.tail.region.room; over > 0 {
		over += int64(Continued(p[over:]))
		st.total += over
		p = p[over:]
	}
	if len(p) > 0 {
		st.tail.trim(st.total + int64(len(p)) - st.tail.region.room)
		l.add(s, &st.tail, at, p)
	}
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// add stores bytes as a new piece of a half, or as part of its last piece. Bytes that cannot be stored
// count as written and leave a gap.
func (l *Log) add(s Stream, h *half, at int64, p []byte) {
	st := &l.streams[s]
	pos, n := st.total, int64(len(p))
	st.total += n
	noted := l.streams[0].head.pieces.len() + l.streams[1].head.pieces.len()
	if h == &st.tail {
		noted = l.streams[0].tail.pieces.len() + l.streams[1].tail.pieces.len()
	}
	last := h.pieces.last()
	follows := last != nil && last.pos+last.n == pos
	if last != nil && !follows && noted >= l.most {
		return
	}
	if n == 0 || l.store.write(&h.region, pos-h.first, p) != nil {
		return
	}
	h.kept += n
	if follows && l.joins(last, at, noted) {
		last.n += n
		return
	}
	h.pieces.push(piece{number: l.arrived, pos: pos, n: n, at: at})
	l.arrived++
}

// A piece is joined with the next bytes of its stream if these come within joinWithin and no bytes of
// the other stream come between. Once half of the pieces are used, a log joins bytes that come within a
// time that grows, whatever comes between. Once all pieces are used, it joins all further bytes.
const (
	joinWithin    = 10 // milliseconds
	mostDoublings = 8  // of joinWithin
	bytesPerPiece = 64 // bytes of the limit for each piece
	leastPieces   = 64
	mostPieces    = 8192
)

// joins reports whether bytes that were read at the time at are added to the piece before them, given
// the number of pieces so far.
func (l *Log) joins(last *piece, at int64, noted int) bool {
	over := noted - l.most/2
	switch {
	case noted >= l.most:
		return true
	case last.n >= InMemory:
		return false
	case over > 0:
		return at-last.at < joinWithin<<(over*mostDoublings/(l.most/2))
	}
	return last.number == l.arrived-1 && at-last.at < joinWithin
}

// trim drops the bytes before a position.
func (h *half) trim(before int64) {
	for {
		p := h.pieces.first()
		if p == nil || p.pos >= before {
			return
		}
		n := min(before-p.pos, p.n)
		p.pos, p.n, h.kept = p.pos+n, p.n-n, h.kept-n
		if p.n > 0 {
			return
		}
		h.pieces.drop()
	}
}

// ErrDiscarded means that a log was discarded and contains nothing any more.
var ErrDiscarded = errors.New("the output was discarded")

// Read returns the chunks after a cursor, about most bytes in all, and the cursor for the next Read.
// done reports that nothing will follow. Chunks of UTF-8 text begin and end between characters.
func (l *Log) Read(c Cursor, most int) (chunks []Chunk, next Cursor, done bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range c {
		c[s] = l.position(&l.streams[s], c[s])
	}
	next = c
	if l.gone {
		return nil, next, false, ErrDiscarded
	}
	var rest [2][2][]piece // pieces to read of each stream: of its first half and its last half
	for s := range l.streams {
		st := &l.streams[s]
		rest[s] = [2][]piece{st.head.pieces.after(c[s]), st.tail.pieces.after(c[s])}
	}
	room := make([]byte, min(l.left(c), int64(max(most, 0))))
	for {
		s, p, h := l.oldest(&rest)
		if p == nil {
			break
		}
		if most <= 0 {
			return chunks, next, false, nil
		}
		if gap := p.pos - next[s]; gap > 0 {
			chunks = append(chunks, Chunk{Stream: s, At: p.at, Dropped: gap})
			next[s] = p.pos
		}
		skip := next[s] - p.pos
		n := min(p.n-skip, int64(most))
		data := room[:n:n]
		got, err := l.store.read(&h.region, next[s]-h.first, data)
		switch {
		case errors.Is(err, ErrDamaged) && got > 0:
			n = int64(got) // the next Read returns how many bytes are damaged
			data = data[:n:n]
		case errors.Is(err, ErrDamaged):
			n = h.region.damaged(next[s]-h.first, n)
			chunks = append(chunks, Chunk{Stream: s, At: p.at, Damaged: n, Offset: next[s]})
			next[s] += n
			return chunks, next, false, nil
		case err != nil:
			return chunks, next, false, fmt.Errorf("read output: %w", err)
		}
		if n < p.n-skip {
			whole := n - int64(Unfinished(data))
			if whole == 0 && len(chunks) > 0 {
				return chunks, next, false, nil
			}
			n = cmp.Or(whole, n) // if there is less room than one character needs, return a part of it
			data = data[:n:n]
		}
		room = room[n:]
		chunks = append(chunks, Chunk{Stream: s, At: p.at, Data: data})
		next[s] += n
		most -= int(n)
		if n < p.n-skip {
			return chunks, next, false, nil
		}
	}
	for s := range l.streams { // bytes at the end that could not be stored
		if gap := l.streams[s].total - next[s]; gap > 0 && l.closed {
			chunks = append(chunks, Chunk{Stream: Stream(s), Dropped: gap})
			next[s] += gap
		}
	}
	return chunks, next, l.closed, nil
}

// position resolves one stream's part of a cursor. Before, it drops the rest of a cut character at the
// beginning of the last half. The caller holds mu.
func (l *Log) position(st *stream, c int64) int64 {
	if l.gone {
		return max(0, c)
	}
	l.align(st)
	if c >= 0 {
		return c
	}
	c = max(0, st.total+c)
	for _, h := range []*half{&st.head, &st.tail} {
		if list := h.pieces.after(c); len(list) > 0 && list[0].pos < c {
			c += l.continuedAt(h, &list[0], c)
		}
	}
	return c
}

// left returns an upper bound of the bytes after a cursor. The caller holds mu.
func (l *Log) left(c Cursor) (n int64) {
	for s := range l.streams {
		st := &l.streams[s]
		n += max(0, min(st.total-c[s], st.head.kept+st.tail.kept))
	}
	return n
}

// oldest removes and returns the piece that arrived first among the remaining ones of both streams. It
// returns nil if none remain.
func (l *Log) oldest(rest *[2][2][]piece) (s Stream, p *piece, h *half) {
	var from *[]piece
	for i := range rest {
		list, of := &rest[i][0], &l.streams[i].head
		if len(*list) == 0 {
			list, of = &rest[i][1], &l.streams[i].tail
		}
		if len(*list) > 0 && (p == nil || (*list)[0].number < p.number) {
			s, p, h, from = Stream(i), &(*list)[0], of, list
		}
	}
	if p != nil {
		*from = (*from)[1:]
	}
	return s, p, h
}

// Changed returns a channel that is closed at the next Append, Close or Discard. After Close or
// Discard, the channel is already closed.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
		if l.closed || l.gone {
			close(l.changed)
		}
	}
	return l.changed
}

// Close completes the log. Later calls of Append are ignored.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.streams {
		if st := &l.streams[s]; !l.closed && !l.gone {
			l.keep(Stream(s), time.Now().UnixMilli(), l.rest(Stream(s)))
			l.align(st)
		}
	}
	l.closed = true
	l.tellLast()
}

// rest returns the bytes that a stream and its mask hold back, because no more bytes follow.
func (l *Log) rest(s Stream) []byte {
	st := &l.streams[s]
	p := st.held
	st.held = nil
	if m := l.masks[s]; m != nil {
		p = append(p, m.rest()...)
	}
	return p
}

// tellLast wakes the waiting readers for the last time. The caller holds mu.
func (l *Log) tellLast() {
	if l.changed == nil {
		return
	}
	select {
	case <-l.changed: // already closed
	default:
		close(l.changed)
	}
}

// Discard frees the log's memory and file. Later calls of Read return ErrDiscarded.
func (l *Log) Discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.store.discard()
	for s := range l.streams {
		for _, h := range []*half{&l.streams[s].head, &l.streams[s].tail} {
			h.pieces, h.region = pieces{}, region{room: h.region.room}
		}
	}
	l.gone = true
	l.tellLast()
}

// Dropped returns how many bytes were written but are not kept.
func (l *Log) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for s := range l.streams {
		n += l.streams[s].total - l.streams[s].kept()
	}
	return n
}

// Kept returns how many bytes are kept.
func (l *Log) Kept() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.streams[0].kept() + l.streams[1].kept()
}

func (st *stream) kept() int64 { return st.head.kept + st.tail.kept }
