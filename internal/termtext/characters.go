package termtext

import (
	"strconv"
	"strings"
	"unicode"

	runewidth "golang.org/x/text/width"
)

// Columns returns how many columns a character takes on a terminal: 0 for one that combines with
// the character before it or is not seen, 2 for one as wide as a Chinese character.
func Columns(r rune) int {
	switch {
	case r < 0x300: // the usual case
		return 1
	case r >= 0x1160 && r <= 0x11ff || r >= 0xd7b0 && r <= 0xd7ff: // the rest of a Korean syllable
		return 0
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r):
		return 0
	}
	if k := runewidth.LookupRune(r).Kind(); k == runewidth.EastAsianWide || k == runewidth.EastAsianFullwidth {
		return 2
	}
	return 1
}

// Colour returns the length of the colour sequence that s begins with, 0 if it begins with none. A
// sequence that makes text blink or hides it does not count.
func Colour(s string) int {
	if !strings.HasPrefix(s, "\x1b[") {
		return 0
	}
	end := strings.IndexByte(s[:min(len(s), 32)], 'm')
	if end < 0 {
		return 0
	}
	skip := 0 // parameters that belong to 38 or 48: a colour by number
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
