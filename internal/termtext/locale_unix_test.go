//go:build unix

package termtext

import (
	"testing"
)

// isLocaleASCIIOnly follows setlocale(3): it uses the first of LC_ALL, LC_CTYPE and LANG that is set and
// not empty, or else the locale C.
func TestASCIIOnlyFollowsLocaleVariables(t *testing.T) {
	for _, c := range []struct {
		all, ctype, lang string
		ascii            bool
	}{
		{"", "", "", true}, {"C", "", "C.UTF-8", true}, {"POSIX", "", "", true}, {"", "C", "C.UTF-8", true},
		{"", "", "C", true},
		{"", "", "de_DE", true}, {"", "", "de_DE.ISO-8859-1", true}, {"", "", "de_DE@euro", true},
		{"en_US.UTF-16", "", "", true},
		{"C.UTF-8", "C", "C", false}, {"", "C.utf8", "C", false}, {"", "", "en_US.UTF-8", false},
		{"", "", "de_DE.utf8@euro", false},
		{"", "UTF-8", "", false}, // macOS sets this value
	} {
		for name, value := range map[string]string{"LC_ALL": c.all, "LC_CTYPE": c.ctype, "LANG": c.lang} {
			t.Setenv(name, value)
		}
		sign, short := "✓", "abc…"
		if c.ascii {
			sign, short = "+", "a..."
		}
		if got, text := TextForLocale("✓"), Truncate("abcdef", 4); got != sign || text != short {
			t.Errorf("%+v: got %s and %s, want %s and %s", c, got, text, sign, short)
		}
	}
}

// Truncate never returns more than n columns, even if the ellipsis "..." is wider than n.
func TestTruncateInASCIIFitsAnyWidth(t *testing.T) {
	t.Setenv("LC_ALL", "C")
	for n, want := range []string{"", ".", "..", "...", "a...", "ab..."} {
		if got := Truncate("abcdef", n); got != want {
			t.Errorf("%d columns: got %q, want %q", n, got, want)
		}
	}
}
