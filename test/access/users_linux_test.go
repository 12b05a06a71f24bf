package access

import (
	"os"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// binaryForAll returns the path of a copy of the program that every user may run.
func binaryForAll(t *testing.T) string {
	t.Helper()
	q := testrig.NewQueue(t, "")
	if err := os.Chmod(q.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return testrig.Install(q, q.Bin, q.Dir)
}
