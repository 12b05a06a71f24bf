package queue

import (
	"slices"
	"testing"

	"golang.org/x/sys/windows"
)

// Windows splits the line that CommandText returns into the original words.
func TestCommandTextIsReadBackByWindows(t *testing.T) {
	argv := []string{"prog", "a b", "", `say "hi"`, `a\"b`, `dir with space\`, `C:\a\b`, "a&b", "é"}
	line := CommandText("", argv)
	if got, err := windows.DecomposeCommandLine(line); err != nil || !slices.Equal(got, argv) {
		t.Errorf("%s is read as %q, %v, want %q", line, got, err, argv)
	}
	if want := `cp "c lip1.mov" "a&b"`; CommandText("", []string{"cp", "c lip1.mov", "a&b"}) != want {
		t.Errorf("got %s, want %s", CommandText("", []string{"cp", "c lip1.mov", "a&b"}), want)
	}
}
