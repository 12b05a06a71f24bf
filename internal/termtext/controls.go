package termtext

import "strings"

// Controls keeps those control sequences of a program's output that may have changed modes of its
// terminal: each once, in the order in which they came last. Modes that read them are set as if they had
// read all the output, with these exceptions: of several equal levels on a stack one is known, and
// sequences whose effect a program repeats when it draws its screen again, like colours and regions, are
// left out, as are those that begin with U+009B instead of ESC.
//
// It is small because it is part of the runner. The zero value is ready for use.
type Controls struct {
	Text    string // the sequences
	pending string // the beginning of a sequence
}

// What Controls keeps at most, in bytes: all sequences, of which the oldest go first, and each.
const (
	maxControls     = 4 << 10
	maxControlBytes = 64
)

// Write takes the next piece of output.
func (c *Controls) Write(data []byte) {
	for _, b := range data {
		n := len(c.pending)
		switch {
		case b == 0x1b:
			c.pending = "\x1b"
		case n == 0 && b|1 == 0x0f: // SO and SI
			c.keep(string(b))
		case n > 1 && beginsString(c.pending[1]):
			if b == '\a' {
				c.pending = ""
			}
		case n > 0 && b >= ' ':
			c.pending += string(rune(b))
			if n == 1 && b >= '0' && b != '[' && !beginsString(b) || n > 1 && (b >= '@' || b >= '0' && c.pending[1] != '[') || n >= maxControlBytes {
				c.keep(c.pending)
				c.pending = ""
			}
		}
	}
}

func (c *Controls) keep(s string) {
	last := s[len(s)-1]
	switch {
	case s == "\x1bc": // a reset
		c.Text = ""
		return
	case len(s) < 3 || s[1] != '[' || s[2] >= '<' && s[2] <= '>':
	case last == 'H' || last == 'f' || last == 'd': // a position on the screen, whichever it is
		s = "\x1b[H"
	case strings.IndexByte("hlqtug}~c", last) < 0:
		return
	}
	c.Text = strings.Replace(c.Text, s, "", 1) + s
	if len(c.Text) > maxControls {
		c.Text = c.Text[strings.IndexByte(c.Text[1:], 0x1b)+1:]
	}
}
