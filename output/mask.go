package output

import "bytes"

// maskText is the text that replaces each secret text. See docs/decisions/0060.
const maskText = "***"

// MaskText returns text with each occurrence of one of the secrets replaced by ***.
func MaskText(text []byte, secrets [][]byte) []byte {
	for _, t := range secrets {
		if len(t) > 0 {
			text = bytes.ReplaceAll(text, t, []byte(maskText))
		}
	}
	return text
}

// SetMaskedTexts makes the log replace each of the secrets in the output by ***, even if a secret is split
// between two calls of Append. For this, the log holds back bytes that may begin a secret, until the following
// bytes decide that. Call SetMaskedTexts before the first Append.
func (l *Log) SetMaskedTexts(secrets [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.masks {
		l.masks[s] = newMask(secrets)
	}
}

// mask finds secret texts in a stream and replaces them by ***. It holds back bytes that may begin a secret.
//
// It searches with the algorithm of Knuth, Morris and Pratt, so the time per byte does not depend on the length
// of the secrets. Secrets that overlap in the stream are replaced by one ***.
type mask struct {
	maskedTexts  []maskedText
	pendingBytes []byte // bytes that are held back
	pendingStart int64  // position in the stream of the first byte in pendingBytes
	foundSpans   []span // positions of the found texts, in stream order; they do not overlap
}

// maskedText is the state of the search for one text.
type maskedText struct {
	text []byte
	// fallback[n] says where the search continues if the stream ends with text[:n] and the next byte does not
	// match. It is the length of the longest prefix of the text, shorter than n, that is also a suffix of
	// text[:n].
	fallback     []int32
	matchedBytes int // length of the longest prefix of the text with which the stream ends
}

// span is the position of a found text in the stream. isReplaced means that the *** for it has already been
// returned by releasePending.
type span struct {
	begin, end int64
	isReplaced bool
}

// newMask returns a mask that searches for the secrets. It ignores empty secrets.
func newMask(secrets [][]byte) *mask {
	m := &mask{}
	for _, text := range secrets {
		if len(text) == 0 {
			continue
		}
		t := maskedText{text: text, fallback: make([]int32, len(text)+1)}
		for i := 1; i < len(text); i++ {
			n := int(t.fallback[i])
			for n > 0 && text[i] != text[n] {
				n = int(t.fallback[n])
			}
			if text[i] == text[n] {
				n++
			}
			t.fallback[i+1] = int32(n)
		}
		m.maskedTexts = append(m.maskedTexts, t)
	}
	return m
}

// process takes the next bytes of the stream. It returns the bytes that are now known to begin no secret, with
// *** instead of secrets.
func (m *mask) process(p []byte) []byte {
	for _, b := range p {
		m.pendingBytes = append(m.pendingBytes, b)
		end := m.pendingStart + int64(len(m.pendingBytes))
		for i := range m.maskedTexts {
			if t := &m.maskedTexts[i]; t.matchNext(b) {
				m.recordMatch(end-int64(len(t.text)), end)
			}
		}
	}
	safe := m.pendingStart + int64(len(m.pendingBytes))
	for i := range m.maskedTexts {
		safe = min(safe, m.pendingStart+int64(len(m.pendingBytes)-m.maskedTexts[i].matchedBytes))
	}
	return m.releasePending(safe)
}

// flush returns the bytes that are held back, with *** instead of secrets. Call it when no more bytes follow.
func (m *mask) flush() []byte { return m.releasePending(m.pendingStart + int64(len(m.pendingBytes))) }

// matchNext processes the next byte of the stream. It reports whether an occurrence of the text ends with
// this byte.
func (t *maskedText) matchNext(b byte) bool {
	if t.matchedBytes == len(t.text) {
		t.matchedBytes = int(t.fallback[t.matchedBytes])
	}
	for t.matchedBytes > 0 && t.text[t.matchedBytes] != b {
		t.matchedBytes = int(t.fallback[t.matchedBytes])
	}
	if t.text[t.matchedBytes] == b {
		t.matchedBytes++
	}
	return t.matchedBytes == len(t.text)
}

// recordMatch records a found text. If it overlaps a text that was found before, both are merged into one span.
func (m *mask) recordMatch(begin, end int64) {
	found := span{begin: max(begin, m.pendingStart), end: end}
	for n := len(m.foundSpans); n > 0 && m.foundSpans[n-1].end > begin; n-- {
		last := m.foundSpans[n-1]
		found.begin, found.isReplaced = min(found.begin, last.begin), found.isReplaced || last.isReplaced
		m.foundSpans = m.foundSpans[:n-1]
	}
	m.foundSpans = append(m.foundSpans, found)
}

// releasePending removes the bytes before the given position from pendingBytes and returns them, with ***
// instead of secrets. The caller ensures that no secret which is found later begins before this position.
func (m *mask) releasePending(endPosition int64) []byte {
	var out []byte
	at := m.pendingStart
	for len(m.foundSpans) > 0 && m.foundSpans[0].begin < endPosition {
		f := &m.foundSpans[0]
		out = append(out, m.pendingBytes[at-m.pendingStart:max(at, f.begin)-m.pendingStart]...)
		if !f.isReplaced {
			out, f.isReplaced = append(out, maskText...), true
		}
		at = min(f.end, endPosition)
		if f.end > endPosition {
			f.begin = endPosition
			break
		}
		m.foundSpans = m.foundSpans[1:]
	}
	out = append(out, m.pendingBytes[at-m.pendingStart:endPosition-m.pendingStart]...)
	m.pendingBytes = append(m.pendingBytes[:0], m.pendingBytes[endPosition-m.pendingStart:]...)
	m.pendingStart = endPosition
	return out
}
