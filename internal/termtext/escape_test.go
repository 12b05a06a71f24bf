package termtext

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"
)

// A job's output cannot control a terminal: all control characters, bidirectional controls and sequences are
// escaped, except colours.
func TestControlCharactersAreEscaped(t *testing.T) {
	for in, want := range map[string]string{
		"plain äß 漢 🙂\n\tx":                     "plain äß 漢 🙂\n\tx",
		"\x1b[31mred\x1b[0m":                    "\x1b[31mred\x1b[0m",
		"\x1b[1;38;5;9mx":                       "\x1b[1;38;5;9mx",
		"\x1b[2J":                               `\x1b[2J`,
		"\x1b[31":                               `\x1b[31`,
		"\x1b]0;title\x07":                      `\x1b]0;title\x07`,
		"\x1b]52;c;ZXZpbA==\x1b\\":              `\x1b]52;c;ZXZpbA==\x1b\`,
		"\x1b[?1049h\x1bc\x1bP":                 `\x1b[?1049h\x1bc\x1bP`,
		"a\rb\bc\x00d\x7f":                      `a\x0db\x08c\x00d\x7f`,
		"\u009b31m\u0085":                       `\x9b31m\x85`,
		"\x9b31m\xff":                           `\x9b31m\xff`,
		"\u202egpj.exe\u2066":                   `\u202egpj.exe\u2066`,
		"\u200f\u061c":                          `\u200f\u061c`,
		"\x1b[" + strings.Repeat("1", 40) + "m": `\x1b[` + strings.Repeat("1", 40) + "m",
	} {
		if got := EscapeControlCharacters(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// For any input, the escaped text is valid UTF-8 and cannot control a terminal.
func FuzzEscapedTextCannotControlTerminal(f *testing.F) {
	for _, seed := range []string{"x", "\x1b[31m", "\x1b]0;x\x07", "\u202e", "\xff\x9b", "\x1b[\x1b[0m"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got := EscapeControlCharacters(in)
		if !utf8.ValidString(got) {
			t.Fatalf("%q: got %q, which is not UTF-8", in, got)
		}
		for i, r := range got {
			if r == 0x1b && LeadingColourSequenceBytes(got[i:]) == 0 || r != 0x1b && r != '\n' && r != '\t' && r < 0x20 ||
				r >= 0x7f &&
					r < 0xa0 ||
				r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
				t.Fatalf("%q: got %q, which holds %U", in, got, r)
			}
		}
	})
}

// LeadingColourSequenceBytes recognises only sequences that set colours.
func TestOnlyColourSequencesAreKept(t *testing.T) {
	for s, want := range map[string]int{
		"\x1b[31mred": 5, "\x1b[m": 3, "\x1b[1;4;38;5;8mx": 13, "\x1b[38;2;5;6;8mx": 13, "\x1b[0m": 4,
		"\x1b[8mhidden": 0, "\x1b[1;5mx": 0, "\x1b[2J": 0, "\x1b[31": 0, "\x1b[?25lm": 0, "red": 0, "": 0,
		"\x1b[38;5;1;8mx": 0, "\x1b[;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;m": 0,
	} {
		if got := LeadingColourSequenceBytes(s); got != want {
			t.Errorf("%q: got %d, want %d", s, got, want)
		}
	}
}

// Characters and colour sequences are shown as a whole, even if they arrive in pieces. An incomplete one at the
// end is escaped.
func TestSplitCharactersAreShownWhole(t *testing.T) {
	const text = "a漢字\x1b[1;31mröd\x1b[0m\xe6\xbc"
	for size := 1; size < len(text); size++ {
		shown, kept := "", ""
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			kept += rest[:n]
			rest = rest[n:]
			whole := len(kept) - TrailingPartialSequenceBytes(kept)
			shown, kept = shown+EscapeControlCharacters(kept[:whole]), kept[whole:]
		}
		if got, want := shown+EscapeControlCharacters(kept), EscapeControlCharacters(text); got != want {
			t.Errorf("in pieces of %d: %q, want %q", size, got, want)
		}
	}
	for text, want := range map[string]int{"": 0, "a": 0, "ä": 0, "\xc3": 1, "\xff": 0, "\xf0\x9f\x98": 3, "\x1b": 1,
		"\x1b[1;3": 5, "\x1b[2J": 0, "\x1b]0": 0, "x\x80": 0} {
		if got := TrailingPartialSequenceBytes(text); got != want {
			t.Errorf("%q: %d are unfinished, want %d", text, got, want)
		}
	}
}

// Every character of a cell is visible, and takes as many columns as DisplayWidth counts.
func TestCellsShowEveryCharacter(t *testing.T) {
	for text, want := range map[string]string{
		"a\u200bb": `a\u200bb`, "\ufeffa": `\ufeffa`, "a\u00adb": `a\u00adb`, "a\u2060": `a\u2060`,
		"x\U000e0041": `x\U000e0041`,
		"a\u3164b":    `a\u3164b`, "a\u034fb": `a\u034fb`, "a\u115fb": `a\u115fb`, "x\U000e0100": `x\U000e0100`,
		"a\ufe0f": `a\ufe0f`, "a\u200db": `a\u200db`,
		"👩\u200d💻": "👩💻", "ü e\u0301 漢": "ü e\u0301 漢", "plain": "plain",
	} {
		got := escapeCellText(text)
		if got != want || DisplayWidth(got) != runewidth.StringWidth(got) {
			t.Errorf("%q: got %q of %d columns, want %q of %d", text, got, DisplayWidth(got), want, runewidth.StringWidth(want))
		}
	}
}
