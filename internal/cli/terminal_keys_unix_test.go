//go:build unix

package cli

import (
	"testing"

	"pgregory.net/rapid"
)

// A tilde begins an escape sequence only after Enter or at the very beginning of the input.
func TestEscapeKeys(t *testing.T) {
	for typed, want := range map[string]struct {
		data string
		w    keyAction
	}{
		"~.": {"", actLeave}, "ls\r~.": {"ls\r", actLeave}, "ls\n~.x": {"ls\n", actLeave},
		"a~.": {"a~.", actNone}, "~~.": {"~.", actNone}, "\r~~\r~.": {"\r~\r", actLeave},
		"~/bin\r": {"~/bin\r", actNone}, "\r~": {"\r", actNone}, "~\r~.": {"~\r", actLeave}, "x\r~?": {"x\r", actHelp},
	} {
		var k keyParser
		if data, w, _ := k.parse([]byte(typed)); string(data) != want.data || w != want.w {
			t.Errorf("%q: got %q, %v, want %q, %v", typed, data, w, want.data, want.w)
		}
	}
}

// Escape sequences are found even if one read returns only a part of a sequence.
func TestEscapeKeysInPieces(t *testing.T) {
	all := func(pieces ...string) (got string) {
		var k keyParser
		for _, p := range pieces {
			for rest := []byte(p); len(rest) > 0; {
				var data []byte
				var w keyAction
				data, w, rest = k.parse(rest)
				got += string(data)
				switch w {
				case actLeave:
					return got + "(left)"
				case actHelp:
					got += "(help)"
				}
			}
		}
		return got
	}
	rapid.Check(t, func(t *rapid.T) {
		typed := rapid.StringMatching(`[a~.?\r]{0,30}`).Draw(t, "typed")
		at := rapid.IntRange(0, len(typed)).Draw(t, "at")
		if whole, cut := all(typed), all(typed[:at], typed[at:]); whole != cut {
			t.Fatalf("%q is %q, cut at %d %q", typed, whole, at, cut)
		}
	})
}
