package termtext

import (
	"slices"
	"strings"
)

// ModeSequences collects the control sequences in a program's output that may have changed modes of its terminal, such
// as whether the cursor is visible. It keeps each distinct sequence once, sorted by its last occurrence.
//
// A TerminalModes value that reads only these sequences gets the same state as one that reads the whole output, with
// two exceptions. If a program pushes the same level on a stack several times, ModeSequences keeps only one level. And
// ModeSequences omits sequences that a program repeats when it redraws its screen, such as colours and scroll regions.
//
// ModeSequences needs little code, because the runner links it and must stay small. The zero value is ready for use.
type ModeSequences struct {
	sequences     []string // distinct sequences; the one that occurred last is at the end
	sequenceBytes int      // number of bytes in sequences
	scanner       sequenceScanner
}

// These constants limit how many sequences ModeSequences keeps. It drops the oldest sequences first. The limit on their
// number keeps Write fast, because Write compares each new sequence with all others.
const (
	maxKeptSequences     = 128
	maxKeptSequenceBytes = 4 << 10 // bytes
)

// Write processes the next piece of output.
func (c *ModeSequences) Write(data []byte) { c.scanner.write(data, c.addIfModeChange) }

// Text returns the sequences that are kept.
func (c *ModeSequences) Text() string { return strings.Join(c.sequences, "") }

// addIfModeChange adds a sequence or string if it may change a mode.
func (c *ModeSequences) addIfModeChange(sequence string) {
	last := sequence[len(sequence)-1]
	switch {
	case sequence == "\x1bc": // a reset undoes all sequences before it
		c.sequences, c.sequenceBytes = c.sequences[:0], 0
		return
	// drop a string, such as a window title, and its end
	case len(sequence) > 1 && beginsControlString(sequence[1]), sequence == "\x1b\\":
		return
	case len(sequence) < 3 || sequence[1] != '[' || sequence[2] >= '<' && sequence[2] <= '>':
	case strings.IndexByte("Hfd", last) >= 0 && strings.Trim(sequence[2:len(sequence)-1], "0123456789:;") == "":
		// Only the fact that the cursor was positioned matters, so one sequence represents all of them.
		sequence = "\x1b[H"
	case strings.IndexByte("hlqtug}~cx", last) < 0:
		return
	}
	if i := slices.Index(c.sequences, sequence); i >= 0 {
		c.dropSequence(i)
	}
	c.sequences, c.sequenceBytes = append(c.sequences, sequence), c.sequenceBytes+len(sequence)
	for c.sequenceBytes > maxKeptSequenceBytes || len(c.sequences) > maxKeptSequences {
		c.dropSequence(0)
	}
}

// dropSequence removes the sequence at index i.
func (c *ModeSequences) dropSequence(i int) {
	c.sequenceBytes -= len(c.sequences[i])
	c.sequences = slices.Delete(c.sequences, i, i+1)
}
