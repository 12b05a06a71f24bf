package config

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/windows"
)

// A folder has one pipe, by its long name and by its short one, before it is there and afterwards.
func TestFolderHasOnePipe(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "a folder with a long name")
	if err := os.Mkdir(parent, 0o700); err != nil {
		t.Fatal(err)
	}
	long, err := windows.UTF16PtrFromString(parent)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]uint16, windows.MAX_PATH)
	n, err := windows.GetShortPathName(long, &buf[0], uint32(len(buf)))
	if err != nil {
		t.Fatal(err)
	}
	short := windows.UTF16ToString(buf[:n])
	if short == parent {
		t.Logf("%s has no other name here", parent)
	}
	before := In(filepath.Join(short, "queue")).Socket
	if err := os.Mkdir(filepath.Join(parent, "queue"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(short, "queue"), filepath.Join(parent, "queue"), filepath.Join(parent, "QUEUE") + `\.`} {
		if got := In(dir).Socket; got != before {
			t.Errorf("%s has pipe %s, want %s", dir, got, before)
		}
	}
}
