package runner

import (
	"os"
	"testing"
)

// OutputSize returns at most the largest size that the limit per stream allows, because an account can
// change its own files. It returns 0 for anything but a regular file.
func TestOutputSizeIsBounded(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(OutputPath(root, "3-3"), 0o700); err != nil { // a directory
		t.Fatal(err)
	}
	for ref, size := range map[string]int64{"1-1": 2500, "2-2": 1 << 30} {
		if err := os.WriteFile(OutputPath(root, ref), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(OutputPath(root, ref), size); err != nil {
			t.Fatal(err)
		}
	}
	const limit = 1000
	for ref, most := range map[string][2]int64{"1-1": {2500, 2500}, "2-2": {2 * limit, 2 << 20}, "3-3": {}, "4-4": {}} {
		if got := OutputSize(root, ref, limit); got < most[0] || got > most[1] {
			t.Errorf("%s: counted as %d bytes, want %d to %d", ref, got, most[0], most[1])
		}
	}
}
