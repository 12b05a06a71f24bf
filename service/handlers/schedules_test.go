package handlers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// A paused schedule stays paused when a new definition replaces it.
func TestReplacedScheduleStaysPaused(t *testing.T) {
	s := newSQLiteTestAPI(t)
	ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
	add := func(cron string) control.ScheduleDetail {
		d, err := s.AddSchedule(ctx, control.ScheduleAddParams{Name: "n", Cron: cron, TimeZone: "UTC", ReplaceExisting: true,
			JobSpec: queue.Spec{Command: new("true")}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	add("0 3 * * *")
	before, err := s.PauseSchedule(ctx, control.ScheduleNameParams{Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	if d := add("0 4 * * *"); !d.Paused || d.PausedAt != before.PausedAt || d.NextAt != 0 || d.Cron != "0 4 * * *" {
		t.Errorf("the schedule is %+v", d)
	}
	if d, err := s.ResumeSchedule(ctx, control.ScheduleNameParams{Name: "n"}); err != nil || d.Paused ||
		d.NextAt == 0 {
		t.Errorf("after resume, the schedule is %+v, %v", d, err)
	}
}

// The right of a user, and the owner of a schedule, determine what the user may see and do with the schedule.
func TestRightsLimitScheduleAccess(t *testing.T) {
	s := newSQLiteTestAPI(t)
	reader, owner2, other := contextAsPeer(t, 3001, control.RightRead), contextAsPeer(t, ownerUID, control.RightSubmit),
		contextAsPeer(t, 3002, control.RightSubmit)
	operator, admin := contextAsPeer(t, 3003, control.RightOperate), contextAsPeer(t, 3004, control.RightAdmin)
	add := func(ctx context.Context, cron string, replace bool) error {
		_, err := s.AddSchedule(ctx, control.ScheduleAddParams{Name: "n", Cron: cron, TimeZone: "UTC",
			ReplaceExisting: replace,
			JobSpec:         queue.Spec{Command: new("secret"), Env: map[string]string{"A": "b"}}})
		return err
	}
	want := func(what string, err, code error) {
		t.Helper()
		if !errors.Is(err, code) {
			t.Errorf("%s: got %v, want %v", what, err, code)
		}
	}
	name := control.ScheduleNameParams{Name: "n"}
	want("add", add(owner2, "0 3 * * *", false), nil)
	want("add of the same again", add(owner2, "0  3 * * *", false), nil)
	want("another's of the same name", add(other, "0 3 * * *", false), queue.ErrExists)
	want("another's with replace", add(other, "0 3 * * *", true), queue.ErrDenied)
	want("an operator's with replace", add(operator, "0 3 * * *", true), queue.ErrDenied)
	for _, c := range []struct {
		who   string
		ctx   context.Context
		shows bool
		may   error
	}{
		{"a reader", reader, false, queue.ErrDenied}, {"another one", other, false, queue.ErrDenied},
		{"an operator", operator, true, nil}, {"the owner", owner2, true, nil}, {"an admin", admin, true, nil},
	} {
		d, err := s.ShowSchedule(c.ctx, name)
		want(c.who+" shows", err, nil)
		page, err := s.ListSchedules(c.ctx, control.ScheduleListParams{})
		want(c.who+" lists", err, nil)
		_, inSpec := d.JobSpec["command"]
		if (d.Command == "secret") != c.shows || inSpec != c.shows || len(page.Schedules) != 1 ||
			(page.Schedules[0].Command == "secret") != c.shows {
			t.Errorf("%s sees %+v and %+v", c.who, d, page)
		}
		if env, _ := d.JobSpec["env"].(map[string]string); (env["A"] == "b") != (c.who == "the owner") {
			t.Errorf("%s sees the environment %v", c.who, env)
		}
		_, err = s.PauseSchedule(c.ctx, name)
		want(c.who+" pauses", err, c.may)
		_, err = s.ResumeSchedule(c.ctx, name)
		want(c.who+" resumes", err, c.may)
		run, err := s.RunScheduleNow(c.ctx, name)
		want(c.who+" runs", err, c.may)
		if err == nil {
			j, err := s.Store.GetJob(t.Context(), run.JobID)
			if err != nil || j.UID != ownerUID || j.Schedule != "n" {
				t.Errorf("%s created %+v, %v", c.who, j, err)
			}
			if _, err := s.CancelJobs(owner2, control.JobSelection{ID: control.JobID(run.JobID)}); err != nil {
				t.Error(err)
			}
		}
	}
	_, err := s.RemoveSchedule(other, name)
	want("another one removes", err, queue.ErrDenied)
	want("an admin replaces", add(admin, "0 4 * * *", true), nil)
	sched, _, err := s.Store.GetSchedule(t.Context(), "n")
	if err != nil || sched.OwnerUID != 3004 {
		t.Errorf("the schedule belongs to %d, %v", sched.OwnerUID, err)
	}
	_, err = s.RemoveSchedule(owner2, name)
	want("the former owner removes", err, queue.ErrDenied)
	_, err = s.RemoveSchedule(operator, name)
	want("an operator removes", err, nil)
	_, err = s.ShowSchedule(owner2, name)
	want("show of a removed one", err, queue.ErrNotFound)
}

// Adding a schedule fails if a different schedule has the same name. The error names the fields that differ.
// For example, the jitter of the schedule and the jitter of its jobs' retries are different fields.
func TestScheduleAddNamesDifferingFields(t *testing.T) {
	s := newSQLiteTestAPI(t)
	ctx := contextAsPeer(t, ownerUID, control.RightSubmit)
	add := func(p control.ScheduleAddParams) error {
		p.Name, p.TimeZone = "n", "UTC"
		_, err := s.AddSchedule(ctx, p)
		return err
	}
	spec := queue.Spec{Command: new("true"), BackoffJitter: new(0.5)}
	changed := spec
	changed.BackoffJitter = new(0.7)
	if err := add(control.ScheduleAddParams{Cron: "0 3 * * *", JobSpec: spec}); err != nil {
		t.Fatal(err)
	}
	if err := add(control.ScheduleAddParams{Cron: "0 3 * * *", JobSpec: spec}); err != nil {
		t.Errorf("the same schedule: %v", err)
	}
	for want, p := range map[string]control.ScheduleAddParams{
		"a different jitter;":       {Cron: "0 3 * * *", JobSpec: changed},
		"a different cron, jitter;": {Cron: "0 4 * * *", JobSpec: spec, Jitter: control.Duration(time.Minute)},
	} {
		if err := add(p); !errors.Is(err, queue.ErrExists) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a refusal with %q", err, want)
		}
	}
}
