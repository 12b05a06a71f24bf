package queue_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/queuectl/queuectl/queue"
)

// globPiece is one element of a glob pattern: a *, or an element that matches each character for which matchesRune
// returns true. This file implements globs in a simple way, with pieces. The test compares CompileGlob with this
// implementation.
type globPiece struct {
	matchesAnyText bool
	matchesRune    func(rune) bool
}

// parseGlob parses a pattern in a simple way. ok is false if the pattern is invalid.
func parseGlob(pattern string) (pieces []globPiece, ok bool) {
	rest := pattern
	for rest != "" {
		r, size := utf8.DecodeRuneInString(rest)
		switch r {
		case '*':
			pieces = append(pieces, globPiece{matchesAnyText: true})
		case '?':
			pieces = append(pieces, globPiece{matchesRune: func(rune) bool { return true }})
		case '[':
			class, _, closed := strings.Cut(rest[1:], "]")
			size = len(class) + 2
			class, not := strings.CutPrefix(class, "!")
			if !closed || class == "" {
				return nil, false
			}
			set := []rune(class)
			var runeRanges [][2]rune
			for len(set) > 0 {
				if len(set) >= 3 && set[1] == '-' {
					if set[0] > set[2] {
						return nil, false
					}
					runeRanges, set = append(runeRanges, [2]rune{set[0], set[2]}), set[3:]
				} else {
					runeRanges, set = append(runeRanges, [2]rune{set[0], set[0]}), set[1:]
				}
			}
			pieces = append(pieces, globPiece{matchesRune: func(c rune) bool {
				inClass := false
				for _, s := range runeRanges {
					inClass = inClass || s[0] <= c && c <= s[1]
				}
				return inClass != not
			}})
		default:
			pieces = append(pieces, globPiece{matchesRune: func(c rune) bool { return c == r }})
		}
		rest = rest[size:]
	}
	return pieces, true
}

// globMatches reports whether the pieces match the whole text. For each piece, it computes all positions in the text at
// which a match of the pieces up to this one can end.
func globMatches(pieces []globPiece, text []rune) bool {
	reach := make([]bool, len(text)+1) // positions at which a match of the previous pieces may end
	reach[0] = true
	for _, p := range pieces {
		next := make([]bool, len(text)+1)
		for at, reachable := range reach {
			switch {
			case !reachable:
			case p.matchesAnyText:
				for to := at; to <= len(text); to++ {
					next[to] = true
				}
			case at < len(text) && p.matchesRune(text[at]):
				next[at+1] = true
			}
		}
		reach = next
	}
	return reach[len(text)]
}

// CompileGlob accepts the same patterns and matches the same texts as the simple implementation in this file.
func FuzzGlob(f *testing.F) {
	for _, seed := range [][2]string{{"a*", "ab"}, {"*a*b*", "xaxbx"}, {"?[a-c]", "xb"}, {"[!a]*", "bb"}, {"[]", ""},
		{"[a-]", "-"}, {"**", ""}, {"é?", "éx"}, {"[z-a]", "b"}, {"*aab", "aaab"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(text) > 1000 {
			return
		}
		match, err := queue.CompileGlob(pattern)
		list, ok := parseGlob(pattern)
		if ok = ok && len(pattern) <= queue.MaxGlobBytes; ok != (err == nil) || err != nil &&
			(!errors.Is(err, queue.ErrInvalid) || len(err.Error()) > 1024) {
			t.Fatalf("%q: got %v, want a pattern: %t", pattern, err, ok)
		}
		if ok && match(text) != globMatches(list, []rune(text)) {
			t.Fatalf("%q matches %q: %t", pattern, text, match(text))
		}
	})
}
