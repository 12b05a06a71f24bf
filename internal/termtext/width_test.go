package termtext

import (
	"slices"
	"testing"
)

// Truncate cuts a text that is too wide, and ends it with a mark. The result is as wide as allowed, or one column
// narrower if the next character takes two columns. A combining mark stays with its letter.
func TestTruncateFillsWidthWithMark(t *testing.T) {
	for _, c := range [][2]string{
		{"abcdefgh", "abcdefgh"}, {"abcdefghi", "abcdefg…"}, {"äöüäöüäöü", "äöüäöüä…"}, {"", ""},
		{"漢字漢字", "漢字漢字"}, {"漢字漢字漢", "漢字漢…"}, {"a漢字漢字", "a漢字漢…"}, {"😀😀😀😀😀", "😀😀😀…"},
		{"e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301",
			"e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301…"},
		{"❤\ufe0f❤\ufe0f❤\ufe0f❤\ufe0f", "❤\ufe0f❤\ufe0f❤\ufe0f❤\ufe0f"},
		{"❤\ufe0f❤\ufe0f❤\ufe0f❤\ufe0f❤", "❤\ufe0f❤\ufe0f❤\ufe0f…"},
		{"\x1b[31m漢字漢字\x1b[0m", "\x1b[31m漢字漢字\x1b[0m"}, {"\x1b[31m漢字漢字漢\x1b[0m", "\x1b[31m漢字漢…\x1b[0m"},
	} {
		if got := Truncate(c[0], 8); got != c[1] {
			t.Errorf("%q: got %q, want %q", c[0], got, c[1])
		}
	}
}

// DisplayWidth counts the columns that terminals use for each character.
func TestDisplayWidthMatchesTerminals(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "a": 1, "ä": 1, "漢": 2, "ｱ": 1, "Ａ": 2, "한": 2, "\u1112\u1161\u11ab": 2, "e\u0301": 1, "\u200d": 0, "…": 1,
		"─": 1, "😀": 2, "👍🏽": 4, "🇩🇪": 2, "❤": 1, "❤\ufe0f": 2, "\u0600": 1,
	} {
		if got := DisplayWidth(text); got != want {
			t.Errorf("%q (%U): got %d, want %d", text, []rune(text), got, want)
		}
	}
}

// Text that is too long for the window is wrapped, if possible between words. Colour sequences take no columns.
func TestWrapLinesBreaksBetweenWords(t *testing.T) {
	for text, want := range map[string][]string{
		"":                             {""},
		"ok: 1 of 2":                   {"ok: 1 of 2"},
		"ok: 1 of 2 workers busy":      {"ok: 1 of 2", "workers", "busy"},
		"0123456789ab cd":              {"0123456789", "ab cd"},
		"\x1b[32mok\x1b[39m: 1 of 2 w": {"\x1b[32mok\x1b[39m: 1 of 2", "w"},
		"界界界界界界":                       {"界界界界界", "界"},
	} {
		if got := WrapLines(10, text); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
