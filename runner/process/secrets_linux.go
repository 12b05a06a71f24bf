package process

import (
	"os"

	"github.com/queuectl/queuectl/runner/privdir"
	"github.com/queuectl/queuectl/runner/runas"
)

// readSecret reads the file of a secret with the rights of the command's account.
func (r *run) readSecret(path string) ([]byte, error) {
	raw, err := runas.LookUp(r.command.RunAs, func() ([]byte, error) {
		fd, err := openRegularFile(path)
		if err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(fd), path)
		defer f.Close()
		return privdir.ReadUpTo(f, maxSecretBytes)
	}, nil)
	if err != nil && areDescriptorsExhausted(err) {
		return nil, &runas.ShortageError{Err: err}
	}
	return raw, err
}
