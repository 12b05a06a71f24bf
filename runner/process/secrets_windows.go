package process

import (
	"os"

	"github.com/queuectl/queuectl/runner/privdir"
)

// readSecret reads a file.
func (r *run) readSecret(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = UnusableError(path + " is not a regular file")
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return privdir.ReadUpTo(f, maxSecretBytes)
}
