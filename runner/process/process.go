// Package process runs one command as one supervised tree of OS processes, and ends the whole tree. It
// knows nothing about jobs, queues or sockets.
//
// Start with Command, Result and Worker.Run. The main process is the one that Run starts. The tree consists
// of the main process and all its descendants. Leftover processes are those that the main process leaves
// behind when it ends. Run normally returns when the whole tree has ended. It does not wait for leftover
// processes that may live on (Command.AllowBackground) or for processes that survive SIGKILL
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

// CookieEnvVar is the environment variable that contains the cookie: a text that all processes of one tree have
// in their environment. A worker uses it to find processes that have left the process group of the main
// process. See docs/decisions/0041.
const CookieEnvVar = "QUEUECTL_COOKIE"

// TypeInputResult reports how many bytes of input the command's terminal accepted. TerminalModeControls contains
// the control sequences with which the command has set the modes of its terminal.
type TypeInputResult struct {
	WrittenBytes         int
	TerminalModeControls string
}

// Command describes the command to run.
type Command struct {
	Argv                []string
	Env                 []string // the complete environment, except for the variable with the cookie
	WorkingDir          string
	Umask               int
	Stdin               string        // content of standard input; "" means /dev/null
	StdinFile           string        // if not "", the path of a regular file that is used instead of Stdin
	TTY                 bool          // use a new terminal for input and output; Stdin and StdinFile are then ""
	Timeout             time.Duration // 0 means no timeout
	IdleTimeout         time.Duration // end the command after this time without output; 0 means never
	KillAfter           time.Duration // grace period between SIGTERM and SIGKILL after a timeout
	LeftoverGracePeriod time.Duration // how long leftover processes may live after the main process has ended
	AllowBackground     bool          // do not end leftover processes
	SigkillTimeout      time.Duration // how long to wait after SIGKILL before the tree counts as unkillable
	Limits              TreeLimits    // limits of all processes of the tree together
	ProcessLimits
	Cookie      string          // marks the processes of the tree (see CookieEnvVar); never used twice on this machine
	RunAs       *runas.Identity // the account to run as; nil means the account of this process
	Secrets     []Secret        // variables whose values are read at the start
	MaskSecrets bool            // replace secrets in the recorded output with ***
	PrivateDir  *privdir.Dir    // the command's private directory, already open; nil means none
	OutputLog   *output.Log
	// OnStarted is called once, StartReportDelay after the start, if the command still runs.
	OnStarted       func(pid int, startedAt time.Time)
	ProgressHandler ProgressHandler // receives the command's progress notes; nil if PrivateDir is nil
	// OnForked is called right after the main process was created. forkedAt is the time right before.
	OnForked func(pid int, forkedAt time.Time)
}

// ProgressHandler receives the progress notes: the text that a command writes to the FIFO or file
// Command.PrivateDir.ProgressPath. Run calls HandleProgress when there are new notes. If HandleProgress returns true,
// Run calls it again even without new notes. The time between two calls is at least MinProgressReadInterval.
type ProgressHandler interface {
	HandleProgress(data []byte) (callAgain bool)
	// SetMaskedTexts is called before the start. The handler must replace secretTexts in everything that the
	// command reports.
	SetMaskedTexts(secretTexts [][]byte)
}

// Secret is an environment variable with a secret value. The value is the text of the file FilePath or, if FilePath is
// "", Value. The file is read with the rights of the command's account.
type Secret struct {
	EnvVarName, FilePath string
	Value                []byte
}

// TreeLimits are the limits that the kernel enforces for all processes of a command together; 0 means no
// limit.
type TreeLimits struct {
	MemoryBytes int64   // memory, in bytes
	CPUs        float64 // CPU time per elapsed time, so 1.5 means one and a half processors
	Tasks       int     // number of processes and threads that exist at the same time
}

// ProcessLimits are the limits of each process of a command.
type ProcessLimits struct {
	Nice         int // nice value; 0 means the nice value of this process
	MaxOpenFiles int // limit of open files; 0 means the default (on Linux, softOpenFileLimit)
	// NoNewPrivileges stops setuid programs from giving the command more rights (PR_SET_NO_NEW_PRIVS).
	NoNewPrivileges bool
}

// Result describes how a command ended.
type Result struct {
	StartedAt    time.Time
	EndedAt      time.Time
	ExitCode     int64 // -1 if there is no exit code
	Signal       int   // 0 if no signal ended the main process
	KillCause    int   // the cause that the caller passed to Kill; 0 if no Kill ended the command
	TimedOut     bool
	IdleTimedOut bool // the command was ended because it printed nothing for IdleTimeout
	// ResourceShortage means that the command was not started, because the system could not provide a process, memory
	// or a descriptor.
	ResourceShortage bool
	// StartFailedPermanently means that the command was not started, because a file or directory that it names, such as
	// Dir or StdinFile, is missing or unusable. Another attempt would fail in the same way.
	StartFailedPermanently bool
	// StartHung means that a signal, probably from the watchdog, ended the main process before it executed the program.
	// ExitCode is then 126. If ResourceShortage is set too, no process was started, because earlier file look-ups for
	// other accounts still hang.
	StartHung         bool
	ExitStatusUnknown bool   // the system does not report how the command ended
	Error             string // what went wrong, as a text for users; "" if nothing did
	PID               int    // pid of the main process
	ExitHeldByTracer  bool   // the main process has ended, but its tracer (ptrace) withholds the exit status
	// pid of a process that survives SIGKILL; 0 if none; AwaitStuckProcesses waits for all such processes
	StuckPID     int
	CPUTime      time.Duration
	PeakRSSBytes int64 // peak memory of the largest process, in bytes; 0 if unknown
	// most processes and threads at one time; 0 if unknown, for example if TreeLimits.Tasks is 0
	PeakTasks              int64
	EndedLeftoverCount     int  // number of leftover processes that were ended
	HasBackgroundProcesses bool // leftover processes live on
	// UnenforcedLimitNames lists the limits that could not be enforced, separated by commas. It is "" if all limits were
	// enforced.
	UnenforcedLimitNames string
	// OutOfMemory means that the kernel killed the main process because memory ran out. On Windows, it means
	// that the command failed after the system had refused memory to it.
	OutOfMemory bool
	// ReachedMemoryLimit means that the command reached its own memory limit, and that the kernel therefore killed
	// a process of its tree. On Windows, it means that the system refused memory to the command.
	ReachedMemoryLimit bool
	// LoginSessionWasEnding means that the command failed while Windows was ending the login session of this
	// process's user, and all processes in it.
	LoginSessionWasEnding bool
}

// ExecTimeout limits the time from the fork of a new process until its exec. A StartWatcher kills a process that takes
// longer.
const ExecTimeout = time.Second

// MinProgressReadInterval is the least time between two reads of a command's progress notes.
const MinProgressReadInterval = 100 * time.Millisecond

// StartReportDelay is how long a command must run before Command.OnStarted is called.
const StartReportDelay = 5 * time.Millisecond

// DeadRunner describes a dead runner (a process that ran commands) and the processes that it may have left
// behind.
type DeadRunner struct {
	PID          int   // pid of the dead runner; the processes in its session are ended; 0 means unknown
	StartTicks   int64 // start time of the dead runner, as returned by ThisProcessStartTicks
	Cookies      []string
	AttemptTrees []AttemptTree
	// IsBackgroundGroup reports whether the process group pgid may live on; nil means that no group may.
	IsBackgroundGroup func(pgid int) bool
	// OwnerUID restricts the search to processes of one account; nil means no restriction. The caller sets it if jobs of
	// this account could have changed the files from which the other fields were read.
	OwnerUID *uint32
}

// AttemptTree describes the process tree of one attempt.
type AttemptTree struct {
	MainPID   int       // pid of the main process; 0 means unknown
	StartedAt time.Time // start time of the main process, as passed to OnForked; zero means unknown
	// JobSeq and Fence identify the attempt: the cookie of the tree ends in ".SEQ.FENCE". The service of another queue may
	// use the same numbers. If the caller cannot exclude this, it sets Fence to 0, which matches no process.
	JobSeq, Fence int64
}

// SurvivingProcess is a process that a dead runner left alive.
type SurvivingProcess struct {
	PID, PGID int
	Cookie    string // "" if the environment of the process no longer contains a cookie
}

// ErrUnsupported means that commands cannot run on this operating system.
var ErrUnsupported = errors.New("jobs cannot run on this operating system yet; run the service on Linux or Windows")

// UnusablePathError is the reason why a command cannot use an existing file or directory that it names.
type UnusablePathError string

// Error returns the reason.
func (u UnusablePathError) Error() string { return string(u) }

// errNotDirectory means that a job's working directory is not a directory. It is defined here because
// Windows has no system error for it.
const errNotDirectory = UnusablePathError("not a directory")

// permanentErrors lists system errors about a path that occur again until a file or directory is changed.
var permanentErrors = []error{
	fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.ENOEXEC,
}

// IsPermanentError reports whether another attempt would fail with the same error. err is an error about a working
// directory, a program, an input file or a secret. It is permanent if the file or directory is missing or unusable, but
// not if a disk or a server has failed.
func IsPermanentError(err error) bool {
	return errors.As(err, new(UnusablePathError)) ||
		slices.ContainsFunc(permanentErrors, func(permanentErr error) bool { return errors.Is(err, permanentErr) })
}
