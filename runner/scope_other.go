//go:build unix && !linux

package runner

// scopeCommands returns nil: this system has no systemd.
func scopeCommands() [][]string { return nil }

// systemdUserDir returns "", because this system has no systemd.
func systemdUserDir() string { return "" }
