//go:build unix && !linux

package runner

// scopeCommandPrefixes returns nil: this system has no systemd.
func scopeCommandPrefixes() [][]string { return nil }

// systemdUserSocketDir returns "", because this system has no systemd.
func systemdUserSocketDir() string { return "" }
