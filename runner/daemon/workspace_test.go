package daemon

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
)

// A job reports its progress by lines of the form "N" or "N text", where N is a percentage. All other lines
// are ignored. It does not matter how many bytes each read returns.
func TestProgressParserIgnoresInvalidLines(t *testing.T) {
	long := strings.Repeat("é", 200)
	for _, c := range []struct {
		written  string
		percent  int64
		text     string
		reported bool
	}{
		{"", 0, "", false}, {"40\n", 40, "", true}, {"40", 40, "", true}, {"0 begun\r\n", 0, "begun", true},
		{"100% done\n", 100, "done", true}, {"1 a\n2 b\nnonsense\n", 2, "b", true},
		{"3 a\n-1\n101\n+5\n 4.5 x\n", 3, "a", true}, {"  7   spaced  out \n", 7, "spaced  out", true},
		{"8 " + long + "\n", 8, strings.Repeat("é", 128), true},
		{"9\n1 " + strings.Repeat("x", 2000) + "\n", 9, "", true},
		{"5 \xff\n", 5, "?", true}, {"6 \x1b[2J\n", 6, "\x1b[2J", true},
	} {
		for _, size := range []int{1, 7, 4096} {
			var p progressParser
			rest := []byte(c.written)
			for len(rest) > 0 {
				n := min(size, len(rest))
				p.parse(rest[:n])
				rest = rest[n:]
			}
			p.flush()
			want := wire.Progress{Percent: c.percent, Text: c.text}
			if reported := p.lastProgress.ReportedAtMillis != 0; reported != c.reported ||
				p.lastProgress.Percent != want.Percent ||
				p.lastProgress.Text != want.Text {
				t.Errorf("%.40q, in pieces of %d bytes: got %+v", c.written, size, p.lastProgress)
			}
		}
	}
}

// The nesting depth of a result is the depth of its deepest list or object. Other values do not change it.
func TestJSONNestingDepthCountsContainers(t *testing.T) {
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for text, want := range map[string]int{
		`1`: 0, `"[[["`: 0, `{"a": [{}]}`: 3, `[[], {"]": 1}, [[]]]`: 3, nested(25): 25,
		`[1e400,` + nested(25) + `]`: 26, // 1e400 is too large for a float64
	} {
		if got := jsonNestingDepth([]byte(text)); got != want {
			t.Errorf("%s: the depth is %d, want %d", text, got, want)
		}
	}
}

// Whatever bytes a job writes, the reported percentage, the text and the parser's buffer stay within their
// limits.
func FuzzProgressParser(f *testing.F) {
	f.Add([]byte("40 x\n"), []byte("50"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var p progressParser
		p.parse(first)
		p.parse(second)
		p.flush()
		l := p.lastProgress
		if l.Percent < 0 || l.Percent > 100 || len(l.Text) > queue.MaxProgressTextBytes || !utf8.ValidString(l.Text) ||
			cap(p.partialLine) > 4*maxProgressLineBytes+len(first)+len(second) {
			t.Errorf("lines %q, %q: the reported progress is %+v", first, second, l)
		}
	})
}
