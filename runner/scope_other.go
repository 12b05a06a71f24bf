//go:build unix && !linux

package runner

// scopes returns nil: this system has no control groups for runners.
func scopes() [][]string { return nil }

// managerDir returns "", because this system has no systemd.
func managerDir() string { return "" }
