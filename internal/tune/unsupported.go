//go:build !linux

package tune

// MemoryTrimmer does nothing on this system.
type MemoryTrimmer struct{}

// TrimIfIdle does nothing on this system.
func (*MemoryTrimmer) TrimIfIdle() {}

// Start does nothing on this system.
func (*MemoryTrimmer) Start() {}

// RestartWithTimerSlack calls the function in the parameter before and does nothing else.
func RestartWithTimerSlack(before func()) error {
	before()
	return nil
}
