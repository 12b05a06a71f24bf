package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// The job log has a line for each ended job, even if the service cannot report the size of the job's output.
func TestJobLogContinuesWithoutTheService(t *testing.T) {
	dir := t.TempDir()
	log, err := OpenJobLog(filepath.Join(dir, "log"), nil, false)
	if err != nil {
		t.Fatal(err)
	}
	c := control.NewClient(filepath.Join(dir, "none"))
	defer c.Close()
	w := &jobsWaiter{
		app: NewApp(Program{}, nil, nil, nil), client: c, jobLog: log, hasEndedByIndex: make([]bool, 2),
		jobs: []control.Job{{ID: "a", State: "completed", Command: "true"}, {ID: "b", State: "completed", Command: "date"}},
	}
	w.recordJobEnd(t.Context(), 0)
	w.recordJobEnd(t.Context(), 1)
	log.file.Close()
	if err := log.FirstWriteError(); err != nil {
		t.Errorf("the log reports %v", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	want := []string{"1\t:\t0.000\t     0.000\t0\t0\t0\t0\ttrue", "2\t:\t0.000\t     0.000\t0\t0\t0\t0\tdate"}
	if len(lines) != 3 || lines[1] != want[0] || lines[2] != want[1] {
		t.Errorf("the log is %q, want a header and %q", lines, want)
	}
}
