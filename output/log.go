package output

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Stream identifies standard output or standard error. See docs/decisions/0061.
type Stream uint8

// Streams of an attempt.
const (
	Stdout Stream = 0
	Stderr Stream = 1
)

// MaxMemoryBytes is the largest size of a log in memory, in bytes. A larger log is kept in a file. It is also
// the largest output that is stored in the database row of an attempt.
const MaxMemoryBytes = 64 << 10

// Chunk is a part of one stream. A chunk without Data is a gap: it represents DroppedBytes bytes of the stream
// that were not kept, or DamagedBytes bytes that were kept but cannot be read.
type Chunk struct {
	Stream         Stream
	ReadTimeMillis int64 // time when the runner read the bytes, in milliseconds since 1970
	Data           []byte
	DroppedBytes   int64
	DamagedBytes   int64
	StreamOffset   int64 // number of bytes of the stream before this chunk; set for damaged bytes and by DecodeTail

	// StreamUnknown means that the damaged bytes may belong to either stream or to both. In this case Stream is Stdout,
	// and cursors count the bytes as bytes of Stdout. StreamOffset has no meaning. ReadTimeMillis is the time of the
	// previous chunk.
	StreamUnknown bool
}

// ByteLength returns the number of bytes of the stream that the chunk contains. For a gap, it returns the
// number of missing bytes.
func (c *Chunk) ByteLength() int64 { return int64(len(c.Data)) + c.DroppedBytes + c.DamagedBytes }

// WithoutFirstBytes returns the chunk without its first n bytes.
func (c Chunk) WithoutFirstBytes(n int64) Chunk {
	switch {
	case c.DroppedBytes > 0:
		c.DroppedBytes -= n
	case c.DamagedBytes > 0:
		c.DamagedBytes, c.StreamOffset = c.DamagedBytes-n, c.StreamOffset+n
	default:
		c.Data = c.Data[n:]
	}
	return c
}

// StreamCursor is the position of a reader in each stream, indexed by Stream. A position is a number of bytes since
// the beginning of the stream, including bytes that were not kept. A negative position counts back from the
// end.
type StreamCursor [2]int64

// Log captures the output of one attempt. If a stream has more bytes than the limit, Log keeps two parts of the stream:
// its first bytes, up to half of the limit, and its last bytes, up to the other half of the limit.
//
// Log also keeps the order in which the bytes of the two streams arrived. If the streams alternate very often,
// that order is only approximate, because the exact order would take more memory than the output.
//
// The methods may be called concurrently.
type Log struct {
	// maxPiecesPerHalf is the maximum number of pieces (see pieces.go) in the first halves of both streams together. The
	// last halves together have the same maximum.
	maxPiecesPerHalf int

	mu                sync.Mutex
	streams           [2]stream // indexed by Stream
	nextArrivalNumber int64     // number of pieces stored until now, which is also the number of the next piece
	store             blockStore
	isClosed          bool
	isDiscarded       bool           // Discard was called
	changeSignal      chan struct{}  // closed at the next change; nil if no reader waits
	secretMasks       [2]*secretMask // indexed by Stream; nil if no text is masked
}

// stream describes the kept bytes of one stream.
type stream struct {
	writtenBytes   int64  // number of bytes written, without those in incompleteChar
	incompleteChar []byte // first bytes of a character whose other bytes have not been read yet
	// alignedTailStart is the position at which alignTailToCharacter last found a complete character at the beginning of
	// the last half.
	alignedTailStart int64
	head, tail       streamHalf
}

func (st *stream) halves() [2]*streamHalf { return [2]*streamHalf{&st.head, &st.tail} }

// streamHalf keeps the first or the last bytes of a stream in a region of the store. The region of the last bytes is a
// ring, in which new bytes overwrite the oldest bytes.
type streamHalf struct {
	startPosition int64 // position in the stream of the first byte of the half
	keptBytes     int64 // number of bytes that the half keeps
	pieces        pieceList
	region        ringRegion
}

// NewLog returns a log that keeps at most maxBytesPerStream bytes of each stream. When the log exceeds
// MaxMemoryBytes, it calls createFile and then keeps its bytes in this file. Discard deletes the file.
func NewLog(maxBytesPerStream int64, createFile func() (*os.File, error)) *Log {
	l := &Log{
		maxPiecesPerHalf: int(min(max(maxBytesPerStream/limitBytesPerPiece, minPieceLimit), maxPieceLimit)),
		store:            blockStore{createFile: createFile},
	}
	for s := range l.streams {
		st := &l.streams[s]
		st.head.region.capacity = (maxBytesPerStream + 1) / 2
		st.tail.startPosition, st.tail.region.capacity = (maxBytesPerStream+1)/2, maxBytesPerStream/2
	}
	return l
}

// Append adds a copy of the bytes p, which were read at readTimeMillis (milliseconds since 1970). Bytes that cannot be
// stored count as dropped. If p ends within a UTF-8 character, readers get that character only after its remaining
// bytes are added or the log is closed.
func (l *Log) Append(s Stream, readTimeMillis int64, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(p) == 0 || l.isClosed || l.isDiscarded {
		return
	}
	if m := l.secretMasks[s]; m != nil {
		p = m.maskNext(p)
	}
	l.storeWithinLimit(s, readTimeMillis, l.streams[s].takeCompleteCharacters(p))
}

// storeWithinLimit stores the bytes p, and drops bytes that exceed the limit. p must end between two characters. The
// caller holds mu.
func (l *Log) storeWithinLimit(s Stream, readTimeMillis int64, p []byte) {
	if len(p) == 0 {
		return
	}
	st := &l.streams[s]
	if n := min(st.head.region.capacity-st.writtenBytes, int64(len(p))); n > 0 {
		if n < int64(len(p)) {
			n -= int64(TrailingPartialCharacterBytes(p[:n]))
			st.endHead(st.writtenBytes + n)
		}
		l.addPiece(s, &st.head, readTimeMillis, p[:n])
		p = p[n:]
	}
	// If p is longer than the last half, only the last bytes of p can be kept. Drop the bytes before them.
	if excess := int64(len(p)) - st.tail.region.capacity; excess > 0 {
		excess += int64(LeadingPartialCharacterBytes(p[excess:]))
		st.writtenBytes += excess
		p = p[excess:]
	}
	if len(p) > 0 {
		st.tail.dropBytesBefore(st.writtenBytes + int64(len(p)) - st.tail.region.capacity)
		l.addPiece(s, &st.tail, readTimeMillis, p)
	}
	l.wakeReaders()
}

// addPiece stores the bytes p in a half: it extends the half's last piece or adds a new piece. If p cannot be stored,
// it is missing, and readers get a gap.
func (l *Log) addPiece(s Stream, h *streamHalf, readTimeMillis int64, p []byte) {
	st := &l.streams[s]
	pos, n := st.writtenBytes, int64(len(p))
	st.writtenBytes += n
	piecesInUse := len(l.streams[0].head.pieces) + len(l.streams[1].head.pieces)
	if h == &st.tail {
		piecesInUse = len(l.streams[0].tail.pieces) + len(l.streams[1].tail.pieces)
	}
	var last *streamPiece // nil if the half has no pieces
	if len(h.pieces) > 0 {
		last = &h.pieces[len(h.pieces)-1]
	}
	follows := last != nil && last.streamPosition+last.byteCount == pos
	if last != nil && !follows && piecesInUse >= l.maxPiecesPerHalf {
		return
	}
	if n == 0 || l.store.writeRegion(&h.region, pos-h.startPosition, p) != nil {
		return
	}
	h.keptBytes += n
	if follows && l.shouldExtendLastPiece(last, readTimeMillis, piecesInUse) {
		last.byteCount += n
		return
	}
	h.pieces = append(h.pieces, streamPiece{arrivalNumber: l.nextArrivalNumber, streamPosition: pos, byteCount: n,
		readTimeMillis: readTimeMillis})
	l.nextArrivalNumber++
}

// New bytes extend the last piece of their stream if they arrive within joinPieceWithinMillis after it, and if no
// bytes of the other stream have arrived in between. Otherwise they form a new piece.
//
// To limit the number of pieces, these conditions are weaker when more than half of maxPiecesPerHalf pieces exist:
// bytes of the other stream no longer matter, and the allowed time grows with each further piece. When maxPiecesPerHalf
// pieces exist, new bytes always extend a piece.
const (
	joinPieceWithinMillis = 10
	maxJoinTimeDoublings  = 8    // maximum number of times that joinPieceWithinMillis is doubled
	limitBytesPerPiece    = 64   // maxPiecesPerHalf is the log's limit divided by this number
	minPieceLimit         = 64   // smallest maxPiecesPerHalf
	maxPieceLimit         = 8192 // largest maxPiecesPerHalf
)

// shouldExtendLastPiece reports whether new bytes extend lastPiece, the last piece of their stream, instead of forming
// a new piece. readTimeMillis is when the new bytes were read. piecesInUse is the number of existing pieces.
func (l *Log) shouldExtendLastPiece(lastPiece *streamPiece, readTimeMillis int64, piecesInUse int) bool {
	excess := piecesInUse - l.maxPiecesPerHalf/2
	switch {
	case piecesInUse >= l.maxPiecesPerHalf:
		return true
	case lastPiece.byteCount >= MaxMemoryBytes:
		return false
	case excess > 0:
		doublings := excess * maxJoinTimeDoublings / (l.maxPiecesPerHalf / 2)
		return readTimeMillis-lastPiece.readTimeMillis < joinPieceWithinMillis<<doublings
	}
	return lastPiece.arrivalNumber == l.nextArrivalNumber-1 &&
		readTimeMillis-lastPiece.readTimeMillis < joinPieceWithinMillis
}

// dropBytesBefore drops the bytes of the half that are before a position in the stream.
func (h *streamHalf) dropBytesBefore(position int64) {
	for len(h.pieces) > 0 && h.pieces[0].streamPosition < position {
		p := &h.pieces[0]
		n := min(position-p.streamPosition, p.byteCount)
		p.streamPosition, p.byteCount, h.keptBytes = p.streamPosition+n, p.byteCount-n, h.keptBytes-n
		if p.byteCount == 0 {
			h.pieces = h.pieces[1:]
		}
	}
}

// ErrDiscarded is the error that Log.Read returns after a call of Log.Discard.
var ErrDiscarded = errors.New("the output was discarded")

// Read returns about maxBytes bytes of output after the cursor c, as chunks, and the cursor for the next Read.
// done means that the log is closed and has no further chunks. Chunks of UTF-8 text begin and end between two
// characters.
func (l *Log) Read(c StreamCursor, maxBytes int) (chunks []Chunk, next StreamCursor, done bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range c {
		c[s] = l.resolveCursorPosition(&l.streams[s], c[s])
	}
	next = c
	if l.isDiscarded {
		return nil, next, false, ErrDiscarded
	}
	unread := make([]unreadHalf, 0, 2*len(l.streams)) // the constant capacity keeps the slice on the stack
	for s := range l.streams {
		for _, h := range l.streams[s].halves() {
			unread = append(unread, unreadHalf{Stream(s), h, h.pieces.afterPosition(c[s])})
		}
	}
	buffer := make([]byte, min(l.maxUnreadBytes(c), int64(max(maxBytes, 0))))
	for {
		s, h, p := takeOldestPiece(unread)
		if p == nil {
			break
		}
		if maxBytes <= 0 {
			return chunks, next, false, nil
		}
		if gap := p.streamPosition - next[s]; gap > 0 {
			chunks = append(chunks, Chunk{Stream: s, ReadTimeMillis: p.readTimeMillis, DroppedBytes: gap})
			next[s] = p.streamPosition
		}
		skip := next[s] - p.streamPosition
		n := min(p.byteCount-skip, int64(maxBytes))
		data := buffer[:n:n]
		got, err := l.store.readRegion(&h.region, next[s]-h.startPosition, data)
		switch {
		case errors.Is(err, ErrOutputDamaged) && got > 0:
			n = int64(got) // return the bytes before the damage now; the next Read reports the damage
			data = data[:n:n]
		case errors.Is(err, ErrOutputDamaged):
			n = h.region.damagedByteCount(next[s]-h.startPosition, n)
			chunks = append(chunks, Chunk{Stream: s, ReadTimeMillis: p.readTimeMillis, DamagedBytes: n, StreamOffset: next[s]})
			next[s] += n
			return chunks, next, false, nil
		case err != nil:
			return chunks, next, false, fmt.Errorf("cannot read the temporary file that holds the output while the job "+
				"runs: %w", err)
		}
		if n < p.byteCount-skip {
			complete := n - int64(TrailingPartialCharacterBytes(data))
			if complete == 0 && len(chunks) > 0 {
				return chunks, next, false, nil
			}
			n = cmp.Or(complete, n) // if maxBytes is smaller than one character, return a part of the character
			data = data[:n:n]
		}
		buffer = buffer[n:]
		chunks = append(chunks, Chunk{Stream: s, ReadTimeMillis: p.readTimeMillis, Data: data})
		next[s] += n
		maxBytes -= int(n)
		if n < p.byteCount-skip {
			return chunks, next, false, nil
		}
	}
	for s := range l.streams { // if bytes at the end of a stream could not be stored, report them as a gap
		if gap := l.streams[s].writtenBytes - next[s]; gap > 0 && l.isClosed {
			chunks = append(chunks, Chunk{Stream: Stream(s), DroppedBytes: gap})
			next[s] += gap
		}
	}
	return chunks, next, l.isClosed, nil
}

// resolveCursorPosition converts a cursor's position in one stream, which may count back from the end, to a position
// from the beginning. It first calls alignTailToCharacter, so that a reader does not get only a part of a character.
// The caller holds mu.
func (l *Log) resolveCursorPosition(st *stream, cursorPosition int64) int64 {
	if l.isDiscarded {
		return max(0, cursorPosition)
	}
	l.alignTailToCharacter(st)
	if cursorPosition >= 0 {
		return cursorPosition
	}
	cursorPosition = max(0, st.writtenBytes+cursorPosition)
	for _, h := range st.halves() {
		if list := h.pieces.afterPosition(cursorPosition); len(list) > 0 && list[0].streamPosition < cursorPosition {
			cursorPosition += l.characterContinuationBytes(h, &list[0], cursorPosition)
		}
	}
	return cursorPosition
}

// maxUnreadBytes returns an upper bound for the number of kept bytes after a cursor. The caller holds mu.
func (l *Log) maxUnreadBytes(c StreamCursor) (n int64) {
	for s := range l.streams {
		st := &l.streams[s]
		n += max(0, min(st.writtenBytes-c[s], st.keptBytes()))
	}
	return n
}

// unreadHalf holds the pieces of a half that a call of Read has not read yet.
type unreadHalf struct {
	stream Stream
	half   *streamHalf
	pieces pieceList
}

// takeOldestPiece finds the piece that arrived first, and removes it from its list. It returns the piece with its
// stream and half, or a nil piece if all lists are empty.
func takeOldestPiece(unread []unreadHalf) (Stream, *streamHalf, *streamPiece) {
	var oldest *unreadHalf
	for i := range unread {
		u := &unread[i]
		if len(u.pieces) > 0 && (oldest == nil || u.pieces[0].arrivalNumber < oldest.pieces[0].arrivalNumber) {
			oldest = u
		}
	}
	if oldest == nil {
		return 0, nil, nil
	}
	p := &oldest.pieces[0]
	oldest.pieces = oldest.pieces[1:]
	return oldest.stream, oldest.half, p
}

// ChangeSignal returns a channel that is closed at the next Append, Close or Discard. After Close or
// Discard, the channel is already closed.
func (l *Log) ChangeSignal() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changeSignal == nil {
		l.changeSignal = make(chan struct{})
	}
	signal := l.changeSignal
	if l.isClosed || l.isDiscarded {
		l.wakeReaders()
	}
	return signal
}

// Close marks the log as complete. Call it after all output is added; later calls of Append have no effect.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.streams {
		if st := &l.streams[s]; !l.isClosed && !l.isDiscarded {
			l.storeWithinLimit(Stream(s), time.Now().UnixMilli(), l.flushIncomplete(Stream(s)))
			l.alignTailToCharacter(st)
		}
	}
	l.isClosed = true
	l.wakeReaders()
}

// flushIncomplete returns the bytes of the stream that were held back because they are a part of a character or may
// begin a secret. Call it when the stream has ended.
func (l *Log) flushIncomplete(s Stream) []byte {
	st := &l.streams[s]
	p := st.incompleteChar
	st.incompleteChar = nil
	if m := l.secretMasks[s]; m != nil {
		p = append(p, m.flushHeldBack()...)
	}
	return p
}

// wakeReaders wakes all readers that wait for a change. The caller holds mu.
func (l *Log) wakeReaders() {
	if l.changeSignal != nil {
		close(l.changeSignal)
		l.changeSignal = nil
	}
}

// Discard frees the memory and the file of the log. Later calls of Read return ErrDiscarded.
func (l *Log) Discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.store.discard()
	for s := range l.streams {
		for _, h := range l.streams[s].halves() {
			h.pieces, h.region = nil, ringRegion{capacity: h.region.capacity}
		}
	}
	l.isDiscarded = true
	l.wakeReaders()
}

// DroppedBytes returns how many bytes of both streams together were written but are not kept.
func (l *Log) DroppedBytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for s := range l.streams {
		n += l.streams[s].writtenBytes - l.streams[s].keptBytes()
	}
	return n
}

// KeptBytes returns how many bytes of both streams together are kept.
func (l *Log) KeptBytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.streams[0].keptBytes() + l.streams[1].keptBytes()
}

func (st *stream) keptBytes() int64 { return st.head.keptBytes + st.tail.keptBytes }
