// Package statedir makes the folder in which a service keeps its queue, and sees to it
// that nobody else may change what is in it.
package statedir

import (
	"errors"
	"fmt"
	"os"

	"github.com/queuectl/queuectl/queue"
)

// Make makes the state folder where it is not there, and refuses one that is not
// this account's alone.
func Make(dir string) error {
	err := makePrivate(dir)
	switch {
	case errors.Is(err, os.ErrPermission):
		return queue.Errorf(queue.CodeDenied, "create the state directory %s: permission denied; choose another one with --dir", dir)
	case err != nil:
		return fmt.Errorf("create the state directory: %w; choose another one with --dir", err)
	}
	return Check(dir)
}

// Check refuses a state folder, which is there, that is not this account's alone: whatever is in
// it could be another's, who may mean ill.
func Check(dir string) error { return check(dir) }
