package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/runner"
)

// A service can end only runners whose directories are in the directory of root's runners. A name
// that leads to another directory is rejected.
func TestKillRequestRejectsOtherDirectories(t *testing.T) {
	base := filepath.Join(t.TempDir(), "runner")
	for _, dir := range []string{"1.a", "as-mail/1.a", "output", "other/1.a"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"1.a", "as-mail/1.a", "as-mail/../1.a"} {
		// No process is running in these directories. So for a valid name, killNamedRunner must return the error about
		// the missing pid.
		if err := killNamedRunner(base, name); err == nil || !strings.Contains(err.Error(), "the pid in its files") {
			t.Errorf("%q: got %v, want the name accepted", name, err)
		}
	}
	for _, name := range []string{
		"", ".", "..", "/", "../runner/1.a", "/1.a", ".hidden", "as-mail", "output", "jobs", "program",
		"other/1.a", "as-mail/output", "as-mail/.x", "as-mail/x/1.a", "as-mail/as-mail/1.a",
	} {
		if err := killNamedRunner(base, name); err == nil || !strings.Contains(err.Error(), "is not a runner name") {
			t.Errorf("%q: got %v, want the name rejected", name, err)
		}
	}
}

// A request is one line of limited length.
func TestSpawnRequestSizeIsBounded(t *testing.T) {
	line := runner.SpawnRequest{JobTmpdir: "/" + strings.Repeat("x", maxSpawnRequestBytes)}.String()
	for _, c := range []struct {
		name, sent string
		accepted   bool
	}{
		{"at the limit", line[:maxSpawnRequestBytes-1] + "\n", true},
		{"one byte longer", line[:maxSpawnRequestBytes] + "\n", false},
		{"without its end", line[:100], false},
	} {
		if got, err := readSpawnRequest(strings.NewReader(c.sent)); (err == nil) != c.accepted {
			t.Errorf("%s: got a job_tmpdir of %d bytes, %v", c.name, len(got.JobTmpdir), err)
		}
	}
}
