package output

import "unicode/utf8"

// TrailingPartialCharacterBytes returns how many bytes at the end of a text, at most 3, are the beginning of a UTF-8
// character whose other bytes are missing. It returns 0 if no further bytes could complete a character.
func TrailingPartialCharacterBytes(text []byte) int {
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

// LeadingPartialCharacterBytes returns how many bytes at the beginning of a text, at most 3, are the end of a UTF-8
// character whose first bytes are missing. It returns 0 if the text begins with more such bytes than a
// character can have, because it is then not UTF-8.
func LeadingPartialCharacterBytes(text []byte) int {
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

// TextTail returns at most maxBytes bytes from the end of a text. The result begins with a complete character.
func TextTail(text []byte, maxBytes int) []byte {
	excess := len(text) - maxBytes
	if excess <= 0 {
		return text
	}
	return text[excess+LeadingPartialCharacterBytes(text[excess:]):]
}

// takeCompleteCharacters returns the bytes that can be added to the log now: the bytes that the last call has held
// back, followed by p. If the last character of p is incomplete, its bytes are held back until the next call. So each
// piece of UTF-8 text ends between two characters.
func (st *stream) takeCompleteCharacters(p []byte) []byte {
	if len(st.incompleteChar) > 0 {
		p = append(st.incompleteChar, p...)
		st.incompleteChar = nil
	}
	end := len(p) - TrailingPartialCharacterBytes(p)
	if end < len(p) {
		st.incompleteChar = append([]byte(nil), p[end:]...)
	}
	return p[:end]
}

// endHead ends the first half of a stream at endPosition, which is between two characters. If the first half is
// not full there, its remaining capacity goes to the last half.
func (st *stream) endHead(endPosition int64) {
	st.tail.region.capacity += st.head.region.capacity - endPosition
	st.head.region.capacity, st.tail.startPosition = endPosition, endPosition
}

// alignTailToCharacter makes the last half of a stream begin with a complete character. If the log has dropped the
// first bytes of a character because the last half is full, it also drops the rest of that character. The caller holds
// mu.
func (l *Log) alignTailToCharacter(st *stream) {
	if len(st.tail.pieces) == 0 {
		return
	}
	p := &st.tail.pieces[0]
	if p.streamPosition == st.tail.startPosition || p.streamPosition == st.alignedTailStart {
		return
	}
	n := l.characterContinuationBytes(&st.tail, p, p.streamPosition)
	st.tail.dropBytesBefore(p.streamPosition + n)
	if len(st.tail.pieces) > 0 {
		st.alignedTailStart = st.tail.pieces[0].streamPosition
	}
}

// characterContinuationBytes returns how many bytes at pos belong to a character that begins before pos. Piece p of
// half h contains the bytes at pos. The caller holds mu.
func (l *Log) characterContinuationBytes(h *streamHalf, p *streamPiece, pos int64) int64 {
	b := make([]byte, min(utf8.UTFMax, p.streamPosition+p.byteCount-pos))
	if _, err := l.store.readRegion(&h.region, pos-h.startPosition, b); err != nil {
		return 0 // ignore the error, because Read will return it for these bytes
	}
	return int64(LeadingPartialCharacterBytes(b))
}
