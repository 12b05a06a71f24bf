//go:build unix

package cli

import (
	"testing"

	"pgregory.net/rapid"
)

// A tilde begins an escape sequence only after Enter or at the very beginning of the input.
func TestEscapeSequenceIsRecognisedOnlyAfterEnter(t *testing.T) {
	for typed, want := range map[string]struct {
		data string
		w    keyAction
	}{
		"~.": {"", leaveJobAction}, "ls\r~.": {"ls\r", leaveJobAction}, "ls\n~.x": {"ls\n", leaveJobAction},
		"a~.": {"a~.", noKeyAction}, "~~.": {"~.", noKeyAction}, "\r~~\r~.": {"\r~\r", leaveJobAction},
		"~/bin\r": {"~/bin\r", noKeyAction}, "\r~": {"\r", noKeyAction}, "~\r~.": {"~\r", leaveJobAction},
		"x\r~?": {"x\r", showHelpAction},
	} {
		var k keyParser
		if data, w, _ := k.parseTypedInput([]byte(typed)); string(data) != want.data || w != want.w {
			t.Errorf("%q: got %q, %v, want %q, %v", typed, data, w, want.data, want.w)
		}
	}
}

// Escape sequences are found even if one read returns only a part of a sequence.
func TestEscapeSequencesSplitAcrossReads(t *testing.T) {
	all := func(pieces ...string) (got string) {
		var k keyParser
		for _, p := range pieces {
			for rest := []byte(p); len(rest) > 0; {
				var data []byte
				var w keyAction
				data, w, rest = k.parseTypedInput(rest)
				got += string(data)
				switch w {
				case leaveJobAction:
					return got + "(left)"
				case showHelpAction:
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
