package handlers

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/service/doctor"
)

// If the service does not start at boot, replies about some schedules and jobs contain a note that warns of this. These
// are replies about schedules, and about jobs that are due in more than an hour.
func TestEnqueueReplyNotesMissingStartAtBoot(t *testing.T) {
	s := newSQLiteTestAPI(t)
	advice := ""
	s.StartAtBootAdvice = func() string { return advice }
	ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
	at := func(d time.Duration) *queue.UnixMillis { return new(s.Store.Now().Add(d)) }
	for _, c := range []struct {
		name   string
		spec   queue.Spec
		advice string
		noted  bool
	}{
		{"now", queue.Spec{}, "do", false},
		{"delay of an hour", queue.Spec{Delay: new(time.Hour)}, "do", false},
		{"longer delay", queue.Spec{Delay: new(time.Hour + time.Second)}, "do", true},
		{"soon", queue.Spec{RunAt: at(time.Minute)}, "do", false},
		{"tomorrow", queue.Spec{RunAt: at(24 * time.Hour)}, "do", true},
		{"tomorrow, at boot", queue.Spec{RunAt: at(24 * time.Hour)}, "", false},
	} {
		advice = c.advice
		c.spec.Command = new("true")
		one, err := s.Enqueue(ctx, control.EnqueueParams{JobSpec: c.spec})
		if err != nil {
			t.Fatal(err)
		}
		many, err := s.EnqueueBatch(ctx, control.EnqueueBatchParams{Commit: true,
			Jobs: []queue.Spec{{Command: new("true")}, c.spec}})
		if err != nil {
			t.Fatal(err)
		}
		for how, notes := range map[string][]string{"alone": one.Notes, "in a batch": many.Notes} {
			if noted := len(notes) == 1 && strings.HasSuffix(notes[0], "; to change that: do"); noted != c.noted || !noted &&
				len(notes) > 0 {
				t.Errorf("%s, %s: got %q, want a note: %v", c.name, how, notes, c.noted)
			}
		}
	}
	advice = "do"
	d, err := s.AddSchedule(ctx, control.ScheduleAddParams{Name: "nightly", Cron: "0 3 * * *", TimeZone: "UTC",
		JobSpec: queue.Spec{Command: new("true")}})
	if err != nil || len(d.Notes) != 1 {
		t.Errorf("schedule: got %q, %v, want one note", d.Notes, err)
	}
}

// If the service does not start at boot, the reply to an edit has a note if the edit delays a job by more than
// an hour.
func TestEditReplyNotesMissingStartAtBoot(t *testing.T) {
	s := newSQLiteTestAPI(t)
	s.StartAtBootAdvice = func() string { return "do" }
	ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
	one, err := s.Enqueue(ctx, control.EnqueueParams{JobSpec: queue.Spec{Command: new("true")}})
	if err != nil {
		t.Fatal(err)
	}
	for set, noted := range map[string]bool{
		`{"delay":"1h"}`: false, `{"delay":"2h"}`: true, `{"run_at":"2999-01-01T00:00:00Z"}`: true, `{"run_at":null}`: false,
		`{"priority":1}`: false,
	} {
		got, err := s.EditJobs(ctx, control.JobEditParams{JobSelection: control.JobSelection{IDs: control.JobIDs{one.JobID}},
			FieldsToSet: json.RawMessage(set)})
		if err != nil || len(got.Notes) > 1 || noted != (len(got.Notes) == 1) {
			t.Errorf("%s: got the notes %q, %v, want one: %v", set, got.Notes, err, noted)
		}
	}
	got, err := s.EditJobs(ctx, control.JobEditParams{JobSelection: control.JobSelection{IDs: control.JobIDs{"missing"}},
		FieldsToSet: json.RawMessage(`{"delay":"2h"}`)})
	if err != nil || len(got.Notes) > 0 {
		t.Errorf("no job is changed: got the notes %q, %v, want none", got.Notes, err)
	}
}

// The reply says how many attempts the new jobs have at most. If the request created no job, because the job already
// existed, the reply does not contain this number.
func TestEnqueueReplyContainsHighestMaxAttempts(t *testing.T) {
	s := newSQLiteTestAPI(t)
	ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
	spec := func(retries int64) queue.Spec { return queue.Spec{Command: new("true"), MaxRetries: &retries} }
	for i, want := range []int{1, 2, 3} {
		got, err := s.Enqueue(ctx, control.EnqueueParams{JobSpec: spec(int64(i)), IdempotencyKey: "k" + string(rune('0'+i))})
		if err != nil || got.MaxAttempts != want {
			t.Errorf("%d retries: got %d attempts, %v, want %d", i, got.MaxAttempts, err, want)
		}
	}
	again, err := s.Enqueue(ctx, control.EnqueueParams{JobSpec: spec(2), IdempotencyKey: "k2"})
	if err != nil || !again.AlreadyExisted || again.MaxAttempts != 0 {
		t.Errorf("again: got %+v, %v", again, err)
	}
	many, err := s.EnqueueBatch(ctx, control.EnqueueBatchParams{Commit: true,
		Jobs: []queue.Spec{spec(0), spec(4), spec(1)}})
	if err != nil || many.MaxAttempts != 5 {
		t.Errorf("batch: got %d attempts, %v, want 5", many.MaxAttempts, err)
	}
}

// The reply contains the state of a new job whose dependency had already failed. If the request is a repetition,
// another job may have the id by now. The reply does not contain the state of that job.
func TestEnqueueReplyContainsStateOfNewJob(t *testing.T) {
	s := newSQLiteTestAPI(t)
	ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
	s.enqueueJobs(t, draftWithID("parent"))
	if _, err := s.CancelJobs(ctx, control.JobSelection{ID: "parent"}); err != nil {
		t.Fatal(err)
	}
	first := control.EnqueueParams{IdempotencyKey: "k", JobSpec: queue.Spec{ID: new("j"), Command: new("true"),
		DependsOn: []string{"parent"}}}
	second := control.EnqueueParams{JobSpec: first.JobSpec}
	second.JobSpec.OnDependencyFailure = new("hold")
	for _, duplicate := range []bool{false, true} {
		if got, err := s.Enqueue(ctx, first); err != nil || got.AlreadyExisted != duplicate || got.State != "cancelled" {
			t.Errorf("duplicate %t: got %+v, %v, want the state cancelled", duplicate, got, err)
		}
	}
	if v, err := s.RemoveJobs(ctx, control.JobRemoveParams{JobSelection: control.JobSelection{ID: "j"}}); err != nil ||
		len(v.ChangedJobIDs) != 1 {
		t.Fatalf("got %+v, %v", v, err)
	}
	if other, err := s.Enqueue(ctx, second); err != nil || other.State != "held" {
		t.Fatalf("another job with the id: got %+v, %v", other, err)
	}
	if got, err := s.Enqueue(ctx, first); err != nil || !got.AlreadyExisted || got.State != "" {
		t.Errorf("repeated after another job got the id: got %+v, %v, want a duplicate without a state", got, err)
	}
}

// Doctor warns if the service does not start at boot, and says what to do.
func TestDoctorWarnsThatServiceDoesNotStartAtBoot(t *testing.T) {
	s := newSQLiteTestAPI(t)
	if list := s.ExamineStartAtBoot(); len(list) > 0 {
		t.Errorf("if it is not known: %+v", list)
	}
	s.StartAtBootAdvice = func() string { return "do" }
	if list := s.ExamineStartAtBoot(); len(list) != 1 || list[0].CheckName != "boot" ||
		list[0].Level != "warning" ||
		list[0].Advice != "do" {
		t.Errorf("got %+v, want a warning", list)
	}
	if !slices.ContainsFunc(doctor.SummarizeFindings(s.ExamineStartAtBoot()).Findings,
		func(f control.Finding) bool { return f.Advice == "do" }) {
		t.Error("the diagnosis leaves it out")
	}
}
