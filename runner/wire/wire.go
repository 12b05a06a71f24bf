// Package wire holds the frames between service and runner: binary and
// length-prefixed. A frame is a u32 length (little endian) of what follows, a u8
// type, and fields as varints and length-prefixed bytes.
package wire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Protocol is the newest version of these frames that is spoken here; both sides
// name theirs in the first frame they send, and speak the lower one. A version only
// adds types of frames: the layout of one never changes, so that a side that knows a
// type reads it from every other version; but for a number at its end that is there only if it says something
// (codec.last), which an older side does not read.
// See docs/decisions/0051.
const Protocol = 1

// Compare orders places. An attempt comes after all those that go before its job.
func (p Place) Compare(other Place) int {
	order := cmp.Or(cmp.Compare(p.Rank, other.Rank), cmp.Compare(p.Seq, other.Seq))
	if order == 0 && p.Before != other.Before {
		order = 1
		if p.Before {
			order = -1
		}
	}
	return order
}

// NoEpoch is that of whoever only asks what a runner has.
const NoEpoch = 0

// MaxFrame bounds a frame in bytes, its length prefix not counted.
const MaxFrame = 4 << 20

// Lease names one claim of one job.
type Lease struct {
	Seq   int64
	Fence int64
}

// Frame is one of the structs below.
type Frame interface {
	kind() byte
	fields(c *codec)
}

// Frames that the service sends.
type (
	// Hello opens a connection. Frames of connections with a lower epoch are
	// refused from then on. One of NoEpoch is answered, and changes nothing.
	Hello struct {
		Protocol int64
		Epoch    int64
		Version  string
	}
	// Setup sets how many attempts run at once, how long results are gathered before
	// they are sent, and how long running attempts may finish when the system tells
	// the runner to end.
	Setup struct {
		Workers     int64
		SettleDelay time.Duration
		StopTimeout time.Duration
	}
	// Place is the position of an attempt in the order in which those of its queue start.
	Place struct {
		Rank, Seq int64 // of its job, or of the one that it goes before
		Before    bool  // it goes before the job of that Seq
	}
	// Start asks for one attempt; the runner starts a lease at most once.
	Start struct {
		Lease
		Queue       string
		Place       Place // of those of the queue that wait in the runner the lowest starts first
		UID         int64 // of the account it runs as, whose home is the default of Cwd and whose names Env lacks; -1 is the runner's own
		Argv        []string
		Env         []string // complete but for QUEUECTL_WORKER, the cookie and, with a UID, what the account says of itself
		Cwd         string
		Umask       int64
		Stdin       string
		StdinFile   string
		Timeout     time.Duration // 0 is none
		IdleTimeout time.Duration // 0 is none
		KillAfter   time.Duration
		OutputGrace time.Duration
		OutputLimit int64
		Background  bool
		NotAfter    int64 // milliseconds since 1970; dropped unless started by then; 0 is none
		By          int64 // the same by the clock of this boot, in milliseconds
		Memory      int64 // bytes; 0 is no limit, as of the next two
		MilliCPUs   int64 // thousandths of a processor's time
		Tasks       int64
		TTY         bool     // a terminal of its own is its input and both streams; Stdin and StdinFile are ""
		Nice        int64    // of each of its processes; 0 is the runner's own
		NoFile      int64    // files that each of them may have open; 0 is the default
		Secrets     []string // NAME=/path or NAME=credential:C: variables whose values the runner alone reads
		Mask        bool     // their values in what it prints
		Deps        []byte   // JSON, what it is told of those that it waited for; nil is nothing
		// NoNewPrivileges has setuid programs run with no rights but the job's own.
		NoNewPrivileges bool
	}
	// Type writes to the terminal of a running attempt what a person typed; Typed
	// answers.
	Type struct {
		Lease
		ID   int64
		Data []byte
	}
	// Resize gives the terminal of a running attempt another size.
	Resize struct {
		Lease
		Rows, Cols int64
	}
	// Drop takes back an attempt that has not been started; Dropped answers.
	Drop struct{ Lease }
	// Kill ends an attempt's tree: SIGTERM, and SIGKILL after Grace. Cause is
	// what the result will say.
	Kill struct {
		Lease
		Cause int64
		Grace time.Duration
	}
	// Prolong has the runner go on for so long. Unless another one comes within that, it ends all that it runs at once, as if the
	// machine had gone down, and begins nothing before one comes: the service may have lost its leases. 0 is for ever, as is what was never
	// said.
	Prolong struct {
		For time.Duration
		// By is when that is over, in milliseconds by the clock of this boot, which counts what the machine sleeps; 0 is not known.
		By int64
	}
	// Watch asks for an attempt's result as soon as it has ended.
	Watch struct{ Lease }
	// Ack says that a result is stored.
	Ack struct{ Leases []Lease }
	// Read asks for output after a cursor; Chunk answers: at once, or, with Wait,
	// when there is some or none will follow.
	Read struct {
		Lease
		ID     int64
		Cursor [2]int64
		Wait   bool
	}
	// Purge deletes output files; Purged answers.
	Purge struct {
		ID   int64
		Refs []string
	}
	// Signal sends a signal to every process of a running attempt.
	Signal struct {
		Lease
		Number int64
	}
	// Pause freezes an attempt's tree, with its timeouts, or has it go on; Paused answers. An
	// attempt that has not begun stands still as soon as it has.
	Pause struct {
		Lease
		ID int64
		On bool
	}
	// Shutdown ends the runner once it runs and holds nothing.
	Shutdown struct{}
	// Recover ends what attempts of dead runners have left alive: those of the folder
	// with this name, unless it is "", and these, which the service knows of;
	// Recovered answers.
	Recover struct {
		ID       int64
		Name     string
		Attempts []Attempt
	}
	// Forget removes a dead runner's folder.
	Forget struct{ Name string }
)

// Frames that the runner sends.
type (
	// HelloReply answers Hello: who the runner is, all its attempts that have not
	// ended, and those that have, whose results are not yet acknowledged and
	// follow.
	HelloReply struct {
		Protocol int64
		Version  string
		PID      int64
		Attempts []Attempt
		Ended    []Lease
		Limits   []Limit // how it holds its attempts within each of their limits
	}
	// Refused answers a Hello whose epoch is not the newest, which is Epoch, and every
	// Hello to a runner that is about to end.
	Refused struct{ Epoch int64 }
	// Started tells of an attempt that still runs a moment after its start.
	Started struct{ Attempt }
	// Dropped answers Drop: whether the attempt will not run. It comes unasked
	// for an attempt that was not started by its NotAfter or By.
	Dropped struct {
		Lease
		Dropped bool
	}
	// Stuck tells of all attempts that have ended and outlive SIGKILL: each takes a
	// worker. Their PIDs are those of what is left. It comes with every change, and
	// after HelloReply if there are any.
	Stuck struct{ Attempts []Attempt }
	// Result is how an attempt ended. It is repeated in every HelloReply until
	// acknowledged.
	Result struct {
		Attempt
		EndedAt   int64 // milliseconds since 1970
		Cause     int64 // of the Kill that ended it, or what the runner has seen, 0 if neither
		TimedOut  bool
		Silent    bool // timed out because it printed nothing
		Shortage  bool // could not be started for want of resources
		Unkilled  bool // outlived SIGKILL
		ExitCode  int64
		Signal    int64
		Error     string
		CPU       time.Duration
		PeakRSS   int64
		Leftovers int64
		Dropped   int64
		Output    []byte
		OutputRef string
		// Value is JSON that the attempt has left, and ValueError why what it left is none.
		Value      []byte
		ValueError string
		Progress   Progress // the last that it has told
		PeakTasks  int64    // 0 if it is not known
		// MemoryLimit says that a process of the attempt was killed at the attempt's own memory limit.
		MemoryLimit bool
	}
	// Telling says how far a running attempt is. Of each it comes twice a second at most,
	// and after HelloReply if it has told any.
	Telling struct {
		Lease
		Progress
	}
	// Chunk answers Read. Data is as output.AppendChunks writes it, from time 0.
	Chunk struct {
		ID     int64
		Cursor [2]int64
		Done   bool
		Gone   bool // the attempt is not known here (any more)
		Data   []byte
	}
	// Recovered answers Recover: whether the machine may have been up ever since the
	// runner began, what outlives SIGKILL, and which attempts had processes.
	Recovered struct {
		ID       int64
		SameBoot bool
		Left     []Left
		Alive    []Lease
		Error    string // "" if it could be done
	}
	// Purged answers Purge, once the files are gone or could not be deleted.
	Purged struct{ ID int64 }
	// Paused answers Pause: how many processes of the tree still run, or are still stopped. Gone
	// says that no such attempt runs, or that it is being ended.
	Paused struct {
		ID   int64
		Left int64
		Gone bool
	}
	// Typed answers Type: how many bytes were taken, the first ones; there is no room for
	// more until the program reads. Controls are the control sequences that have set the
	// terminal's modes. Gone says that no such attempt runs with a terminal.
	Typed struct {
		ID       int64
		Taken    int64
		Gone     bool
		Controls string
	}
)

// Progress is how far an attempt says that it is.
type Progress struct {
	At      int64 // milliseconds since 1970; 0 if it has not said
	Percent int64
	Text    string
}

// Limit is how a runner enforces the limit of a field.
type Limit struct {
	Name   string
	Extent int64  // 0: not enforced; 1: for each process by itself, though meant for all together; 2: as it is meant
	By     string // what enforces it, for people; if nothing does, why
}

// Left is a process of a dead runner that outlives SIGKILL.
type Left struct {
	PID, PGID int64
	Cookie    string // "" if it shows none any more
}

// Attempt is what is known of an attempt while it has not ended. PID 0 is one
// that has not been started.
type Attempt struct {
	Lease
	Slot      int64 // of the worker, from 1
	PID       int64
	StartedAt int64 // milliseconds since 1970
}

// The types, in their order on the wire; numbers are never used again.
var kinds = [...]func() Frame{
	1:  func() Frame { return new(Hello) },
	2:  func() Frame { return new(Setup) },
	3:  func() Frame { return new(Start) },
	4:  func() Frame { return new(Drop) },
	5:  func() Frame { return new(Kill) },
	6:  func() Frame { return new(Watch) },
	7:  func() Frame { return new(Ack) },
	8:  func() Frame { return new(Read) },
	9:  func() Frame { return new(Purge) },
	10: func() Frame { return new(Shutdown) },
	11: func() Frame { return new(Signal) },
	12: func() Frame { return new(Recover) },
	13: func() Frame { return new(Forget) },
	14: func() Frame { return new(HelloReply) },
	15: func() Frame { return new(Refused) },
	16: func() Frame { return new(Started) },
	17: func() Frame { return new(Dropped) },
	18: func() Frame { return new(Stuck) },
	19: func() Frame { return new(Result) },
	20: func() Frame { return new(Chunk) },
	21: func() Frame { return new(Recovered) },
	22: func() Frame { return new(Purged) },
	23: func() Frame { return new(Type) },
	24: func() Frame { return new(Resize) },
	25: func() Frame { return new(Typed) },
	26: func() Frame { return new(Pause) },
	27: func() Frame { return new(Paused) },
	28: func() Frame { return new(Telling) },
	29: func() Frame { return new(Prolong) },
}

func (*Hello) kind() byte      { return 1 }
func (*Setup) kind() byte      { return 2 }
func (*Start) kind() byte      { return 3 }
func (*Drop) kind() byte       { return 4 }
func (*Kill) kind() byte       { return 5 }
func (*Watch) kind() byte      { return 6 }
func (*Ack) kind() byte        { return 7 }
func (*Read) kind() byte       { return 8 }
func (*Purge) kind() byte      { return 9 }
func (*Shutdown) kind() byte   { return 10 }
func (*Signal) kind() byte     { return 11 }
func (*Recover) kind() byte    { return 12 }
func (*Forget) kind() byte     { return 13 }
func (*HelloReply) kind() byte { return 14 }
func (*Refused) kind() byte    { return 15 }
func (*Started) kind() byte    { return 16 }
func (*Dropped) kind() byte    { return 17 }
func (*Stuck) kind() byte      { return 18 }
func (*Result) kind() byte     { return 19 }
func (*Chunk) kind() byte      { return 20 }
func (*Recovered) kind() byte  { return 21 }
func (*Purged) kind() byte     { return 22 }
func (*Type) kind() byte       { return 23 }
func (*Resize) kind() byte     { return 24 }
func (*Typed) kind() byte      { return 25 }
func (*Pause) kind() byte      { return 26 }
func (*Paused) kind() byte     { return 27 }
func (*Telling) kind() byte    { return 28 }
func (*Prolong) kind() byte    { return 29 }

// Append appends the frame with its length.
func Append(b []byte, f Frame) []byte {
	start := len(b)
	c := codec{written: append(b, 0, 0, 0, 0, f.kind())}
	f.fields(&c)
	binary.LittleEndian.PutUint32(c.written[start:], uint32(len(c.written)-start-4))
	return c.written
}

// ErrPartial means that a frame's end has not been read yet.
var ErrPartial = errors.New("incomplete frame")

// Parse reads the first frame of b and says how many bytes it took. The frame
// shares nothing with b. ErrPartial asks for more bytes; any other error means that
// the rest cannot be read.
func Parse(b []byte) (Frame, int, error) {
	if len(b) < 5 {
		return nil, 0, ErrPartial
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n < 1 || n > MaxFrame {
		return nil, 0, fmt.Errorf("invalid runner message: its length is %d bytes; valid are 1 to %d bytes", n, MaxFrame)
	}
	if len(b) < 4+n {
		return nil, 0, ErrPartial
	}
	k := b[4]
	if int(k) >= len(kinds) || kinds[k] == nil {
		return nil, 0, fmt.Errorf("invalid runner message: its type %d is unknown", k)
	}
	f := kinds[k]()
	c := codec{reads: true, unread: string(b[5 : 4+n])}
	f.fields(&c)
	if c.bad || c.unread != "" {
		return nil, 0, fmt.Errorf("invalid runner message: damaged content (message type %d)", k)
	}
	return f, 4 + n, nil
}
