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
func TestDamagedScheduleCreatesNoJobs(t *testing.T) {
	s := openStore(t, t.TempDir())
	ctx := t.Context()
	var gens []int64
	for i := range 3 {
		kept, err := s.PutSchedule(ctx, store.SchedulePutRequest{Schedule: store.Schedule{Name: fmt.Sprint("s", i),
			JobDraft: newDraft(), NextOccurrenceAt: 1, NextDueAt: 1, CreatedAt: 1}})
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
		if one.IsDamaged != (one.Name == "s1") || one.IsDamaged != (one.PauseOrDamageNote != "") {
			t.Errorf("%s: damaged %t, %q", one.Name, one.IsDamaged, one.PauseOrDamageNote)
		}
		fired, err := s.RunOccurrences(ctx, store.OccurrenceRequest{ScheduleName: one.Name, Generation: one.Generation,
			OccurrencesToRun: []queue.UnixMillis{1},
			CandidateJobID:   func(queue.UnixMillis, int) string { return "run-" + one.Name }})
		if err != nil || fired.RequestCarriedOut == one.IsDamaged {
			t.Errorf("%s: fired %t, %v", one.Name, fired.RequestCarriedOut, err)
		}
	}
	if list, err := s.ListSchedules(ctx, "", 9); err != nil || len(list) != 3 {
		t.Errorf("listed: %v, %v", list, err)
	}
	if err := s.PauseSchedule(ctx, store.SchedulePauseRequest{ScheduleName: "s1", Generation: gens[1],
		Paused: true}); err != nil {
		t.Error(err)
	}
	if due, _, err := s.DueSchedules(ctx, "", 9); err != nil || len(due) != 0 {
		t.Errorf("a paused schedule is due: %v, %v", due, err)
	}
	if _, err := s.PutSchedule(ctx, store.SchedulePutRequest{Schedule: store.Schedule{Name: "s1", JobDraft: newDraft(),
		CreatedAt: 1},
		ReplacedGeneration: gens[1]}); err != nil {
		t.Error(err)
	}
	if one, _, err := s.GetSchedule(ctx, "s1"); err != nil || one.IsDamaged || one.PausedAt != 0 {
		t.Errorf("replaced: %+v, %v", one, err)
	}
}

// Schedules, the records of their planned starts, and the links from jobs to their schedules are kept when
// the store is closed and opened again.
func TestSchedulesSurviveReopening(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	kept, err := s.PutSchedule(t.Context(), store.SchedulePutRequest{Schedule: store.Schedule{Name: "n",
		Overlap: store.OverlapSkip, JobDraft: newDraft(func(j *queue.Job) { j.Env, j.Stdin = []string{"A=b"}, "in" }),
		CreatedAt: 1}})
	if err != nil {
		t.Fatal(err)
	}
	fire := func(s *Store, last queue.UnixMillis) store.OccurrenceResult {
		t.Helper()
		f := store.OccurrenceRequest{ScheduleName: "n", Generation: kept.Generation, ExpectedLastOccurrenceAt: last,
			NewLastOccurrenceAt: last + 1, OccurrencesToRun: []queue.UnixMillis{last + 1},
			CandidateJobID: func(at queue.UnixMillis, _ int) string { return fmt.Sprint("n@", int64(at)) }}
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
	if again := fire(s, 0); again.RequestCarriedOut {
		t.Errorf("firing the same occurrence again: %+v", again)
	}
	if next := fire(s, 1); len(next.Records) != 1 || next.Records[0].Outcome != store.OccurrenceSkipped ||
		next.Records[0].OutcomeNote != "n@1" {
		t.Errorf("while the previous job has not ended: %+v", next)
	}
	one, runs, err := s.GetSchedule(t.Context(), "n")
	if err != nil || len(runs) != 2 || one.LastOccurrenceAt != 2 || one.JobDraft.Stdin != "in" ||
		len(one.JobDraft.Env) != 1 {
		t.Errorf("got %+v, %+v, %v", one, runs, err)
	}
}

// If a schedule creates no job, because another job has its unique key, the name of the schedule's user is
// not recorded.
func TestRefusedOccurrenceRecordsNoOwner(t *testing.T) {
	s := openStore(t, t.TempDir())
	ctx := t.Context()
	keyed := newDraft(withUID(1), func(j *queue.Job) { j.Unique = "k" })
	if _, err := s.Enqueue(ctx, store.EnqueueRequest{Drafts: []queue.Job{keyed}, UID: 1}); err != nil {
		t.Fatal(err)
	}
	kept, err := s.PutSchedule(ctx, store.SchedulePutRequest{Schedule: store.Schedule{Name: "n", OwnerUID: 1,
		JobDraft:  keyed,
		CreatedAt: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		last    queue.UnixMillis
		outcome store.OccurrenceOutcome
		owners  int
	}{{0, store.OccurrenceRefused, 0}, {1, store.OccurrenceEnqueued, 1}} {
		fired, err := s.RunOccurrences(ctx, store.OccurrenceRequest{ScheduleName: "n", Generation: kept.Generation,
			OwnerName:                "alice",
			ExpectedLastOccurrenceAt: c.last, NewLastOccurrenceAt: c.last + 1, OccurrencesToRun: []queue.UnixMillis{c.last + 1},
			CandidateJobID: func(at queue.UnixMillis, _ int) string { return fmt.Sprint("n@", int64(at)) }})
		if err != nil || len(fired.Records) != 1 || fired.Records[0].Outcome != c.outcome {
			t.Fatalf("got %+v, %v, want one record with the outcome %s", fired, err, c.outcome)
		}
		if names, _, err := s.Owners(ctx); err != nil || len(names) != c.owners {
			t.Errorf("after an occurrence with the outcome %s, the recorded owners are %v (%v), want %d", c.outcome, names,
				err, c.owners)
		}
		if err := s.ChangeJob(ctx, 1, store.JobChange{Verb: queue.VerbCancel}); c.last == 0 && err != nil { // frees the key
			t.Fatal(err)
		}
	}
}
