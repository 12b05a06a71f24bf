package process

import "github.com/queuectl/queuectl/runner/runas"

// readSecretFile reads the file of a secret with the rights of the command's account.
func (r *runningCommand) readSecretFile(path string) ([]byte, error) {
	raw, err := runas.LookUpAs(r.command.RunAs, func() ([]byte, error) {
		return readRegularFile(path, maxSecretBytes)
	}, nil)
	if err != nil && areDescriptorsExhausted(err) {
		return nil, &runas.ResourceShortageError{Err: err}
	}
	return raw, err
}
