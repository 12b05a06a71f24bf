// Package statedir creates the directory in which a service keeps its queue. It ensures that no other user can
// change the content of that directory.
package statedir

import (
	"errors"
	"fmt"
	"os"

	"github.com/queuectl/queuectl/queue"
)

// Create creates the state directory if it is missing. It returns an error if other accounts could
// change it.
func Create(dir string) error {
	err := makePrivateDir(dir)
	switch {
	case errors.Is(err, os.ErrPermission):
		return queue.Errorf(queue.CodeDenied, "cannot create the state directory %s: permission denied; choose "+
			"another one with --dir", dir)
	case err != nil:
		return fmt.Errorf("cannot create the state directory: %w; choose another one with --dir", err)
	}
	return CheckUnwritableByOthers(dir)
}
