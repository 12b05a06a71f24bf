//go:build !linux

package process

// Cgroups does nothing: only Linux has control groups.
type Cgroups struct{}

// NewCgroups returns ErrUnsupported: only Linux has control groups.
func NewCgroups() (*Cgroups, error) { return nil, ErrUnsupported }

// RemoveAbandonedGroups does nothing: this system has no control groups.
func (c *Cgroups) RemoveAbandonedGroups() {}

// LimitThisProcessMemory returns ErrUnsupported: this system has no control groups.
func (c *Cgroups) LimitThisProcessMemory(int64) error { return ErrUnsupported }

// TypeInput returns ok=false: commands have no terminal on this system.
func (w *Worker) TypeInput(int, []byte) (result TypeInputResult, ok bool) { return result, false }

// Resize does nothing: commands have no terminal on this system.
func (w *Worker) Resize(int, int, int) {}

// RunIfLimiterProcess does nothing: on this system, no helper process (limiter) sets the limits of a command.
func RunIfLimiterProcess() {}

// CheckAddressSpaceLimit returns nil, because only Linux limits the address space of this process.
func CheckAddressSpaceLimit() error { return nil }

// ReapEndedOrphans returns false: on this system, this process does not adopt orphans.
func ReapEndedOrphans() (callAgainSoon bool) { return false }

// IsStopped returns false, because the state of a process is unknown on this system.
func IsStopped(int) bool { return false }

// IsOwnedBy returns false, because the account of a process is unknown on this system.
func IsOwnedBy(uint32, int) bool { return false }
