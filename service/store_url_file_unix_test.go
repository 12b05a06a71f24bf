//go:build unix

package service

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/service/doctor"
)

// Doctor warns if all users can read the file that contains the URL of the database.
func TestDoctorWarnsOfReadableStoreFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	for mode, want := range map[os.FileMode]int{0o600: 0, 0o640: 0, 0o644: 1} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if found := doctor.ExamineDatabaseURLFile(path); len(found) != want {
			t.Errorf("%o: %v", mode, found)
		}
	}
	for _, path := range []string{"", "credential:store"} {
		if found := doctor.ExamineDatabaseURLFile(path); found != nil {
			t.Errorf("%q: %v", path, found)
		}
	}
}
