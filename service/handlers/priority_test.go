package handlers

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// A user with only the right "submit" can set only priorities near the default of the queue. That applies to a
// single job, to a batch and to an edit. Users with more rights can set any priority.
func TestPriorityOfSubmittersIsBounded(t *testing.T) {
	s := newSQLiteTestAPI(t)
	s.setQueueDefaults(t, "urgent", `{"priority":100}`)
	spec := func(name string, priority int64) queue.Spec {
		return queue.Spec{Command: new("true"), Queue: &name, Priority: &priority}
	}
	for _, c := range []struct {
		queue    string
		priority int64
		right    control.Right
		bounds   string // the range in the expected error; "" means success
	}{
		{"default", 15, control.RightSubmit, ""},
		{"default", 16, control.RightSubmit, "16 is outside the range -5 to 15"},
		{"default", -5, control.RightSubmit, ""},
		{"default", -6, control.RightSubmit, "-6 is outside the range -5 to 15"},
		{"default", queue.MaxPriority, control.RightOperate, ""},
		{"urgent", 110, control.RightSubmit, ""},
		{"urgent", 111, control.RightSubmit, "111 is outside the range 90 to 110"},
		{"urgent", 5, control.RightSubmit, "5 is outside the range 90 to 110"},
	} {
		check := func(how string, err error) {
			t.Helper()
			text := fmt.Sprint(err)
			refused := strings.Contains(text, "priority: "+c.bounds) && strings.Contains(text, "operate")
			if (c.bounds == "") != (err == nil) || c.bounds != "" && !refused {
				t.Errorf("%s: priority %d in queue %s with the right %s: %v", how, c.priority, c.queue, c.right, err)
			}
		}
		ctx := contextAsPeer(t, ownerUID, c.right)
		one := spec(c.queue, c.priority)
		_, err := s.Enqueue(ctx, control.EnqueueParams{JobSpec: one})
		check("enqueue", err)
		_, err = s.EnqueueBatch(ctx, control.EnqueueBatchParams{Commit: true,
			Jobs: []queue.Spec{{Command: new("true")}, one}})
		check("batch", err)
		made, err := s.Enqueue(ctx, control.EnqueueParams{JobSpec: queue.Spec{Command: new("true"), Queue: &c.queue}})
		if err != nil {
			t.Fatal(err)
		}
		check("edit", s.editJob(ctx, made.JobID, fmt.Sprintf(`{"priority":%d}`, c.priority)))
	}
}

// editJob edits one job. It returns the error if the edit was refused.
func (s *testAPI) editJob(ctx context.Context, id, patchJSON string) error {
	one := control.JobSelection{ID: control.JobID(id)}
	done, err := s.EditJobs(ctx, control.JobEditParams{JobSelection: one, FieldsToSet: json.RawMessage(patchJSON)})
	if err == nil && len(done.Refusals) > 0 {
		err = done.Refusals[0].AsError()
	}
	return err
}

// A priority that an operator has set is kept when the owner edits other fields. If the owner moves the job to
// another queue, the owner must also set a priority that is allowed there.
func TestOwnerEditKeepsOperatorSetPriority(t *testing.T) {
	s := newSQLiteTestAPI(t)
	s.setQueueDefaults(t, "night", `{"priority":-100}`)
	made, err := s.Enqueue(contextAsPeer(t, ownerUID, control.RightSubmit),
		control.EnqueueParams{JobSpec: queue.Spec{Command: new("true")}})
	if err != nil {
		t.Fatal(err)
	}
	edit := func(right control.Right, set string) error {
		return s.editJob(contextAsPeer(t, ownerUID, right), made.JobID, set)
	}
	if err := edit(control.RightOperate, `{"priority":500}`); err != nil {
		t.Fatal(err)
	}
	if err := edit(control.RightSubmit, `{"timeout":"2m"}`); err != nil {
		t.Error(err)
	}
	if err := edit(control.RightSubmit, `{"queue":"night"}`); err == nil ||
		!strings.Contains(err.Error(), "outside the range -110 to -90") {
		t.Errorf("the owner took priority 500 to the queue night: %v", err)
	}
	if err := edit(control.RightSubmit, `{"queue":"night","priority":null}`); err != nil {
		t.Error(err)
	}
}
