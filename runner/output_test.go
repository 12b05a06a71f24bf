package runner

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/runner/wire"
)

// A job's account may be able to make the job's output file as large as it likes. So CappedOutputFileBytes returns at
// most the size that the limit per stream allows. It returns 0 for anything but a regular file.
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
	for ref, bounds := range map[string][2]int64{"1-1": {2500, 2500}, "2-2": {2 * limit, 2 << 20}, "3-3": {}, "4-4": {}} {
		if got := CappedOutputFileBytes(root, ref, limit); got < bounds[0] || got > bounds[1] {
			t.Errorf("%s: counted as %d bytes, want %d to %d", ref, got, bounds[0], bounds[1])
		}
	}
}

// A valid reference cannot name a file outside the output directory. RemoveOutputs ignores invalid
// references, so it removes only output files.
func TestOutputRefStaysInOutputDir(t *testing.T) {
	if ref := OutputRef(wire.Lease{Seq: 12, Fence: 3}); ref != "12-3" || !IsOutputRef(ref) {
		t.Errorf("OutputRef returned %q, want the valid reference 12-3", ref)
	}
	root := t.TempDir()
	for _, p := range []string{"output/12-3", "output/x", "victim"} {
		path := filepath.Join(root, p)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	RemoveOutputs(root, []string{"12-3", "../victim", "x", "", ".", "..", "/victim", "1\x002", "99-9"})
	for p, want := range map[string]bool{"output/12-3": false, "output/x": true, "victim": true, "output": true} {
		if _, err := os.Stat(filepath.Join(root, p)); (err == nil) != want {
			t.Errorf("%s: exists: %v, want %v", p, err == nil, want)
		}
	}
}

// RemoveOutputs removes a file even while another process reads it.
func TestRemoveOutputsDeletesOpenFile(t *testing.T) {
	home := RunnersLocation{RunnersDir: t.TempDir()}
	path := OutputPath(home.RunnersDir, "1-1")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := home.OpenOutput("1-1")
	if err != nil {
		t.Fatal(err)
	}
	RemoveOutputs(home.RunnersDir, []string{"1-1"})
	f.Close()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the output still exists: %v", err)
	}
	if f, err := home.OpenOutput("1-1"); !os.IsNotExist(err) {
		t.Errorf("OpenOutput of a purged output returned %v, %v", f, err)
	}
}
