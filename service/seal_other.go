//go:build unix && !linux

package service

// seal does nothing, since this system cannot give up the gaining of privileges.
func seal() error { return nil }
