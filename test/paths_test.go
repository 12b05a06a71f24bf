//go:build linux || windows

package test

import (
	"testing"
)

// If a backup cannot be written, the error names the directory, not a temporary file.
func TestFailedBackupNamesItsDir(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	for to, c := range map[string]result{
		"none/x.db":     {code: 2, err: "backup: directory none does not exist; create it with: " + mkdirCommand + " none"},
		"initialized/x": {code: 2, err: "backup: initialized is not a directory; check the path"},
	} {
		if r := q.cli("backup", to); r.code != c.code || r.err != "queuectl: "+c.err+"\n" {
			t.Errorf("backup %s: %+v, want %+v", to, r, c)
		}
	}
}
