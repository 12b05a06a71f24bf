package output

import "unicode/utf8"

// TrailingPartial returns the number of bytes at the end of a text that are the beginning of an
// incomplete UTF-8 character, at most 3. It returns 0 if no further bytes could complete the
// character.
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

// LeadingPartial returns the number of bytes at the beginning of a text that are the end of a UTF-8
// character whose first bytes are missing, at most 3. It returns 0 if there are more such bytes
// than one character can have, because the text is then not UTF-8.
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

// Tail returns at most limit bytes from the end of a text. The result begins with a complete
// character.
func Tail(text []byte, limit int) []byte {
	excess := len(text) - limit
	if excess <= 0 {
		return text
	}
	return text[excess+LeadingPartial(text[excess:]):]
}

// completeCharacters returns the bytes that can be kept now: the bytes that earlier calls have held
// back, and then p. If the last character is incomplete, completeCharacters holds back its bytes
// until the rest of the character has been read. So a piece of UTF-8 text always ends between two
// characters.
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

// endHead ends the first half of a stream at a position between two characters. It adds the unused
// capacity of the first half to the last half.
func (st *stream) endHead(at int64) {
	st.tail.region.capacity += st.head.region.capacity - at
	st.head.region.capacity, st.tail.startPosition = at, at
}

// alignTail makes the last half begin with a complete character. If the first bytes of a character
// were dropped, alignTail drops the other bytes of the character too. The caller holds mu.
func (l *Log) alignTail(st *stream) {
	p := st.tail.pieces.first()
	if p == nil || p.position == st.tail.startPosition || p.position == st.alignedStart {
		return
	}
	n := l.continuationBytes(&st.tail, p, p.position)
	st.tail.dropBefore(p.position + n)
	if p = st.tail.pieces.first(); p != nil {
		st.alignedStart = p.position
	}
}

// continuationBytes returns the number of bytes after the position pos that belong to a character that
// began before pos. The caller holds mu.
func (l *Log) continuationBytes(h *streamHalf, p *piece, pos int64) int64 {
	b := make([]byte, min(utf8.UTFMax, p.position+p.byteCount-pos))
	if _, err := l.store.read(&h.region, pos-h.startPosition, b); err != nil {
		return 0 // ignore the error, which Read returns when it reads these bytes
	}
	return int64(LeadingPartial(b))
}
