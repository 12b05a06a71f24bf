package access

import (
	"os"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// worldExecutableProgramCopy returns the path of a copy of the program that every user may run.
func worldExecutableProgramCopy(t *testing.T) string {
	t.Helper()
	q := testrig.NewHarness(t, "")
	if err := os.Chmod(q.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	return testrig.InstallPrograms(q, q.ClientPath, q.StateDir)
}
