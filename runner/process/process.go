// Package process runs one command as one supervised tree of OS processes. It
// knows nothing of jobs, queues or sockets.
package process

import (
	"errors"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/output"
)

// CookieName is the environment variable by which a tree's processes are found
// when they have left its process group.
// See docs/decisions/0041.
const CookieName = "QUEUECTL_COOKIE"

// Typed says how many bytes of what was typed were taken, and which control sequences have set the
// modes of the command's terminal.
type Typed struct {
	Taken    int
	Controls string
}

// Command is what to run.
type Command struct {
	Argv        []string
	Env         []string // complete but for the cookie
	Dir         string
	Umask       int
	Stdin       string        // "" is /dev/null
	StdinFile   string        // if not "", instead of Stdin: a regular file
	TTY         bool          // a terminal of its own is its input and both streams; Stdin and StdinFile are ""
	Timeout     time.Duration // 0 is none
	IdleTimeout time.Duration // ended when it printed nothing for so long; 0 is never
	KillAfter   time.Duration // from SIGTERM to SIGKILL, at the timeout
	OutputGrace time.Duration // how long what is left behind may live and print
	Background  bool          // what is left behind may live on
	Patience    time.Duration // from SIGKILL until a tree is given up as unkillable
	Limits      Limits        // of all its processes together
	Nice        int           // of each of its processes; 0 is this process's own
	NoFile      int           // files that each of its processes may have open; 0 is the default
	// NoNewPrivileges has setuid programs run with no rights but the command's own.
	NoNewPrivileges bool
	Cookie          string    // belongs to this run alone, on this machine, for ever
	As              *Identity // whom it runs as; nil is as this process
	Secrets         []Secret  // variables that are read when it starts
	Mask            bool      // *** is kept of its output in the place of each secret
	Folder          *Folder   // of its own, opened for it; nil is none
	Log             *output.Log
	// Started is called once if the command still runs a moment after its start.
	Started func(pid int, at time.Time)
	Notes   Notes // is told what the command notes; nil with a nil Folder
	// Forked is called right after the start, with the moment right before it.
	Forked func(pid int, at time.Time)
}

// Notes is told what a command writes to the Notes of its Folder, and then, with nothing, again
// and again as long as it says so. Between two calls there is NotesEvery at least.
type Notes interface {
	Noted(data []byte) (again bool)
	// Masks is told before the start which texts are to be masked in what the command leaves.
	Masks(texts [][]byte)
}

// Secret is a variable of a command's environment whose value nobody else is told: the text
// of a file, which is looked up by the rights of the command's account, or the Value if Path
// is "".
type Secret struct {
	Name, Path string
	Value      []byte
}

// Limits are what the kernel lets a command's processes use together; 0 is no limit.
type Limits struct {
	Memory int64   // bytes
	CPUs   float64 // so many processors' worth of time
	Tasks  int     // at once
}

// Identity is whom a command runs as, with no way back. Only root can give one. All
// that is looked up and opened for the command is, by its rights.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
}

// Extent is how far a limit is enforced.
type Extent int

// The extents, as package wire numbers them.
const (
	Unenforced Extent = iota
	ForEach           // for each process by itself, though it is meant for all together
	Whole             // as it is meant
)

// Enforcement is how this process enforces one limit of commands.
type Enforcement struct {
	Limit  string // the field of a job
	Extent Extent
	By     string // what enforces it; if nothing does, why
}

// Result is how a command ended.
type Result struct {
	StartedAt time.Time
	EndedAt   time.Time
	ExitCode  int64 // -1 is none
	Signal    int   // 0 is none
	Cause     int   // of the Kill that ended it
	TimedOut  bool
	Silent    bool // timed out because it printed nothing
	Shortage  bool // could not be started for want of processes, memory or descriptors
	// CannotStart says that it was not started because something that it names, such as Dir or StdinFile, is missing
	// or cannot be used, and another attempt would find the same.
	CannotStart bool
	// HungStart says that a signal ended it before it was a program, most likely the watchdog's, and
	// ExitCode is 126; with Shortage, that what others have named hangs, or who it is to be.
	HungStart bool
	Lost      bool // the system does not tell how it ended
	Error     string
	PID       int
	Traced    bool // it has ended, but another process traces it, so that nobody knows how
	StuckPID  int  // the first process that outlives SIGKILL, for which Linger waits; 0 is none
	CPU       time.Duration
	PeakRSS   int64 // bytes; 0 if it is not known
	PeakTasks int64 // processes and threads at once; 0 if it is not known, as without a limit of them
	Leftovers int   // processes left behind by the main one, and ended
	Spared    bool  // processes left behind that may live on
	// Unlimited names the limits that could not be enforced, "" if all were.
	Unlimited string
	// OutOfMemory says that the kernel has killed it because memory ran out, or refused it memory on Windows.
	OutOfMemory bool
	// MemoryLimit says that the kernel did so, to it or to a process that it started, at the command's own limit.
	MemoryLimit bool
	// SessionEnds says that it failed while the session of this process's user ended, which ends all that runs there.
	SessionEnds bool
}

// StartWithin is how long a program may take to begin where another process looks
// (Starting).
const StartWithin = time.Second

// StartedAfter is how long a command runs before Started is called.
const StartedAfter = 5 * time.Millisecond

// Dead is what is known of a dead runner's processes.
type Dead struct {
	Leader  int   // the runner's own pid, whose session is ended; 0 is unknown
	Ticks   int64 // when it started, as SelfTicks said
	Cookies []string
	Trees   []Tree
	// Spared says which process groups may live on; nil is none.
	Spared func(pgid int) bool
	// Of, if not nil, is the account whose processes alone are ended: what is known of them
	// is by its word.
	Of *uint32
}

// Tree is what is known of an attempt's processes, if need be by its numbers alone.
type Tree struct {
	PID       int       // of the main process; 0 is unknown
	StartedAt time.Time // of the main process, as Forked said; zero is unknown
	// Seq and Fence name the attempt: a cookie of the tree ends in .SEQ.FENCE. A Fence of 0
	// finds nothing; others must be such that no attempt of another service has them.
	Seq, Fence int64
}

// Left is a process that a dead runner has left alive.
type Left struct {
	PID, PGID int
	Cookie    string // "" if it shows none any more
}

// ErrUnsupported says that commands cannot be run on this operating system.
var ErrUnsupported = errors.New("jobs cannot run on this operating system yet; run the service on Linux or Windows")

// Unusable is an error about something that a command names: it exists, but the command cannot use it.
type Unusable string

// Error returns the reason.
func (u Unusable) Error() string { return string(u) }

// errNotDirectory means that a job's working directory is not a directory. It also serves Windows, where Stat has no
// such error.
const errNotDirectory = Unusable("not a directory")

// lastingErrors are the errors of the system about a path that stay until a file is changed.
var lastingErrors = []error{
	fs.ErrNotExist, fs.ErrPermission, syscall.ENOTDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.ENOEXEC,
}

// Lasting reports whether another attempt would meet the same error about a working directory, a program, an input
// file or a secret: it does not exist, or it cannot be used as such. The failure of a disk or a server is not lasting.
func Lasting(err error) bool {
	return errors.As(err, new(Unusable)) ||
		slices.ContainsFunc(lastingErrors, func(lasting error) bool { return errors.Is(err, lasting) })
}
