package queue

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// DecodeJSONString returns the same text as package json for every escape.
func TestDecodeJSONStringMatchesLibrary(t *testing.T) {
	piece := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"\r", "\n", "\"", "\\", "/", "\b", "\f", "\x00",
		"\u2028", "é"}))
	rapid.Check(t, func(t *rapid.T) {
		var text string
		for range rapid.IntRange(0, 8).Draw(t, "pieces") {
			text += piece.Draw(t, "piece")
		}
		raw, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var want string
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeJSONString(raw); err != nil || got != want {
			t.Fatalf("%s: got %q, %v, want %q", raw, got, err, want)
		}
		if got := skipJSONValue(append(raw, ",1"...), 0); got != len(raw) {
			t.Fatalf("skipValue(%s) returned %d, want %d", raw, got, len(raw))
		}
	})
	for raw, want := range map[string]string{`"\/\b\f\n\r\t\"\\"`: "/\b\f\n\r\t\"\\", `"\u00e9\ud83d\ude00\n"`: "é😀\n"} {
		if got, err := DecodeJSONString([]byte(raw)); err != nil || got != want {
			t.Errorf("%s: got %q, %v", raw, got, err)
		}
	}
	for _, raw := range []string{`7`, `{}`, `[""]`, `true`, `"\ud800"`} {
		if got, err := DecodeJSONString([]byte(raw)); err == nil {
			t.Errorf("%s is read as %q", raw, got)
		}
	}
}

// CommandText cuts the line of a long argv, but not within a character.
func TestCommandTextIsBounded(t *testing.T) {
	if got := CommandText("make all", nil); got != "make all" {
		t.Errorf("CommandText returned %q", got)
	}
	for n, cut := range map[int]bool{MaxCommandBytes - len("x "): false, MaxCommandBytes - len("x ") + 1: true} {
		got := CommandText("", []string{"x", strings.Repeat("y", n)})
		if len(got) > MaxCommandBytes+len("…") || strings.HasSuffix(got, "…") != cut {
			t.Errorf("an argument of %d bytes: got %d bytes, cut: %v, want at most %d, cut: %v", n, len(got),
				strings.HasSuffix(got, "…"), MaxCommandBytes+len("…"), cut)
		}
	}
	if got := CommandText("", []string{"x", strings.Repeat("é", MaxCommandBytes)}); !utf8.ValidString(got) {
		t.Error("a character is cut in two")
	}
}

// Every size in a message has a unit, because DescribeSize always writes one.
func TestDescribeSizeHasAUnit(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 bytes", 1: "1 byte", 1023: "1023 bytes", 1024: "1KiB", 1025: "1025 bytes", 3 << 20: "3MiB",
		7951786: "7951786 bytes", math.MaxInt64: "9223372036854775807 bytes",
	} {
		if got := DescribeSize(n); got != want {
			t.Errorf("DescribeSize(%d) = %q, want %q", n, got, want)
		}
	}
}
