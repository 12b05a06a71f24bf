package worker_test

import (
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
)

// typeInputResult is the result of TypeTerminalInput.
type typeInputResult struct {
	takenByteCount int
	ok             bool
	err            error
}

// TypeTerminalInput and ResizeTerminal send a frame to the runner only if their caller names the running attempt. For
// other attempts, they do nothing.
func TestTerminalInputReachesOnlyNamedAttempt(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	if j, ok := p.AwaitJobStart(t.Context(), 1); !ok || j.Seq != 1 || j.StartedAttempts != 0 {
		t.Errorf("Started returned %+v, %v; want the first attempt of job 1", j, ok)
	}
	if _, ok := p.AwaitJobStart(t.Context(), 2); ok {
		t.Error("a job that does not exist has started")
	}
	typeAndResize := func(seq int64, attempt int) (got typeInputResult, resized bool) {
		answer, ok, err := p.TypeTerminalInput(t.Context(), seq, attempt, []byte("abc"))
		got = typeInputResult{int(answer.WrittenBytes), ok, err}
		return got, p.ResizeTerminal(seq, attempt, 24, 80)
	}
	for _, other := range [][2]int{{1, 0}, {1, 2}, {2, 1}} {
		if got, resized := typeAndResize(int64(other[0]), other[1]); got != (typeInputResult{}) || resized {
			t.Errorf("job %d, attempt %d: got %+v and %v, want nothing done", other[0], other[1], got, resized)
		}
	}
	got, resized := typeAndResize(1, 1)
	checkEqual(t, "typed", got, typeInputResult{2, true, nil})
	checkEqual(t, "resized", resized, true)
	data, _ := awaitFrame[*wire.TypeInput](t, f, 1)
	checkEqual(t, "input that the runner received", string(data.Data), "abc")
	size, _ := awaitFrame[*wire.ResizeTerminal](t, f, 1)
	checkEqual(t, "size", *size, wire.ResizeTerminal{Lease: firstClaimLease(1), Rows: 24, Cols: 80})
}
