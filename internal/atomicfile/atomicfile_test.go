package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

// Write replaces the content and the mode of a file, and leaves no temporary file.
func TestWriteReplacesAFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, content := range []string{"old", "new"} {
		if err := Write(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("the file has %q, %v, want %q", got, err, content)
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("the directory has %v, %v, want one file", names, err)
	}
}

// If the file cannot be created, Write returns an error and changes nothing.
func TestWriteFailsInMissingDirectory(t *testing.T) {
	if err := Write(filepath.Join(t.TempDir(), "missing", "file"), nil, 0o600); err == nil {
		t.Error("Write in a directory that does not exist returns no error")
	}
}
