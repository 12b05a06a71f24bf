package runner

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Who looks whether a runner lives is no runner to who looks as well: a dead one would
// be taken for a living one, which nobody can meet.
func TestLookersAreNoHolders(t *testing.T) {
	path := filepath.Join(t.TempDir(), lockName)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 50 {
		done := make(chan bool)
		for range 4 {
			go func() {
				held := false
				for range 200 {
					h, err := lockHeld(path)
					held = held || h || err != nil
				}
				done <- held
			}()
		}
		for range 4 {
			if <-done {
				t.Fatal("a lock that nobody holds is held")
			}
		}
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	if held, err := lockHeld(path); !held || err != nil {
		t.Errorf("a lock that is held: %v, %v", held, err)
	}
}
