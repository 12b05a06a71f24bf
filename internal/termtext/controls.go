package termtext

import (
	"slices"
	"strings"
)

// Controls keeps the control sequences of a program's output that may have changed modes of its
// terminal: each once, in the order of their last occurrences.
//
// Modes that read these sequences set the same modes as Modes that read the whole output, with two
// exceptions. Of several equal levels on a stack only one is known. Sequences that a program
// repeats when it redraws its screen, like colours and regions, are omitted.
//
// Controls is small because it is part of the runner. The zero value is ready for use.
type Controls struct {
	kept    []string // distinct sequences, oldest first
	size    int      // bytes in kept
	scanner scanner
}

// These constants bound what Controls keeps. It drops the oldest sequences first. The number is
// bounded because each new sequence is compared with all others.
const (
	maxSequences = 128
	maxControls  = 4 << 10 // bytes
)

// Write processes the next piece of output.
func (c *Controls) Write(data []byte) { c.scanner.write(data, c.keep) }

// Text returns the sequences that are kept.
func (c *Controls) Text() string { return strings.Join(c.kept, "") }

// keep adds a sequence or string if it may change a mode.
func (c *Controls) keep(s string) {
	last := s[len(s)-1]
	switch {
	case s == "\x1bc": // a reset
		c.kept, c.size = c.kept[:0], 0
		return
	case len(s) > 1 && beginsString(s[1]), s == "\x1b\\": // a string, or its end
		return
	case len(s) < 3 || s[1] != '[' || s[2] >= '<' && s[2] <= '>':
	case strings.IndexByte("Hfd", last) >= 0 && strings.Trim(s[2:len(s)-1], "0123456789:;") == "":
		s = "\x1b[H" // one sequence represents all cursor positions
	case strings.IndexByte("hlqtug}~cx", last) < 0:
		return
	}
	if i := slices.Index(c.kept, s); i >= 0 {
		c.drop(i)
	}
	c.kept, c.size = append(c.kept, s), c.size+len(s)
	for c.size > maxControls || len(c.kept) > maxSequences {
		c.drop(0)
	}
}

func (c *Controls) drop(i int) {
	c.size -= len(c.kept[i])
	c.kept = slices.Delete(c.kept, i, i+1)
}
