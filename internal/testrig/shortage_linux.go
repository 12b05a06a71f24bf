package testrig

import (
	"fmt"
)

// WaitForFileCommand returns a shell command that waits until a file exists in the directory of the queue.
// The command also ends if that directory is removed.
func (q *Queue) WaitForFileCommand(name string) string {
	return fmt.Sprintf("while [ -d %s ] && [ ! -e %s ]; do sleep 0.01; done", q.Dir, q.Path(name))
}
