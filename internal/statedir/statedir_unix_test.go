//go:build unix

package statedir

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Create creates a state directory and its missing parents with mode 0700, regardless of the umask.
func TestCreatedStateDirIgnoresUmask(t *testing.T) {
	base := t.TempDir()
	for _, mask := range []int{0, 0o022, 0o177, 0o777} {
		top := filepath.Join(base, string(rune('a'+mask%26)))
		func() {
			defer syscall.Umask(syscall.Umask(mask))
			if err := Create(filepath.Join(top, "b", "c")); err != nil {
				t.Errorf("umask %03o: %v", mask, err)
			}
		}()
		for _, dir := range []string{top, filepath.Join(top, "b"), filepath.Join(top, "b", "c")} {
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("umask %03o: %s: %v, %v", mask, dir, info, err)
			}
		}
	}
}
