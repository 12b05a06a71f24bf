package dir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// WaitForChange reports every change after which a name refers to another file or to no file. It reports
// neither writes to a file nor changes to other names.
func TestWaitForChangeReportsReplacedFiles(t *testing.T) {
	touch := func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) }
	for name, do := range map[string]func(dir string) error{
		"removed":           func(dir string) error { return os.Remove(filepath.Join(dir, "a")) },
		"renamed":           func(dir string) error { return os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "c")) },
		"replaced":          func(dir string) error { return os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "a")) },
		"directory renamed": func(dir string) error { return os.Rename(dir, dir+"-old") },
		"directory removed": os.RemoveAll,
		"made, among others": func(dir string) error {
			os.Remove(filepath.Join(dir, "b"))
			os.Remove(filepath.Join(dir, "a"))
			return touch(filepath.Join(dir, "a"))
		},
	} {
		dir := filepath.Join(t.TempDir(), "watched")
		if err := errors.Join(os.Mkdir(dir, 0o700), touch(filepath.Join(dir, "a")),
			touch(filepath.Join(dir, "b"))); err != nil {
			t.Fatal(err)
		}
		changed := startWaitForChange(t, t.Context(), dir)
		if err := errors.Join(touch(filepath.Join(dir, "a")), touch(filepath.Join(dir, "other")),
			os.Remove(filepath.Join(dir, "other"))); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-changed:
			t.Fatalf("%s: reported too early, %v", name, err)
		case <-time.After(50 * time.Millisecond):
		}
		if err := do(dir); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-changed:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: not reported", name)
		}
	}
}

// WaitForChange returns an error if it cannot watch the directory.
func TestWaitForChangeFailsWithoutDirectory(t *testing.T) {
	if err := WaitForChange(t.Context(), filepath.Join(t.TempDir(), "none"), nil,
		func() bool { return true }); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want %v", err, fs.ErrNotExist)
	}
}
