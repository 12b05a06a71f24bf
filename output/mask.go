package output

import "bytes"

// masked stands for a text that is not kept.
// See docs/decisions/0060.
const masked = "***"

// Masked is a text with *** in the place of each of these.
func Masked(text []byte, texts [][]byte) []byte {
	for _, t := range texts {
		if len(t) > 0 {
			text = bytes.ReplaceAll(text, t, []byte(masked))
		}
	}
	return text
}

// Mask has *** kept in the place of each of these texts, from now on, however they come in
// pieces. Of what may be the begin of one nothing is kept, nor read, until it is known. It is
// called before the first Append.
func (l *Log) Mask(texts [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.masks {
		l.masks[s] = newMask(texts)
	}
}

// mask looks for texts in a stream. It holds back what may be the begin of one.
type mask struct {
	texts []maskedText
	held  []byte
	from  int64  // position of the first byte that is held
	found []span // in what is held: none overlap, the first comes first
}

// maskedText is a text that is looked for, one byte after the other (Knuth, Morris and Pratt).
type maskedText struct {
	text  []byte
	back  []int32 // how much of the text matches still where so much of it did, and no more
	match int     // how much of the text the stream ends in
}

// span is where a text was found. One that is told of already has its *** kept.
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

// pass takes the next bytes and returns those that may be kept now.
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

// rest are the bytes that are held: no more follow.
func (m *mask) rest() []byte { return m.release(m.from + int64(len(m.held))) }

// next takes the stream's next byte and reports whether the text ends with it.
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

// find notes that a text was found; it is one with those that it overlaps.
func (m *mask) find(begin, end int64) {
	found := span{begin: max(begin, m.from), end: end}
	for n := len(m.found); n > 0 && m.found[n-1].end > begin; n-- {
		last := m.found[n-1]
		found.begin, found.told = min(found.begin, last.begin), found.told || last.told
		m.found = m.found[:n-1]
	}
	m.found = append(m.found, found)
}

// release gives what is held before a position: no text that is not found yet begins there.
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
