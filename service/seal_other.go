//go:build unix && !linux

package service

// seal does nothing, since this system offers no way to keep a process from gaining privileges.
func seal() error { return nil }
