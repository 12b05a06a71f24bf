//go:build unix

package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The operator may create the directory for the private directories of jobs. If another account owns it or
// may write to it, it is rejected, and the error shows the command that corrects this.
func TestUntrustedWorkspacesDirIsRejected(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(path string) error
		want string // part of the error; "" if the directory is accepted
	}{
		{"none", func(string) error { return nil }, ""},
		{"private", func(path string) error { return os.Mkdir(path, 0o700) }, ""},
		{"readable", func(path string) error { return os.Mkdir(path, 0o755) }, ""},
		{"writable by others", func(path string) error { return os.Chmod(path, 0o777) }, "(mode 777); run: chmod go-w "},
		{"writable by its group", func(path string) error { return os.Chmod(path, 0o770) }, "(mode 770); run: chmod go-w "},
		{"a file", func(path string) error { return os.WriteFile(path, nil, 0o600) }, "is not a directory"},
		{"a link", func(path string) error { return os.Symlink(filepath.Dir(path), path) }, "is not a directory"},
	} {
		root := t.TempDir()
		path := filepath.Join(root, WorkspacesDirName)
		if strings.HasPrefix(c.name, "writable") {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.make(path); err != nil {
			t.Fatal(err)
		}
		_, err := CreateRunnerWorkspaces(root, "", "runner", false)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v, want no error", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), path+": ") ||
			!strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %s and %q", c.name, err, path, c.want)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	root := t.TempDir()
	path := filepath.Join(root, WorkspacesDirName)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 61300, 61300); err != nil {
		t.Fatal(err)
	}
	if _, err := CreateRunnerWorkspaces(root, "", "runner", true); err == nil ||
		!strings.Contains(err.Error(), "belongs to uid 61300, but the runner has uid 0; run: chown 0 "+path) {
		t.Errorf("of another account: %v", err)
	}
}

// job_tmpdir must be a directory outside the runners' directory. It must belong to the runners' account, and
// no other account may be able to change or rename it. If each job has its own account, all accounts must be
// able to enter it.
func TestUnsafeJobTmpdirIsRejected(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root, outer := filepath.Join(base, "runner"), filepath.Join(base, "outer")
	inner := filepath.Join(outer, "inner")
	for _, dir := range []string{filepath.Join(root, "in"), inner} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for dir := base; len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	file, link := filepath.Join(base, "file"), filepath.Join(base, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(outer, link)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, path   string
		outer, inner os.FileMode
		othersEnter  bool
		want         string // part of the error; "" if the directory is accepted
	}{
		{"private", inner, 0o755, 0o700, false, ""},
		{"for all accounts", inner, 0o711, 0o711, true, ""},
		{"in a sticky directory", inner, 0o777 | os.ModeSticky, 0o700, false, ""},
		{"missing", filepath.Join(inner, "none"), 0o755, 0o700, false, "no such file or directory; create this directory"},
		{"a file", file, 0o755, 0o700, false, "is not a directory"},
		{"through a link", filepath.Join(link, "inner"), 0o755, 0o700, false, "use the real path, " + inner},
		{"writable by others", inner, 0o755, 0o702, false, "other accounts can write to it (mode 702); run: chmod go-w " +
			inner},
		{"writable by others, sticky", inner, 0o755, 0o777 | os.ModeSticky, false, "run: chmod go-w " + inner},
		{"in a directory of all", inner, 0o777, 0o700, false, outer + " is writable by other accounts; remove that right"},
		{"closed to other accounts", inner, 0o755, 0o700, true,
			inner + " cannot be entered by the accounts that jobs run as"},
		{"in a closed directory", inner, 0o700, 0o711, true, outer + " cannot be entered by the accounts that jobs run as"},
		{"the runners' directory", root, 0o755, 0o700, false, "is inside the runner directory"},
		{"in the runners' directory", filepath.Join(root, "in"), 0o755, 0o700, false, "is inside the runner directory"},
	} {
		if err := errors.Join(os.Chmod(outer, c.outer), os.Chmod(inner, c.inner)); err != nil {
			t.Fatal(err)
		}
		err := CheckJobTmpdir(c.path, root, c.othersEnter)
		if c.want == "" && err != nil || c.want != "" &&
			(err == nil || !strings.HasPrefix(err.Error(), "job_tmpdir: ") || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := errors.Join(os.Chmod(outer, 0o755), os.Chmod(inner, 0o711), os.Chown(outer, 61300, -1)); err != nil {
		t.Fatal(err)
	}
	if err := CheckJobTmpdir(inner, root, true); err == nil ||
		!strings.Contains(err.Error(), outer+" belongs to uid ") {
		t.Errorf("in a directory of another account: %v", err)
	}
}
