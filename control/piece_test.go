package control

import "testing"

// MissingOutputText says how many bytes of output are missing, and from which stream unless the stream is unknown.
func TestOutputGapTextNamesBytesAndStream(t *testing.T) {
	for want, p := range map[string]OutputPiece{
		"[3 bytes of stdout were not kept]": {Stream: "stdout", DroppedBytes: 3},
		"[4 bytes of stderr are damaged]":   {Stream: "stderr", Damage: &DamagedRange{StreamOffset: 1, ByteCount: 4}},
		"[5 bytes of output are damaged]":   {Damage: &DamagedRange{ByteCount: 5}},
		"":                                  {Stream: "stdout", Text: "text"},
	} {
		if got := p.MissingOutputText(); got != want {
			t.Errorf("%+v: got %q, want %q", p, got, want)
		}
	}
}

// AppendTo puts a text about missing output on a separate line. It appends output unchanged.
func TestOutputGapsAreMarkedOnOwnLine(t *testing.T) {
	for _, c := range []struct {
		before, want string
		p            OutputPiece
	}{
		{"ab", "abc", OutputPiece{Text: "c"}},
		{"ab", "ab\xff", OutputPiece{NonUTF8Bytes: []byte{0xff}}},
		{"", "[3 bytes of stdout were not kept]\n", OutputPiece{Stream: "stdout", DroppedBytes: 3}},
		{"ab", "ab\n[3 bytes of stdout were not kept]\n", OutputPiece{Stream: "stdout", DroppedBytes: 3}},
		{"ab\n", "ab\n[4 bytes of output are damaged]\n", OutputPiece{Damage: &DamagedRange{ByteCount: 4}}},
	} {
		if got := string(c.p.AppendTo([]byte(c.before))); got != c.want {
			t.Errorf("%+v after %q: got %q, want %q", c.p, c.before, got, c.want)
		}
	}
}
