//go:build unix

package cli

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What a job has set on a terminal is undone, and nothing else is touched.
func TestModesAreUndone(t *testing.T) {
	for _, c := range []struct{ printed, undo, again string }{
		{"plain\r\n", "", ""},
		{"\x1b[1;31mred", "\x1b[0m", ""}, {"\x1b[1;31mred\x1b[0m", "", ""}, {"\x1b[31m\x1b[m", "", ""}, {"\x1b[38;5;0m", "\x1b[0m", ""}, {"\x1b[>4;1m", "\x1b[>4;0m", ""}, {"\x1b[>4;1m\x1b[>4m", "", ""},
		{"\x1b[?25l", "\x1b[?25h", "\x1b[?25l"}, {"\x1b[?25l\x1b[?25h", "", ""},
		{"\x1b[?1049h\x1b[?1h\x1b=\x1b[?25l", "\x1b>\x1b[?1049l\x1b[?25h\x1b[?1l", "\x1b[?1h\x1b[?25l\x1b[?1049h\x1b="},
		{"\x1b[?1002;1006h", "\x1b[?1006l\x1b[?1002l", "\x1b[?1002h\x1b[?1006h"}, {"\x1b[?2004h\x1bc", "", ""},
		{"\x1b(0lqk", "\x1b(B", ""}, {"\x1b[2;20r", "\x1b7\x1b[r\x1b8", ""}, {"\x1b[2;20r\x1b[r", "", ""},
		{"\x1b[4h\x1b[2h", "\x1b[2l\x1b[4l", ""}, {"\x1b[4h\x1b[4l", "", ""}, {"\x1b[>1u\x1b[>1u\x1b[<u", "\x1b[<1u", ""}, {"\u009b?25l", "\x1b[?25h", "\x1b[?25l"},
		{"\x1b[?1049h\x1b[?25l\x1b[!p", "\x1b[?1049l\x1b[?25h", "\x1b[?25l\x1b[?1049h"},
		{"\x1b[?h\x1b[?;;xh\x1b[?99999999999999999999h", "", ""},
	} {
		var m modes
		m.see([]byte(c.printed))
		if m.undo() != c.undo || m.again() != c.again {
			t.Errorf("%q: undone by %q and set again by %q, want %q and %q", c.printed, m.undo(), m.again(), c.undo, c.again)
		}
	}
}

// What a person would miss is undone, however many modes nobody knows were set before.
func TestManyModesHideNone(t *testing.T) {
	var m modes
	for n := range 10 * mostModes {
		m.see(fmt.Appendf(nil, "\x1b[?%dh", 5000+n))
	}
	m.see([]byte("\x1b[?1049h\x1b[?1003h\x1b[?25l"))
	for _, want := range []string{"\x1b[?1049l", "\x1b[?1003l", "\x1b[?25h"} {
		if !strings.Contains(m.undo(), want) {
			t.Errorf("%q is not among what is undone", want)
		}
	}
}

// Whatever is printed, in whatever pieces, it means the same, and little is remembered.
func TestModesOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		printed := rapid.StringMatching(`([a-z]|\x{9b}\?25l|\x1b(\[\??[0-9;]{0,9}[hlmrHJ]|[=>c(]|\(0)?){0,30}`).Draw(t, "printed")
		at := rapid.IntRange(0, len(printed)).Draw(t, "at")
		var whole, cut modes
		whole.see([]byte(printed))
		cut.see([]byte(printed[:at]))
		cut.see([]byte(printed[at:]))
		if whole.undo() != cut.undo() || whole.fullScreen() != cut.fullScreen() {
			t.Fatalf("%q is %+v, cut at %d %+v", printed, whole, at, cut)
		}
		if len(whole.private) > mostModes+len(harmful) || len(whole.part) > maxSequence {
			t.Fatalf("%+v is remembered", whole)
		}
	})
}
