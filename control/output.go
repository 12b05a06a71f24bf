package control

import (
	"cmp"
	"context"
	"fmt"
)

// OutputAPI reads the output of jobs and types into their terminals.
type OutputAPI interface {
	// StreamOutput sends the output of a job. It calls handleOutput for every piece of output. If handleOutput returns an
	// error, StreamOutput ends.
	StreamOutput(ctx context.Context, p JobOutputParams, handleOutput func(OutputPiece) error) (OutputStreamEnd, error)
	// AttachTerminal types text into the terminal of a job, and can change the size of the terminal.
	AttachTerminal(ctx context.Context, p AttachTerminalParams) (AttachTerminalResult, error)
}

// JobOutputParams requests the output of one attempt of a job. With Follow, it continues with the job's later attempts.
type JobOutputParams struct {
	ID                     JobID `json:"id" rule:"nonEmpty,required"`
	Attempt                int   `json:"attempt,omitempty" rule:"attempt"` // number of the attempt; 0 means the latest
	FollowFromFirstAttempt bool  `json:"all,omitempty"`                    // with Follow: begin with the first attempt
	Follow                 bool  `json:"follow,omitempty"`                 // keep sending output until the job has ended
	StdoutOnly             bool  `json:"stdout,omitempty"`                 // standard output only
	StderrOnly             bool  `json:"stderr,omitempty"`                 // standard error only
	LastLineCount          *int  `json:"n,omitempty" rule:"outputLines"`   // number of last lines; at most MaxOutputLines
	PrintedSince           Time  `json:"since,omitzero"`                   // only output printed at this time or later
	PrintedBefore          Time  `json:"until,omitzero"`                   // only output printed before this time
	// ReportAttemptEnds requests a report each time an attempt ends and another attempt follows. It needs
	// Follow.
	ReportAttemptEnds bool `json:"ends,omitempty"`
}

// OutputStreamEnd is the response to StreamOutput. FinalJobState is the state of the job after the last piece.
type OutputStreamEnd struct {
	FinalJobState string `json:"state"`
}

// OutputPiece is a piece of a job's output, or a report about the output. Output that is valid UTF-8 is in Text, other
// output in NonUTF8Bytes. DroppedBytes is the number of bytes of the stream that the service did not store. Damage
// describes stored bytes that cannot be read. AttemptEnded is a report without output: the attempt has ended, and
// another attempt follows. FromTerminal means that the job has a terminal, so its output may contain control sequences.
type OutputPiece struct {
	JobID        string        `json:"id"` // id of the job
	Attempt      int           `json:"attempt"`
	Stream       string        `json:"stream"` // stdout or stderr; "" with AttemptEnded and for an unknown damaged stream
	PrintedAt    Time          `json:"at"`
	Text         string        `json:"text,omitempty"`
	NonUTF8Bytes []byte        `json:"base64,omitempty"`
	DroppedBytes int64         `json:"dropped,omitempty"`
	Damage       *DamagedRange `json:"damage,omitempty"`
	FromTerminal bool          `json:"tty,omitempty"`
	AttemptEnded bool          `json:"ended,omitempty"`
}

// DamagedRange reports stored bytes of a stream that cannot be read, because the output file is damaged or truncated.
// StreamOffset is the number of bytes of the stream before the damaged range; it is 0 if the stream is unknown.
type DamagedRange struct {
	StreamOffset int64 `json:"offset"`
	ByteCount    int64 `json:"bytes"`
}

// MissingOutputText returns a text that replaces missing output: output that was not stored, or that is damaged. It
// returns "" if no output is missing.
func (p *OutputPiece) MissingOutputText() string {
	stream := cmp.Or(p.Stream, "output")
	switch {
	case p.DroppedBytes > 0:
		return fmt.Sprintf("[%d bytes of %s were not kept]", p.DroppedBytes, stream)
	case p.Damage != nil:
		return fmt.Sprintf("[%d bytes of %s are damaged]", p.Damage.ByteCount, stream)
	}
	return ""
}

// String returns the output of the piece as text.
func (p *OutputPiece) String() string {
	if p.NonUTF8Bytes != nil {
		return string(p.NonUTF8Bytes)
	}
	return p.Text
}

// Bytes returns the output of the piece.
func (p *OutputPiece) Bytes() []byte {
	if p.NonUTF8Bytes != nil {
		return p.NonUTF8Bytes
	}
	return []byte(p.Text)
}

// AppendTo appends the output of the piece to text. If output is missing, it instead appends MissingOutputText as a
// separate line.
func (p *OutputPiece) AppendTo(text []byte) []byte {
	gap := p.MissingOutputText()
	if gap == "" {
		return append(text, p.Bytes()...)
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	return append(append(text, gap...), '\n')
}

// MaxTypedBytes is the maximum number of bytes that one request may type into a terminal.
const MaxTypedBytes = 64 << 10

// AttachTerminalParams holds the parameters of the method attach, which types TypedText or TypedBytes, at most
// MaxTypedBytes bytes, into the terminal of a job. TerminalRows and TerminalCols change the size of the terminal and
// must be set together. WantControlSequences requests the control sequences with which the job has changed the modes of
// its terminal.
type AttachTerminalParams struct {
	ID                   JobID  `json:"id" rule:"nonEmpty,required"`
	Attempt              int    `json:"attempt,omitempty" rule:"attempt"` // number of the attempt; 0 means the running one
	WaitForStart         bool   `json:"wait,omitempty"`                   // wait until the attempt has started
	TerminalRows         int    `json:"rows,omitempty" rule:"terminalSize"`
	TerminalCols         int    `json:"cols,omitempty" rule:"terminalSize"`
	TypedText            string `json:"text,omitempty" rule:"typed"`
	TypedBytes           []byte `json:"base64,omitempty" rule:"typed"`
	WantControlSequences bool   `json:"controls,omitempty"`
}

// AttachTerminalResult is the response to AttachTerminal. AcceptedBytes is the number of typed bytes that the terminal
// accepted. If it is less than the request contained, the client can type the rest after the job has read from the
// terminal. ControlSequences is set if WantControlSequences was set.
type AttachTerminalResult struct {
	Attempt          int    `json:"attempt"`
	AcceptedBytes    int    `json:"taken"`
	ControlSequences string `json:"controls,omitempty"`
}
