package service

import (
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// A job that is enqueued with next gets a priority above the effective priorities of its owner's waiting jobs. If the
// owner may not set such a high priority, the job gets the highest allowed one and a note. The request is never
// refused because of a priority that the owner did not specify.
func TestNextIsAboveOnesOwnJobs(t *testing.T) {
	s := stored(t)
	order := queue.Order{Scheduling: queue.ByAging, Aging: queue.AgingEnqueue}
	if err := s.store.SetOrder(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	const other = owner + 1
	add := func(uid int, right control.Right, p control.Enqueue) (control.Enqueued, int64) {
		t.Helper()
		p.Spec.Command = new("true")
		got, err := s.Enqueue(by(t, uid, right), p)
		if err != nil {
			t.Fatal(err)
		}
		j, err := s.store.Get(t.Context(), got.ID)
		if err != nil {
			t.Fatal(err)
		}
		return got, j.Priority
	}
	check := func(what string, right control.Right, want int64, note string) control.Enqueued {
		t.Helper()
		got, priority := add(owner, right, control.Enqueue{Next: true, Key: what})
		text := strings.Join(got.Notes, "\n")
		if priority != want || (note == "") != (text == "") || !strings.HasPrefix(text, note) {
			t.Errorf("%s: priority %d, notes %q; want %d, %q", what, priority, text, want, note)
		}
		return got
	}
	check("nothing waits", control.Submit, 5, "") // the default priority
	low := control.Enqueue{Spec: queue.Spec{Priority: new(int64(-5))}}
	add(other, control.Submit, low)
	first := check("one waits that has earned one point", control.Submit, 7, "")
	if again := check("one waits that has earned one point", control.Submit, 7, ""); again.ID != first.ID {
		t.Errorf("the key was repeated: job %s, then %s", first.ID, again.ID)
	}
	for range 20 {
		add(other, control.Submit, low)
	}
	check("ageing raised one to 27", control.Submit, 15, "next: priority 15 is the highest that you may set in queue default")
	check("ageing raised one to 28", control.Operate, 29, "")
	_, err := s.Enqueue(by(t, owner, control.Submit), control.Enqueue{
		Spec: queue.Spec{Command: new("true"), Priority: new(int64(3))}, Next: true,
	})
	if err == nil || !strings.HasPrefix(err.Error(), "next: cannot be combined with priority") {
		t.Errorf("next and a priority: %v", err)
	}
	order.Scheduling = queue.ByArrival
	if err := s.store.SetOrder(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	check("fifo", control.Submit, 5, "next: has no effect while scheduling is fifo")
}

// The priority of a job with next is never below its queue's default.
func TestNextLowersNoPriority(t *testing.T) {
	s := stored(t)
	ctx := by(t, owner, control.Submit)
	low := control.Enqueue{Spec: queue.Spec{Command: new("true"), Priority: new(int64(-5))}}
	if _, err := s.Enqueue(ctx, low); err != nil {
		t.Fatal(err)
	}
	batch := control.EnqueueBatch{Commit: true, Next: true, Jobs: []queue.Spec{{Command: new("true")}, {Command: new("true")}}}
	got, err := s.EnqueueBatch(ctx, batch)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range got.IDs {
		if j, err := s.store.Get(ctx, id); err != nil || j.Priority != 5 {
			t.Errorf("job %s has priority %d, %v; want 5", id, j.Priority, err)
		}
	}
}
