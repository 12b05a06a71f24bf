package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// If "queuectl show" does not show all attempts, it prints how many attempts there are and how to show the earlier
// ones.
func TestShowSaysHowToSeeEarlierAttempts(t *testing.T) {
	for first, want := range map[int]string{1: "",
		151: "250 attempts in total; show earlier ones with: --history-before 151"} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		a := NewApp(Program{}, nil, out, out)
		if err := a.showAttemptHistory(&control.JobDetail{TotalAttempts: 250,
			History: []control.Attempt{{Attempt: first}}}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(out.Name())
		if says := strings.Contains(string(text), "in total"); err != nil || says != (want != "") ||
			!strings.Contains(string(text), want) {
			t.Errorf("from %d on: %q, %v, want %q", first, text, err, want)
		}
	}
}
