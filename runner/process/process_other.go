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

// PrivateDir does nothing: commands get no private directory on this system.
type PrivateDir struct{ Path, Notes string }

// AsideInfix is part of the name of a directory that was moved aside.
const AsideInfix = ".gone."

// NewPrivateDir returns a PrivateDir without a directory.
func NewPrivateDir(string) *PrivateDir { return &PrivateDir{} }

// Open returns ErrUnsupported.
func (f *PrivateDir) Open(*Identity) error { return ErrUnsupported }

// Used returns false.
func (f *PrivateDir) Used() bool { return false }

// IsOpen returns false.
func (f *PrivateDir) IsOpen() bool { return false }

// MoveAside does nothing.
func (f *PrivateDir) MoveAside(bool) string { return "" }

// RemoveUnused does nothing.
func (f *PrivateDir) RemoveUnused() {}

// Close does nothing.
func (f *PrivateDir) Close() {}

// AddFile returns ErrUnsupported.
func (f *PrivateDir) AddFile(string, []byte) (string, error) { return "", ErrUnsupported }

// RemoveFile does nothing.
func (f *PrivateDir) RemoveFile(string) {}

// Read returns ErrUnsupported.
func (f *PrivateDir) Read(string, int64) ([]byte, error) { return nil, ErrUnsupported }

// Drain returns nil.
func (f *PrivateDir) Drain() []byte { return nil }

// HasNotes returns false.
func (f *PrivateDir) HasNotes() bool { return false }

// ErrNoPlainFile means that a command left something that is not a regular file.
var ErrNoPlainFile = ErrUnsupported

// Remove returns ErrUnsupported.
func Remove(string, *Identity) (more bool, err error) { return false, ErrUnsupported }

// OwnerOf returns ErrUnsupported.
func OwnerOf(string) (*Identity, error) { return nil, ErrUnsupported }

// Close does nothing.
func (w *Worker) Close() {}

// Kill returns false, because no command is running.
func (w *Worker) Kill(int, time.Duration) bool { return false }

// Pause calls callback with ok=false, because no command is running.
func (w *Worker) Pause(_ bool, callback func(unchanged int, ok bool)) { callback(0, false) }

// Signal does nothing.
func (w *Worker) Signal(int, string, int) {}

// Type returns ok=false, because no command is running.
func (w *Worker) Type(int, []byte) (t Typed, ok bool) { return t, false }

// Resize does nothing.
func (w *Worker) Resize(int, int, int) {}

// Run returns a result with ErrUnsupported.
func (w *Worker) Run(*Command) Result {
	return Result{ExitCode: 126, Error: ErrUnsupported.Error()}
}

// AwaitStuck returns immediately.
func (w *Worker) AwaitStuck(<-chan struct{}) {}

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
