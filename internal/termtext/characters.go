package termtext

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	runewidth "golang.org/x/text/width"
)

// CharacterWidth returns how many columns a character takes on a terminal: 0 for a combining or invisible
// character, 2 for a wide one such as a Chinese character.
func CharacterWidth(r rune) int {
	switch {
	case r < 0x300: // fast path for the most common characters
		return 1
	case r >= 0x1160 && r <= 0x11ff || r >= 0xd7b0 && r <= 0xd7ff: // the second part of a Korean syllable takes no column
		return 0
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r):
		return 0
	}
	if k := runewidth.LookupRune(r).Kind(); k == runewidth.EastAsianWide || k == runewidth.EastAsianFullwidth {
		return 2
	}
	return 1
}

// IsInvisible reports whether a character is not visible by itself. Some such characters format others (a zero-width
// space), some select a variant of the character before (a variation selector), and some are blank by definition (a
// Hangul filler). Formally, these are the Default_Ignorable_Code_Point characters of Unicode (UAX #44) and the other
// format characters, except those that are displayed together with the following text.
func IsInvisible(r rune) bool {
	return r >= 0xad && unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point,
		unicode.Variation_Selector) &&
		!unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}

// IsJoinerOrVariationSelector reports whether an invisible character belongs to a visible one: it joins the parts of an
// emoji, or selects a variant of the visible character.
func IsJoinerOrVariationSelector(r rune) bool {
	return unicode.In(r, unicode.Join_Control, unicode.Variation_Selector)
}

// EscapeInvisibleCharacters escapes a text's invisible characters, with two exceptions. It keeps joiners after
// characters that are not ASCII, as in emoji and in Persian words. It keeps variation selectors after symbols, as in
// most emoji.
func EscapeInvisibleCharacters(s string) string {
	if !strings.ContainsFunc(s, IsInvisible) {
		return s
	}
	var b strings.Builder
	last := rune(0)
	for _, r := range s {
		switch {
		case !IsInvisible(r), unicode.Is(unicode.Variation_Selector, r) &&
			unicode.Is(unicode.S, last), unicode.Is(unicode.Join_Control, r) && last > unicode.MaxASCII:
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		last = r
	}
	return b.String()
}

// RemoveJoiners removes the joiners from a text, because terminals do not agree on the width of joined characters. Each
// character of the result takes the number of columns that DisplayWidth counts for it.
func RemoveJoiners(s string) string {
	// These are all characters with the property Join_Control.
	return strings.ReplaceAll(strings.ReplaceAll(s, "\u200c", ""), "\u200d", "")
}

// LeadingColourSequenceBytes returns the length in bytes of the colour sequence at the beginning of s. It returns 0 if
// s begins with something else, or if the sequence makes text blink or hides it.
func LeadingColourSequenceBytes(s string) int {
	if !strings.HasPrefix(s, "\x1b[") {
		return 0
	}
	end := strings.IndexByte(s[:min(len(s), 32)], 'm')
	if end < 0 {
		return 0
	}
	skip := 0 // number of following parameters that belong to a colour number, after 38 or 48
	params := strings.Split(s[2:end], ";")
	for i, p := range params {
		if strings.Trim(p, "0123456789") != "" {
			return 0
		}
		switch n, _ := strconv.Atoi(p); {
		case skip > 0:
			skip--
		case (n == 38 || n == 48) && i+1 < len(params):
			skip = map[string]int{"5": 2, "2": 4}[params[i+1]]
		case n == 5 || n == 6 || n == 8:
			return 0
		}
	}
	return end + 1
}
