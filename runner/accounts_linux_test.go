package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A policy that others than root could have written counts as none at all. Needs root to
// make the one that counts.
func TestPolicyIsRoots(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "runner.conf")
	if err := os.WriteFile(path, []byte("accounts = *\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused := func(what, path string) {
		t.Helper()
		if p, err := readPolicy(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %+v, %v, want it refused by name", what, p, err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	refused("a link", link)
	refused("a folder", dir)
	if err := os.Chmod(path, 0o664); err != nil {
		t.Fatal(err)
	}
	refused("one that its group can change", path)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		refused("one of another owner", path)
		return
	}
	if p, err := readPolicy(path); err != nil || len(p.accounts) != 1 {
		t.Errorf("root's own: got %+v, %v", p, err)
	}
	if err := os.Chown(path, 1, 0); err != nil {
		t.Fatal(err)
	}
	refused("one of another owner", path)
}
