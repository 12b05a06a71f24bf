//go:build unix && !linux

package process

import (
	"syscall"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Worker does nothing: this system is not supported.
type Worker struct{}

// NewWorker returns a Worker that cannot run commands.
func NewWorker(*Cgroups) *Worker { return &Worker{} }

// LimitEnforcements returns nil, because no command can run.
func LimitEnforcements(*Cgroups) []queue.LimitEnforcement { return nil }

// Close does nothing.
func (w *Worker) Close() {}

// Kill returns false, because no command is running.
func (w *Worker) Kill(int, time.Duration) bool { return false }

// SetPaused calls onDone with ok=false, because no command is running.
func (w *Worker) SetPaused(_ bool, onDone func(unchangedCount int, ok bool)) { onDone(0, false) }

// Signal does nothing.
func (w *Worker) Signal(int, string, int) {}

// Run returns a result with ErrUnsupported.
func (w *Worker) Run(*Command) Result {
	return Result{ExitCode: 126, Error: ErrUnsupported.Error()}
}

// AwaitStuckProcesses returns immediately.
func (w *Worker) AwaitStuckProcesses(<-chan struct{}) {}

// PrepareToRunCommands returns ErrUnsupported.
func PrepareToRunCommands() error { return ErrUnsupported }

// EndProcessTrees does nothing.
func EndProcessTrees(DeadRunner, time.Duration) (survivors, stuck []SurvivingProcess) {
	return nil, nil
}

// ThisProcessStartTicks returns 0.
func ThisProcessStartTicks() int64 { return 0 }

// BootID returns ErrUnsupported.
func BootID() (string, error) { return "", ErrUnsupported }

// SignalProcess returns ErrUnsupported.
func SignalProcess(int, int64, *uint32, syscall.Signal) error { return ErrUnsupported }
