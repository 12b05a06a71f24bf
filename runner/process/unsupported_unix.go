//go:build unix && !linux

package process

import (
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Worker does nothing: this system is not supported.
type Worker struct{}

// NewWorker returns a Worker that cannot run commands.
func NewWorker(*Cgroups) *Worker { return &Worker{} }

// Enforcements returns nil, because no command can run.
func Enforcements(*Cgroups) []queue.Enforcement { return nil }

// Close does nothing.
func (w *Worker) Close() {}

// Kill returns false, because no command is running.
func (w *Worker) Kill(int, time.Duration) bool { return false }

// Pause calls callback with ok=false, because no command is running.
func (w *Worker) Pause(_ bool, callback func(unchangedCount int, ok bool)) { callback(0, false) }

// Signal does nothing.
func (w *Worker) Signal(int, string, int) {}

// Run returns a result with ErrUnsupported.
func (w *Worker) Run(*Command) Result {
	return Result{ExitCode: 126, Error: ErrUnsupported.Error()}
}

// AwaitStuck returns immediately.
func (w *Worker) AwaitStuck(<-chan struct{}) {}

// Prepare returns ErrUnsupported.
func Prepare() error { return ErrUnsupported }

// EndTrees does nothing.
func EndTrees(DeadRunner, time.Duration) (found, stuck []Survivor) { return nil, nil }

// OwnStartTicks returns 0.
func OwnStartTicks() int64 { return 0 }

// BootID returns ErrUnsupported.
func BootID() (string, error) { return "", ErrUnsupported }

// Kill returns ErrUnsupported.
func Kill(int, int64, *uint32) error { return ErrUnsupported }

// Terminate returns ErrUnsupported.
func Terminate(int, int64, *uint32) error { return ErrUnsupported }
