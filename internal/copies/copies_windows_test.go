package copies

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// EnsureCopy returns only a complete copy. If another process has an incomplete copy open, EnsureCopy waits.
func TestEnsureCopyReturnsOnlyCompleteCopy(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program.exe")
	writeFile(t, program, "the program")
	into := filepath.Join(dir, "copies")
	path, err := EnsureCopy(program, into)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, "half")
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(500*time.Millisecond, func() { reader.Close() }).Stop()
	again, err := EnsureCopy(program, into)
	if text, _ := os.ReadFile(again); string(text) != "the program" || again != path || err != nil {
		t.Errorf("got %q in %s, %v", text, again, err)
	}
	if list, _ := os.ReadDir(into); len(list) != 1 {
		t.Errorf("there are %v", list)
	}
}

// FindCopy returns the complete, current copy from the first directory that has one.
func TestFindCopyPrefersFirstCompleteCopy(t *testing.T) {
	dir := t.TempDir()
	program, first, second := filepath.Join(dir, "program.exe"), filepath.Join(dir, "first"), filepath.Join(dir, "second")
	writeFile(t, program, "old")
	if _, err := EnsureCopy(program, first); err != nil {
		t.Fatal(err)
	}
	writeFile(t, program, "new")
	if path, err := FindCopy(program, first, second); path != "" || err != nil {
		t.Errorf("the old one is found: %q, %v", path, err)
	}
	want, err := EnsureCopy(program, second)
	if err != nil {
		t.Fatal(err)
	}
	if path, err := FindCopy(program, first, second); path != want || err != nil {
		t.Errorf("got %q, %v, want %q", path, err, want)
	}
	if want, err = EnsureCopy(program, first); err != nil {
		t.Fatal(err)
	}
	if path, err := FindCopy(program, first, second); path != want || err != nil {
		t.Errorf("got %q, %v, want %q", path, err, want)
	}
	writeFile(t, want, "old") // the wrong content has the same length as the right one
	if path, err := FindCopy(program, first); path != "" || err != nil {
		t.Errorf("an incomplete copy is found: %q, %v", path, err)
	}
}

// RemoveCopies keeps running copies, copies that its caller wants to keep, and files that are not copies. It removes
// all other copies, and then the directory if it is empty.
func TestRemoveCopiesKeepsRunningCopies(t *testing.T) {
	dir := t.TempDir()
	into := filepath.Join(dir, "copies")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	runs, err := EnsureCopy(self, into)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(runs)
	cmd.Env = append(os.Environ(), "QUEUECTL_TEST_WAITS=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kept, old, other := filepath.Join(into, "queuectl-0123456789abcdef.exe"),
		filepath.Join(into, "queuectl-fedcba9876543210.exe"), filepath.Join(into, "other.exe")
	for _, path := range []string{kept, old, other} {
		writeFile(t, path, path)
	}
	if RemoveCopies(into, kept) {
		t.Error("all are said to be removed")
	}
	for path, want := range map[string]bool{runs: true, kept: true, old: false, other: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	in.Close()
	cmd.Wait()
	if !RemoveCopies(into) {
		t.Error("the rest is not removed")
	}
	if err := os.Remove(other); err != nil { // other is not a copy, so RemoveCopies has kept it
		t.Error(err)
	}
	for _, what := range []string{"the directory", "nothing"} {
		if !RemoveCopies(into) {
			t.Errorf("%s is not removed", what)
		}
	}
	if _, err := os.Stat(into); err == nil {
		t.Error("the directory is left")
	}
}

// TestMain also implements the program that TestRemoveCopiesKeepsRunningCopies copies and runs. That program runs until
// its standard input ends.
func TestMain(m *testing.M) {
	if os.Getenv("QUEUECTL_TEST_WAITS") != "" {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}
