//go:build !linux && !windows

package process

import "time"

// Worker cannot run commands on this system.
type Worker struct{}

// NewWorker returns a Worker.
func NewWorker(*Cgroups) *Worker { return &Worker{} }

// Cgroups does nothing: this system has no control groups.
type Cgroups struct{}

// NewCgroups returns ErrUnsupported.
func NewCgroups() (*Cgroups, error) { return nil, ErrUnsupported }

// Sweep does nothing.
func (c *Cgroups) Sweep() {}

// Enforcements returns nil, because no command can run.
func Enforcements(*Cgroups) []Enforcement { return nil }

// LimitOwnMemory returns ErrUnsupported.
func (c *Cgroups) LimitOwnMemory(int64) error { return ErrUnsupported }

// PreferOOMKillOfCommands returns ErrUnsupported.
func PreferOOMKillOfCommands() error { return ErrUnsupported }

// IsStopped returns false, because the state of a process is unknown on this system.
func IsStopped(int) bool { return false }

// Close does nothing.
func (w *Worker) Close() {}

// Kill returns false, because no command is running.
func (w *Worker) Kill(int, time.Duration) bool { return false }

// Pause calls callback with ok=false, because no command is running.
func (w *Worker) Pause(_ bool, callback func(unchanged int, ok bool)) { callback(0, false) }

// Signal does nothing.
func (w *Worker) Signal(int, string, int) {}

// Type returns ok=false, because no command is running.
func (w *Worker) Type(int, []byte) (t TypeResult, ok bool) { return t, false }

// Resize does nothing.
func (w *Worker) Resize(int, int, int) {}

// Run returns a result with ErrUnsupported.
func (w *Worker) Run(*Command) Result {
	return Result{ExitCode: 126, Error: ErrUnsupported.Error()}
}

// AwaitStuck returns immediately.
func (w *Worker) AwaitStuck(<-chan struct{}) {}

// Limiter does nothing.
func Limiter() {}

// Prepare returns ErrUnsupported.
func Prepare() error { return ErrUnsupported }

// CheckLimits returns nil.
func CheckLimits() error { return nil }

// Reap returns false.
func Reap() (more bool) { return false }

// EndTrees does nothing.
func EndTrees(DeadRunner, time.Duration) (found, stuck []Survivor) { return nil, nil }

// SelfTicks returns 0.
func SelfTicks() int64 { return 0 }

// BootID returns ErrUnsupported.
func BootID() (string, error) { return "", ErrUnsupported }

// Kill returns ErrUnsupported.
func Kill(int, int64, *uint32) error { return ErrUnsupported }

// Terminate returns ErrUnsupported.
func Terminate(int, int64, *uint32) error { return ErrUnsupported }

// IsOwnedBy returns false.
func IsOwnedBy(uint32, int) bool { return false }
