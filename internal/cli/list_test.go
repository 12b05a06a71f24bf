package cli

import (
	"slices"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// Two values of --state may select the same state, such as failed and waiting. Under a table, the number of omitted
// jobs includes the jobs of that state only once.
func TestOmittedJobsAreCountedOncePerState(t *testing.T) {
	got, err := expandStateNames(&control.JobListParams{States: control.TextList{"failed", "waiting"}, FailedOrDead: true})
	if want := []string{"blocked", "held", "pending", "failed", "dead"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if _, err := expandStateNames(&control.JobListParams{States: control.TextList{"gone"}}); err == nil {
		t.Error("an unknown state is accepted")
	}
}
