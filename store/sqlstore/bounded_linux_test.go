package sqlstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// counted has the rows counted that each transaction changes; most is how many one
// has changed at most since it was asked last, and how many there were.
func counted(t *testing.T, s *Store) (most func() (rows int64, transactions int)) {
	t.Helper()
	idle := func() {
		if err := s.do(t.Context(), true, func(*tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	var before, worst int64
	var begun int
	clock := s.now
	hook := func() queue.Millis { // each transaction begins with a look at the clock
		n, err := s.db.number(`SELECT total_changes()`)
		if err != nil {
			t.Error(err)
		}
		if n > before {
			worst, before = max(worst, n-before), n
			begun++
		}
		return clock()
	}
	s.do(t.Context(), true, func(*tx) error { s.now = hook; return nil })
	return func() (int64, int) {
		idle()
		rows, n := worst, begun
		worst, begun = 0, 0
		return rows, n
	}
}

// stage sends n jobs as the frames of a batch, by names if they are to have any.
func stage(t *testing.T, s *Store, batch string, n int, named bool) {
	t.Helper()
	for from := 0; from < n; from += 1000 {
		drafts := make([]queue.Job, min(1000, n-from))
		for i := range drafts {
			drafts[i] = draft()
			if named {
				drafts[i].ID = fmt.Sprintf("%s-%d", batch, from+i)
			}
		}
		if _, err := s.Stage(t.Context(), store.Request{Batch: batch, Drafts: drafts}); err != nil {
			t.Fatal(err)
		}
	}
}

// However much is due, too old, or of one batch, no transaction changes more than a
// bounded number of rows: whoever waits for the next one waits as long as for a step.
func TestNoTransactionIsLarge(t *testing.T) {
	const many = 5 * promoteStep
	s := openStore(t, t.TempDir())
	now := s.now() // stands still, but for the steps below
	s.now = func() queue.Millis { return now }
	most := counted(t, s)
	enqueueAll := func(set func(*queue.Job)) {
		t.Helper()
		for range many / 1000 {
			drafts := make([]queue.Job, 1000)
			for i := range drafts {
				drafts[i] = draft(set)
			}
			if _, err := s.Enqueue(t.Context(), store.Request{Drafts: drafts}); err != nil {
				t.Fatal(err)
			}
		}
	}
	promote := func() {
		t.Helper()
		for next := time.Duration(0); next == 0; {
			var err error
			if next, err = s.Promote(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	finish := func() {
		t.Helper()
		for more := true; more; {
			var err error
			if more, err = s.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	due, expiry := now.Add(time.Hour), now.Add(2*time.Hour)
	for _, c := range []struct {
		what    string
		prepare func()
		do      func()
		rows    int64 // a transaction
		atLeast int   // transactions
	}{
		{"jobs due in the same millisecond", func() { enqueueAll(func(j *queue.Job) { j.RunAt, j.ExpiresAt = due, expiry }); now = due }, promote, promoteStep, many / promoteStep},
		{"jobs that expire in the same millisecond", func() { now = expiry }, promote, 2 * promoteStep, many / promoteStep},
		{"jobs that are too old", func() { now = now.Add(time.Hour) }, func() {
			for n := 200; n == 200; {
				var err error
				if n, err = s.Expel(t.Context(), []queue.State{queue.Cancelled}, now, 200, nil); err != nil {
					t.Fatal(err)
				}
			}
			if left := s.Counts().States[queue.Cancelled]; left != 0 {
				t.Errorf("%d are left", left)
			}
		}, 4 * 200, many / 200},
		{"events that are too old", func() {}, func() {
			for more := true; more; {
				var err error
				if more, err = s.TrimEvents(t.Context(), now.Add(1), 0); err != nil {
					t.Fatal(err)
				}
			}
		}, promoteStep, 3 * many / promoteStep},
		{"a batch, staged", func() {}, func() { stage(t, s, "a", many, true) }, 1000, many / 1000},
		{"a batch, moved into the queue", func() {
			if _, err := s.Enqueue(t.Context(), store.Request{Batch: "a"}); err != nil {
				t.Fatal(err)
			}
		}, finish, 3 * 1000, many / 1000},
		{"a batch, given up", func() { stage(t, s, "b", many, true) }, func() {
			if err := s.Unstage(t.Context(), 0, "b"); err != nil {
				t.Fatal(err)
			}
		}, 1000, many / 1000},
		{"a batch, forgotten", func() { stage(t, s, "c", many, true); now = now.Add(2 * store.StageMemory) }, promote, 1000, many / 1000},
	} {
		c.prepare()
		most()
		c.do()
		const heads = 10 // the rows of meta, of a batch and the like
		if rows, n := most(); rows > c.rows+heads || n < c.atLeast {
			t.Errorf("%s: %d rows in a transaction of %d; want %d at most in %d at least", c.what, rows, n, c.rows+heads, c.atLeast)
		}
	}
	if left := s.mem.batches; len(left) != 0 {
		t.Errorf("left of batches: %+v", left)
	}
	// Their ids are free again, but for those of jobs.
	if _, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{draft(func(j *queue.Job) { j.ID = "b-4999" }), draft(func(j *queue.Job) { j.ID = "c-0" })}}); err != nil {
		t.Error(err)
	}
	if _, err := s.Enqueue(t.Context(), store.Request{Drafts: []queue.Job{draft(func(j *queue.Job) { j.ID = "a-7" })}}); err == nil {
		t.Error("the id of a job was taken again")
	}
}
