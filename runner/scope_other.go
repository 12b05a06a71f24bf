//go:build unix && !linux

package runner

// systemdScopeCommandPrefixes returns nil: this system has no systemd.
func systemdScopeCommandPrefixes() [][]string { return nil }

// systemdUserSocketDir returns "", because this system has no systemd.
func systemdUserSocketDir() string { return "" }
