package control

import "testing"

// Missing output is described in one way, with its stream unless that is unknown.
func TestGapNamesBytesAndStream(t *testing.T) {
	for want, p := range map[string]Piece{
		"[3 bytes of stdout were not kept]": {Stream: "stdout", Dropped: 3},
		"[4 bytes of stderr are damaged]":   {Stream: "stderr", Damage: &Damage{Offset: 1, Bytes: 4}},
		"[5 bytes of output are damaged]":   {Damage: &Damage{Bytes: 5}},
		"":                                  {Stream: "stdout", Text: "text"},
	} {
		if got := p.Gap(); got != want {
			t.Errorf("%+v: got %q, want %q", p, got, want)
		}
	}
}
