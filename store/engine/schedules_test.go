package engine

import (
	"context"
	"fmt"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A schedule whose stored job is damaged creates no jobs and reports the damage. It can be paused and
// replaced, and other schedules are not affected.
func TestADamagedSchedule(t *testing.T) {
	s := openStore(t, t.TempDir())
	ctx := t.Context()
	var gens []int64
	for i := range 3 {
		kept, err := s.PutSchedule(ctx, store.SchedulePut{Schedule: store.Schedule{Name: fmt.Sprint("s", i), Draft: draft(),
			NextAt: 1, DueAt: 1, CreatedAt: 1}})
		if err != nil {
			t.Fatal(err)
		}
		gens = append(gens, kept.Generation)
	}
	damageRow(t, s, `UPDATE schedules SET draft = '{' WHERE name = 's1'`)
	due, _, err := s.DueSchedules(ctx, "", 9)
	if err != nil || len(due) != 3 {
		t.Fatalf("due: %v, %v", due, err)
	}
	for _, one := range due {
		if one.Damaged != (one.Name == "s1") || one.Damaged != (one.Note != "") {
			t.Errorf("%s: damaged %t, %q", one.Name, one.Damaged, one.Note)
		}
		fired, err := s.RunOccurrences(ctx, store.OccurrenceRequest{Name: one.Name, Generation: one.Generation,
			Occurrences: []queue.Millis{1},
			CandidateID: func(queue.Millis, int) string { return "run-" + one.Name }})
		if err != nil || fired.CarriedOut == one.Damaged {
			t.Errorf("%s: fired %t, %v", one.Name, fired.CarriedOut, err)
		}
	}
	if list, err := s.Schedules(ctx, "", 9); err != nil || len(list) != 3 {
		t.Errorf("listed: %v, %v", list, err)
	}
	if err := s.PauseSchedule(ctx, store.SchedulePause{Name: "s1", Generation: gens[1], Pause: true}); err != nil {
		t.Error(err)
	}
	if due, _, err := s.DueSchedules(ctx, "", 9); err != nil || len(due) != 0 {
		t.Errorf("a paused schedule is due: %v, %v", due, err)
	}
	if _, err := s.PutSchedule(ctx, store.SchedulePut{Schedule: store.Schedule{Name: "s1", Draft: draft(), CreatedAt: 1},
		ReplacedGeneration: gens[1]}); err != nil {
		t.Error(err)
	}
	if one, _, err := s.Schedule(ctx, "s1"); err != nil || one.Damaged || one.PausedAt != 0 {
		t.Errorf("replaced: %+v, %v", one, err)
	}
}

// Schedules, the records of their planned starts, and the links from jobs to their schedules are kept when
// the store is closed and opened again.
func TestSchedulesAreKept(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	kept, err := s.PutSchedule(t.Context(), store.SchedulePut{Schedule: store.Schedule{Name: "n",
		Overlap: store.OverlapSkip, Draft: draft(func(j *queue.Job) { j.Env, j.Stdin = []string{"A=b"}, "in" }),
		CreatedAt: 1}})
	if err != nil {
		t.Fatal(err)
	}
	fire := func(s *Store, last queue.Millis) store.OccurrenceResult {
		t.Helper()
		f := store.OccurrenceRequest{Name: "n", Generation: kept.Generation, ExpectedLastAt: last, LastAt: last + 1,
			Occurrences: []queue.Millis{last + 1},
			CandidateID: func(at queue.Millis, _ int) string { return fmt.Sprint("n@", int64(at)) }}
		fired, err := s.RunOccurrences(context.WithoutCancel(t.Context()), f)
		if err != nil {
			t.Fatal(err)
		}
		return fired
	}
	fire(s, 0)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dir)
	if again := fire(s, 0); again.CarriedOut {
		t.Errorf("firing the same occurrence again: %+v", again)
	}
	if next := fire(s, 1); len(next.Records) != 1 || next.Records[0].Outcome != store.OutcomeSkipped ||
		next.Records[0].Note != "n@1" {
		t.Errorf("while the previous job has not ended: %+v", next)
	}
	one, runs, err := s.Schedule(t.Context(), "n")
	if err != nil || len(runs) != 2 || one.LastAt != 2 || one.Draft.Stdin != "in" || len(one.Draft.Env) != 1 {
		t.Errorf("got %+v, %+v, %v", one, runs, err)
	}
}

// If a schedule creates no job, because another job has its unique key, the name of the schedule's user is
// not recorded.
func TestRefusedOccurrenceRecordsNoOwner(t *testing.T) {
	s := openStore(t, t.TempDir())
	ctx := t.Context()
	keyed := draft(ofUser(1), func(j *queue.Job) { j.Unique = "k" })
	if _, err := s.Enqueue(ctx, store.Request{Drafts: []queue.Job{keyed}, UID: 1}); err != nil {
		t.Fatal(err)
	}
	kept, err := s.PutSchedule(ctx, store.SchedulePut{Schedule: store.Schedule{Name: "n", UID: 1, Draft: keyed,
		CreatedAt: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		last    queue.Millis
		outcome store.Outcome
		owners  int
	}{{0, store.OutcomeRefused, 0}, {1, store.OutcomeEnqueued, 1}} {
		fired, err := s.RunOccurrences(ctx, store.OccurrenceRequest{Name: "n", Generation: kept.Generation, Owner: "alice",
			ExpectedLastAt: c.last, LastAt: c.last + 1, Occurrences: []queue.Millis{c.last + 1},
			CandidateID: func(at queue.Millis, _ int) string { return fmt.Sprint("n@", int64(at)) }})
		if err != nil || len(fired.Records) != 1 || fired.Records[0].Outcome != c.outcome {
			t.Fatalf("got %+v, %v, want one record with the outcome %s", fired, err, c.outcome)
		}
		if names, _, err := s.Owners(ctx); err != nil || len(names) != c.owners {
			t.Errorf("after an occurrence with the outcome %s, the recorded owners are %v (%v), want %d", c.outcome, names,
				err, c.owners)
		}
		if err := s.Change(ctx, 1, store.Change{Verb: queue.VerbCancel}); c.last == 0 && err != nil { // frees the key
			t.Fatal(err)
		}
	}
}
