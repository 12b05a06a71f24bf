//go:build unix

package atomicfile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/internal/skip"
)

// Write works in a directory that the process may write to but not read.
func TestWriteWorksInUnreadableDirectory(t *testing.T) {
	if os.Geteuid() == 0 {
		skip.MissingRequirement(t, "ordinary user",
			"needs a user without access to every directory; TestWriteReplacesAFile covers the write")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.Chmod(dir, 0o300); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o600); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "new" {
		t.Errorf("the file has %q, %v", got, err)
	}
}
