package term

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"unicode"
)

// JSON output represents the value exactly and cannot control a terminal.
func TestJSONEscapesControlCharacters(t *testing.T) {
	value := map[string]string{"a\u009bk": "\x1b[31m\u0085\u009b31m\x7f\u061c\u200f\u202e\u2066\u2028",
		"plain": "ü <&> \u00a0 €"}
	var b strings.Builder
	if err := WriteJSON(&b, value); err != nil {
		t.Fatal(err)
	}
	for _, r := range strings.TrimSuffix(b.String(), "\n") {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			t.Errorf("the text contains %U: %q", r, b.String())
		}
	}
	for _, want := range []string{`\u0085`, `\u009b31m`, `\u202e`, "ü <&>", "€"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("got %s, want %s in it", b.String(), want)
		}
	}
	var got map[string]string
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil || !maps.Equal(got, value) {
		t.Errorf("got %q, %v, want %q", got, err, value)
	}
}
