package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// Where attempts are left out, show says how many there are, and how to see those before.
func TestShowSaysHowToSeeEarlierAttempts(t *testing.T) {
	for first, want := range map[int]string{1: "", 151: "250 attempts in all; --history-before 151 shows earlier ones"} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		a := &App{Out: out, Err: out}
		if err := a.showHistory(&control.JobDetail{HistoryTotal: 250, History: []control.Attempt{{Attempt: first}}}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(out.Name())
		if says := strings.Contains(string(text), "in all"); err != nil || says != (want != "") || !strings.Contains(string(text), want) {
			t.Errorf("from %d on: %q, %v, want %q", first, text, err, want)
		}
	}
}
