package termtext

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The Renderer handles sequences as ECMA-48 and xterm's ctlseqs define.
func TestRendererShowsWhatATerminalShows(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"lines of a terminal", "a\r\nb\r\n", "a\nb\n"},
		{"progress by carriage returns", "10%\r20%\r100%\r\ndone", "100%\ndone"},
		{"a shorter text over a longer one", "longer\rshort\n", "shortr\n"},
		{"erase to the end", "longer\rshort\x1b[K\n", "short\n"},
		{"erase to the beginning", "abcdef\x1b[3G\x1b[1K\n", "   def\n"},
		{"erase the line", "abc\x1b[2K\rx\n", "x\n"},
		{"erase the screen below", "abc\r\x1b[Jx\n", "x\n"},
		{"backspace", "passwx\bord\n", "password\n"},
		{"a shell's rubout", "lsx\b \b -l\n", "ls -l\n"},
		{"left and right", "abc\x1b[2DX\x1b[1CY\n", "aXcY\n"},
		{"to a column", "abc\x1b[10Gx\n", "abc      x\n"},
		{"insert characters", "ac\x1b[D\x1b[@b\n", "abc\n"},
		{"delete characters", "abxc\x1b[2D\x1b[P\n", "abc\n"},
		{"erase characters", "abc\r\x1b[2X\n", "  c\n"},
		{"repeat", "-\x1b[4b\n", "-----\n"},
		{"save and restore", "ab\x1b7cd\x1b8X\x1b[sYY\x1b[uZ\n", "abXZY\n"},
		{"tabs", "a\tb\n", "a\tb\n"},
		{"over a tab", "a\tb\r12\n", "12      b\n"},
		{"a wide character", "世界\b\bx\n", "世x \n"},
		{"half of a wide character", "世界\rx\n", "x 界\n"},
		{"combining marks", "e\u0301x\by\n", "e\u0301y\n"},
		{"colours", "\x1b[1;31mred\x1b[0m plain\n", "red plain\n"},
		{"a window title", "\x1b]0;title\x07a\x1b]0;title\x1b\\b\n", "ab\n"},
		{"a string without an end", "\x1b]0;title\nb\n", "\nb\n"},
		{"a string that is cancelled", "\x1bPdata\x18a\u0090data\u009cb\n", "ab\n"},
		{"modes and questions", "\x1b[?25l\x1b[?2004h\x1b[c\x1b[>4;2m\x1b=a\x1b[6n\x1b[2 q\n", "a\n"},
		{"bells and other controls", "a\a\x00\x7f\x05b\n", "ab\n"},
		{"one-byte controls", "a\u009b31mb\u0085c\n", "ab\nc\n"},
		{"another line", "one\x1b[5;3Htwo\x1b[Athree\n", "one\n  two\n     three\n"},
		{"cleared screens", "\x1b[H\x1b[2Ja\r\n\x1b[H\x1b[2Jb\r\n", "a\nb\n"},
		{"the alternate screen", "before \x1b[?1049hscreen\r\n\x1b[2;2Hmore\x1b[?1049lafter\n", "before after\n"},
		{"older alternate screens", "a\x1b[?47hx\ny\x1b[?47lb\x1b[?1047hz\x1b[?1047;25lc\n", "abc\n"},
		{"a reset on the alternate screen", "a\x1b[?1049hx\x1bcb\n", "a\nb\n"},
		{"line drawing", "\x1b(0lqk\x1b(Bq\x1b)0\x0ex\x0fx\n", "┌─┐q│x\n"},
		{"an incomplete sequence", "abc\x1b[3", "abc"},
		{"an incomplete character", "abc\xe4\xb8", "abc\ufffd"},
		{"invalid bytes", "a\xff\xfeb\n", "a\ufffd\ufffdb\n"},
		{"bytes that form a character only together", "\xc2\x1b!\x85\xc2-\b\x1b[P\x85\n", "\ufffd\ufffd\ufffd\ufffd\n"},
		{"a sequence that ends in an invalid byte", "a\x1b(ä\n", "aä\n"},
	} {
		var whole, pieces Renderer
		if got := whole.Write(c.text) + whole.Finish(); got != c.want {
			t.Errorf("%s: %q shows %q, want %q", c.name, c.text, got, c.want)
		}
		got := ""
		for i := range len(c.text) {
			got += pieces.Write(c.text[i : i+1])
		}
		if got += pieces.Finish(); got != c.want {
			t.Errorf("%s: %q byte by byte shows %q, want %q", c.name, c.text, got, c.want)
		}
	}
}

func TestRendererKeepsColours(t *testing.T) {
	for text, want := range map[string]string{
		"\x1b[31mred\x1b[m plain\n":            "\x1b[31mred\x1b[0m plain\n",
		"\x1b[31mre\nd\x1b[0;1m bold\n":        "\x1b[31mre\x1b[0m\n\x1b[31md\x1b[0m\x1b[0;1m bold\x1b[0m\n",
		"\x1b[31m10%\r\x1b[32m20\x1b[0m\x1b[K": "\x1b[31m\x1b[32m20\x1b[0m",
		"\x1b[5mblinks\x1b[8mhidden":           "blinkshidden",
	} {
		if got := RenderText(text, true); got != want {
			t.Errorf("%q shows %q, want %q", text, got, want)
		}
	}
}

// If a text leaves the alternate screen without having entered it, its beginning was on that screen and is
// dropped.
func TestTextBeforeLeavingAlternateScreenIsDropped(t *testing.T) {
	if got := RenderText("~\r\n~\r\nfile\x1b[?1049l\rafter\r\n", false); got != "after\n" {
		t.Errorf("got %q", got)
	}
	var r Renderer
	if got := r.Write("before\n\x1b[?1049lafter\n"); got != "before\nafter\n" {
		t.Errorf("from the beginning: got %q", got)
	}
}

// For any output, a Renderer keeps at most one line, and the length of that line is bounded.
func TestRendererMemoryIsBounded(t *testing.T) {
	for name, text := range map[string]string{
		"a long line": strings.Repeat("x", 1<<20), "moves": strings.Repeat("\x1b[9999Cx\r\x1b[65535@", 1<<10),
		"marks":   "x" + strings.Repeat("\u0301", 1<<20),
		"a title": "\x1b]0;" + strings.Repeat("x", 1<<20), "parameters": "\x1b[" + strings.Repeat("1;", 1<<20),
		"colours": strings.Repeat("\x1b[1m\x1b[38;5;1m", 1<<16) + "x", "intermediates": "\x1b" + strings.Repeat(" ", 1<<20),
		"repeats": "x" + strings.Repeat("\x1b[99999b", 1<<8),
	} {
		r := Renderer{KeepColours: true}
		size := 0
		for len(text) > 0 {
			n := min(len(text), 32<<10)
			size += len(r.Write(text[:n]))
			text = text[n:]
		}
		if kept := len(r.cells); kept >= maxLineColumns || len(r.partialInput) > 2*maxSequenceBytes ||
			len(r.activeStyle) > maxStyleBytes ||
			len(r.CurrentLine()) > maxLineColumns*(maxCellBytes+maxStyleBytes) {
			t.Errorf("%s: kept %d cells, %d bytes of a sequence, %d of colours, %d of the line", name, kept, len(r.partialInput),
				len(r.activeStyle), len(r.CurrentLine()))
		}
		if size += len(r.Finish()); name == "a long line" && size != 1<<20 {
			t.Errorf("%s: %d bytes are left", name, size)
		}
	}
}

// For any output and any split into pieces, the result contains no control characters except
// newlines and tabs.
func TestRendererRemovesControlCharacters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOf(rapid.OneOf(rapid.SampledFrom([]string{"\x1b", "[", "]", "?1049", "h", "l", "世", "\t", "\r",
			"\b", "\n", "@", "P", "X", "K", "1K", "2K", "C", "D", "G", "5", ";", "\u009b", "\xc2", "\u0301", "b", "m"}),
			rapid.String())).Draw(t, "parts")
		var whole, pieces Renderer
		got := ""
		for _, part := range parts {
			got += pieces.Write(part)
		}
		got += pieces.Finish()
		if want := whole.Write(strings.Join(parts, "")) + whole.Finish(); got != want {
			t.Fatalf("in pieces %q, as a whole %q", got, want)
		}
		if i := strings.IndexFunc(got, func(r rune) bool {
			return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f &&
				r < 0xa0
		}); i >= 0 {
			t.Fatalf("%q has a control character at %d", got, i)
		}
	})
}

// If a control sequence is too long, its beginning is dropped and the rest is printed as text.
func TestTooLongSequenceIsPrintedAsText(t *testing.T) {
	const n = 200
	got := RenderText("a\x1b["+strings.Repeat("1", n)+"mb", false)
	if rest, kept := strings.CutSuffix(got, "1mb"); !kept || rest != "a"+strings.Repeat("1", len(rest)-1) ||
		len(rest) < n-maxSequenceBytes || len(rest) > n-maxSequenceBytes+2 {
		t.Errorf("got %d bytes, %q", len(got), got)
	}
}
