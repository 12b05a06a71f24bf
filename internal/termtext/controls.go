package termtext

import (
	"slices"
	"strconv"
	"strings"
)

// Controls tracks the terminal modes that a program sets with its output. Text returns the sequences
// that give another terminal the same modes. Reset returns the sequences that give a terminal its usual
// modes back. For example, after "\x1b[?1049h\x1b[?25l" the terminal shows its alternate screen,
// without a cursor. Reset then contains "\x1b[?25h\x1b[?1049l".
//
// The sequences are documented in "XTerm Control Sequences" (ctlseqs), in kitty's keyboard protocol and
// in the terminfo capabilities rs1, rs2, rmcup, rmkx and sgr0.
//
// Reset always sends cancel and resetAll, which are harmless if nothing was changed. It sends other
// sequences only if the program has changed the mode, because they could change what the user has
// configured, move the cursor, or mean something else on other terminals.
//
// Controls is small because it is part of the runner. The runner uses the zero value and Text. A client
// uses NewControls and Reset.
type Controls struct {
	sequences []string              // sequences that set the present modes, oldest first
	size      int                   // bytes in sequences
	resets    []string              // sequences that reset colours, links and the like, without duplicates
	resetOf   func(s string) string // returns the sequence that undoes a string; nil if Reset is not used
	printed   bool                  // the output contains a control sequence
	scanner   scanner
}

// maxSequences bounds the number of sequences that Controls keeps. Each has at most maxControl bytes.
// Controls drops the oldest ones first.
const maxSequences = 128

// Sequences that Reset sends.
const (
	// cancel ends an incomplete sequence or string: CAN for most terminals, and the string terminator for
	// terminals that ignore CAN inside a string. It also ends the mode VT52, in which a terminal
	// understands no other sequence.
	cancel = "\x18\x1b\\\x1b<"
	// resetAll resets the margins, the keypad, the character sets and the colours. It saves and restores
	// the cursor, because a change of the margins moves the cursor.
	resetAll = "\x1b7\x1b[r\x1b8\x1b>\x0f\x1b(B\x1b)B\x1b[m"
)

// usuallyOn lists the modes that are on after a reset: local echo and, for tmux, a normal cursor; ANSI
// sequences, auto-wrap, auto-repeat, a visible cursor, input of eight bits, special modifiers,
// switching to the alternate screen, and private colours.
const usuallyOn = " 12 34 ?2 ?7 ?8 ?25 ?1034 ?1035 ?1046 ?1070 "

// cursorSet replaces all sequences that move the cursor to a position on the screen.
const cursorSet = "\x1b[H"

// alternateScreens lists the modes that switch to the alternate screen, as the beginnings of sequences.
var alternateScreens = []string{"\x1b[?47", "\x1b[?1047", "\x1b[?1049"}

// NewControls returns a Controls whose method Reset can be used.
func NewControls() Controls { return Controls{resetOf: resetOfString} }

// Write processes the next piece of output.
func (c *Controls) Write(data []byte) { c.scanner.write(data, c.read) }

// Text returns the sequences that set the present modes.
func (c *Controls) Text() string { return strings.Join(c.sequences, "") }

// ReplayModes takes a result of Text. It returns the sequences that give another terminal the same
// modes, and reports whether the program draws the whole screen, like an editor. A client that
// attaches to such a program makes it redraw the screen, because printing its last output again would
// not restore the screen.
func ReplayModes(text string) (modes string, fullScreen bool) {
	modes = strings.ReplaceAll(text, cursorSet, "")
	alternate := func(mode string) bool { return strings.Contains(text, mode+"h") }
	return modes, modes != text || slices.ContainsFunc(alternateScreens, alternate)
}

// read processes a control sequence or string.
func (c *Controls) read(s string) {
	c.printed = true
	switch {
	case s == "\x1bc": // a reset undoes all sequences before it
		c.sequences = nil
	case s == "\x1b<": // the mode VT52 ends
		c.pop("\x1b[?2l", "l")
	case len(s) == 1: // SO and SI
		c.keep(s, true)
	case s[1] == '[':
		c.readSequence(s)
	case beginsString(s[1]):
		if c.resetOf == nil {
			break
		}
		if r := c.resetOf(s[1:]); !slices.Contains(c.resets, r) {
			c.resets = append(c.resets, r)
		}
	case strings.IndexByte("()*+-./ %=>VlHno", s[1]) >= 0:
		c.keep(s, true)
	}
}

// readSequence processes a sequence that begins with ESC and "[". It ignores queries.
func (c *Controls) readSequence(s string) {
	prefix, params, tail := splitSequence(s)
	switch prefix + tail {
	case "h", "l", "?h", "?l":
		for _, word := range strings.Split(params, ";") {
			// 1048 is not a mode: it saves and restores the cursor.
			if n, err := strconv.ParseUint(word, 10, 16); err == nil && n != 1048 {
				c.setMode("\x1b["+prefix+strconv.FormatUint(n, 10), tail)
			}
		}
	case "H", "f", "d":
		c.keep(cursorSet, true)
	case "t": // these sequences push and pop the window's title
		if strings.HasPrefix(params, "22") {
			c.keep(s, false)
		} else if strings.HasPrefix(params, "23") {
			c.pop("\x1b[22", "t")
		}
	case "<u": // this sequence pops levels of kitty's keyboard protocol
		levels, _ := strconv.Atoi(params)
		for range min(max(levels, 1), maxSequences) {
			c.pop("\x1b[>", "u")
		}
	case ">u":
		c.keep(s, false)
	case "=u", ">m", ">n", ">s", "g", " q", `"q`, "q", "$}", "$~", "?c":
		c.keep(s, true)
	}
}

// setMode sets or resets a mode. The parameter mode is the sequence without its last character.
func (c *Controls) setMode(mode, final string) {
	// Different sequences can enter and leave the same alternate screen.
	leaves := final == "l" && slices.Contains(alternateScreens, mode)
	c.sequences = slices.DeleteFunc(c.sequences, func(s string) bool {
		other := s[:len(s)-1]
		return other == mode || leaves && slices.Contains(alternateScreens, other)
	})
	if !leaves {
		c.keep(mode+final, false)
	}
}

// splitSequence returns the parts of a sequence that begins with ESC and "[": the prefix of a private
// sequence, the parameters, and the tail, which is the intermediate characters and the last one.
func splitSequence(s string) (prefix, params, tail string) {
	rest := strings.TrimLeft(s[2:], "<=>?")
	tail = strings.TrimLeft(rest, "0123456789:;")
	return s[2 : len(s)-len(rest)], rest[:len(rest)-len(tail)], tail
}

// keep adds a sequence as the newest one. If once is true, it first removes the same sequence.
func (c *Controls) keep(s string, once bool) {
	if once {
		c.sequences = slices.DeleteFunc(c.sequences, func(other string) bool { return other == s })
	}
	c.sequences = append(c.sequences, s)
	c.sequences = c.sequences[max(0, len(c.sequences)-maxSequences):]
}

// pop removes the newest sequence that begins with prefix and ends with final.
func (c *Controls) pop(prefix, final string) {
	for i, s := range slices.Backward(c.sequences) {
		if strings.HasPrefix(s, prefix) && strings.HasSuffix(s, final) {
			copy(c.sequences[i:], c.sequences[i+1:])
			c.sequences = c.sequences[:len(c.sequences)-1]
			return
		}
	}
}

// Reset returns the sequences that give a terminal with this number of columns its usual modes back. It
// returns "" if the program has printed only text.
func (c *Controls) Reset(columns int) string {
	if !c.printed && len(c.scanner.pendingBytes) == 0 {
		return ""
	}
	reset := cancel
	for _, s := range slices.Backward(c.sequences) {
		reset += undo(s, columns)
	}
	return reset + strings.Join(c.resets, "") + resetAll
}

// undo returns the sequence that undoes a sequence that Controls keeps. It returns "" if resetAll
// undoes that sequence.
func undo(s string, columns int) string {
	switch {
	case s == "\x1bH":
		return resetTabs(columns)
	case s == "\x1b%@":
		return "\x1b%G"
	case s == "\x1b G":
		return "\x1b F"
	case s == "\x1bV":
		return "\x1bW"
	case s == "\x1bl":
		return "\x1bm"
	case len(s) < 2 || s[1] != '[':
		return ""
	}
	prefix, params, tail := splitSequence(s)
	first, _, _ := strings.Cut(params, ";")
	switch prefix + tail {
	case "h", "l", "?h", "?l":
		return undoMode(prefix+params, tail == "h")
	case "g":
		return resetTabs(columns)
	case "t":
		return "\x1b[23" + params[len("22"):] + "t"
	case ">u":
		return "\x1b[<u"
	case "=u":
		return "\x1b[=0u"
	case ">m", ">n": // these set how keys are reported; ">m" without a value resets that
		return "\x1b[>" + first + "m"
	case "H":
		return ""
	}
	return "\x1b[" + prefix + "0" + tail
}

// undoMode returns the sequence that sets a mode to its usual state, or "" if the mode is already in
// that state.
func undoMode(mode string, on bool) string {
	usual, final := strings.Contains(usuallyOn, " "+mode+" "), "l"
	if usual {
		final = "h"
	}
	switch {
	case on == usual:
		return ""
	// This sequence also moves the cursor to the top, where the next program must not print. So move the
	// cursor to the bottom.
	case mode == "?6":
		return "\x1b[?6l\x1b[999H"
	case mode == "?47" || mode == "?1047": // programs save the cursor before they enter such a screen, so restore it
		return "\x1b[" + mode + "l\x1b8"
	}
	return "\x1b[" + mode + final
}

// resetTabs sets a tab stop every eight columns.
func resetTabs(columns int) string {
	return "\x1b7\r\x1b[3g" + strings.Repeat("\x1b[8C\x1bH", max(0, columns-1)/8) + "\x1b8"
}

// resetOfString returns the sequence that undoes the effect of a string for the terminal. It returns ""
// if the string changes only the window's title or nothing.
func resetOfString(s string) string {
	number, value, _ := strings.Cut(s[1:], ";")
	switch {
	case s == "P=1s": // the older form of synchronized output
		return "\x1bP=2s\x1b\\"
	case s[0] != ']' || strings.HasSuffix(value, "?"): // a query of a colour changes nothing
		return ""
	case strings.HasPrefix(number, "P"): // the Linux console's palette; this string has no terminator
		return "\x1b]R\x1b\\"
	case number == "8": // a hyperlink
		return "\x1b]8;;\a"
	case number == "22": // the shape of the pointer
		return "\x1b]22;\a"
	case number == "9" && strings.HasPrefix(value, "4;"): // progress
		return "\x1b]9;4;0\a"
	}
	if n, err := strconv.Atoi(number); err == nil && (n == 4 || n == 5 || n >= 10 && n <= 19) { // a colour
		return "\x1b]" + strconv.Itoa(100+n) + "\a"
	}
	return ""
}
