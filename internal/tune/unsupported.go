//go:build !linux

package tune

// MemoryTrimmer does nothing on this system.
type MemoryTrimmer struct{}

// TrimIfIdle does nothing on this system.
func (*MemoryTrimmer) TrimIfIdle() {}

// BeginIdleCheck does nothing on this system.
func (*MemoryTrimmer) BeginIdleCheck() {}

// RestartWithTimerSlack only calls beforeExec, because this system has no timer slack.
func RestartWithTimerSlack(beforeExec func()) error {
	beforeExec()
	return nil
}
