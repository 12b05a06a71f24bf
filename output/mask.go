package output

import "bytes"

// secretReplacement is the text that replaces each secret text. See docs/decisions/0060.
const secretReplacement = "***"

// MaskSecrets returns text with each occurrence of one of the secrets replaced by ***.
func MaskSecrets(text []byte, secrets [][]byte) []byte {
	for _, t := range secrets {
		if len(t) > 0 {
			text = bytes.ReplaceAll(text, t, []byte(secretReplacement))
		}
	}
	return text
}

// SetSecretsToMask makes the log replace each secret in the output by ***, even if a secret is split between two calls
// of Append. For this, the log holds back bytes that may be the beginning of a secret, until further bytes show whether
// they are. Call SetSecretsToMask before the first Append.
func (l *Log) SetSecretsToMask(secrets [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.secretMasks {
		l.secretMasks[s] = newSecretMask(secrets)
	}
}

// secretMask finds secrets in a stream and replaces them by ***. It holds back bytes that may be the beginning of a
// secret.
//
// It searches with the algorithm of Knuth, Morris and Pratt, so the time per byte does not depend on the length
// of the secrets. Secrets that overlap in the stream are replaced by one ***.
type secretMask struct {
	secretMatchers        []secretMatcher
	heldBackBytes         []byte      // bytes that may be the beginning of a secret, and the secrets before them
	heldBackStartPosition int64       // position in the stream of the first byte in heldBackBytes
	matchSpans            []matchSpan // positions of the found secrets, in stream order; they do not overlap
}

// secretMatcher is the state of the search for one secret.
type secretMatcher struct {
	secret []byte
	// kmpFallback[n] says where the search continues if the stream ends with secret[:n] and the next byte does not match.
	// It is the length of the longest prefix of secret, shorter than n, that is also a suffix of secret[:n].
	kmpFallback  []int32
	matchedBytes int // length of the longest prefix of secret with which the stream ends
}

// matchSpan is the position of a found secret in the stream. isReplaced means that releaseHeldBack has already returned
// *** for this span.
type matchSpan struct {
	begin, end int64
	isReplaced bool
}

// newSecretMask returns a mask that searches for the secrets. It ignores empty secrets.
func newSecretMask(secrets [][]byte) *secretMask {
	m := &secretMask{}
	for _, text := range secrets {
		if len(text) == 0 {
			continue
		}
		t := secretMatcher{secret: text, kmpFallback: make([]int32, len(text)+1)}
		// To compute kmpFallback, search for the secret in the secret itself, from the second byte on.
		for i := 1; i < len(text); i++ {
			t.matchNext(text[i])
			t.kmpFallback[i+1] = int32(t.matchedBytes)
		}
		t.matchedBytes = 0
		m.secretMatchers = append(m.secretMatchers, t)
	}
	return m
}

// maskNext processes the next bytes of the stream. It returns the bytes of which it is now known whether they belong to
// a secret. In the result, *** replaces each secret.
func (m *secretMask) maskNext(p []byte) []byte {
	for _, b := range p {
		m.heldBackBytes = append(m.heldBackBytes, b)
		end := m.heldBackStartPosition + int64(len(m.heldBackBytes))
		for i := range m.secretMatchers {
			if t := &m.secretMatchers[i]; t.matchNext(b) {
				m.recordMatch(end-int64(len(t.secret)), end)
			}
		}
	}
	maxMatchedBytes := 0
	for i := range m.secretMatchers {
		maxMatchedBytes = max(maxMatchedBytes, m.secretMatchers[i].matchedBytes)
	}
	return m.releaseHeldBack(m.heldBackStartPosition + int64(len(m.heldBackBytes)-maxMatchedBytes))
}

// flushHeldBack returns the bytes that are held back, with *** instead of secrets. Call it when no more bytes follow.
func (m *secretMask) flushHeldBack() []byte {
	return m.releaseHeldBack(m.heldBackStartPosition + int64(len(m.heldBackBytes)))
}

// matchNext processes the next byte of the stream. It reports whether an occurrence of the secret ends with this byte.
func (t *secretMatcher) matchNext(b byte) bool {
	if t.matchedBytes == len(t.secret) {
		t.matchedBytes = int(t.kmpFallback[t.matchedBytes])
	}
	for t.matchedBytes > 0 && t.secret[t.matchedBytes] != b {
		t.matchedBytes = int(t.kmpFallback[t.matchedBytes])
	}
	if t.secret[t.matchedBytes] == b {
		t.matchedBytes++
	}
	return t.matchedBytes == len(t.secret)
}

// recordMatch records a found secret. If the secret overlaps spans that were found before, all of them are merged into
// one span.
func (m *secretMask) recordMatch(begin, end int64) {
	found := matchSpan{begin: max(begin, m.heldBackStartPosition), end: end}
	for n := len(m.matchSpans); n > 0 && m.matchSpans[n-1].end > begin; n-- {
		last := m.matchSpans[n-1]
		found.begin, found.isReplaced = min(found.begin, last.begin), found.isReplaced || last.isReplaced
		m.matchSpans = m.matchSpans[:n-1]
	}
	m.matchSpans = append(m.matchSpans, found)
}

// releaseHeldBack removes the bytes before endPosition from heldBackBytes and returns them, with *** instead of
// secrets. The caller ensures that no secret that is found later begins before endPosition.
func (m *secretMask) releaseHeldBack(endPosition int64) []byte {
	var out []byte
	at := m.heldBackStartPosition
	for len(m.matchSpans) > 0 && m.matchSpans[0].begin < endPosition {
		f := &m.matchSpans[0]
		out = append(out, m.heldBackBytes[at-m.heldBackStartPosition:max(at, f.begin)-m.heldBackStartPosition]...)
		if !f.isReplaced {
			out, f.isReplaced = append(out, secretReplacement...), true
		}
		at = min(f.end, endPosition)
		if f.end > endPosition {
			f.begin = endPosition
			break
		}
		m.matchSpans = m.matchSpans[1:]
	}
	out = append(out, m.heldBackBytes[at-m.heldBackStartPosition:endPosition-m.heldBackStartPosition]...)
	m.heldBackBytes = append(m.heldBackBytes[:0], m.heldBackBytes[endPosition-m.heldBackStartPosition:]...)
	m.heldBackStartPosition = endPosition
	return out
}
