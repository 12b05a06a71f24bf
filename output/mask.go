package output

import "bytes"

// masked replaces a secret text.
// See docs/decisions/0060.
const masked = "***"

// Masked returns text with each of the given texts replaced by ***.
func Masked(text []byte, texts [][]byte) []byte {
	for _, t := range texts {
		if len(t) > 0 {
			text = bytes.ReplaceAll(text, t, []byte(masked))
		}
	}
	return text
}

// Mask replaces each of the given texts in the output by ***, even if a text arrives in several pieces.
// Bytes that may be the beginning of such a text can be read only once it is known whether they are.
// Call Mask before the first Append.
func (l *Log) Mask(texts [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.masks {
		l.masks[s] = newMask(texts)
	}
}

// mask searches a stream for texts. It holds back bytes that may be the beginning of one.
//
// It searches for each text with the algorithm of Knuth, Morris and Pratt, so that each byte costs the
// same however long the texts are. Texts that overlap in the stream are replaced by one ***.
type mask struct {
	texts []maskedText
	held  []byte
	from  int64  // position of the first byte in held
	found []span // found texts that end in held, in order; they do not overlap
}

// maskedText is the state of the search for one text.
type maskedText struct {
	text []byte
	// back holds, for each length of a matched prefix, the length of the next shorter prefix that also
	// matches there. The search continues with it if the next byte does not match.
	back  []int32
	match int // length of the prefix that the stream ends with
}

// span is the position of a found text. told reports that its *** has already been passed on.
type span struct {
	begin, end int64
	told       bool
}

func newMask(texts [][]byte) *mask {
	m := &mask{}
	for _, text := range texts {
		if len(text) == 0 {
			continue
		}
		t := maskedText{text: text, back: make([]int32, len(text)+1)}
		for i := 1; i < len(text); i++ {
			n := int(t.back[i])
			for n > 0 && text[i] != text[n] {
				n = int(t.back[n])
			}
			if text[i] == text[n] {
				n++
			}
			t.back[i+1] = int32(n)
		}
		m.texts = append(m.texts, t)
	}
	return m
}

// pass processes the next bytes and returns those that may be kept now.
func (m *mask) pass(p []byte) []byte {
	for _, b := range p {
		m.held = append(m.held, b)
		end := m.from + int64(len(m.held))
		for i := range m.texts {
			if t := &m.texts[i]; t.next(b) {
				m.find(end-int64(len(t.text)), end)
			}
		}
	}
	safe := m.from + int64(len(m.held))
	for i := range m.texts {
		safe = min(safe, m.from+int64(len(m.held)-m.texts[i].match))
	}
	return m.release(safe)
}

// rest returns the bytes in held, because no more bytes follow.
func (m *mask) rest() []byte { return m.release(m.from + int64(len(m.held))) }

// next processes the stream's next byte and reports whether the text ends with it.
func (t *maskedText) next(b byte) bool {
	if t.match == len(t.text) {
		t.match = int(t.back[t.match])
	}
	for t.match > 0 && t.text[t.match] != b {
		t.match = int(t.back[t.match])
	}
	if t.text[t.match] == b {
		t.match++
	}
	return t.match == len(t.text)
}

// find records a found text. It merges the text with the found ones that it overlaps.
func (m *mask) find(begin, end int64) {
	found := span{begin: max(begin, m.from), end: end}
	for n := len(m.found); n > 0 && m.found[n-1].end > begin; n-- {
		last := m.found[n-1]
		found.begin, found.told = min(found.begin, last.begin), found.told || last.told
		m.found = m.found[:n-1]
	}
	m.found = append(m.found, found)
}

// release returns the bytes in held before the position safe, with found texts replaced. No text that
// is still incomplete may begin before safe.
func (m *mask) release(safe int64) []byte {
	var out []byte
	at := m.from
	for len(m.found) > 0 && m.found[0].begin < safe {
		f := &m.found[0]
		out = append(out, m.held[at-m.from:max(at, f.begin)-m.from]...)
		if !f.told {
			out, f.told = append(out, masked...), true
		}
		at = min(f.end, safe)
		if f.end > safe {
			f.begin = safe
			break
		}
		m.found = m.found[1:]
	}
	out = append(out, m.held[at-m.from:safe-m.from]...)
	m.held = append(m.held[:0], m.held[safe-m.from:]...)
	m.from = safe
	return out
}
