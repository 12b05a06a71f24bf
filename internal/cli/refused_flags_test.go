package cli

import (
	"slices"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// Jobs that are refused for the same reason share a line, even if each message ends with a command that
// contains the job's id.
func TestRefusalsForOneReasonShareALine(t *testing.T) {
	var list []control.Refusal
	for _, id := range []string{"1", "2", "part-3"} {
		list = append(list, control.Refusal{JobID: id, Code: queue.CodeWrongState,
			Message: "job " + id + " is running; cancel it with: queuectl cancel " + id +
				", or put it back in the queue with: queuectl requeue " + id})
	}
	want := []string{"job 1 is running; cancel it with: queuectl cancel 1, or put it back in the queue with: queuectl " +
		"requeue 1; the same applies to 2 more: 2, part-3"}
	if got := refusalLines(nil, list); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
