package process

import (
	"os"

	"github.com/queuectl/queuectl/runner/privdir"
	"github.com/queuectl/queuectl/runner/runas"
)

// readSecret reads a file with the rights of the command's account.
func (r *run) readSecret(path string) ([]byte, error) {
	raw, err := runas.LookUp(r.c.RunAs, func() ([]byte, error) {
		fd, err := openStdin(path)
		if err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(fd), path)
		defer f.Close()
		return privdir.ReadUpTo(f, maxSecret)
	}, nil)
	if err != nil && descriptorsOut(err) {
		return nil, &runas.ShortageError{Err: err}
	}
	return raw, err
}
