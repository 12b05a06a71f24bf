package privdir

import (
	"os"
	"path/filepath"
	"testing"
)

// RemoveIfEmpty removes an empty directory. If a file has replaced the directory, RemoveIfEmpty keeps the
// file, and the next directory gets another name.
func TestRemoveIfEmptyKeepsReplacingFile(t *testing.T) {
	f := New(filepath.Join(t.TempDir(), "1"))
	defer f.Close()
	if err := f.Open(nil); err != nil {
		t.Fatal(err)
	}
	first := f.Path
	f.RemoveIfEmpty()
	if _, err := os.Lstat(first); !os.IsNotExist(err) {
		t.Errorf("the unused directory exists, or: %v", err)
	}
	if err := f.Open(nil); err != nil || f.Path != first {
		t.Fatalf("the next directory is %s, %v, want %s", f.Path, err, first)
	}
	if err := os.Rename(first, first+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(first, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.RemoveIfEmpty()
	if _, err := os.Lstat(first); err != nil {
		t.Errorf("the file was removed: %v", err)
	}
	if err := f.Open(nil); err != nil || f.Path == first {
		t.Errorf("the directory after the file is %s, %v, want another name", f.Path, err)
	}
}
