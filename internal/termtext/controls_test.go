package termtext

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Reset gives a terminal its usual modes back after any output, and Text sets the same modes again. The
// controls and their usual state are from "XTerm Control Sequences" and from rs1, rs2, rmcup, rmkx and
// sgr0 in terminfo. The keyboard is from kitty's protocol. Reset also sends cancel and resetAll if the
// output contains a control sequence.
func TestModesAreReset(t *testing.T) {
	const tabs = "\x1b7\r\x1b[3g\x1b[8C\x1bH\x1b[8C\x1bH\x1b8"
	for _, c := range []struct{ name, printed, reset, text string }{
		{"nothing", "plain\r\n\tä©\u00a0\x1b[2J\x1b[c\x1b[6n\x1b[3A\x1b[K\x1bM", "", ""},
		{"colours (sgr0)", "\x1b[1;31mred", "", ""},
		{"colours that were reset", "\x1b[1;31mred\x1b[0m\x1b[31m\x1b[m\x1b[38;2;1;2;3m\x1b[0;0m", "", ""},
		{"the colour 0", "\x1b[38;5;0m", "", ""},
		{"the cursor (cnorm)", "\x1b[?25l", "\x1b[?25h", "\x1b[?25l"},
		{"a cursor that is shown again", "\x1b[?25l\x1b[?25h", "", "\x1b[?25h"},
		{"a blinking cursor (cvvis)", "\x1b[?12;25h", "\x1b[?12l", "\x1b[?12h\x1b[?25h"},
		{"a very visible cursor of tmux", "\x1b[34l", "\x1b[34h", "\x1b[34l"},
		{"the shape of the cursor (DECSCUSR)", "\x1b[5 q", "\x1b[0 q", "\x1b[5 q"},
		{"a shape that was reset", "\x1b[5 q\x1b[0 q\x1b[5 q\x1b[ q",
			"\x1b[0 q\x1b[0 q\x1b[0 q", "\x1b[0 q\x1b[5 q\x1b[ q"},
		{"the cursor of the Linux console", "\x1b[?25h\x1b[?8c", "\x1b[?0c", "\x1b[?25h\x1b[?8c"},
		{"a full screen (rmcup, rmkx)", "\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b=\x1b[?25l",
			"\x1b[?25h\x1b[?1l\x1b[23;0;0t\x1b[?1049l", "\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b=\x1b[?25l"},
		{"a full screen that has ended", "\x1b[?1049h\x1b[22;0;0t\x1b[?1049l\x1b[23;0;0t", "", ""},
		{"a screen that is left by another number", "\x1b[?1049h\x1b[?47l", "", ""},
		{"a screen with a saved cursor (rmcup of rxvt)", "\x1b7\x1b[?47h", "\x1b[?47l\x1b8", "\x1b[?47h"},
		{"a screen and a cursor", "\x1b[?1048h\x1b[?1047h", "\x1b[?1047l\x1b8", "\x1b[?1047h"},
		{"colours that the end of a screen brings back", "\x1b[31m\x1b[?1049h\x1b[m", "\x1b[?1049l", "\x1b[?1049h"},
		{"colours that were saved", "\x1b[31m\x1b7\x1b[m\x1b8", "", ""},
		{"the mouse", "\x1b[?1002;1006h", "\x1b[?1006l\x1b[?1002l", "\x1b[?1002h\x1b[?1006h"},
		{"older reports of the mouse", "\x1b[?9h\x1b[?1000;1001;1003;1005;1015;1016h",
			"\x1b[?1016l\x1b[?1015l\x1b[?1005l\x1b[?1003l\x1b[?1001l\x1b[?1000l\x1b[?9l",
			"\x1b[?9h\x1b[?1000h\x1b[?1001h\x1b[?1003h\x1b[?1005h\x1b[?1015h\x1b[?1016h"},
		{"focus, pasting, synchronized output", "\x1b[?1004h\x1b[?2004h\x1b[?2026h",
			"\x1b[?2026l\x1b[?2004l\x1b[?1004l", "\x1b[?1004h\x1b[?2004h\x1b[?2026h"},
		{"synchronized output by its older name", "\x1bP=1s\x1b\\x", "\x1bP=2s\x1b\\", ""},
		{"modes that are usually on", "\x1b[?7;8;1034h\x1b[12h\x1b[34h\x1b[?7;8l\x1b[12l",
			"\x1b[12h\x1b[?8h\x1b[?7h", "\x1b[?1034h\x1b[34h\x1b[?7l\x1b[?8l\x1b[12l"},
		{"modes of ECMA-48", "\x1b[4h\x1b[2;20h", "\x1b[20l\x1b[2l\x1b[4l", "\x1b[4h\x1b[2h\x1b[20h"},
		{"modes that were reset", "\x1b[4h\x1b[4l\x1b[99h", "\x1b[99l", "\x1b[4l\x1b[99h"},
		{"the keypad, by both names", "\x1b=\x1b[?66h\x1b>", "\x1b[?66l", "\x1b=\x1b[?66h\x1b>"},
		{"margins (DECSTBM, DECLRMM, DECSLRM)", "\x1b[2;20r\x1b[?69h\x1b[5;10s", "\x1b[?69l", "\x1b[?69h"},
		{"margins that were reset", "\x1b[2;20r\x1b[r\x1b[?69h\x1b[?69l\x1b[1;2;3;4$r\x1b[?1r", "", "\x1b[?69l"},
		{"the origin", "\x1b[?6h", "\x1b[?6l\x1b[999H", "\x1b[?6h"},
		{"line drawing (rmacs)", "\x1b(0lqk", "", "\x1b(0"},
		{"line drawing that has ended", "\x1b(0lqk\x1b(B", "", "\x1b(0\x1b(B"},
		{"all character sets", "\x1b)0\x1b*0\x1b+0\x1b-A\x1b.A\x1b/A\x1b(%5",
			"", "\x1b)0\x1b*0\x1b+0\x1b-A\x1b.A\x1b/A\x1b(%5"},
		{"SO (sgr0 of vt100)", "\x0elqk", "", "\x0e"},
		{"SO and SI", "\x0elqk\x0f", "", "\x0e\x0f"},
		{"locking shifts", "\x1bn\x1b~", "", "\x1bn"},
		{"not UTF-8", "\x1b%@", "\x1b%G", "\x1b%@"},
		{"controls of eight bits (rs1 of vt220)", "\x1b G", "\x1b F", "\x1b G"},
		{"protected characters", "\x1b[1\"q\x1bV", "\x1bW\x1b[0\"q", "\x1b[1\"q\x1bV"},
		{"memory lock", "\x1bl", "\x1bm", "\x1bl"},
		{"lights, the status line", "\x1b[1q\x1b[1$}\x1b[2$~",
			"\x1b[0$~\x1b[0$}\x1b[0q", "\x1b[1q\x1b[1$}\x1b[2$~"},
		{"keys with modifiers (XTMODKEYS)", "\x1b[>4;1m\x1b[>1n", "\x1b[>1m\x1b[>4m", "\x1b[>4;1m\x1b[>1n"},
		{"keys as usual again", "\x1b[>4;1m\x1b[>4m\x1b[?4m", "\x1b[>4m\x1b[>4m", "\x1b[>4;1m\x1b[>4m"},
		{"levels of the keyboard (kitty)", "\x1b[>1u\x1b[>31u\x1b[>1u\x1b[<u\x1b[=5;1u",
			"\x1b[=0u\x1b[<u\x1b[<u", "\x1b[>1u\x1b[>31u\x1b[=5;1u"},
		{"levels that were popped", "\x1b[>1u\x1b[>1u\x1b[<9u\x1b[?u\x1b[u", "", ""},
		{"the keyboard of the alternate screen", "\x1b[>1u\x1b[?1049h\x1b[>3u\x1b[=1u",
			"\x1b[=0u\x1b[<u\x1b[?1049l\x1b[<u", "\x1b[>1u\x1b[?1049h\x1b[>3u\x1b[=1u"},
		{"the keyboard of a screen that was left", "\x1b[?1049h\x1b[>3u\x1b[=1u\x1b[?1049l",
			"\x1b[=0u\x1b[<u", "\x1b[>3u\x1b[=1u"},
		{"titles and the pointer", "\x1b[>2;3t\x1b[>2p\x1b[>1s", "\x1b[>0s", "\x1b[>1s"},
		{"the palette (rs1 of xterm-256color)", "\x1b]4;1;#fff\x07\x1b]11;red\x1b\\\x1b]12;#123456\u009c",
			"\x1b]104\a\x1b]111\a\x1b]112\a", ""},
		{"questions about colours", "\x1b]11;?\x07\x1b]4;1;?\x1b\\\x1b]4;1;#fff\x07\x1b]104\x07", "\x1b]104\a", ""},
		{"the palette of the Linux console (rs1)", "\x1b]P1ff0000\x1b[m", "\x1b]R\x1b\\", ""},
		{"a hyperlink", "\x1b]8;id=1;http://example.com\x1b\\x", "\x1b]8;;\a", ""},
		{"a hyperlink that has ended", "\x1b]8;;http://example.com\x07x\x1b]8;;\x07", "\x1b]8;;\a", ""},
		{"progress, the shape of the pointer", "\x1b]9;4;1;50\x07\x1b]22;hand\x07", "\x1b]9;4;0\a\x1b]22;\a", ""},
		{"progress that has ended", "\x1b]9;4;1;50\x07\x1b]9;4;0\x07\x1b]9;done\x07\x1b]22;\x07",
			"\x1b]9;4;0\a\x1b]22;\a", ""},
		{"controls that are text of a string",
			"\x1b]0;\x0e[?25l\x07\x1bP\x0e[1m\x1b\\\x1b_a\x07\x0eb\x1b\\\x1b^c\u009c\x1bXd\x18", "", ""},
		{"an unfinished title", "\x1b]0;title", "", ""},
		{"unfinished strings", "\x1b[?25l\x1bPq#0", "\x1b[?25h", "\x1b[?25l"},
		{"an unfinished APC that BEL does not end", "\x1b_Gf=100;\x07AAAA", "", ""},
		{"an unfinished sequence", "\x1b[?10", "", ""},
		{"a sequence that is cancelled", "\x1b[?25\x18l\x1b[?25\x1b[?1l", "", "\x1b[?1l"},
		{"a control within a sequence", "\x1b[?2\n5l", "\x1b[?25h", "\x1b[?25l"},
		{"controls of one character", "\u009b?25l\u009d0;\x0e\u009c", "\x1b[?25h", "\x1b[?25l"},
		{"tab stops", "\x1b[3g\x1bH", tabs + tabs, "\x1b[3g\x1bH"},
		{"a VT52", "\x1b[?25l\x1b[?2l", "\x1b[?2h\x1b[?25h", "\x1b[?25l\x1b[?2l"},
		{"a VT52 that has ended (rs2 of vt100)", "\x1b[?2l\x1b[?25l\x1b<", "\x1b[?25h", "\x1b[?25l"},
		{"a reset (rs1)", "\x1b[?2004h\x0e\x1b(0\x1b[1m\x1b]4;1;#fff\x07\x1bc", "\x1b]104\a", ""},
		{"a soft reset, which is different in each terminal", "\x1b[?1049h\x1b[?25l\x1b[!p",
			"\x1b[?25h\x1b[?1049l", "\x1b[?1049h\x1b[?25l"},
		{"not a mode", "\x1b[?h\x1b[?;;xh\x1b[?99999999999999999999h\x1b[?2:5h", "", ""},
	} {
		controls := NewControls()
		controls.Write([]byte(c.printed))
		want := cancel + c.reset + resetAll
		if got := controls.Reset(20); got != want || controls.Text() != c.text {
			t.Errorf("%s: after %q, %q is reset by %q, want %q by %q", c.name, c.printed, controls.Text(), got, c.text, want)
		}
	}
	controls := NewControls()
	controls.Write([]byte("plain\r\n\tä©\u00a0"))
	if got := controls.Reset(20); got != "" {
		t.Errorf("text without control sequences is followed by %q", got)
	}
}

// A terminal that receives Text has the same modes as the program's terminal: Controls returns the same
// Text for it. That holds for any output and any split into pieces.
func TestTextSetsTheSameModes(t *testing.T) {
	parts := []string{"x", "\r\n", "\x1b", "\x1b[", "\x1b[?", "\x1bP", "\x1b]", "\x1b_", "\x1b\\", "\u009b", "\u0090",
		"\u009c", "\xc2", "\a", "\x18", "\x1a", "\x0e", "\x0f", "\n", "\x7f", "1049", "25", "4", "5", ";", "$", "*", "?",
		">", " ", "h", "l", "q", "x", "c", "H", "d", "r", "t", "u", "m", "(0", "(B", "=", "é", "\x1b[?1049h",
		"\x1b[?1049l", "\x1b[?25l", "\x1b[?25h", "\x1b[4h", "\x1b[5 q", "\x1b[>4;2m", "\x1b[>1u", "\x1b[<u",
		"\x1b[22;0t", "\x1b[23;0t", "\x1bc", "\x1b]0;\x0e[?25l\a", "\x1b[2;2H", "\x1b[31m", "\x1b[?1002;1006h",
		strings.Repeat("1;", 200)}
	rapid.Check(t, func(t *rapid.T) {
		piece := rapid.OneOf(rapid.SampledFrom(parts), rapid.String(),
			rapid.Map(rapid.Byte(), func(b byte) string { return string([]byte{b}) }))
		printed := strings.Join(rapid.SliceOfN(piece, 0, 40).Draw(t, "printed"), "")
		at := rapid.IntRange(0, len(printed)).Draw(t, "at")
		whole, cut, again := NewControls(), NewControls(), NewControls()
		whole.Write([]byte(printed))
		cut.Write([]byte(printed[:at]))
		cut.Write([]byte(printed[at:]))
		again.Write([]byte(whole.Text()))
		if whole.Text() != cut.Text() || whole.Reset(80) != cut.Reset(80) {
			t.Fatalf("%q is %+v, cut at %d %+v", printed, whole, at, cut)
		}
		if again.Text() != whole.Text() {
			t.Fatalf("%q sets %q, which sets %q", printed, whole.Text(), again.Text())
		}
	})
}

// After the sequences of Reset, no mode differs from its usual state.
func TestResetLeavesNoModes(t *testing.T) {
	c := NewControls()
	c.Write([]byte("\x1b[>1u\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b[?25l\x1b[?1002;1006;2004h\x1b[?7l\x1b[4h"))
	c.Write([]byte(c.Reset(80)))
	if got := c.Reset(80); got != cancel+resetAll {
		t.Errorf("after a reset, %q is reset", got)
	}
}

// ReplayModes omits the sequence cursorSet, and reports full-screen programs.
func TestReplayModes(t *testing.T) {
	for text, want := range map[string]struct {
		modes      string
		fullScreen bool
	}{
		"":                       {"", false},
		"\x1b[?25l":              {"\x1b[?25l", false},
		"\x1b[?25l\x1b[H\x1b[4h": {"\x1b[?25l\x1b[4h", true},
		"\x1b[?1047h":            {"\x1b[?1047h", true},
	} {
		if modes, fullScreen := ReplayModes(text); modes != want.modes || fullScreen != want.fullScreen {
			t.Errorf("%q: got %q, %v", text, modes, fullScreen)
		}
	}
}

// Controls keeps a bounded number of sequences and bytes, and drops the oldest first. So Reset resets
// the modes that a program sets last, even if the program has set many others before.
func TestControlsAreBounded(t *testing.T) {
	long := strings.Repeat("1;", 100)
	for name, print := range map[string]func(n int) string{
		"short":              func(n int) string { return fmt.Sprintf("\x1b[?%dh", n) },
		"levels":             func(n int) string { return fmt.Sprintf("\x1b[>%du\x1b[22;%dt\x1b]%d;1\a", n, n, n) },
		"long":               func(n int) string { return fmt.Sprintf("\x1b[?%s%dh", long, n) },
		"short, then long":   func(n int) string { return fmt.Sprintf("\x1b[?%s%dh", long[:len(long)*(n/2000)/2], n) },
		"SO, then long":      func(n int) string { return fmt.Sprintf("\x0e\x0f\x1b[?%s%dh", long, n) },
		"sequences too long": func(n int) string { return fmt.Sprintf("\x1b[?%s%s%dh", long, long, n) },
		"strings too long":   func(int) string { return "\x1b]0;" + long + long },
	} {
		c := NewControls()
		for n := range 4000 {
			c.Write([]byte(print(n)))
			if len(c.Text()) > maxSequences*maxControl || len(c.sequences) > maxSequences || len(c.resets) > 20 ||
				len(c.scanner.pendingBytes) > maxControl {
				t.Fatalf("%s: %d bytes in %d sequences are kept after %d", name, len(c.Text()), len(c.sequences), n+1)
			}
		}
		c.Write([]byte("\a\x1b[?1049h\x1b[?1003h\x1b[>1u\x1b[?25l"))
		if !strings.HasSuffix(c.Text(), "\x1b[?1003h\x1b[>1u\x1b[?25l") ||
			!strings.HasPrefix(c.Reset(80), cancel+"\x1b[?25h\x1b[<u\x1b[?1003l\x1b[?1049l") {
			t.Errorf("%s: %q is reset by %q", name, c.Text(), c.Reset(80))
		}
	}
}
