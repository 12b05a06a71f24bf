package output

import "unicode/utf8"

// TrailingPartial returns how many bytes at the end of a text are the beginning of an incomplete UTF-8 character:
// 3 at most. It returns 0 if no further bytes could complete them to a character.
func TrailingPartial(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if end := text[len(text)-n:]; utf8.RuneStart(end[0]) {
			if utf8.FullRune(end) {
				return 0
			}
			return n
		}
	}
	return 0
}

// LeadingPartial returns how many bytes at the beginning of a text are the end of a UTF-8 character whose first
// bytes are missing: 3 at most. It returns 0 if there are more such bytes than one character can have, since
// the text is not UTF-8 then.
func LeadingPartial(text []byte) int {
	for n := range min(utf8.UTFMax, len(text)) {
		if utf8.RuneStart(text[n]) {
			return n
		}
	}
	if len(text) < utf8.UTFMax {
		return len(text)
	}
	return 0
}

// Tail returns at most limit bytes from the end of a text. The result begins with a whole character.
func Tail(text []byte, limit int) []byte {
	excess := len(text) - limit
	if excess <= 0 {
		return text
	}
	return text[excess+LeadingPartial(text[excess:]):]
}

// completeCharacters returns the bytes that can be kept now: first the bytes that earlier calls held back,
// then p. If the last character is incomplete, its bytes are held back until the rest of the character has
// been read. So a piece of UTF-8 text always ends between two characters.
func (st *stream) completeCharacters(p []byte) []byte {
	if len(st.incomplete) > 0 {
		p = append(st.incomplete, p...)
		st.incomplete = nil
	}
	end := len(p) - TrailingPartial(p)
	if end < len(p) {
		st.incomplete = append([]byte(nil), p[end:]...)
	}
	return p[:end]
}

// endHead ends the first half at a position between two characters. The bytes that the first half leaves
// unused are added to the capacity of the last half.
func (st *stream) endHead(at int64) {
	st.tail.region.capacity += st.head.region.capacity - at
	st.head.region.capacity, st.tail.first = at, at
}

// alignTail makes the last half begin with a whole character. If the first bytes of a character were dropped,
// it drops the other bytes too. The caller holds mu.
func (l *Log) alignTail(st *stream) {
	p := st.tail.pieces.first()
	if p == nil || p.pos == st.tail.first || p.pos == st.aligned {
		return
	}
	n := l.continuedAt(&st.tail, p, p.pos)
	st.tail.dropBefore(p.pos + n)
	if p = st.tail.pieces.first(); p != nil {
		st.aligned = p.pos
	}
}

// continuedAt returns how many bytes after the position pos are the end of a character that began before pos.
// The caller holds mu.
func (l *Log) continuedAt(h *streamHalf, p *piece, pos int64) int64 {
	b := make([]byte, min(utf8.UTFMax, p.pos+p.n-pos))
	if _, err := l.store.read(&h.region, pos-h.first, b); err != nil {
		return 0 // no error here, because Read returns it when it reads these bytes
	}
	return int64(LeadingPartial(b))
}
