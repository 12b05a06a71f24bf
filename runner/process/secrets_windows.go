package process

// readSecretFile reads the file of a secret.
func (r *runningCommand) readSecretFile(path string) ([]byte, error) {
	return readRegularFile(path, maxSecretBytes)
}
