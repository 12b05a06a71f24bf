// Package process runs one command as one supervised tree of OS processes, and ends the whole tree. It
// has no notion of jobs, queues or sockets.
//
// Start with Command, Result and Worker.Run. The main process is the one that Run starts. The tree
// consists of the main process and all processes that descend from it. Run returns when the whole tree
// has ended, except processes that may live on (Command.AllowBackground) and processes that survive SIGKILL
// (Result.StuckPID).
package process

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/output"
	"github.com/queuectl/queuectl/runner/privdir"
	"github.com/queuectl/queuectl/runner/runas"
)

// CookieName is the environment variable that marks all processes of a tree. The mark finds processes
// that have left the process group of the main process. See docs/decisions/0041.
const CookieName = "QUEUECTL_COOKIE"

// TypeInputResult reports how many bytes of input the command's terminal accepted. Controls holds the control
// sequences with which the command has set the modes of its terminal.
type TypeInputResult struct {
	WrittenBytes int
	ModeControls string
}

// Command describes the command to run.
type Command struct {
	Argv            []string
	Env             []string // the complete environment, except for the variable with the cookie
	Dir             string
	Umask           int
	Stdin           string        // content of standard input; "" means /dev/null
	StdinFile       string        // if not "", the path of a regular file that is used instead of Stdin
	TTY             bool          // use a new terminal for input and output; Stdin and StdinFile are ""
	Timeout         time.Duration // 0 means no timeout
	IdleTimeout     time.Duration // end the command after this time without output; 0 means never
	KillAfter       time.Duration // time between SIGTERM and SIGKILL after a timeout
	OutputGrace     time.Duration // how long leftover processes may live after the main one has ended
	AllowBackground bool          // leftover processes may live on
	UnkillableAfter time.Duration // how long to wait after SIGKILL before the tree counts as unkillable
	Limits          TreeLimits    // limits of all processes of the tree together
	ProcessLimits
	Cookie      string          // unique: no other run on this machine ever has the same cookie
	RunAs       *runas.Identity // the account to run as; nil means the account of this process
	Secrets     []Secret        // variables whose values are read at the start
	MaskSecrets bool            // replace secrets in the recorded output with ***
	PrivateDir  *privdir.Dir    // the command's private directory, already open; nil means none
	Log         *output.Log
	// OnStarted is called once, if the command still runs StartReportDelay after its start.
	OnStarted       func(pid int, at time.Time)
	ProgressHandler ProgressHandler // receives the notes that the command writes; nil if PrivateDir is nil
	// OnForked is called right after the start. It gets the time right before the start.
	OnForked func(pid int, at time.Time)
}

// ProgressHandler receives what a command writes to the progress FIFO of its PrivateDir. While
// HandleProgress returns true, it is called again, with new data or with none. At least
// MinProgressInterval passes between two calls.
type ProgressHandler interface {
	HandleProgress(data []byte) (again bool)
	// SetMasks is called before the start. It gets the texts that must be masked in everything the
	// command reports.
	SetMasks(texts [][]byte)
}

// Secret is an environment variable whose value only the command may learn. The value is the text of
// the file at Path, read with the rights of the command's account. If Path is "", the value is Value.
type Secret struct {
	Name, Path string
	Value      []byte
}

// TreeLimits are the limits that the kernel enforces for all processes of a command together; 0 means no
// limit.
type TreeLimits struct {
	MemoryBytes int64   // bytes
	CPUs        float64 // CPU time per elapsed time, so 1.5 means one and a half processors
	Tasks       int     // processes and threads that exist at the same time
}

// ProcessLimits are the limits of each process of a command.
type ProcessLimits struct {
	Nice   int // nice value; 0 means that of this process
	NoFile int // limit of open files; 0 means the default
	// NoNewPrivileges stops setuid programs from giving the command more rights (PR_SET_NO_NEW_PRIVS).
	NoNewPrivileges bool
}

// Result describes how a command ended.
type Result struct {
	StartedAt    time.Time
	EndedAt      time.Time
	ExitCode     int64 // -1 if there is no exit code
	Signal       int   // 0 if no signal ended the main process
	Cause        int   // cause passed to the Kill that ended the command
	TimedOut     bool
	IdleTimedOut bool // the timeout was IdleTimeout: the command printed nothing
	// Shortage means that the command was not started, because the system had no process, memory or
	// descriptor left.
	Shortage bool
	// CannotStart means that something that the command names, such as Dir or StdinFile, is missing or
	// unusable. So the command was not started. Another attempt would fail in the same way.
	CannotStart bool
	// HungStart means that a signal, probably from the watchdog, ended the process before it executed
	// the program; ExitCode is 126. If Shortage is set too, the start was refused because earlier
	// look-ups of other accounts still hang.
	HungStart     bool
	EndUnknown    bool // the system does not report how the command ended
	Error         string
	PID           int
	HeldByTracer  bool // the main process has ended, but its tracer (ptrace) keeps its exit status
	StuckPID      int  // first process that survives SIGKILL; AwaitStuck waits for all of them; 0 if none survives
	CPU           time.Duration
	PeakRSSBytes  int64 // bytes; 0 if unknown
	PeakTasks     int64 // most processes and threads at one time; 0 if unknown, for example if TreeLimits.Tasks is 0
	Leftovers     int   // number of processes that the main process left behind and that were ended
	HasBackground bool  // the main process left processes behind that may live on
	// UnenforcedLimits lists the limits that could not be enforced, separated by commas; "" if all were
	// enforced.
	UnenforcedLimits string
	// OutOfMemory means that the kernel killed the main process because memory ran out. On Windows it
	// means that the system refused memory to the command.
	OutOfMemory bool
	// AtMemoryLimit means that the command reached its own memory limit, and the kernel therefore killed
	// the main process or another process of the tree. On Windows, the system refused memory instead.
	AtMemoryLimit bool
	// SessionWasEnding means that the command failed while the session of this process's user was ending.
	// The end of a session ends all processes in it.
	SessionWasEnding bool
}

// StartTimeout limits how long a new process may take to execute its program. The watchdog ends a
// process that takes longer (see StartWatcher).
const StartTimeout = time.Second

// MinProgressInterval is the least time between two reads of a command's notes.
const MinProgressInterval = 100 * time.Millisecond

// StartReportDelay is how long a command must run before OnStarted is called.
const StartReportDelay = 5 * time.Millisecond

// DeadRunner describes the processes that a dead runner may have left behind.
type DeadRunner struct {
	PID        int   // pid of the dead runner; the processes in its session are ended; 0 means unknown
	StartTicks int64 // start time of the dead runner, as returned by OwnStartTicks
	Cookies    []string
	Trees      []Tree
	// IsSpared reports whether the process group pgid may live on; nil means that no group may.
	IsSpared func(pgid int) bool
	// OwnerUID, if not nil, restricts the search to processes of this account. It is set if the facts
	// about the trees come from that account and could be forged.
	OwnerUID *uint32
}

// Tree describes the processes of one attempt. If its cookie is unknown, Seq and Fence find it.
type Tree struct {
	PID       int       // pid of the main process; 0 means unknown
	StartedAt time.Time // start time of the main process, as passed to OnForked; zero means unknown
	// Seq and Fence identify the attempt: the cookie of the tree ends in ".SEQ.FENCE". A Fence of 0
	// matches no process. A Fence other than 0 must be one that no attempt of another service has.
	Seq, Fence int64
}

// Survivor is a process that a dead runner left alive.
type Survivor struct {
	PID, PGID int
	Cookie    string // "" if its environment no longer contains a cookie
}

// ErrUnsupported means that commands cannot run on this operating system.
var ErrUnsupported = errors.New("jobs cannot run on this operating system yet; run the service on Linux or Windows")

// UnusableError is the reason why a command cannot use an existing file or directory that it names.
type UnusableError string

// Error returns the reason.
func (u UnusableError) Error() string { return string(u) }

// errNotDirectory means that a job's working directory is not a directory. It is defined here because
// Windows has no system error for it.
const errNotDirectory = UnusableError("not a directory")

// permanentErrors are system errors about a path that persist until a file is changed.
var permanentErrors = []error{
	fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.ENOEXEC,
}

// IsPermanent reports whether another attempt would get the same error. The error is about a working
// directory, a program, an input file or a secret. The error is lasting if the file does not exist or
// cannot be used. A failure of a disk or a server is not lasting.
func IsPermanent(err error) bool {
	return errors.As(err, new(UnusableError)) ||
		slices.ContainsFunc(permanentErrors, func(lasting error) bool { return errors.Is(err, lasting) })
}
