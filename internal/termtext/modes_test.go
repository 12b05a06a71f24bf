package termtext

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// RestoreSequences reverts all changes that a program made on a terminal, and nothing else. The control sequences, and
// the terminal's state after a reset, are from "XTerm Control Sequences" and terminfo's rs1, rs2, rmcup, rmkx and sgr0.
// The sequences of the keyboard are from kitty's protocol.
func TestRestoreRevertsAllModeChanges(t *testing.T) {
	const tabs = "\x1b7\r\x1b[3g\x1b[8C\x1bH\x1b[8C\x1bH\x1b8"
	for _, c := range []struct{ name, printed, undo, again string }{
		{"nothing", "plain\r\n\tä©\u00a0\x1b[2J\x1b[c\x1b[6n\x1b[3A\x1b[K\x1bM", "", ""},
		{"colours (sgr0)", "\x1b[1;31mred", "\x1b[m", ""},
		{"colours that were reset", "\x1b[1;31mred\x1b[0m\x1b[31m\x1b[m\x1b[38;2;1;2;3m\x1b[0;0m", "", ""},
		{"the colour 0", "\x1b[38;5;0m", "\x1b[m", ""},
		{"the cursor (cnorm)", "\x1b[?25l", "\x1b[?25h", "\x1b[?25l"},
		{"a cursor that is shown again", "\x1b[?25l\x1b[?25h", "", ""},
		{"a blinking cursor (cvvis)", "\x1b[?12;25h", "\x1b[?12l", "\x1b[?12h"},
		{"a very visible cursor of tmux", "\x1b[34l", "\x1b[34h", "\x1b[34l"},
		{"the shape of the cursor (DECSCUSR)", "\x1b[5 q", "\x1b[0 q", "\x1b[5 q"},
		{"a shape that was reset", "\x1b[5 q\x1b[0 q\x1b[5 q\x1b[ q", "", ""},
		{"the cursor of the Linux console", "\x1b[?25h\x1b[?8c", "\x1b[?0c", "\x1b[?8c"},
		{"a full screen (rmcup, rmkx)", "\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b=\x1b[?25l",
			"\x1b[?25h\x1b>\x1b[?1l\x1b[23;0;0t\x1b[?1049l", "\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b=\x1b[?25l"},
		{"a full screen that has ended", "\x1b[?1049h\x1b[22;0;0t\x1b[?1049l\x1b[23;0;0t", "", ""},
		{"a screen that is left by another number", "\x1b[?1049h\x1b[?47l", "", ""},
		{"a screen with a saved cursor (rmcup of rxvt)", "\x1b7\x1b[?47h", "\x1b[?47l\x1b8", "\x1b[?47h"},
		{"a screen and a cursor", "\x1b[?1048h\x1b[?1047h", "\x1b[?1047l\x1b8", "\x1b[?1047h"},
		{"colours that the end of a screen brings back", "\x1b[31m\x1b[?1049h\x1b[m", "\x1b[?1049l\x1b[m", "\x1b[?1049h"},
		{"colours that were saved", "\x1b[31m\x1b7\x1b[m\x1b8", "\x1b[m", ""},
		{"the mouse", "\x1b[?1002;1006h", "\x1b[?1006l\x1b[?1002l", "\x1b[?1002h\x1b[?1006h"},
		{"older reports of the mouse", "\x1b[?9h\x1b[?1000;1001;1003;1005;1015;1016h",
			"\x1b[?1016l\x1b[?1015l\x1b[?1005l\x1b[?1003l\x1b[?1001l\x1b[?1000l\x1b[?9l",
			"\x1b[?9h\x1b[?1000h\x1b[?1001h\x1b[?1003h\x1b[?1005h\x1b[?1015h\x1b[?1016h"},
		{"focus, pasting, synchronized output", "\x1b[?1004h\x1b[?2004h\x1b[?2026h",
			"\x1b[?2026l\x1b[?2004l\x1b[?1004l", "\x1b[?1004h\x1b[?2004h\x1b[?2026h"},
		{"synchronized output by its older name", "\x1bP=1s\x1b\\x", "\x1bP=2s\x1b\\", ""},
		{"modes that are usually on", "\x1b[?7;8;1034h\x1b[12h\x1b[34h\x1b[?7;8l\x1b[12l", "\x1b[12h\x1b[?8h\x1b[?7h",
			"\x1b[?7l\x1b[?8l\x1b[12l"},
		{"modes of ECMA-48", "\x1b[4h\x1b[2;20h", "\x1b[20l\x1b[2l\x1b[4l", "\x1b[4h\x1b[2h\x1b[20h"},
		{"modes that were reset", "\x1b[4h\x1b[4l\x1b[99h", "", ""},
		{"the keypad, by both names", "\x1b=\x1b[?66h\x1b>", "\x1b[?66l", "\x1b[?66h"},
		{"margins (DECSTBM, DECLRMM, DECSLRM)", "\x1b[2;20r\x1b[?69h\x1b[5;10s", "\x1b[?69l\x1b7\x1b[r\x1b8",
			"\x1b7\x1b[2;20r\x1b8\x1b[?69h"},
		{"margins that were reset", "\x1b[2;20r\x1b[r\x1b[?69h\x1b[?69l\x1b[1;2;3;4$r\x1b[?1r", "", ""},
		{"the origin", "\x1b[?6h", "\x1b[?6l\x1b[999H", "\x1b[?6h"},
		{"line drawing (rmacs)", "\x1b(0lqk", "\x1b(B", "\x1b(0"},
		{"line drawing that has ended", "\x1b(0lqk\x1b(B", "", ""},
		{"all character sets", "\x1b)0\x1b*0\x1b+0\x1b-A\x1b.A\x1b/A\x1b(%5", "\x1b(B\x1b+B\x1b*B\x1b)B",
			"\x1b-A\x1b.A\x1b/A\x1b(%5"},
		{"SO (sgr0 of vt100)", "\x0elqk", "\x0f", "\x0e"},
		{"SO and SI", "\x0elqk\x0f", "", ""},
		{"locking shifts", "\x1bn\x1b~", "\x1b}\x0f", "\x1bn\x1b~"},
		{"not UTF-8", "\x1b%@", "\x1b%G", "\x1b%@"},
		{"controls of eight bits (rs1 of vt220)", "\x1b G", "\x1b F", "\x1b G"},
		{"protected characters", "\x1b[1\"q\x1bV", "\x1bW\x1b[0\"q", "\x1b[1\"q"},
		{"memory lock", "\x1bl", "\x1bm", "\x1bl"},
		{"lights, the status line", "\x1b[1q\x1b[1$}\x1b[2$~\x1b[2*x", "\x1b[0*x\x1b[0$~\x1b[0$}\x1b[0q",
			"\x1b[1q\x1b[1$}\x1b[2$~\x1b[2*x"},
		{"keys with modifiers (XTMODKEYS)", "\x1b[>4;1m\x1b[>1n", "\x1b[>1m\x1b[>4m", "\x1b[>4;1m\x1b[>1n"},
		{"keys as usual again", "\x1b[>4;1m\x1b[>4m\x1b[?4m", "", ""},
		{"levels of the keyboard (kitty)", "\x1b[>1u\x1b[>31u\x1b[>1u\x1b[<u\x1b[=5;1u", "\x1b[=0u\x1b[<u\x1b[<u",
			"\x1b[>1u\x1b[>31u\x1b[=5;1u"},
		{"levels that were popped", "\x1b[>1u\x1b[>1u\x1b[<9u\x1b[?u\x1b[u", "", ""},
		{"the keyboard of the alternate screen", "\x1b[>1u\x1b[?1049h\x1b[>3u\x1b[=1u", "\x1b[=0u\x1b[<u\x1b[?1049l\x1b[<u",
			"\x1b[>1u\x1b[?1049h\x1b[>3u\x1b[=1u"},
		{"the keyboard of a screen that was left", "\x1b[?1049h\x1b[>3u\x1b[=1u\x1b[?1049l", "", ""},
		{"titles and the pointer", "\x1b[>2;3t\x1b[>2p\x1b[>1s", "\x1b[>0s\x1b[>1p\x1b[>2;3T", "\x1b[>2;3t\x1b[>2p\x1b[>1s"},
		{"the palette (rs1 of xterm-256color)", "\x1b]4;1;#fff\x07\x1b]11;red\x1b\\\x1b]12;#123456\u009c",
			"\x1b]112\a\x1b]111\a\x1b]104\a", ""},
		{"questions about colours", "\x1b]11;?\x07\x1b]4;1;?\x1b\\\x1b]4;1;#fff\x07\x1b]104\x07", "", ""},
		{"the palette of the Linux console (rs1)", "\x1b]P1ff0000\x1b[m", "\x1b]R\x1b\\", ""},
		{"a hyperlink", "\x1b]8;id=1;http://example.com\x1b\\x", "\x1b]8;;\a", ""},
		{"a hyperlink that has ended", "\x1b]8;;http://example.com\x07x\x1b]8;;\x07", "", ""},
		{"progress, the shape of the pointer", "\x1b]9;4;1;50\x07\x1b]22;hand\x07", "\x1b]22;\a\x1b]9;4;0\a", ""},
		{"progress that has ended", "\x1b]9;4;1;50\x07\x1b]9;4;0\x07\x1b]9;done\x07\x1b]22;\x07", "", ""},
		{"controls that are text of a string", "\x1b]0;\x0e[?25l\x07\x1bP\x0e[1m\x1b\\\x1b_a\x07\x0eb\x1b\\" +
			"\x1b^c\u009c\x1bXd\x18", "", ""},
		{"an unfinished title", "\x1b]0;title", "\x18\x1b\\", ""},
		{"unfinished strings", "\x1b[?25l\x1bPq#0", "\x18\x1b\\\x1b[?25h", "\x1b[?25l"},
		{"an unfinished APC that BEL does not end", "\x1b_Gf=100;\x07AAAA", "\x18\x1b\\", ""},
		{"an unfinished sequence", "\x1b[?10", "\x18\x1b\\", ""},
		{"a sequence that is cancelled", "\x1b[?25\x18l\x1b[?25\x1b[?1l", "", ""},
		{"a control within a sequence", "\x1b[?2\n5l", "\x1b[?25h", "\x1b[?25l"},
		{"controls of one character", "\u009b?25l\u009d0;\x0e\u009c", "\x1b[?25h", "\x1b[?25l"},
		{"tab stops", "\x1b[3g\x1bH", tabs, ""},
		{"a VT52", "\x1b[?25l\x1b[?2l", "\x1b<\x1b[?25h", "\x1b[?25l\x1b[?2l"},
		{"a VT52 that has ended (rs2 of vt100)", "\x1b[?2l\x1b<", "", ""},
		{"a reset (rs1)", "\x1b[?2004h\x0e\x1b(0\x1b[1m\x1b]4;1;#fff\x07\x1bc", "\x1b]104\a", ""},
		{"a soft reset, which is different in each terminal", "\x1b[?1049h\x1b[?25l\x1b[!p", "\x1b[?25h\x1b[?1049l",
			"\x1b[?1049h\x1b[?25l"},
		{"a mode that is saved and restored", "\x1b[?1000h\x1b[?1000s\x1b[?1000l\x1b[?1000r", "\x1b[?1000l", ""},
		{"not a mode", "\x1b[?h\x1b[?;;xh\x1b[?99999999999999999999h\x1b[?2:5h", "", ""},
	} {
		var m TerminalModes
		m.Write([]byte(c.printed))
		if m.RestoreSequences(20) != c.undo || m.ReplaySequences() != c.again {
			t.Errorf("%s: %q: reset by %q and set again by %q, want %q and %q", c.name, c.printed, m.RestoreSequences(20),
				m.ReplaySequences(),
				c.undo, c.again)
		}
		var undone TerminalModes
		if undone.Write([]byte(c.printed + c.undo)); c.undo != tabs && !strings.HasSuffix(c.undo, "R\x1b\\") &&
			!hasSavedChange(&undone) && undone.RestoreSequences(20) != "" {
			t.Errorf("%s: after %q and %q, this mode is still set: %q", c.name, c.printed, c.undo, undone.RestoreSequences(20))
		}
	}
}

// hasSavedChange reports whether the program has saved any of the changes.
func hasSavedChange(m *TerminalModes) bool {
	for _, c := range m.modeChanges {
		if c.isSavedByProgram {
			return true
		}
	}
	return false
}

// A TerminalModes value that reads only the sequences in a ModeSequences value gets the same state as one that reads
// the whole output.
func TestKeptSequencesReproduceModes(t *testing.T) {
	parts := []string{"x", "\r\n", "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25l", "\x1b[?25h", "\x1b[4h", "\x1b[4l",
		"\x1b[5 q", "\x1b[ q", "\x1b[>4;2m", "\x1b[>4m", "\x1b(0", "\x1b(B", "\x0e", "\x0f", "\x1b=", "\x1b>", "\x1bc",
		"\x1b]0;\x0e[?25l\a", "\x1b[2;2H", "\x1b[31m", "\x1b[?1002;1006h", "\x1b[?1006l", "\x1b[K"}
	rapid.Check(t, func(t *rapid.T) {
		printed := strings.Join(rapid.SliceOf(rapid.SampledFrom(parts)).Draw(t, "printed"), "")
		var all, kept TerminalModes
		var c ModeSequences
		c.Write([]byte(printed))
		all.Write([]byte(printed))
		kept.Write([]byte(c.Text()))
		got, want := sortSequences(kept.ReplaySequences()), sortSequences(all.ReplaySequences())
		if got != want || kept.IsFullScreen() != all.IsFullScreen() {
			t.Fatalf("%q: %q sets %q (%v), want %q (%v)", printed, c.Text(), got, kept.IsFullScreen(), want, all.IsFullScreen())
		}
	})
	var c ModeSequences
	c.Write([]byte("\x1b[>1u\x1b[<u\x1b[>1u"))
	if got := c.Text(); got != "\x1b[<u\x1b[>1u" {
		t.Errorf("of a keyboard mode, %q is kept", got)
	}
	for n := range 1 << 16 {
		c.Write(fmt.Appendf(nil, "\x1b[?%dh\x1b[%d;%dr\x1b[%d;1H\x1b[3%dm", n, n, n, n, n))
	}
	if len(c.Text()) > maxKeptSequenceBytes {
		t.Errorf("%d bytes are kept", len(c.Text()))
	}
}

// sortSequences sorts the control sequences in s.
func sortSequences(s string) string {
	parts := strings.Split(strings.ReplaceAll(s, "\x0e", "\x1b\x0e"), "\x1b")
	slices.Sort(parts)
	return strings.Join(parts, "\x1b")
}

// RestoreSequences reverts the modes in disturbingModes, even if many unknown modes were set before.
func TestRestoreRevertsDisturbingModes(t *testing.T) {
	var m TerminalModes
	for n := range 10 * maxModeChanges {
		m.Write(fmt.Appendf(nil, "\x1b[?%dh", 5000+n))
	}
	m.Write([]byte("\x1b[?1049h\x1b[?1003h\x1b[?25l\x1b[31m\x1b[>1u\x0e"))
	for _, want := range []string{"\x1b[?1049l", "\x1b[?1003l", "\x1b[?25h", "\x1b[m", "\x1b[<u", "\x0f"} {
		if !strings.Contains(m.RestoreSequences(80), want) {
			t.Errorf("%q is not among the modes that are reset", want)
		}
	}
}

// For any output, the modes do not depend on how the output is split into pieces, and the size of a TerminalModes value
// is bounded.
func TestTerminalModesSizeIsBounded(t *testing.T) {
	parts := []string{"\x1b", "\x1b[", "\x1b[?", "25l", "1049h", "1049l", ">4;1m", ">1u", "<u", "\x1b]", "4;1;#f", "\a",
		"\x1b\\", "\x18", "\x0e", "\u009b", "\xc2", "\x9c", "é", "(0", "c", "7", "8", "m", "r", "\n",
		strings.Repeat("1;", 200)}
	rapid.Check(t, func(t *rapid.T) {
		printed := strings.Join(rapid.SliceOf(rapid.OneOf(rapid.SampledFrom(parts), rapid.String(),
			rapid.StringMatching(`\x1b\[[>?]?[0-9]{1,5}[hmnut]`))).Draw(t, "printed"), "")
		at := rapid.IntRange(0, len(printed)).Draw(t, "at")
		var whole, cut TerminalModes
		whole.Write([]byte(printed))
		cut.Write([]byte(printed[:at]))
		cut.Write([]byte(printed[at:]))
		if whole.RestoreSequences(80) != cut.RestoreSequences(80) || whole.ReplaySequences() != cut.ReplaySequences() ||
			whole.IsFullScreen() != cut.IsFullScreen() {
			t.Fatalf("%q is %+v, cut at %d %+v", printed, whole, at, cut)
		}
	})
	var m TerminalModes
	for n := range 1 << 16 {
		m.Write(fmt.Appendf(nil, "\x1b[?%dh\x1b[>%d;1m\x1b[>1u\x1b[22t\x1b]%d;1\a", n, n, n))
	}
	m.Write([]byte("\x1b]0;" + strings.Repeat("x", 1<<20)))
	if len(m.modeChanges) > 3*maxModeChanges || len(m.scanner.pendingBytes) > maxControlSequenceBytes {
		t.Errorf("%d changes and %d bytes are remembered", len(m.modeChanges), len(m.scanner.pendingBytes))
	}
}

// A TerminalModes value that reads only the sequences in a ModeSequences value gets the same state as one that reads
// the whole output. This holds even for output with cancelled sequences, sequences inside strings, and sequences that
// begin with U+009B.
func TestKeptSequencesReproduceModesOfAnyOutput(t *testing.T) {
	parts := []string{"\x1b", "\x1b[", "\x1b[?", "\x1bP", "\x1b]", "\x1b_", "\x1b\\", "\u009b", "\u0090", "\u009c",
		"\xc2", "\a", "\x18", "\x1a", "\x0e", "\x0f", "\n", "\x7f", "1049", "25", "4", "5", ";", "$", "*", "?", ">", " ",
		"h", "l", "q", "x", "c", "H", "d", "(0", "(B", "=", "é", "hello"}
	rapid.Check(t, func(t *rapid.T) {
		piece := rapid.OneOf(rapid.SampledFrom(parts),
			rapid.Map(rapid.Byte(), func(b byte) string { return string([]byte{b}) }))
		printed := strings.Join(rapid.SliceOfN(piece, 0, 40).Filter(func(p []string) bool {
			// ModeSequences omits some stacks and regions, so the output must not contain their sequences.
			return !strings.ContainsAny(strings.Join(p, ""), "rtu")
		}).Draw(t, "printed"), "")
		at := rapid.IntRange(0, len(printed)).Draw(t, "at")
		var all, kept TerminalModes
		var c ModeSequences
		c.Write([]byte(printed[:at]))
		c.Write([]byte(printed[at:]))
		all.Write([]byte(printed))
		kept.Write([]byte(c.Text()))
		got, want := sortSequences(kept.ReplaySequences()), sortSequences(all.ReplaySequences())
		if got != want || kept.IsFullScreen() != all.IsFullScreen() {
			t.Fatalf("%q: %q sets %q (%v), want %q (%v)", printed, c.Text(), got, kept.IsFullScreen(), want, all.IsFullScreen())
		}
	})
	for printed, want := range map[string]string{
		"\x1b[?1049\x18hello":      "",
		"\x1b[?1049\x1ahello":      "",
		"\x1bPa\ab\x1b\\":          "",
		"\x1bP\a(0\x1b[?25l\x1b\\": "\x1b[?25l",
		"\x1b]0;t\a\x1b(0":         "\x1b(0",
		"\u009b?25l":               "\x1b[?25l",
	} {
		var c ModeSequences
		c.Write([]byte(printed))
		if got := c.Text(); got != want {
			t.Errorf("%q: %q is kept, want %q", printed, got, want)
		}
	}
}

// ModeSequences keeps a bounded number of sequences and bytes, and drops the oldest first.
func TestKeptSequencesAreBounded(t *testing.T) {
	long := strings.Repeat("1;", 100)
	for name, print := range map[string]func(n int) string{
		"short":              func(n int) string { return fmt.Sprintf("\x1b[?%dh", n) },
		"long":               func(n int) string { return fmt.Sprintf("\x1b[?%s%dh", long, n) },
		"short, then long":   func(n int) string { return fmt.Sprintf("\x1b[?%s%dh", long[:len(long)*(n/2000)/2], n) },
		"SO, then long":      func(n int) string { return fmt.Sprintf("\x0e\x0f\x1b[?%s%dh", long, n) },
		"sequences too long": func(n int) string { return fmt.Sprintf("\x1b[?%s%s%dh", long, long, n) },
	} {
		var c ModeSequences
		last := "\x1b[?25l"
		for n := range 4000 {
			c.Write([]byte(print(n)))
			if len(c.Text()) > maxKeptSequenceBytes || len(c.sequences) > maxKeptSequences {
				t.Fatalf("%s: %d bytes in %d sequences are kept after %d", name, len(c.Text()), len(c.sequences), n+1)
			}
		}
		if c.Write([]byte(last)); !strings.HasSuffix(c.Text(), last) {
			t.Errorf("%s: %q is not kept", name, last)
		}
	}
}
