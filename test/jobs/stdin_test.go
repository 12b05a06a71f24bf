//go:build linux || windows

package jobs

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// If a job has a stdin file, it reads its standard input from that file. The path is relative to the
// directory of the caller, and the file is read when the job starts. If the file cannot be read, only that
// job fails, and nothing hangs.
func TestJobReadsStdinFile(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	q.WriteFile("in", "from a file\n")
	if r := q.RunCLI("run", "--stdin-file", "in", "--cwd", filepath.VolumeName(q.StateDir)+"/", "cat"); r.ExitCode != 0 ||
		r.Stdout != "from a file\n" {
		t.Errorf("a relative path: %+v", r)
	}
	for file, wantText := range map[string]string{q.Path("none"): "none", q.StateDir: "not a regular file"} {
		j := w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "cat", "stdin_file": file, "max_retries": 0}))
		if j.State != "dead" || testrig.ValueOrMinusOne(j.ExitCode) != 126 || !strings.Contains(j.Error, "stdin_file: ") ||
			!strings.Contains(j.Error, wantText) {
			t.Errorf("%s: %+v, want 126 and %q", file, j, wantText)
		}
	}
	for _, spec := range []testrig.JSONFields{{"command": "cat", "stdin_file": "in"},
		{"command": "cat", "stdin_file": q.Path("in"), "stdin": "x"}} {
		if a := w.Call("enqueue", spec); a.Error == nil || a.Error.Data.Code != "invalid" {
			t.Errorf("%v: %+v", spec, a)
		}
	}
}
