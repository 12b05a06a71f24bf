//go:build unix

package top

import (
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/termtext"
)

// In a locale without UTF-8, the screen contains only ASCII.
func TestScreenIsASCIIInNonUTF8Locale(t *testing.T) {
	snap := testSnapshot(control.RightAdmin)
	snap.screen.Running = snap.screen.Running[:2] // drops the third job, whose text is not ASCII
	for _, width := range []int{60, 132} {
		for _, locale := range []string{"C", "C.UTF-8"} {
			t.Setenv("LC_ALL", locale)
			s := &screenTest{T: t, model: newModel("build-01", testNow, snap)}
			s.sendMessages(tea.WindowSizeMsg{Width: width, Height: 30})
			var seen strings.Builder
			for _, keys := range []string{"", "2", "3", "4", "5", "1", "?", "q", "space", "j", "space", "c", "n", "P", "esc",
				"/", "x", "esc", "w", "f", "q"} {
				s.typeKeys(keys)
				seen.WriteString(strings.Join(s.displayedLines(), "\n"))
			}
			at := strings.IndexFunc(seen.String(), func(r rune) bool { return r > '~' })
			if ascii := locale == "C"; ascii != (at < 0) {
				t.Errorf("locale %s, %d columns: only ASCII: %v, want %v: %q", locale, width, at < 0, ascii,
					termtext.Truncate(seen.String()[max(0, at-20):], 60))
			}
		}
	}
}
