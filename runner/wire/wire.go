// Package wire encodes frames: the messages between the service and a runner.
//
// A frame is its length (u32, little endian), followed by its type (u8) and its fields as varints and length-prefixed
// bytes. The length does not include its own four bytes. Start with Frame, AppendFrame and ParseFrame.
package wire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"
)

// ProtocolVersion is the newest protocol version that this program supports. Each side sends its ProtocolVersion in its
// first frame, and both sides then use the lower one. A new version may only add types of frames, and optional fields
// at the end of a type (optionalFieldCounts). Older versions omit these fields. Everything else in the layout of a type
// never changes, so a side that knows a type can read its frames from every version. See docs/decisions/0051.
const ProtocolVersion = 1

// Compare returns a negative number if p comes before other, and a positive number if p comes after other. It compares
// Rank, then Seq. If both have the same Rank and Seq, a position with IsJustBeforeJob set comes first.
func (p QueuePosition) Compare(other QueuePosition) int {
	order := cmp.Or(cmp.Compare(p.Rank, other.Rank), cmp.Compare(p.Seq, other.Seq))
	if order == 0 && p.IsJustBeforeJob != other.IsJustBeforeJob {
		order = 1
		if p.IsJustBeforeJob {
			order = -1
		}
	}
	return order
}

// NoEpoch is the value of Hello.Epoch for a client that only wants the list of the runner's attempts.
const NoEpoch = 0

// MaxFrameBytes bounds the size of a frame in bytes, without its length prefix.
const MaxFrameBytes = 4 << 20

// Lease identifies one claim of one job: the right to run the job once. Seq is the job's number. Fence is the
// number of the claim. A result with the Fence of an earlier claim is outdated.
type Lease struct {
	Seq   int64
	Fence int64
}

// Frame is a message: a pointer to one of the structs in frameTypes. The fields of a struct are encoded in
// their order, so the order must never change.
type Frame any

// RequestID identifies a request of the service. The runner's reply has the same RequestID.
type RequestID int64

// ID returns a pointer to this RequestID. It makes all requests and replies, which embed a RequestID, implement
// FrameWithID.
func (id *RequestID) ID() *RequestID { return id }

// FrameWithID is a frame that is a request or a reply. A reply has the RequestID of its request.
type FrameWithID interface{ ID() *RequestID }

// Frames that the service sends.
type (
	// Hello is the first frame of a connection. Epoch is the number of this start of the service: each start has a higher
	// number. After a Hello, the runner rejects frames from connections with a lower epoch. If Epoch equals NoEpoch, the
	// runner only sends the HelloReply.
	Hello struct {
		ProtocolVersion int64
		Epoch           int64
		ServiceVersion  string
	}
	// RunnerSettings contains the settings of the runner. WorkerCount is how many attempts run at the same time.
	// SettleDelay is how long the runner collects results before it sends them. StopTimeout is how long running attempts
	// may continue after the operating system has asked the runner to end.
	RunnerSettings struct {
		WorkerCount int64
		SettleDelay time.Duration
		StopTimeout time.Duration
	}
	// QueuePosition is the position of a waiting attempt in its queue. Compare defines the order.
	QueuePosition struct {
		// Rank and Seq are the rank and the number of the attempt's job. If IsJustBeforeJob is set, Rank and Seq belong to
		// another job, and the attempt starts before that job.
		Rank, Seq       int64
		IsJustBeforeJob bool // the attempt starts before the job with this Rank and Seq
	}
	// StartAttempt requests the start of an attempt. The runner starts each lease at most once.
	StartAttempt struct {
		Lease
		Queue    string
		Position QueuePosition // the waiting attempts of a queue start in ascending order of Position
		// AccountUID is the account that the attempt runs as. -1 means the runner's own account. Otherwise the account's
		// home is the default for Cwd, and its variables, such as HOME, are added to Env.
		AccountUID int64
		Argv       []string
		// Env is the environment of the attempt. The runner adds QUEUECTL_WORKER, the variables of the account, and
		// a cookie: a variable by which it finds the processes of the attempt.
		Env       []string
		Cwd       string
		Umask     int64
		Stdin     string
		StdinFile string
		Timeouts
		OutputLimitBytes        int64
		AllowBackground         bool
		StartDeadlineMillis     int64 // start deadline in milliseconds since 1970; 0 means none
		StartDeadlineBootMillis int64 // start deadline in milliseconds since boot (TimeSinceBoot); 0 means none
		// MemoryBytes (in bytes), MilliCPUs (in thousandths of a processor) and MaxTasks (processes and threads) limit all
		// processes of the attempt together; 0 means no limit.
		MemoryBytes, MilliCPUs, MaxTasks int64
		TTY                              bool     // run the attempt on a new terminal; Stdin and StdinFile are then ""
		Nice                             int64    // nice value of each process; 0 means the runner's own nice value
		MaxOpenFiles                     int64    // limit of open files for each process; 0 means the default limit
		Secrets                          []string // NAME=/path or NAME=credential:CREDENTIAL; the runner reads the values
		MaskSecrets                      bool     // mask the values of Secrets in the output
		DependencyResults                []byte   // JSON about the jobs that this job depends on; nil means none
		NoNewPrivileges                  bool     // setuid programs gain no privileges
	}
	// Timeouts are the times after which the runner ends an attempt's processes.
	Timeouts struct {
		Timeout     time.Duration // 0 means no timeout
		IdleTimeout time.Duration // 0 means no timeout
		KillAfter   time.Duration // time between SIGTERM and SIGKILL
		OutputGrace time.Duration // how long leftover processes may live after the main process has ended
	}
	// TypeInput types a user's input on the terminal of a running attempt. The reply is TypeInputReply.
	TypeInput struct {
		Lease
		RequestID
		Data []byte
	}
	// ResizeTerminal changes the size of a running attempt's terminal.
	ResizeTerminal struct {
		Lease
		Rows, Cols int64
	}
	// DropStart withdraws an earlier Start, if the attempt has not started yet. The reply is DropStartReply.
	DropStart struct{ Lease }
	// EndAttempt ends an attempt's process tree. The runner sends SIGTERM and, after GracePeriod, SIGKILL. It copies
	// EndCause to the attempt's result.
	EndAttempt struct {
		Lease
		EndCause    int64
		GracePeriod time.Duration
	}
	// ExtendLeases makes all leases of the service last for Duration, starting now; 0 means that they do not
	// expire. If the next ExtendLeases does not arrive within this time, the leases expire. The runner then
	// kills all its jobs immediately, and starts no attempt until another ExtendLeases arrives. Before the
	// first ExtendLeases, the leases do not expire.
	ExtendLeases struct {
		Duration time.Duration
		// ExpiryBootMillis is the time at which the leases expire, in milliseconds since boot, including
		// the time that the machine slept. 0 means unknown.
		ExpiryBootMillis int64
	}
	// ReportAttemptImmediately makes the runner send the start and the result of an attempt without delay. Otherwise the
	// runner may collect reports of several attempts and send them together.
	ReportAttemptImmediately struct{ Lease }
	// AckResults acknowledges results that the service has stored.
	AckResults struct{ Leases []Lease }
	// ReadOutput requests the output of an attempt after the positions StreamCursors. The reply is ReadOutputReply. If
	// WaitForOutput is set, the runner replies when there is new output, or when the output is complete. Otherwise it
	// replies immediately.
	ReadOutput struct {
		Lease
		RequestID
		StreamCursors [2]int64 // position in standard output and in standard error (see output.StreamCursor)
		WaitForOutput bool
	}
	// PurgeOutputs deletes output files. The reply is PurgeOutputsReply.
	PurgeOutputs struct {
		RequestID
		OutputRefs []string
	}
	// SignalAttempt sends a signal to every process of a running attempt.
	SignalAttempt struct {
		Lease
		SignalNumber int64
	}
	// PauseAttempt freezes an attempt's process tree and stops its timeouts if Paused is set. Otherwise it resumes
	// both. The reply is PauseReply. If the attempt has not started yet, it is frozen when it starts.
	PauseAttempt struct {
		Lease
		RequestID
		Paused bool
	}
	// Shutdown ends the runner once all its attempts have ended. If the service has acknowledged all results,
	// the runner then removes its directory.
	Shutdown struct{}
	// EndProcessTrees ends the remaining processes of dead runners' attempts. These are the attempts in Attempts and, if
	// RunnerName is not "", the attempts that the files in this dead runner's directory name. The reply is
	// EndProcessTreesReply.
	EndProcessTrees struct {
		RequestID
		RunnerName string
		Attempts   []Attempt
	}
	// RemoveDeadRunnerDir removes a dead runner's directory.
	RemoveDeadRunnerDir struct{ RunnerName string }
)

// Frames that the runner sends.
type (
	// HelloReply is the reply to Hello, and describes the runner. UnendedAttempts lists the attempts that have not
	// ended. UnacknowledgedLeases lists the ended attempts whose results are not acknowledged; the runner then sends a
	// Result frame for each of them.
	HelloReply struct {
		ProtocolVersion      int64
		RunnerVersion        string
		RunnerPID            int64
		UnendedAttempts      []Attempt
		UnacknowledgedLeases []Lease
		Enforcements         []LimitEnforcement // how the runner enforces each limit
	}
	// HelloRefusal is the reply to a Hello that the runner refuses, for one of two reasons. Either the epoch of the Hello
	// is not higher than NewestEpoch, the highest epoch that the runner has accepted, or the runner is about to end.
	HelloRefusal struct{ NewestEpoch int64 }
	// StartReport reports that an attempt has started. The runner does not send it for an attempt that ends
	// within a few milliseconds.
	StartReport struct{ Attempt }
	// DropStartReply is the reply to DropStart. Dropped means that the attempt will not run. The runner also sends a
	// DropStartReply without having got a DropStart, if the start deadline of an attempt passes before the attempt has
	// started.
	DropStartReply struct {
		Lease
		StartDropped bool
	}
	// StuckAttemptsReport lists all ended attempts that have processes that SIGKILL did not end. Each of these attempts
	// keeps a worker busy. Attempt.PID is the pid of one such process. The runner sends StuckAttemptsReport whenever the
	// list has changed, and after HelloReply if the list is not empty.
	StuckAttemptsReport struct{ Attempts []Attempt }
	// Result says how an attempt ended. The runner sends it again after every HelloReply, until it gets an AckResults with
	// the lease of the attempt.
	Result struct {
		Attempt
		EndedAtMillis int64 // milliseconds since 1970
		// EndCause is the reason why the attempt was ended: the EndCause in EndAttempt, or a reason that the runner has
		// detected. It is 0 if the attempt ended by itself.
		EndCause           int64
		TimedOut           bool
		IdleTimedOut       bool // the attempt timed out because it printed nothing for IdleTimeout
		ResourceShortage   bool // the attempt could not start, because the machine lacked a resource such as memory
		HasStuckProcesses  bool // the attempt has processes that SIGKILL did not end
		ExitCode           int64
		Signal             int64
		Error              string // what went wrong; "" if nothing did
		CPUTime            time.Duration
		PeakRSSBytes       int64
		EndedLeftoverCount int64 // number of processes that the command left behind and that the runner ended
		DroppedOutputBytes int64 // number of bytes of output that were not kept
		Output             []byte
		OutputRef          string
		// ResultJSON is the JSON that the attempt wrote as its result; nil if it wrote no valid JSON.
		// ResultError says why the JSON is invalid; "" if it is valid or missing.
		ResultJSON  []byte
		ResultError string
		Progress    Progress // last progress that the attempt reported
		PeakTasks   int64    // largest number of processes and threads at one time; 0 if unknown
		// ReachedMemoryLimit means that the attempt reached its own memory limit, and that therefore one of its
		// processes was killed.
		ReachedMemoryLimit bool
	}
	// ProgressReport reports the progress of a running attempt. The runner sends at most two a second for each attempt.
	// After HelloReply, the runner sends the last ProgressReport of each running attempt again.
	ProgressReport struct {
		Lease
		Progress
	}
	// ReadOutputReply is the reply to ReadOutput. OutputChunks contains pieces of output without times, encoded by
	// output.AppendEncodedChunks.
	ReadOutputReply struct {
		RequestID
		StreamCursors  [2]int64 // positions after OutputChunks; use them in the next ReadOutput
		OutputComplete bool
		AttemptUnknown bool // the runner does not have this attempt
		OutputChunks   []byte
	}
	// EndProcessTreesReply is the reply to Recover. RunnerStartedThisBoot is false if the machine has certainly rebooted
	// since the dead runner started. StuckProcesses lists the processes that SIGKILL did not end. LeasesWithProcesses
	// lists the attempts in Recover.Attempts that still had processes when the runner got the request.
	EndProcessTreesReply struct {
		RequestID
		RunnerStartedThisBoot bool
		StuckProcesses        []RemainingProcess
		LeasesWithProcesses   []Lease
		Error                 string // "" after success
	}
	// PurgeOutputsReply is the reply to PurgeOutputs. Some of the files may still exist, because they could
	// not be deleted.
	PurgeOutputsReply struct{ RequestID }
	// PauseReply is the reply to PauseAttempt. UnchangedProcessCount is the number of processes of the tree that are not
	// frozen or resumed yet. AttemptNotRunning means that the attempt is not running, or is being ended.
	PauseReply struct {
		RequestID
		UnchangedProcessCount int64
		AttemptNotRunning     bool
	}
	// TypeInputReply is the reply to TypeInput. WrittenBytes is how many bytes the terminal accepted, from the start of
	// the input. The terminal accepts the rest only after the program has read some input. TerminalModeControls contains
	// the control sequences with which the program has set the terminal's modes. NoTerminal means that the attempt is not
	// running, or has no terminal.
	TypeInputReply struct {
		RequestID
		WrittenBytes         int64
		NoTerminal           bool
		TerminalModeControls string
	}
)

// Progress is the progress that an attempt has reported.
type Progress struct {
	ReportedAtMillis int64 // milliseconds since 1970; 0 if the attempt has reported none
	Percent          int64
	Text             string
}

// LimitEnforcement says how a runner enforces a limit that a job can set.
type LimitEnforcement struct {
	LimitName string
	// EnforcementExtent says how completely the limit is enforced: 0 means not at all, 1 only for each process of the job
	// separately, and 2 for the whole job.
	EnforcementExtent int64
	Mechanism         string // what enforces the limit, or why it is not enforced; a text for people
}

// RemainingProcess is a process of a dead runner's attempt that SIGKILL did not end.
type RemainingProcess struct {
	PID, PGID int64
	Cookie    string // "" if it is unknown
}

// Attempt describes an attempt. PID is the pid of its main process, or 0 before its start.
type Attempt struct {
	Lease
	TableSlot       int64 // slot of the worker, from 1
	PID             int64
	StartedAtMillis int64 // milliseconds since 1970
}

// frameTypes lists the types of frames. The index of a type is its number in encoded frames. The number of a
// removed type is not used again.
var frameTypes = [...]Frame{
	1:  (*Hello)(nil),
	2:  (*RunnerSettings)(nil),
	3:  (*StartAttempt)(nil),
	4:  (*DropStart)(nil),
	5:  (*EndAttempt)(nil),
	6:  (*ReportAttemptImmediately)(nil),
	7:  (*AckResults)(nil),
	8:  (*ReadOutput)(nil),
	9:  (*PurgeOutputs)(nil),
	10: (*Shutdown)(nil),
	11: (*SignalAttempt)(nil),
	12: (*EndProcessTrees)(nil),
	13: (*RemoveDeadRunnerDir)(nil),
	14: (*HelloReply)(nil),
	15: (*HelloRefusal)(nil),
	16: (*StartReport)(nil),
	17: (*DropStartReply)(nil),
	18: (*StuckAttemptsReport)(nil),
	19: (*Result)(nil),
	20: (*ReadOutputReply)(nil),
	21: (*EndProcessTreesReply)(nil),
	22: (*PurgeOutputsReply)(nil),
	23: (*TypeInput)(nil),
	24: (*ResizeTerminal)(nil),
	25: (*TypeInputReply)(nil),
	26: (*PauseAttempt)(nil),
	27: (*PauseReply)(nil),
	28: (*ProgressReport)(nil),
	29: (*ExtendLeases)(nil),
}

// optionalFieldCounts contains the number of optional fields at the end of each type of frame, by the number of the
// type. If the last fields of a frame are optional and zero, AppendFrame omits them. Older versions of the program omit
// all optional fields.
var optionalFieldCounts = [len(frameTypes)]int{3: 1, 19: 2, 25: 1, 29: 1}

// AppendFrame appends a frame with its length to b. It panics if f is not a pointer to one of the structs in
// frameTypes.
func AppendFrame(b []byte, f Frame) []byte {
	start, t := len(b), reflect.TypeOf(f)
	kind := slices.IndexFunc(frameTypes[:], func(other Frame) bool { return other != nil && reflect.TypeOf(other) == t })
	if kind < 0 {
		panic(fmt.Sprintf("wire: %T is not the type of a frame", f))
	}
	v := reflect.ValueOf(f).Elem()
	b = append(b, 0, 0, 0, 0, byte(kind))
	n := v.NumField()
	required := n - optionalFieldCounts[kind]
	for n > required && v.Field(n-1).IsZero() {
		n--
	}
	for i := range n {
		b = appendValue(b, v.Field(i))
	}
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

// frameHeaderBytes is the size of a frame's length and type, in bytes.
const frameHeaderBytes = 5

// ErrIncompleteFrame means that the input ends before the end of a frame.
var ErrIncompleteFrame = errors.New("incomplete frame")

// ParseFrame decodes the first frame in b. It returns the frame and the number of bytes of b that encode it. The frame
// shares no memory with b. ErrIncompleteFrame means that the caller must read more bytes first. After any other error,
// the rest of the input cannot be read either. Unknown bytes at the end of a frame are an error.
func ParseFrame(b []byte) (Frame, int, error) {
	if len(b) < frameHeaderBytes {
		return nil, 0, ErrIncompleteFrame
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n < 1 || n > MaxFrameBytes {
		return nil, 0, fmt.Errorf("received a damaged message between service and runner: its length is %d bytes instead "+
			"of 1 to %d", n, MaxFrameBytes)
	}
	if len(b) < 4+n {
		return nil, 0, ErrIncompleteFrame
	}
	k := b[4]
	if int(k) >= len(frameTypes) || frameTypes[k] == nil {
		return nil, 0, fmt.Errorf("invalid message between service and runner: its type %d is unknown; check that both have "+
			"the same version", k)
	}
	frame := reflect.New(reflect.TypeOf(frameTypes[k]).Elem())
	d := decoder{remainingInput: b[frameHeaderBytes : 4+n], remainingText: string(b[frameHeaderBytes : 4+n])}
	v := frame.Elem()
	for i := range v.NumField() {
		optional := i >= v.NumField()-optionalFieldCounts[k]
		if optional && len(d.remainingInput) == 0 {
			break
		}
		d.readValue(v.Field(i))
		// An optional zero field at the end means that the frame is damaged, because AppendFrame omits such a field.
		if optional && len(d.remainingInput) == 0 && v.Field(i).IsZero() {
			d.markDamaged()
		}
	}
	if d.isDamaged || len(d.remainingInput) > 0 {
		return nil, 0, fmt.Errorf("received a damaged message between service and runner: its content does not fit its "+
			"type %d", k)
	}
	return frame.Interface(), 4 + n, nil
}
