package termtext

import (
	"strings"
	"unicode/utf8"
)

// DisplayWidth returns how many columns a text takes on a terminal. Colour sequences take none.
func DisplayWidth(s string) (n int) {
	for len(s) > 0 {
		_, k, columns := nextDisplayUnit(s)
		s = s[k:]
		n += columns
	}
	return n
}

// Truncate shortens a text to maxColumns columns, and ends it with an ellipsis. It does not split a colour sequence,
// and does not separate a combining mark from its letter. If the text has colours, Truncate resets them at the end.
func Truncate(s string, maxColumns int) string {
	if DisplayWidth(s) <= maxColumns {
		return s
	}
	mark := TextForLocale("…")
	if DisplayWidth(mark) > maxColumns { // only the ASCII mark "..." can be wider than maxColumns
		mark = mark[:max(0, maxColumns)]
	}
	kept := maxColumns - DisplayWidth(mark)
	var b strings.Builder
	last := ""
	for seen := 0; seen < kept; {
		painted, k, columns := nextDisplayUnit(s)
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

// nextDisplayUnit returns the first unit of a text: its length in bytes, and the columns that it takes. A unit is a
// colour sequence, or a character with its combining marks. isColour is true for a colour sequence.
func nextDisplayUnit(s string) (isColour bool, byteLength, columns int) {
	if k := LeadingColourSequenceBytes(s); k > 0 {
		return true, k, 0
	}
	r, byteLength := utf8.DecodeRuneInString(s)
	columns = CharacterWidth(r)
	for byteLength < len(s) {
		r, k := utf8.DecodeRuneInString(s[byteLength:])
		if r < 0x300 || CharacterWidth(r) > 0 {
			break
		}
		if r == emojiVariationSelector {
			columns = 2
		}
		byteLength += k
	}
	return false, byteLength, columns
}

// emojiVariationSelector is the variation selector that makes the character before it an emoji, which is two columns
// wide.
const emojiVariationSelector = 0xfe0f
