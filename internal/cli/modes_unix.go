//go:build unix

package cli

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// modes are those that a job has set on the terminal that shows its output, so that another
// terminal can be given the same, and the person's is left as it was.
type modes struct {
	private  map[int]bool // set by CSI ? N h, or reset by l, other than usual
	public   map[int]bool // set by CSI N h: keys are locked (2), characters inserted (4)
	keys     int          // levels of the keys' encoding that were pushed (kitty's protocol)
	modified bool         // keys are told with their modifiers (xterm's modifyOtherKeys)
	coloured bool         // characters have attributes
	keypad   bool         // keys send what applications ask for
	drawing  bool         // letters are line drawings
	region   bool         // a part of the screen scrolls
	painted  bool         // the cursor was sent to a place of the screen
	part     []byte       // the beginning of a sequence
}

// The private modes that are on unless they are reset, those that are another screen, and how
// many are remembered.
var (
	usuallyOn    = []int{7, 25}
	otherScreens = []int{47, 1047, 1049}
)

const mostModes = 64

// harmful are the modes that a person would miss to be undone, so they are remembered however many
// others there are: other screens, the mouse, the cursor, pasting, focus.
var harmful = []int{1, 5, 6, 7, 9, 25, 47, 66, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1047, 1048, 1049, 2004, 2026}

// maxSequence bounds a control sequence in bytes; what is longer is none that is known here.
const maxSequence = 64

// see takes the next piece of output.
func (m *modes) see(data []byte) {
	if len(m.part) > 0 {
		data = append(m.part, data...)
		m.part = nil
	}
	for {
		at, c1 := bytes.IndexByte(data, 0x1b), bytes.Index(data, []byte("\u009b"))
		switch {
		case c1 >= 0 && (at < 0 || c1 < at): // ESC [ as one character
			data = append([]byte("\x1b["), data[c1+len("\u009b"):]...)
		case at >= 0:
			data = data[at:]
		default:
			if bytes.HasSuffix(data, []byte("\xc2")) { // the first half of one
				m.part = []byte("\xc2")
			}
			return
		}
		n := sequence(data)
		if n == 0 {
			m.part = bytes.Clone(data)
			return
		}
		m.obey(string(data[:n]))
		data = data[n:]
	}
}

// sequence is the length of the control sequence that data begins with, 0 if its end is not
// there yet.
func sequence(data []byte) int {
	switch {
	case len(data) < 2:
		return 0
	case data[1] == '(' || data[1] == ')':
		if len(data) < 3 {
			return 0
		}
		return 3
	case data[1] != '[':
		return 2
	}
	for i := 2; i < len(data); i++ {
		if data[i] < 0x20 || data[i] > 0x3f {
			return i + 1
		}
		if i == maxSequence {
			return i
		}
	}
	return 0
}

func (m *modes) obey(s string) {
	switch s {
	case "\x1bc":
		*m = modes{}
		return
	case "\x1b[!p": // a soft reset, which each terminal does in its own way: what was set is undone all the same
		return
	case "\x1b=", "\x1b>":
		m.keypad = s == "\x1b="
		return
	case "\x1b(0", "\x1b(B":
		m.drawing = s == "\x1b(0"
		return
	}
	if !strings.HasPrefix(s, "\x1b[") {
		return
	}
	params, final := s[2:len(s)-1], s[len(s)-1]
	switch final {
	case 'u':
		if strings.HasPrefix(params, ">") {
			m.keys = min(m.keys+1, mostModes)
		} else if n, popped := strings.CutPrefix(params, "<"); popped {
			levels, err := strconv.Atoi(n)
			if err != nil {
				levels = 1
			}
			m.keys = max(0, m.keys-levels)
		}
	case 'm':
		if strings.HasPrefix(params, ">4") {
			m.modified = strings.HasPrefix(params, ">4;") && params != ">4;0"
		}
		if !strings.HasPrefix(params, ">") && !strings.HasPrefix(params, "?") { // those are about keys
			m.coloured = strings.Trim(params, "0;") != ""
		}
	case 'r':
		m.region = params != ""
	case 'H', 'f', 'd':
		m.painted = true
	case 'h', 'l':
		if list, private := strings.CutPrefix(params, "?"); private {
			for word := range strings.SplitSeq(list, ";") {
				if n, err := strconv.Atoi(word); err == nil {
					m.set(n, final == 'h')
				}
			}
			return
		}
		for word := range strings.SplitSeq(params, ";") {
			if n, err := strconv.Atoi(word); err == nil && (n == 2 || n == 4) {
				if m.public == nil {
					m.public = map[int]bool{}
				}
				m.public[n] = final == 'h'
			}
		}
	}
}

func (m *modes) set(n int, on bool) {
	switch {
	case on == slices.Contains(usuallyOn, n):
		delete(m.private, n)
	case len(m.private) < mostModes || slices.Contains(harmful, n):
		if m.private == nil {
			m.private = map[int]bool{}
		}
		m.private[n] = on
	}
}

// fullScreen reports whether the job has drawn a screen of its own, which it can draw again,
// and which what it has printed last is no part of.
func (m *modes) fullScreen() bool {
	return m.painted || slices.ContainsFunc(otherScreens, func(n int) bool { return m.private[n] })
}

// again gives a terminal as it was the modes.
func (m *modes) again() string {
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(m.private)) {
		b.WriteString(setMode(n, m.private[n]))
	}
	if m.keypad {
		b.WriteString("\x1b=")
	}
	return b.String()
}

// undo makes a terminal with the modes as it was.
func (m *modes) undo() string {
	var b strings.Builder
	for _, t := range []struct {
		set  bool
		undo string
	}{{m.coloured, "\x1b[0m"}, {m.drawing, "\x1b(B"}, {m.region, "\x1b7\x1b[r\x1b8"}, {m.keypad, "\x1b>"}, {m.public[2], "\x1b[2l"}, {m.public[4], "\x1b[4l"}, {m.modified, "\x1b[>4;0m"}, {m.keys > 0, fmt.Sprintf("\x1b[<%du", m.keys)}} {
		if t.set {
			b.WriteString(t.undo)
		}
	}
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(m.private))) {
		b.WriteString(setMode(n, !m.private[n]))
	}
	return b.String()
}

func setMode(n int, on bool) string {
	final := 'l'
	if on {
		final = 'h'
	}
	return fmt.Sprintf("\x1b[?%d%c", n, final)
}
