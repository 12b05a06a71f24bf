package termtext

import (
	"strings"
	"unicode/utf8"
)

// Width returns how many columns a text takes on a terminal. Colour sequences take none.
func Width(s string) (n int) {
	for len(s) > 0 {
		_, k, columns := nextUnit(s)
		s = s[k:]
		n += columns
	}
	return n
}

// Truncate shortens a text to maxColumns columns, and ends it with an ellipsis. It does not split a colour sequence
// or separate a combining mark from its letter. At the end of a text with colours, it resets them.
func Truncate(s string, maxColumns int) string {
	if Width(s) <= maxColumns {
		return s
	}
	mark := LocaleText("…")
	if Width(mark) > maxColumns { // only the ASCII mark "..." can be wider than maxColumns
		mark = mark[:max(0, maxColumns)]
	}
	kept := maxColumns - Width(mark)
	var b strings.Builder
	last := ""
	for seen := 0; seen < kept; {
		painted, k, columns := nextUnit(s)
		if seen += columns; seen > kept {
			break
		}
		if painted {
			last = ResetColours
		}
		b.WriteString(s[:k])
		s = s[k:]
	}
	return b.String() + mark + last
}

// nextUnit returns the length in bytes, and the columns, of the first unit of a text. A unit is a colour
// sequence, or a character with its combining marks. isColour is true for a colour sequence.
func nextUnit(s string) (isColour bool, length, columns int) {
	if k := ColourLength(s); k > 0 {
		return true, k, 0
	}
	r, length := utf8.DecodeRuneInString(s)
	columns = CharacterWidth(r)
	for length < len(s) {
		r, k := utf8.DecodeRuneInString(s[length:])
		if r < 0x300 || CharacterWidth(r) > 0 {
			break
		}
		if r == emojiSelector {
			columns = 2
		}
		length += k
	}
	return false, length, columns
}

// emojiSelector is the variation selector that makes the character before it an emoji, which is two columns wide.
const emojiSelector = 0xfe0f
