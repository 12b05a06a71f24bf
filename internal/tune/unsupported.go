//go:build !linux

package tune

// MemoryTrimmer does nothing here.
type MemoryTrimmer struct{}

// TrimIfIdle does nothing here.
func (*MemoryTrimmer) TrimIfIdle() {}

// Start does nothing here.
func (*MemoryTrimmer) Start() {}

// RestartWithTimerSlack calls the function in the parameter before and does nothing else.
func RestartWithTimerSlack(before func()) error {
	before()
	return nil
}
