//go:build unix

package cli

import (
	"testing"

	"pgregory.net/rapid"
)

// A tilde begins an escape sequence only after Enter and at the very beginning of the input.
func TestTildes(t *testing.T) {
	for typed, want := range map[string]struct {
		data string
		w    wish
	}{
		"~.": {"", wishLeave}, "ls\r~.": {"ls\r", wishLeave}, "ls\n~.x": {"ls\n", wishLeave},
		"a~.": {"a~.", wishNothing}, "~~.": {"~.", wishNothing}, "\r~~\r~.": {"\r~\r", wishLeave},
		"~/bin\r": {"~/bin\r", wishNothing}, "\r~": {"\r", wishNothing}, "~\r~.": {"~\r", wishLeave}, "x\r~?": {"x\r", wishHelp},
	} {
		var k keys
		if data, w, _ := k.take([]byte(typed)); string(data) != want.data || w != want.w {
			t.Errorf("%q: got %q, %v, want %q, %v", typed, data, w, want.data, want.w)
		}
	}
}

// Escape sequences work regardless of how the input is split into reads.
func TestTildesInPieces(t *testing.T) {
	all := func(pieces ...string) (got string) {
		var k keys
		for _, p := range pieces {
			for rest := []byte(p); len(rest) > 0; {
				var data []byte
				var w wish
				data, w, rest = k.take(rest)
				got += string(data)
				switch w {
				case wishLeave:
					return got + "(left)"
				case wishHelp:
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
