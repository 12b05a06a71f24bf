package top

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// fakeControls is a queue with a given number of workers. It records which schedules were run and which numbers
// of workers were set. Other calls panic.
type fakeControls struct {
	control.API
	currentWorkerCount    int      // number of workers
	ranSchedules          []string // names of the schedules that were run
	rejectedSchedule      string   // name of the schedule that the fake rejects
	requestedWorkerCounts []int    // numbers of workers that were set
}

var errRejected = errors.New("rejected")

func (c *fakeControls) ScheduleRun(_ context.Context, p control.ScheduleNameParams) (control.EnqueueResult, error) {
	if p.Name == c.rejectedSchedule {
		return control.EnqueueResult{}, errRejected
	}
	c.ranSchedules = append(c.ranSchedules, p.Name)
	return control.EnqueueResult{}, nil
}

func (c *fakeControls) WorkerScale(_ context.Context, p control.WorkerScaleParams) (control.WorkerCount, error) {
	c.requestedWorkerCounts = append(c.requestedWorkerCounts, p.TargetWorkers)
	return control.WorkerCount{Workers: p.TargetWorkers}, nil
}

// An action on several schedules stops at the first one that is rejected. Its result contains the schedules before the
// rejected one as changed.
func TestScheduleActionStopsAtFirstError(t *testing.T) {
	c := &fakeControls{rejectedSchedule: "b"}
	run := actionPerName(control.API.ScheduleRun, scheduleNameParams)
	r, err := run(t.Context(), Client{API: c}, &actionEffect{objectIDs: []string{"a", "b", "c"}})
	if want := []string{"a"}; !errors.Is(err, errRejected) || !slices.Equal(r.ChangedJobIDs, want) ||
		!slices.Equal(c.ranSchedules, want) {
		t.Errorf("ran %q, reported %q, %v; want %q and the rejection", c.ranSchedules, r.ChangedJobIDs, err, want)
	}
}

func (c *fakeControls) Status(context.Context, control.NoParams) (control.Status, error) {
	return control.Status{Workers: control.WorkerSummary{Total: c.currentWorkerCount}}, nil
}

// The action that removes a worker subtracts one from the number that the service reports. The result is never
// negative.
func TestRemoveWorkerSubtractsFromCurrentCount(t *testing.T) {
	c := &fakeControls{}
	for _, total := range []int{4, 1, 0} {
		c.currentWorkerCount = total
		if _, err := removeWorker(t.Context(), Client{API: c}, &actionEffect{}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []int{3, 0, 0}; !slices.Equal(c.requestedWorkerCounts, want) {
		t.Errorf("removing a worker from 4, 1 and 0 set %v; want %v", c.requestedWorkerCounts, want)
	}
}
