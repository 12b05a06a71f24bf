package termtext

import "strings"

// scanner finds the control sequences and strings in a program's output. It works like the state machine of a
// VT500 terminal. The zero value is ready for use, at the beginning of an output.
type scanner struct {
	pendingBytes     []byte // the beginning of an incomplete sequence or string
	maybeC1FirstByte bool   // the last byte may be the first byte of a C1 control character, like U+009B, in UTF-8
}

// maxControlSequenceBytes bounds a control sequence or string, in bytes. A longer sequence is dropped. A longer
// string is truncated.
const maxControlSequenceBytes = 256

// write processes the next piece of output. It calls handleControl for each complete control: SO, SI, a sequence from
// ESC to its last byte, or a string from ESC to the byte before its terminator. A C1 control character is passed as the
// equivalent ESC and byte.
func (s *scanner) write(data []byte, handleControl func(string)) {
	for _, c := range data {
		// Fast path: an ordinary character outside a sequence.
		if len(s.pendingBytes) == 0 && !s.maybeC1FirstByte && c >= ' ' && c != 0xc2 {
			continue
		}
		s.consumeByte(c, handleControl)
	}
}

// consumeByte processes one byte for write.
func (s *scanner) consumeByte(c byte, handleControl func(string)) {
	c1 := s.maybeC1FirstByte && c >= 0x80 && c <= 0x9f
	s.maybeC1FirstByte = c == 0xc2
	inString := len(s.pendingBytes) > 1 && beginsControlString(s.pendingBytes[1])
	switch {
	case c1 || c == 0x1b || c == 0x18 || c == 0x1a || inString && c == '\a' && s.pendingBytes[1] == ']':
		if inString {
			handleControl(string(s.pendingBytes))
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
		handleControl(string(c))
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
		handleControl(string(s.pendingBytes))
	}
	s.pendingBytes = s.pendingBytes[:0]
}

// beginsControlString reports whether ESC and this byte begin a string for the terminal.
func beginsControlString(c byte) bool { return strings.IndexByte("]PX^_", c) >= 0 }
