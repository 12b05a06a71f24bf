package term

import (
	"os"
	"testing"
)

// If the process has no output, PrepareOutput returns a file that accepts all writes. A write to a pipe
// without a reader fails. Only a console is a terminal.
func TestPrepareOutputHandlesMissingOutput(t *testing.T) {
	for _, f := range []*os.File{nil, os.NewFile(0, "none")} {
		if _, err := PrepareOutput(f).WriteString("x"); err != nil {
			t.Errorf("no output: %v", err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if PrepareOutput(w) != w || IsTerminal(w) || pipeState(w) != pipeStateOpen {
		t.Errorf("a pipe: terminal %v, state %d", IsTerminal(w), pipeState(w))
	}
	gone := make(chan error, 1)
	go func() { gone <- awaitPipeReaderGone(w) }()
	r.Close()
	if err := <-gone; !IsClosedPipeError(err) {
		t.Errorf("a pipe without a reader: %v", err)
	}
	if _, err := w.WriteString("x"); !IsClosedPipeError(err) {
		t.Errorf("a write: %v", err)
	}
	file, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := awaitPipeReaderGone(file); err != nil {
		t.Errorf("a file: %v", err)
	}
}
