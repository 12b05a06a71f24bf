//go:build unix && !linux

package runner

// managerDir returns "", because this system has no systemd.
func managerDir() string { return "" }
