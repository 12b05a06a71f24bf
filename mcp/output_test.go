package mcp

import (
	"context"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// fakeOutputQueue is a queue whose method StreamOutput returns the given pieces of output.
type fakeOutputQueue struct {
	control.API
	outputPieces []control.OutputPiece
}

func (p fakeOutputQueue) StreamOutput(
	_ context.Context, _ control.JobOutputParams, handlePiece func(control.OutputPiece) error,
) (control.OutputStreamEnd, error) {
	for _, piece := range p.outputPieces {
		if err := handlePiece(piece); err != nil {
			return control.OutputStreamEnd{}, err
		}
	}
	return control.OutputStreamEnd{FinalJobState: "completed"}, nil
}

// A line in the returned output says how many bytes are missing. If it is unknown which stream has lost them,
// the line is in both streams.
func TestOutputMarksMissingBytes(t *testing.T) {
	s := &toolCall{api: fakeOutputQueue{outputPieces: []control.OutputPiece{
		{Stream: "stdout", Text: "first"}, {Stream: "stdout", DroppedBytes: 70}, {Stream: "stdout", Text: "last"},
		{Stream: "stderr", Text: "oops\n"}, {Damage: &control.DamagedRange{ByteCount: 2}},
	}}}
	got, err := s.readLastOutputLines(t.Context(), control.JobOutputParams{ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	for member, want := range map[string]any{
		"stdout":        "first\n[70 bytes of stdout were not kept]\nlast\n[2 bytes of output are damaged]\n",
		"stderr":        "oops\n[2 bytes of output are damaged]\n",
		"cut":           true,
		"damaged_bytes": int64(2),
	} {
		if got[member] != want {
			t.Errorf("%s: got %q, want %q", member, got[member], want)
		}
	}
}
