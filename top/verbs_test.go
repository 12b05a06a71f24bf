package top

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/queuectl/queuectl/control"
)

// fakeControlAPI is a queue with a given number of workers. It records which schedules were run and which numbers
// of workers were set. Other calls panic.
type fakeControlAPI struct {
	control.API
	currentWorkerCount    int      // number of workers
	startedScheduleNames  []string // names of the schedules that were run
	rejectedScheduleName  string   // name of the schedule that the fake rejects
	requestedWorkerCounts []int    // numbers of workers that were set
}

var errRejected = errors.New("rejected")

func (c *fakeControlAPI) RunScheduleNow(_ context.Context, p control.ScheduleNameParams) (control.EnqueueResult,
	error) {
	if p.Name == c.rejectedScheduleName {
		return control.EnqueueResult{}, errRejected
	}
	c.startedScheduleNames = append(c.startedScheduleNames, p.Name)
	return control.EnqueueResult{}, nil
}

func (c *fakeControlAPI) ScaleWorkers(_ context.Context, p control.WorkerScaleParams) (control.WorkerCount, error) {
	c.requestedWorkerCounts = append(c.requestedWorkerCounts, p.TargetWorkers)
	return control.WorkerCount{Workers: p.TargetWorkers}, nil
}

// An action on several schedules stops at the first one that is rejected. Its result contains the schedules before the
// rejected one as changed.
func TestScheduleActionStopsAtFirstError(t *testing.T) {
	c := &fakeControlAPI{rejectedScheduleName: "b"}
	run := actionPerName(control.API.RunScheduleNow, scheduleNameParams)
	r, err := run(t.Context(), Client{API: c}, &actionEffect{objectIDs: []string{"a", "b", "c"}})
	if want := []string{"a"}; !errors.Is(err, errRejected) || !slices.Equal(r.ChangedJobIDs, want) ||
		!slices.Equal(c.startedScheduleNames, want) {
		t.Errorf("ran %q, reported %q, %v; want %q and the rejection", c.startedScheduleNames, r.ChangedJobIDs, err, want)
	}
}

func (c *fakeControlAPI) Status(context.Context, control.NoParams) (control.Status, error) {
	return control.Status{Workers: control.WorkerSummary{Total: c.currentWorkerCount}}, nil
}

// The action that removes a worker subtracts one from the number that the service reports. The result is never
// negative.
func TestRemoveWorkerSubtractsFromCurrentCount(t *testing.T) {
	c := &fakeControlAPI{}
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
