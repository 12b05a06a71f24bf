package cli

import (
	"bytes"
	"os"
	"sync/atomic"
)

// Output prints the results and the messages of one command.
type Output struct {
	In       *os.File
	Out, Err *os.File

	JSON, JSONL bool // print results as JSON, or as one JSON object per line
	Quiet       bool // print only ids
	raw         bool // print control characters unchanged
	ownColumns  bool // the user chose the table's columns

	barShown atomic.Bool // a progress line is on the screen
	// frame collects a full screen, which is then written in one piece. nil means that output goes
	// directly to Out.
	frame *bytes.Buffer
}
