//go:build unix

package cli

import (
	"testing"

	"pgregory.net/rapid"
)

// What a job has set on a terminal is undone, and nothing else is touched.
func TestModesAreUndone(t *testing.T) {
	for _, c := range []struct{ printed, undo, again string }{
		{"plain\r\n", "", ""},
		{"\x1b[1;31mred", "\x1b[0m", ""}, {"\x1b[1;31mred\x1b[0m", "", ""}, {"\x1b[31m\x1b[m", "", ""}, {"\x1b[38;5;0m", "\x1b[0m", ""}, {"\x1b[>4;1m", "", ""},
		{"\x1b[?25l", "\x1b[?25h", "\x1b[?25l"}, {"\x1b[?25l\x1b[?25h", "", ""},
		{"\x1b[?1049h\x1b[?1h\x1b=\x1b[?25l", "\x1b>\x1b[?1049l\x1b[?25h\x1b[?1l", "\x1b[?1h\x1b[?25l\x1b[?1049h\x1b="},
		{"\x1b[?1002;1006h", "\x1b[?1006l\x1b[?1002l", "\x1b[?1002h\x1b[?1006h"}, {"\x1b[?2004h\x1bc", "", ""},
		{"\x1b(0lqk", "\x1b(B", ""}, {"\x1b[2;20r", "\x1b7\x1b[r\x1b8", ""}, {"\x1b[2;20r\x1b[r", "", ""},
		{"\x1b[?h\x1b[?;;xh\x1b[?99999999999999999999h", "", ""},
	} {
		var m modes
		m.see([]byte(c.printed))
		if m.undo() != c.undo || m.again() != c.again {
			t.Errorf("%q: undone by %q and set again by %q, want %q and %q", c.printed, m.undo(), m.again(), c.undo, c.again)
		}
	}
}

// Whatever is printed, in whatever pieces, it means the same, and little is remembered.
func TestModesOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		printed := rapid.StringMatching(`([a-z]|\x1b(\[\??[0-9;]{0,9}[hlmrHJ]|[=>c(]|\(0)?){0,30}`).Draw(t, "printed")
		at := rapid.IntRange(0, len(printed)).Draw(t, "at")
		var whole, cut modes
		whole.see([]byte(printed))
		cut.see([]byte(printed[:at]))
		cut.see([]byte(printed[at:]))
		if whole.undo() != cut.undo() || whole.fullScreen() != cut.fullScreen() {
			t.Fatalf("%q is %+v, cut at %d %+v", printed, whole, at, cut)
		}
		if len(whole.private) > mostModes || len(whole.part) > maxSequence {
			t.Fatalf("%+v is remembered", whole)
		}
	})
}
