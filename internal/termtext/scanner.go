package termtext

import "strings"

// sequenceScanner finds the control sequences and strings in a program's output. It works like the state machine of a
// VT500 terminal. The zero value is ready for use, at the beginning of an output.
type sequenceScanner struct {
	pendingBytes       []byte // the beginning of an incomplete sequence or string
	lastByteMayBeginC1 bool   // the last byte may be the first byte of a C1 control character, like U+009B, in UTF-8
}

// maxControlSequenceBytes bounds a control sequence or string, in bytes. A longer sequence is dropped. A longer
// string is truncated.
const maxControlSequenceBytes = 256

// write processes the next piece of output. It calls handleSequence for each complete control: SO, SI, a sequence from
// ESC to its last byte, or a string from ESC to the byte before its terminator. A C1 control character is passed as the
// equivalent ESC and byte.
func (s *sequenceScanner) write(data []byte, handleSequence func(string)) {
	for _, c := range data {
		// Fast path: an ordinary character outside a sequence.
		if len(s.pendingBytes) == 0 && !s.lastByteMayBeginC1 && c >= ' ' && c != 0xc2 {
			continue
		}
		s.consumeByte(c, handleSequence)
	}
}

// consumeByte processes one byte for write.
func (s *sequenceScanner) consumeByte(c byte, handleSequence func(string)) {
	c1 := s.lastByteMayBeginC1 && c >= 0x80 && c <= 0x9f
	s.lastByteMayBeginC1 = c == 0xc2
	inString := len(s.pendingBytes) > 1 && beginsControlString(s.pendingBytes[1])
	switch {
	case c1 || c == 0x1b || c == 0x18 || c == 0x1a || inString && c == '\a' && s.pendingBytes[1] == ']':
		if inString {
			handleSequence(string(s.pendingBytes))
		}
		s.pendingBytes = s.pendingBytes[:0]
		if c1 {
			s.pendingBytes = append(s.pendingBytes, 0x1b)
			c -= 0x40
			break
		}
		if c == 0x1b {
			s.pendingBytes = append(s.pendingBytes, c)
		}
		return
	case inString:
	case c == 0x0e || c == 0x0f:
		handleSequence(string(c))
		return
	case c < ' ' || c == 0x7f || len(s.pendingBytes) == 0:
		return
	case c >= 0x80: // such a byte is invalid in a sequence, so drop the sequence
		s.pendingBytes = s.pendingBytes[:0]
		return
	}
	whole := len(s.pendingBytes) < maxControlSequenceBytes
	if whole {
		s.pendingBytes = append(s.pendingBytes, c)
	}
	if beginsControlString(s.pendingBytes[1]) || s.pendingBytes[1] == '[' && (c < '@' || len(s.pendingBytes) == 2) ||
		c < '0' {
		return
	}
	if whole {
		handleSequence(string(s.pendingBytes))
	}
	s.pendingBytes = s.pendingBytes[:0]
}

// beginsControlString reports whether ESC and this byte begin a string for the terminal.
func beginsControlString(c byte) bool { return strings.IndexByte("]PX^_", c) >= 0 }
