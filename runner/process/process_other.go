//go:build !linux && !windows

package process

import "time"

// Worker runs one command after another; on this system it cannot.
type Worker struct{}

// NewWorker makes a worker.
func NewWorker(*Cgroups) *Worker { return &Worker{} }

// Cgroups is a control group that this process may divide; here there are none.
type Cgroups struct{}

// Divide moves this process into a group below its own.
func Divide() (*Cgroups, error) { return nil, ErrUnsupported }

// Sweep removes groups that were given up.
func (c *Cgroups) Sweep() {}

// Enforced lists how each limit of a command is enforced: here nothing is run.
func Enforced(*Cgroups) []Enforcement { return nil }

// BoundSelf bounds the memory of this process.
func (c *Cgroups) BoundSelf(int64) error { return ErrUnsupported }

// Expendable has the kernel end commands before this process.
func Expendable() error { return ErrUnsupported }

// Stopped reports whether a process is stopped, which is not known here.
func Stopped(int) bool { return false }

// Folder is a private folder of a command's; here there are none.
type Folder struct{ Path, Notes string }

// GoneWord is in the names of folders that were moved aside.
const GoneWord = ".gone."

// NewFolder makes none.
func NewFolder(string) *Folder { return &Folder{} }

// Open makes a folder.
func (f *Folder) Open(*Identity) error { return ErrUnsupported }

// Used reports whether there is something in the folder.
func (f *Folder) Used() bool { return false }

// IsOpen reports whether there is a folder.
func (f *Folder) IsOpen() bool { return false }

// Aside moves the folder away.
func (f *Folder) Aside(bool) string { return "" }

// Rest removes an empty folder.
func (f *Folder) Rest() {}

// Close gives back what is open.
func (f *Folder) Close() {}

// Pass gives the command a file.
func (f *Folder) Pass(string, []byte) (string, error) { return "", ErrUnsupported }

// Unpass removes that file.
func (f *Folder) Unpass(string) {}

// Read reads a file that the command has left.
func (f *Folder) Read(string, int64) ([]byte, error) { return nil, ErrUnsupported }

// Drain is what has been noted.
func (f *Folder) Drain() []byte { return nil }

// Noted reports whether anything was noted.
func (f *Folder) Noted() bool { return false }

// ErrNoPlainFile says that a command has left something else than a file.
var ErrNoPlainFile = ErrUnsupported

// Remove removes a folder.
func Remove(string, *Identity) (more bool, err error) { return false, ErrUnsupported }

// OwnerOf is the account whose folder this is.
func OwnerOf(string) (*Identity, error) { return nil, ErrUnsupported }

// Close gives back what the worker holds.
func (w *Worker) Close() {}

// Kill ends the running command's tree.
func (w *Worker) Kill(int, time.Duration) bool { return false }

// Pause freezes the running command's tree, or has it go on.
func (w *Worker) Pause(_ bool, tell func(left int, ok bool)) { tell(0, false) }

// Signal sends a signal to the running command's tree.
func (w *Worker) Signal(int, string, int) {}

// Type writes to the running command's terminal.
func (w *Worker) Type(int, []byte) (t Typed, ok bool) { return t, false }

// Resize gives the running command's terminal another size.
func (w *Worker) Resize(int, int, int) {}

// Run runs a command to the end of its tree.
func (w *Worker) Run(*Command) Result {
	return Result{ExitCode: 126, Error: ErrUnsupported.Error()}
}

// Linger waits until a tree that could not be killed is gone.
func (w *Worker) Linger(<-chan struct{}) {}

// Prepare makes this process fit to run commands.
func Prepare() error { return ErrUnsupported }

// CheckLimits refuses limits of this process under which it would end.
func CheckLimits() error { return nil }

// Reap reaps orphans that have ended.
func Reap() (more bool) { return false }

// EndTrees ends every process of a dead runner.
func EndTrees(Dead, time.Duration) (met, stuck []Left) { return nil, nil }

// SelfTicks is when this process started.
func SelfTicks() int64 { return 0 }

// BootID names this boot of the machine.
func BootID() (string, error) { return "", ErrUnsupported }

// End ends a process.
func End(int, int64, *uint32) error { return ErrUnsupported }

// AskToEnd asks a process to end.
func AskToEnd(int, int64, *uint32) error { return ErrUnsupported }

// Owns reports whether a process is an account's.
func Owns(uint32, int) bool { return false }
