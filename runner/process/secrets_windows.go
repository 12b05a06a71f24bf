package process

import (
	"os"

	"github.com/queuectl/queuectl/runner/privdir"
)

// readSecretFile reads the file of a secret.
func (r *run) readSecretFile(path string) ([]byte, error) {
	h, err := openRegularFile(path)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(h), path)
	defer f.Close()
	return privdir.ReadUpTo(f, maxSecretBytes)
}
