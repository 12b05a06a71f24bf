package termtext

import (
	"slices"
	"strings"
)

// Controls keeps the control sequences in a program's output that may have changed modes of its terminal,
// such as whether the cursor is visible. It keeps each distinct sequence once, sorted by the last occurrence.
//
// A Modes value that reads only these sequences gets the same state as one that reads the whole output, with
// two exceptions. If a program pushes the same level on a stack several times, Controls keeps only one level.
// It omits sequences that a program repeats when it redraws its screen, like colours and regions.
//
// Controls is small because the runner links it. The zero value is ready for use.
type Controls struct {
	sequences     []string // distinct sequences; the one that occurred last is at the end
	sequenceBytes int      // number of bytes in sequences
	scanner       scanner
}

// These constants bound what Controls keeps. It drops the oldest sequences first. The bound on their number
// keeps Write fast, because it compares each new sequence with all others.
const (
	maxSequences     = 128
	maxControlsBytes = 4 << 10 // bytes
)

// Write processes the next piece of output.
func (c *Controls) Write(data []byte) { c.scanner.write(data, c.addIfModeChange) }

// Text returns the sequences that are kept.
func (c *Controls) Text() string { return strings.Join(c.sequences, "") }

// addIfModeChange adds a sequence or string if it may change a mode.
func (c *Controls) addIfModeChange(s string) {
	last := s[len(s)-1]
	switch {
	case s == "\x1bc": // a reset undoes all sequences before it
		c.sequences, c.sequenceBytes = c.sequences[:0], 0
		return
	case len(s) > 1 && beginsString(s[1]), s == "\x1b\\": // drop a string, such as a window title, and its end
		return
	case len(s) < 3 || s[1] != '[' || s[2] >= '<' && s[2] <= '>':
	case strings.IndexByte("Hfd", last) >= 0 && strings.Trim(s[2:len(s)-1], "0123456789:;") == "":
		// Only the fact that the cursor was positioned matters, so one sequence represents all of them.
		s = "\x1b[H"
	case strings.IndexByte("hlqtug}~cx", last) < 0:
		return
	}
	if i := slices.Index(c.sequences, s); i >= 0 {
		c.dropSequence(i)
	}
	c.sequences, c.sequenceBytes = append(c.sequences, s), c.sequenceBytes+len(s)
	for c.sequenceBytes > maxControlsBytes || len(c.sequences) > maxSequences {
		c.dropSequence(0)
	}
}

// dropSequence removes the sequence at index i.
func (c *Controls) dropSequence(i int) {
	c.sequenceBytes -= len(c.sequences[i])
	c.sequences = slices.Delete(c.sequences, i, i+1)
}
