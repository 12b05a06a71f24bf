package queue

import (
	"strings"
	"unicode/utf8"
)

// MaxGlobBytes is the maximum length of a pattern, in bytes.
const MaxGlobBytes = 256

// Glob returns a function that reports whether a whole text matches the pattern. In a pattern, * matches any
// text, ? any one character, [a-z] one of these characters, and [!a-z] any character except these. Matching
// takes time proportional to the length of the pattern times the length of the text.
func Glob(pattern string) (func(string) bool, error) {
	g, err := parseGlob(pattern)
	if err != nil {
		return nil, err
	}
	return func(text string) bool {
		ok, _ := g.match(text)
		return ok
	}, nil
}

// GlobFormat is the form of a pattern. Its regular expression also accepts reversed ranges like
// [z-a], which Glob rejects.
var GlobFormat = &TextFormat{Pattern: `^([^\[]|\[(![^\]]+|[^!\]][^\]]*)\])*$`, Check: checkGlob}

func checkGlob(pattern string) error {
	_, err := parseGlob(pattern)
	return err
}

func parseGlob(pattern string) (g glob, err error) {
	if len(pattern) > MaxGlobBytes {
		return nil, Invalid("id_glob", "too long (%d bytes); the maximum is %d bytes", len(pattern), MaxGlobBytes)
	}
	for i := 0; i < len(pattern); {
		r, size := utf8.DecodeRuneInString(pattern[i:])
		t := globToken{ranges: [][2]rune{{r, r}}}
		switch r {
		case '*':
			t = globToken{star: true}
		case '?':
			t = globToken{negated: true}
		case '[':
			end := strings.IndexByte(pattern[i:], ']')
			if end < 2 {
				return nil, Invalid("id_glob", `%q has an unmatched "["; write it like build-* or job[0-9]`, Clip(pattern))
			}
			class, ok := parseClass(pattern[i+1 : i+end])
			if !ok {
				return nil, Invalid("id_glob", "%q is not a valid pattern; write it like build-* or job[0-9]", Clip(pattern))
			}
			t, size = class, end+1
		}
		i += size
		if !t.star || len(g) == 0 || !g[len(g)-1].star { // ** is the same as *
			g = append(g, t)
		}
	}
	return g, nil
}

// glob is a parsed pattern.
type glob []globToken

// globToken is one element of a pattern: a star, or a set of characters.
type globToken struct {
	star    bool
	ranges  [][2]rune // first and last character of each range in the set
	negated bool      // the set contains the characters outside the ranges
}

// parseClass parses the text between brackets. ok is false for an empty class and for a range whose
// last character is less than its first.
func parseClass(class string) (t globToken, ok bool) {
	class, t.negated = strings.CutPrefix(class, "!")
	for list := []rune(class); len(list) > 0; {
		if len(list) > 2 && list[1] == '-' {
			if list[2] < list[0] {
				return t, false
			}
			t.ranges, list = append(t.ranges, [2]rune{list[0], list[2]}), list[3:]
			continue
		}
		t.ranges, list = append(t.ranges, [2]rune{list[0], list[0]}), list[1:]
	}
	return t, len(t.ranges) > 0
}

// matches reports whether the token, which is not a star, matches r.
func (t *globToken) matches(r rune) bool {
	for _, c := range t.ranges {
		if r >= c[0] && r <= c[1] {
			return !t.negated
		}
	}
	return t.negated
}

// match reports whether the pattern matches all of text, and how many steps it took. On a mismatch,
// it lets only the last star match one more character. Trying more characters for earlier stars
// cannot help: the last star can match the same characters.
func (g glob) match(text string) (ok bool, steps int) {
	textPos, patternPos := 0, 0
	// The last star, the end of the text that it matches, and whether a star was found.
	lastStar, starEnd, hasStar := 0, 0, false
	for textPos < len(text) || patternPos < len(g) {
		steps++
		if patternPos < len(g) && g[patternPos].star {
			lastStar, starEnd, hasStar = patternPos, textPos, true
			patternPos++
			continue
		}
		r, size := utf8.DecodeRuneInString(text[textPos:])
		if size > 0 && patternPos < len(g) && g[patternPos].matches(r) {
			textPos, patternPos = textPos+size, patternPos+1
			continue
		}
		if !hasStar || starEnd >= len(text) {
			return false, steps
		}
		_, size = utf8.DecodeRuneInString(text[starEnd:])
		starEnd += size
		textPos, patternPos = starEnd, lastStar+1
	}
	return true, steps
}
