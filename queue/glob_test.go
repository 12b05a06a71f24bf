package queue

import (
	"errors"
	"strings"
	"testing"
)

// A pattern must match the whole text, character by character.
func TestGlobMatchesWholeText(t *testing.T) {
	for _, c := range []struct{ pattern, matches, rejects string }{
		{"", "", "a"},
		{"*", " a abc", ""},
		{"a*", "a ab a.b", "ba A"},
		{"*a", "a ba aa", "ab"},
		{"a*b*c", "abc aXbYc abcbc aabbcc", "ab acb abcd"},
		{"**a**", "a xax", "x"},
		{"a?c", "abc a.c aüc", "ac abbc"},
		{"?", "a ü 漢", "ab"},
		{"nightly/*1", "nightly/1 nightly/x/1", "nightly/2"},
		{"job[0-9]", "job0 job9", "job joba job10"},
		{"[!0-9]x", "ax -x", "0x x"},
		{"[a-cx-z]", "a b c x y z", "d w -"},
		{"[a-]", "a -", "b"},
		{"[-a]", "a -", "b"},
		{"[a-c-e]", "a b c - e", "d"},
		{"[!!]", "a", "!"},
		{"[^a]", "^ a", "b"},
		{`[\]`, `\`, "]"},
		{"[[:x]", "[ : x", "]"},
		{"a]", "a]", "a"},
		{"a.b+c(", "a.b+c(", "aXb+c( abbc("},
		{"[ä-ü]", "ö", "a"},
	} {
		match, err := CompileGlob(c.pattern)
		if err != nil {
			t.Errorf("%q: %v", c.pattern, err)
			continue
		}
		for _, text := range strings.Split(c.matches, " ") {
			if !match(text) {
				t.Errorf("%q does not match %q", c.pattern, text)
			}
		}
		for _, text := range strings.Split(c.rejects, " ") {
			if c.rejects != "" && match(text) {
				t.Errorf("%q matches %q", c.pattern, text)
			}
		}
	}
}

// An invalid pattern, or one that is too long, is rejected with an error that names the field.
func TestGlobRejectsInvalidPatterns(t *testing.T) {
	long := strings.Repeat("a", MaxGlobBytes)
	if match, err := CompileGlob(long); err != nil || !match(long) || match(long[1:]) {
		t.Errorf("the longest pattern: %v", err)
	}
	for pattern, says := range map[string]string{
		"[": `has an unmatched "["`, "a[b": `has an unmatched "["`, "[]": `has an unmatched "["`,
		"[]a]": `has an unmatched "["`,
		"[!]":  "is not a valid pattern", "[z-a]": "is not a valid pattern", "[!][a]": "is not a valid pattern",
		long + "a":                    "too long (257 bytes); the maximum is 256 bytes",
		strings.Repeat("*a", 500_000): "too long (1000000 bytes)",
	} {
		_, err := CompileGlob(pattern)
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeInvalid || e.Field != "id_glob" || !strings.Contains(e.Message, says) ||
			len(e.Message) > 200 {
			t.Errorf("%.20q: got %v, want %q", pattern, err, says)
		}
	}
}

// CompileGlob does not backtrack. An implementation that backtracks would need years to match these patterns.
func TestGlobTimeIsBounded(t *testing.T) {
	text := strings.Repeat("a", 10_000)
	for _, pattern := range []string{
		strings.Repeat("*a", MaxGlobBytes/2-1) + "*b",
		strings.Repeat("a*", MaxGlobBytes/2-1) + "b",
		"*" + strings.Repeat("a", MaxGlobBytes-2) + "b",
		strings.Repeat("*?", MaxGlobBytes/2-1) + "*b",
		strings.Repeat("*[!b]", MaxGlobBytes/5-1) + "*b",
	} {
		if match, err := CompileGlob(pattern); err != nil || match(text) {
			t.Errorf("%.20q: it matches, or %v", pattern, err)
		}
	}
}
