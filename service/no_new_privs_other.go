//go:build unix && !linux

package service

// setNoNewPrivs does nothing, since this system offers no way to keep a process from gaining privileges.
func setNoNewPrivs() error { return nil }
