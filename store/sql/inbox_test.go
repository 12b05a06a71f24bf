package sql

import (
	"errors"
	"slices"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/test/pgserver"
)

// What was handed in becomes one job, whichever nodes have it on their lists, and however late; each node takes what its own roles
// hand in, and what nobody else takes.
func TestSubmissionIsTakenOnce(t *testing.T) {
	url := pgserver.Shared(t).Create(t)
	a, b := node(t, url, "a"), node(t, url, "b")
	for _, err := range []error{a.SetRoles(t.Context(), []string{"app"}), b.SetRoles(t.Context(), []string{"shop"})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	pgserver.Query(t, url, `INSERT INTO queuectl.submissions (role, id, spec) VALUES ('app', 'x', '{}'), ('shop', 'y', '{}'), ('old', 'z', '{}'), ('old', 'zz', '{}')`)
	listed := func(s *Server) (ids []string) {
		t.Helper()
		list, err := s.Submissions(t.Context(), func(role string) int { return 1 })
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			ids = append(ids, list[i].ID)
		}
		return ids
	}
	if of, ofB := listed(a), listed(b); !slices.Equal(of, []string{"z", "x"}) && !slices.Equal(of, []string{"x", "z"}) || !slices.Contains(ofB, "y") || slices.Contains(ofB, "x") {
		t.Errorf("one node takes %v, the other %v", of, ofB)
	}
	take := func(s *Server) store.Receipt {
		t.Helper()
		d := draft()
		d.ID = "x"
		r, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{d}, UID: 7, Submission: 1})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	d := draft()
	d.ID = "x"
	if _, err := b.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{d}, UID: 8}); !errors.Is(err, queue.ErrExists) {
		t.Errorf("somebody else takes its id: %v", err)
	}
	if r := take(a); r.Duplicate || r.IDs[0] != "x" {
		t.Errorf("it is taken by %+v", r)
	}
	if r := take(b); !r.Duplicate {
		t.Errorf("it is taken again by %+v", r)
	}
	j, err := a.Get(t.Context(), "x")
	if err == nil {
		err = a.Change(t.Context(), j.Seq, store.Change{Verb: queue.VerbRemove, UID: 7})
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := take(b); !r.Duplicate {
		t.Errorf("it is taken once more, since its job is gone, by %+v", r)
	}
	if _, err := a.Get(t.Context(), "x"); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("there is a job again: %v", err)
	}
}
