package top

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// fakeControls records the schedules that run and the numbers of workers that are set. Other calls panic.
type fakeControls struct {
	Controls
	ran      []string
	rejected string // name of the schedule that is refused
	counts   []int
}

var errRejected = errors.New("rejected")

func (c *fakeControls) ScheduleRun(_ context.Context, p control.ScheduleName) (control.Enqueued, error) {
	if p.Name == c.rejected {
		return control.Enqueued{}, errRejected
	}
	c.ran = append(c.ran, p.Name)
	return control.Enqueued{}, nil
}

func (c *fakeControls) WorkerScale(_ context.Context, p control.WorkerScale) (control.WorkerCount, error) {
	c.counts = append(c.counts, p.Count)
	return control.WorkerCount{Workers: p.Count}, nil
}

// An action on several schedules stops at the first that is rejected, and reports those before it as done.
func TestActionOnNamesStopsAtFirstError(t *testing.T) {
	c := &fakeControls{rejected: "b"}
	run := onNames(onSchedule(Controls.ScheduleRun))
	r, err := run(t.Context(), Client{Controls: c}, &act{ids: []string{"a", "b", "c"}})
	if want := []string{"a"}; !errors.Is(err, errRejected) || !slices.Equal(r.Done, want) || !slices.Equal(c.ran, want) {
		t.Errorf("ran %q, reported %q, %v; want %q and the rejection", c.ran, r.Done, err, want)
	}
}

// workersOf is a queue with a number of workers. Calls of other methods than Status panic.
type workersOf struct {
	Reader
	total int
}

func (w workersOf) Status(context.Context, control.Nothing) (control.Status, error) {
	return control.Status{Workers: control.WorkerSummary{Total: w.total}}, nil
}

// Removing a worker starts from the number of workers that the service reports, and never goes below 0.
func TestRemoveWorkerUsesCurrentNumber(t *testing.T) {
	c := &fakeControls{}
	for _, total := range []int{4, 1, 0} {
		if _, err := removeWorker(t.Context(), Client{Reader: workersOf{total: total}, Controls: c}, &act{}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int{3, 0, 0}; !slices.Equal(c.counts, want) {
		t.Errorf("removing a worker from 4, 1 and 0 set %v; want %v", c.counts, want)
	}
}
