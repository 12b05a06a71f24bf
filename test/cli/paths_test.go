//go:build linux || windows

package cli

import (
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// If a backup cannot be written, the error names the target directory, not a temporary file.
func TestFailedBackupNamesItsDir(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	for to, c := range map[string]testrig.CommandResult{
		"none/x.db": {ExitCode: 2, Stderr: "backup: directory none does not exist; create it with: " + testrig.MkdirCommand +
			" none"},
		"initialized/x": {ExitCode: 2, Stderr: "backup: initialized is not a directory; check the path"},
	} {
		if r := q.RunCLI("backup", to); r.ExitCode != c.ExitCode || r.Stderr != "queuectl: "+c.Stderr+"\n" {
			t.Errorf("backup %s: %+v, want %+v", to, r, c)
		}
	}
}
