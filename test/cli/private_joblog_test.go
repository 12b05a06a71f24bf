//go:build linux || windows

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// With "--joblog -", a private run writes the job log to stdout. The commands in this log are not escaped.
func TestJobLogCanGoToStdout(t *testing.T) {
	p := testrig.NewPrivateQueue(t)
	r := p.RunPrivate("printf 'a  b\\tc' >&2\n", "--lines", "-", "--joblog", "-")
	lines := strings.Split(r.Stdout, "\n")
	if r.ExitCode != 0 || len(lines) != 3 || !strings.HasPrefix(lines[0], "Seq\tHost\tStarttime") ||
		!strings.HasSuffix(lines[1], "\t0\t0\tprintf 'a  b\\tc' >&2") {
		t.Errorf("a run with --joblog -: %+v", r)
	}
	if _, err := os.Stat(filepath.Join(p.WorkDir, "-")); err == nil {
		t.Error("a file named - was created")
	}
}

// The column Receive of the job log counts only the bytes of stdout, as in GNU parallel 20221122.
func TestJobLogReceiveColumnCountsOnlyStdout(t *testing.T) {
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	r := p.RunPrivate("echo abc; echo defgh >&2\ntrue\nhead -c 200000 /dev/zero; echo end\n", "--lines", "-", "--joblog",
		"log",
		"--workers", "1", "--output-limit", "100K")
	raw, err := os.ReadFile(filepath.Join(p.WorkDir, "log"))
	lines := strings.Split(string(raw), "\n")
	if r.ExitCode != 0 || err != nil || len(lines) != 5 {
		t.Fatalf("a run with a job log: exit code %d, log %q, %v", r.ExitCode, raw, err)
	}
	for i, want := range []string{"Receive", "4", "0", "200004"} {
		if got := strings.Split(lines[i], "\t"); len(got) != 9 || got[5] != want {
			t.Errorf("line %q of the job log: want %s in the column Receive", lines[i], want)
		}
	}
}
