package logs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The log of a background service and the rotated log have at most 1 MiB each. The log also contains messages
// that a runner writes through its own descriptor.
func TestBackgroundLogIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	file, err := OpenServiceLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	runner, err := OpenServiceLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer runner.Close()
	line := append(bytes.Repeat([]byte("x"), 1023), '\n')
	for range 3 * maxLogBytes / len(line) {
		if _, err := (RotatingFile{file}).Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := runner.WriteString("from the runner\n"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, path + ".1"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if size := info.Size(); size == 0 || size > maxLogBytes+int64(len(line)) {
			t.Errorf("%s has %d bytes, want at most about %d", filepath.Base(name), size, maxLogBytes)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil || !bytes.HasSuffix(raw, []byte("\nfrom the runner\n")) {
		t.Errorf("the log ends with %q, %v", raw[max(0, len(raw)-40):], err)
	}
}
