//go:build !linux

// Package resident reduces the memory of a service that is idle. It does so only on Linux.
package resident

// MemoryTrimmer does nothing here.
type MemoryTrimmer struct{}

// TrimIfIdle does nothing here.
func (*MemoryTrimmer) TrimIfIdle() {}

// Start does nothing here.
func (*MemoryTrimmer) Start() {}
