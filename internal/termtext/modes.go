package termtext

import (
	"slices"
	"strconv"
	"strings"
)

// TerminalModes tracks how a program changes the modes of its terminal. RestoreSequences returns sequences that undo
// the changes after a terminal has displayed the program's output. ReplaySequences returns sequences that make the same
// changes on another terminal.
//
// For example, after "\x1b[?1049h\x1b[?25l\x1b(0" the terminal shows its alternate screen, no cursor, and letters as
// line drawings. RestoreSequences then returns "\x1b(B\x1b[?25h\x1b[?1049l".
//
// What a program can change is documented in three sources: "XTerm Control Sequences" (ctlseqs), the protocols
// that other terminals have added (kitty's keyboard, synchronized output, hyperlinks, progress, the Linux
// console's cursor and palette), and the terminfo capabilities rs1, rs2, rmcup, rmkx and sgr0.
//
// RestoreSequences resets only what the program changed. Some sequences have an effect only on some kinds of terminals.
// TerminalModes assumes that every sequence had an effect, because an unnecessary reset is harmless.
//
// The zero value is ready for use. It represents a terminal that was just reset.
type TerminalModes struct {
	modeChanges []modeChange // sorted by their first occurrence; RestoreSequences reverts them in reverse order
	scanner     sequenceScanner
	inVT52Mode  bool // the terminal understands only the sequences of a VT52
	cursorSaved bool
	cursorMoved bool // the program has moved the cursor to a position on the screen
}

// modeChange is one difference between the terminal's state and its state after a reset.
type modeChange struct {
	changedProperty string // the changed property, such as "?25" (a private mode), "m" (colours) or "(" (a character set)
	redoSequence    string // sequence that makes the change again
	undoSequence    string // sequence that reverts the change
	// isSavedByProgram means that the program has saved this state on the terminal, together with the cursor or as a mode.
	// The program may restore the saved state at any time, so RestoreSequences always undoes the change.
	isSavedByProgram bool
}

// maxModeChanges bounds the number of changes that a TerminalModes keeps, and so its memory. The bound depends on the
// kind of change: it is maxModeChanges for a private mode that is not in disturbingModes, three times as high for a
// mode in disturbingModes, and twice as high for any other change.
const maxModeChanges = 64

// modesOnAfterReset lists the private modes that are on after a reset. In this order they are ANSI sequences,
// auto-wrap, auto-repeat, a visible cursor, input of eight bits, special modifiers, an alternate screen, and private
// colours.
const modesOnAfterReset = " 2 7 8 25 1034 1035 1046 1070 "

// disturbingModes lists the private modes that would disturb a user most if they were not reset, such as those
// for keys, cursor, screens and the mouse. For these modes the bound on changes is higher (see maxModeChanges),
// so that they are kept even after many other changes.
const disturbingModes = " 1 3 5 6 7 9 12 25 45 47 66 69 1000 1001 1002 1003 1004 1005 1006 1007 1015 1016 1047 1049 " +
	"2004 2026 2031 2048 9001 "

// alternateScreenModes lists the private modes that select the alternate screen, which full-screen programs use.
const alternateScreenModes = " 47 1047 1049 "

// cancelSequence ends an incomplete sequence or string. It consists of CAN, for most terminals, and the string
// terminator, for terminals that ignore CAN inside a string.
const cancelSequence = "\x18\x1b\\"

// hasWord reports whether a list of words, with spaces around each, contains a word.
func hasWord(words, word string) bool { return word != "" && strings.Contains(words, " "+word+" ") }

// Write processes the next piece of output.
func (m *TerminalModes) Write(data []byte) {
	m.scanner.write(data, m.applySequence)
}

// applySequence applies a control sequence or string to the state.
func (m *TerminalModes) applySequence(sequence string) {
	switch {
	case sequence == "\x0e" || sequence == "\x0f":
		m.recordPropertyState("GL", "\x0e", "\x0f", sequence == "\x0e")
	case sequence == "\x1bP=1s" || sequence == "\x1bP=2s": // these strings are the older form of synchronized output
		m.recordPropertyState("=s", "", "\x1bP=2s\x1b\\", sequence == "\x1bP=1s")
	case sequence[1] == '[':
		m.applyCSI(sequence[2:])
	case sequence[1] == ']':
		m.applyOSC(sequence[2:])
	case !beginsControlString(sequence[1]):
		m.applyEscape(sequence[1:])
	}
}

// applyOSC applies an operating system command (OSC).
func (m *TerminalModes) applyOSC(text string) {
	number, value, _ := strings.Cut(text, ";")
	n, err := strconv.Atoi(number)
	switch {
	case strings.HasPrefix(text, "P"): // the Linux console's palette; no terminator ends this string
		m.recordPropertyState("]P", "", "\x1b]R\x1b\\", true)
	case err != nil || strings.HasSuffix(value, "?"): // a query of a colour changes nothing
	case n == 4 || n == 5 || n >= 10 && n <= 19:
		m.recordPropertyState("]"+number, "", "\x1b]"+strconv.Itoa(100+n)+"\a", true)
	case value == "" && n > 100:
		m.recordPropertyState("]"+strconv.Itoa(n-100), "", "", false)
	case n == 8: // a hyperlink; its parameters and address follow, and without an address the link ends
		_, address, _ := strings.Cut(value, ";")
		m.recordPropertyState("]8", "", "\x1b]8;;\a", address != "")
	case n == 22:
		m.recordPropertyState("]22", "", "\x1b]22;\a", value != "")
	case n == 9 && strings.HasPrefix(value, "4;"): // progress, which terminals show in the taskbar
		m.recordPropertyState("]9;4", "", "\x1b]9;4;0\a", !strings.HasPrefix(value, "4;0"))
	}
}

// applyEscape applies a sequence without parameters.
func (m *TerminalModes) applyEscape(s string) {
	switch s {
	case "c": // a reset undoes all changes except those of the palette
		m.modeChanges = slices.DeleteFunc(m.modeChanges, func(c modeChange) bool { return c.changedProperty[0] != ']' })
		m.inVT52Mode, m.cursorSaved, m.cursorMoved = false, false, false
	case "=", ">":
		m.recordPropertyState("=", "\x1b=", "\x1b>", s == "=")
	case "<":
		m.inVT52Mode = false
	case "7":
		m.saveCursor()
	case "n", "o":
		m.recordPropertyState("GL", "\x1b"+s, "\x0f", true)
	case "~", "}", "|":
		m.recordPropertyState("GR", "\x1b"+s, "\x1b}", s != "}")
	case " F", " G":
		m.recordPropertyState(" F", "\x1b G", "\x1b F", s == " G")
	case "%@", "%G":
		m.recordPropertyState("%", "\x1b%@", "\x1b%G", s == "%@")
	case "V", "W":
		m.recordPropertyState("V", "", "\x1bW", s == "V")
	case "l", "m":
		m.recordPropertyState("l", "\x1bl", "\x1bm", s == "l")
	case "H":
		m.recordPropertyState("tabs", "", "", true)
	default:
		if i := strings.IndexByte("()*+-./", s[0]); i >= 0 {
			g := string("()*+)*+"[i])
			m.recordPropertyState(g, "\x1b"+s, "\x1b"+g+"B", s != g+"B")
		}
	}
}

// applyCSI applies a control sequence (CSI).
func (m *TerminalModes) applyCSI(s string) {
	params := strings.TrimLeft(s, "<=>?")
	prefix := s[:len(s)-len(params)]
	tail := strings.TrimLeft(params, "0123456789:;") // the intermediate characters and the final character
	params = params[:len(params)-len(tail)]
	first, _, _ := strings.Cut(params, ";")
	whole, none := "\x1b["+s, first == "" || first == "0"
	switch prefix + tail {
	case "h", "l", "?h", "?l", "?s", "?r":
		for word := range strings.SplitSeq(params, ";") {
			if n, err := strconv.ParseUint(word, 10, 16); err == nil {
				m.applyMode(prefix, strconv.FormatUint(n, 10), tail[0])
			}
		}
	case "m":
		m.recordPropertyState("m", "", "\x1b[m", strings.Trim(params, "0;:") != "")
	case " q", `"q`, "q", "$}", "$~", "*x", "?c", ">s": // cursor, protection, lights, status line etc.
		m.recordPropertyState(prefix+tail, whole, "\x1b["+prefix+"0"+tail, !none)
	case ">p":
		m.recordPropertyState(">p", whole, "\x1b[>1p", first != "1" && first != "")
	case ">m", ">f": // these set how keys are reported; without a value they restore the default
		m.recordPropertyState(prefix+tail+first, whole, "\x1b[>"+first+tail, params != first)
	case ">n":
		m.recordPropertyState(">m"+first, whole, "\x1b[>"+first+"m", true)
	case ">t", ">T":
		m.recordPropertyState(">t"+params, whole, "\x1b[>"+params+"T", tail == "t")
	case "r":
		m.recordPropertyState("r", "\x1b7"+whole+"\x1b8", "\x1b7\x1b[r\x1b8", params != "")
	case "g":
		m.recordPropertyState("tabs", "", "", true)
	case "s":
		// While mode 69 is on, the sequence sets margins instead. The end of that mode removes them.
		if m.changeIndex("?69") < 0 {
			m.saveCursor()
		}
	case ">u", "<u", "=u": // kitty's keyboard protocol, with separate levels for each screen
		m.applyKeyboardProtocol(prefix, params, whole)
	case "t": // these sequences push and pop the window's title
		switch first {
		case "22":
			m.pushPropertyLevel("t", whole, "\x1b[23"+params[2:]+"t")
		case "23":
			m.popPropertyLevels("t", 1)
		}
	case "H", "f", "d":
		m.cursorMoved = true
	}
}

// applyMode applies an operation to a mode: h sets it, l resets it, s saves it, and r restores it. The prefix
// of a private mode is "?".
func (m *TerminalModes) applyMode(prefix, modeNumber string, operation byte) {
	name, private := prefix+modeNumber, prefix == "?"
	usual := hasWord(modesOnAfterReset, modeNumber)
	if !private {
		// Of the ANSI modes, 12 (no local echo) and 34 (normal cursor of tmux) are on after a reset.
		usual = hasWord(" 12 34 ", modeNumber)
	}
	on, i := operation == 'h', m.changeIndex(name)
	switch {
	case !private && !usual && !hasWord(" 2 4 20 ", modeNumber): // this ANSI mode is not tracked
	case operation == 'r':
	case operation == 's':
		if i >= 0 {
			m.modeChanges[i].isSavedByProgram = true
		}
	case name == "?2":
		m.inVT52Mode = !on
	case name == "?1048":
		m.saveCursor()
	case private && hasWord(alternateScreenModes, modeNumber) && !on:
		for _, other := range strings.Fields(alternateScreenModes) {
			m.recordPropertyState("?"+other, "", "", false)
		}
		m.modeChanges = slices.DeleteFunc(m.modeChanges, func(c modeChange) bool {
			return c.changedProperty == "u alternate" ||
				c.changedProperty == "=u alternate"
		})
	default:
		undo := "\x1b[" + name + modeSequenceSuffix(!on)
		switch {
		// The sequence that resets mode 6 also moves the cursor to the top of the screen. The output of the next program must
		// not begin there, so also move the cursor to the bottom.
		case name == "?6":
			undo += "\x1b[999H"
		case name == "?1049":
			m.saveCursor()
		case private && hasWord(alternateScreenModes, modeNumber) && m.cursorSaved:
			undo += "\x1b8"
		}
		m.recordPropertyState(name, "\x1b["+name+modeSequenceSuffix(on), undo, on != usual)
	}
}

// modeSequenceSuffix returns the last character of the sequence that sets a mode or, if on is false, resets it.
func modeSequenceSuffix(on bool) string {
	if on {
		return "h"
	}
	return "l"
}

// applyKeyboardProtocol pushes (>), pops (<) or changes (=) a level of kitty's keyboard protocol.
func (m *TerminalModes) applyKeyboardProtocol(operation, params, sequence string) {
	screen := ""
	if m.usesAlternateScreen() {
		screen = " alternate"
	}
	switch operation {
	case ">":
		m.pushPropertyLevel("u"+screen, sequence, "\x1b[<u")
	case "<":
		n, err := strconv.Atoi(params)
		if err != nil {
			n = 1
		}
		m.popPropertyLevels("u"+screen, n)
	default:
		m.recordPropertyState("=u"+screen, sequence, "\x1b[=0u", params != "" && params != "0" && params != "0;1")
	}
}

// changeIndex returns the index of the change of a property, or -1.
func (m *TerminalModes) changeIndex(property string) int {
	return slices.IndexFunc(m.modeChanges, func(c modeChange) bool { return c.changedProperty == property })
}

// recordPropertyState records whether a property differs from its state after a reset. redoSequence makes the change
// again, and undoSequence reverts it.
func (m *TerminalModes) recordPropertyState(property, redoSequence, undoSequence string, isChanged bool) {
	i := m.changeIndex(property)
	switch {
	case i < 0 && isChanged:
		most := 2 * maxModeChanges
		if n, private := strings.CutPrefix(property, "?"); private && !hasWord(disturbingModes, n) {
			most = maxModeChanges
		} else if private {
			most = 3 * maxModeChanges
		}
		m.addChange(property, redoSequence, undoSequence, most)
	case i < 0:
	case isChanged:
		m.modeChanges[i].redoSequence = redoSequence
	case m.modeChanges[i].isSavedByProgram:
		m.modeChanges[i].redoSequence = ""
	default:
		m.modeChanges = slices.Delete(m.modeChanges, i, i+1)
	}
}

// pushPropertyLevel adds a level to a property that has a stack of levels, such as the window title.
func (m *TerminalModes) pushPropertyLevel(property, redoSequence, undoSequence string) {
	m.addChange(property, redoSequence, undoSequence, 2*maxModeChanges)
}

// addChange adds a change if fewer than maxChanges are kept.
func (m *TerminalModes) addChange(property, redoSequence, undoSequence string, maxChanges int) {
	if len(m.modeChanges) < maxChanges {
		m.modeChanges = append(m.modeChanges, modeChange{changedProperty: property, redoSequence: redoSequence,
			undoSequence: undoSequence})
	}
}

// popPropertyLevels removes the last n changes of a property.
func (m *TerminalModes) popPropertyLevels(property string, n int) {
	for i := len(m.modeChanges) - 1; i >= 0 && n > 0; i-- {
		if m.modeChanges[i].changedProperty == property {
			m.modeChanges = slices.Delete(m.modeChanges, i, i+1)
			n--
		}
	}
}

// saveCursor records that the program has saved the cursor. The terminal saves the colours and character sets together
// with the cursor.
func (m *TerminalModes) saveCursor() {
	m.cursorSaved = true
	for i := range m.modeChanges {
		if hasWord(` m ( ) * + GL GR ?6 ?7 "q `, m.modeChanges[i].changedProperty) {
			m.modeChanges[i].isSavedByProgram = true
		}
	}
}

func (m *TerminalModes) usesAlternateScreen() bool {
	return m.changeIndex("?47") >= 0 || m.changeIndex("?1047") >= 0 || m.changeIndex("?1049") >= 0
}

// IsFullScreen reports whether the program draws the whole screen, like an editor. If a client attaches to such a
// program, the program must redraw the screen, because its recent output does not contain the whole screen.
func (m *TerminalModes) IsFullScreen() bool { return m.cursorMoved || m.usesAlternateScreen() }

// ReplaySequences returns the sequences that give another terminal the same modes.
func (m *TerminalModes) ReplaySequences() string {
	var b strings.Builder
	for _, c := range m.modeChanges {
		b.WriteString(c.redoSequence)
	}
	if m.inVT52Mode {
		b.WriteString("\x1b[?2l")
	}
	return b.String()
}

// RestoreSequences returns the sequences that reset what the program has changed. columns is the width of the terminal.
func (m *TerminalModes) RestoreSequences(columns int) string {
	var b strings.Builder
	if len(m.scanner.pendingBytes) > 0 {
		b.WriteString(cancelSequence)
	}
	if m.inVT52Mode {
		b.WriteString("\x1b<")
	}
	for _, c := range slices.Backward(m.modeChanges) {
		if c.changedProperty == "tabs" {
			b.WriteString("\x1b7\r\x1b[3g" + strings.Repeat("\x1b[8C\x1bH", max(0, columns-1)/8) + "\x1b8")
			continue
		}
		b.WriteString(c.undoSequence)
	}
	return b.String()
}
